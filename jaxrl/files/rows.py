"""The rows of `metrics.jsonl`: all that a damaged file still has, and what is wrong with it.

The seal of a checkpoint records the rows before it: their size, their digest, and the digests of
the first and the last. So lines that were edited, cut or added, and the file of another run, are
found.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.files import schema

_MOST_REPORTED = 20


class Found(NamedTuple):
    """Content of a metrics file."""

    data: bytes
    rows: list[dict[str, float]]
    report: str
    """A text that names the file and says what is wrong with it; empty if nothing is."""
    is_intact: bool
    """Whether it begins with the recorded rows."""
    is_foreign: bool
    """Whether all lines are rows, but neither the first nor the last recorded one is among them."""


class Recorder:
    """Computes the record of the rows that a file has, while they are written."""

    def __init__(self, lines: bytes = b""):
        self._sha256, self._size, self._ends = hashlib.sha256(), 0, list[str]()
        for line in lines.splitlines(keepends=True):
            self.add(line)

    def add(self, line: bytes) -> None:
        """Take in a line with its end."""
        self._sha256.update(line)
        self._size += len(line)
        self._ends[1:] = [_digest(line)]

    def record(self) -> dict[str, Any]:
        """Return the record of the lines so far, as JSON."""
        return {"size": self._size, "sha256": self._sha256.hexdigest(), "ends": list(self._ends)}


def read(path: Path, record: dict[str, Any] | None = None) -> Found:
    """Read the rows of a metrics file; none if it does not exist.

    A row is an object of numbers with an integer `update`, and no row has a smaller one than the
    row before it. Of rows that are out of order, as many as possible stay. A last line that a kill
    cut off is no damage.

    Args:
      record: of the rows that the file must begin with; None before the first checkpoint.
    """
    data = path.read_bytes() if path.exists() else b""
    *lines, last = data.split(b"\n")
    rows: list[tuple[int, dict[str, float]]] = []
    damaged: list[tuple[int, str]] = []
    for number, line in enumerate([*lines, last], start=1):
        try:
            rows.append((number, _parse_row(line)))
        except ValueError as error:
            if number <= len(lines):
                damaged.append((number, str(error)))
    kept = set(_longest_rising([row["update"] for _, row in rows]))
    damaged += [(rows[i][0], "is out of order") for i in range(len(rows)) if i not in kept]
    change = "" if record is None else _change(data, record)
    ends = set[str]() if record is None else {*record["ends"]}
    reports = [change] if change else []
    if damaged:
        reasons = [f"line {number} {reason}" for number, reason in sorted(damaged)[:_MOST_REPORTED]]
        if more := len(damaged) - len(reasons):
            reasons.append(f"and {more} more")
        count = "1 damaged line is" if len(damaged) == 1 else f"{len(damaged)} damaged lines are"
        reports.append(f"{count} left out: {'; '.join(reasons)}")
    return Found(
        data,
        [row for i, (_, row) in enumerate(rows) if i in kept],
        f"{path}: {'; '.join(reports)}" if reports else "",
        record is not None and not change,
        bool(change and rows and not damaged)
        and ends.isdisjoint(_digest(line + b"\n") for line in lines),
    )


def _change(data: bytes, record: dict[str, Any]) -> str:
    """Return how a file differs from the rows that were recorded; empty if it begins with them."""
    size = record["size"]
    if hashlib.sha256(data[:size]).hexdigest() == record["sha256"]:
        return ""
    if len(data) < size:
        return (
            f"{size - len(data)} of the {size} bytes that the newest checkpoint recorded are gone"
        )
    last = data[:size].count(b"\n")
    lines = f"lines 1 to {last} are not all" if last else "no line is"
    return f"{lines} as the newest checkpoint recorded"


def keep_copy(path: Path, data: bytes) -> Path:
    """Keep the data of a damaged file beside it, once; return the path of the copy."""
    number = 1
    while (copy := path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")).exists():
        if copy.read_bytes() == data:
            return copy
        number += 1
    copy.write_bytes(data)
    return copy


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _parse_row(data: bytes) -> dict[str, float]:
    """Return a row; raise `ValueError` that says why a line is none."""
    try:
        row = schema.parse(data)
    except UnicodeDecodeError as error:
        raise ValueError("is no UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError("is no JSON") from error
    except ValueError as error:
        raise ValueError(f"is unreadable: {error}") from error
    if not isinstance(row, dict):
        raise ValueError("is no object")
    if "update" not in row:
        raise ValueError("lacks update")
    if not float(row["update"] if schema.is_number(row["update"]) else "nan").is_integer():
        raise ValueError("update is no integer")
    for name, value in row.items():
        if not schema.is_number(value):
            raise ValueError(f"{name} is no number")
    return row


def _longest_rising(numbers: Sequence[float]) -> list[int]:
    """Return the indices of as many numbers as possible of which none is below an earlier one."""
    lowest_ends: list[float] = []  # of the best sequences of each length so far
    ends: list[int] = []
    before: list[int | None] = []
    for i, number in enumerate(numbers):
        length = bisect.bisect_right(lowest_ends, number)
        before.append(ends[length - 1] if length else None)
        lowest_ends[length : length + 1] = [number]
        ends[length : length + 1] = [i]
    index, kept = ends[-1] if ends else None, []
    while index is not None:
        kept.append(index)
        index = before[index]
    return kept[::-1]
