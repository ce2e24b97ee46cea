"""Sinks for the rows of a run: a file, TensorBoard and Weights & Biases.

A row is a flat dict of numbers over `log_every` updates. `update` and `steps` are totals since the
run began. `episode_return` and `episode_length` are means over the `episode_count` episodes that
ended since the row before, absent if none did. Losses are means over the updates; `policy_lag` is
the mean number of gradient steps by which the learner was ahead of the policy that acted. Only
`seconds`, `..._per_second`, `simulator_wait` and `simulator_idle` depend on the machine's speed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from jaxrl import checks
from jaxrl.files import rows as files
from jaxrl.files.intact import newest_seal
from jaxrl.files.whole import sync_descriptor, write_whole
from jaxrl.training.progress.rows import Row


class Sink(Protocol):
    """A place that takes rows: Python's numbers by name, `steps` and `update` among them."""

    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


class JsonlSink:
    """A file with one JSON object a line; opening it drops the rows after update `resume_from`.

    If a file is damaged, a warning says what is wrong, a copy is kept beside it, and its readable
    rows stay.

    Args:
      record: what the checkpoint from which a run resumes recorded of its rows, if anything.

    Raises:
      ValueError: if the file is another run's.
    """

    def __init__(
        self, path: str | Path, resume_from: int = 0, record: dict[str, Any] | None = None
    ):
        path, resume_from = checks.path("path", path), checks.step("resume_from", resume_from)
        lines = _lines_to_keep(path, resume_from, record)
        write_whole(path, lines)
        self._recorder = files.Recorder(lines)
        self._file = path.open("a", buffering=1)

    def write(self, row: Row) -> None:
        line = json.dumps(row) + "\n"
        self._file.write(line)
        self._recorder.add(line.encode())

    def record(self) -> dict[str, Any]:
        """Write the rows so far to the disk; return their record for the next checkpoint."""
        sync_descriptor(self._file.fileno())
        return self._recorder.record()

    def close(self) -> None:
        self._file.close()


def _lines_to_keep(path: Path, update: int, record: dict[str, Any] | None) -> bytes:
    """Return the lines of a metrics file that are of updates up to `update`."""
    found = files.read(path, record)
    if found.is_foreign:
        raise ValueError(
            f"{found.report}, and neither the first nor the last of these lines is left: it is "
            "another run's, or was written anew. Copy this run's own file back, or move this one "
            "away to go on without the rows before"
        )
    if record is not None and found.is_intact:
        recorded = found.data[: record["size"]]
        later = found.rows[recorded.count(b"\n") :]  # an evaluation that a resume repeated
        return recorded + _lines(row for row in later if row["update"] <= update)
    if found.report:
        kept = f"; a copy of it is {files.keep_copy(path, found.data)}" if found.data else ""
        warnings.warn(f"{found.report}. Its readable rows stay{kept}", stacklevel=4)
    return _lines(row for row in found.rows if row["update"] <= update)


def _lines(rows: Iterable[Row]) -> bytes:
    """Return the lines of a metrics file with these rows."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def read_jsonl(path: Path) -> list[Row]:
    """Return the rows of a metrics file; none if it does not exist.

    A warning says what is wrong with it: which lines are no rows, and whether it differs from what
    the newest checkpoint beside it recorded.
    """
    found = files.read(path, newest_seal(path.parent / "checkpoints").get("rows"))
    if found.report:
        warnings.warn(f"{found.report}. Its readable rows are used", stacklevel=2)
    return found.rows


class TensorBoardSink:
    """TensorBoard's event file, scalars over environment steps; for `tensorboard --logdir`.

    TensorBoard ignores events after step `resume_from` that an earlier process wrote.
    """

    def __init__(self, directory: str | Path, resume_from: int = 0):
        directory = checks.path("directory", directory)
        resume_from = checks.step("resume_from", resume_from)
        # Not SummaryWriter: its thread dies on a full disk, and its users wait for ever.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.summary import scalar

        events: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        self._event, self._scalar = events.Event, scalar
        directory.mkdir(parents=True, exist_ok=True)
        is_resumed = resume_from or any(directory.iterdir())
        self._events = EventsWriter(str(directory / "events"), f".{os.getpid()}")
        if is_resumed:
            begin = events.SessionLog(status=events.SessionLog.START)
            self._write(events.Event(step=resume_from + 1, session_log=begin))

    def write(self, row: Row) -> None:
        for name, value in row.items():
            if name not in ("update", "steps"):
                summary = self._scalar(name, value)
                self._write(self._event(step=int(row["steps"]), summary=summary))
        self._events.flush()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._events.write_event(event)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # `write` has raised it already
            self._events.close()


class WandbSink:
    """Weights & Biases, if it is installed: `run(..., sinks=[WandbSink(project="x")])`."""

    def __init__(self, **init_arguments: Any):
        try:
            wandb = importlib.import_module("wandb")
        except ImportError as error:
            raise ImportError(f"WandbSink needs wandb: pip install wandb ({error})") from error
        self._run = wandb.init(**init_arguments)

    def write(self, row: Row) -> None:
        self._run.log(row, step=int(row["steps"]))

    def close(self) -> None:
        self._run.finish()
