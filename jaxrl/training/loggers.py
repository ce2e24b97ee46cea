"""Sinks: where a run's rows go. A row is a flat dict of numbers, one every `log_every` updates.

Counters (`update`, `steps`, `episodes`) are totals; `episode_return` and `episode_length` are
means over the episodes that ended since the row before, absent if none did; losses are means over
the updates; `policy_lag` is by how many gradient steps the learner was ahead of the policy that
acted, a mean over batches. `seconds`, `steps_per_second` and the gauges (`jaxrl.training.throughput`) are the
only fields that depend on the machine's speed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import time
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

Row = dict[str, float]


class Sink(Protocol):
    """Something that takes rows."""

    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


class JsonlSink:
    """One JSON object a line; on resume, rows after the checkpoint are dropped first."""

    def __init__(self, path: Path, resume_from: int = 0):
        rows = [row for row in read_jsonl(path) if row["update"] <= resume_from]
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
        temporary.replace(path)
        self._file = path.open("a", buffering=1)

    def write(self, row: Row) -> None:
        self._file.write(json.dumps(row) + "\n")

    def close(self) -> None:
        self._file.close()


def read_jsonl(path: Path) -> list[Row]:
    """All whole rows of a metrics file; none if it does not exist."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:  # the line that a kill cut off
            break
    return rows


class TensorBoardSink:
    """Scalars over valid steps, for `tensorboard --logdir`."""

    def __init__(self, directory: Path, resume_from: int = 0):
        # Not SummaryWriter, whose thread dies on a full disk and leaves its users waiting.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.summary import scalar

        events: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        self._event, self._scalar = events.Event, scalar
        directory.mkdir(parents=True, exist_ok=True)
        self._events = EventsWriter(str(directory / "events"), f".{os.getpid()}")
        if resume_from:  # what was written from the next step on does not count
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
        with contextlib.suppress(OSError):  # what `write` has told already
            self._events.close()


class WandbSink:
    """Weights & Biases, if it is installed: `run(..., sinks=[WandbSink(project="x")])`."""

    def __init__(self, **init_arguments: Any):
        try:
            wandb = importlib.import_module("wandb")
        except ImportError as error:
            raise ImportError("WandbSink needs wandb: pip install wandb") from error
        self._run = wandb.init(**init_arguments)

    def write(self, row: Row) -> None:
        self._run.log(row, step=int(row["steps"]))

    def close(self) -> None:
        self._run.finish()


WIDE = 130
"""Columns of a terminal that has room for the gauges too."""


class ProgressBar:
    """Steps, steps per second, return, time left; says when it compiles."""

    def __init__(self, total_steps: int, visible: bool):
        self._console = Console(stderr=True)
        gauges = [TextColumn("{task.fields[gauges]}")] if self._console.width >= WIDE else []
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),  # what the others leave
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[score]}"),
            *gauges,
            TimeRemainingColumn(),
            console=self._console,
            disable=not visible,
        )
        self._visible = visible
        self._task = self._progress.add_task(
            "starting", total=total_steps, rate="", score="", gauges=""
        )
        self._progress.start()

    def say(self, text: str) -> None:
        """Show what is going on."""
        self._progress.update(self._task, description=text)

    def announce(self, text: str) -> None:
        """Leave a line above the bar."""
        if self._visible:
            self._progress.console.print(text)

    def advance(self, steps: int, rate: float, score: float | None, gauges: str) -> None:
        """Show where the run stands."""
        self._progress.update(
            self._task,
            completed=steps,
            rate=f"{rate:,.0f} steps/s",
            score="" if score is None else f"return {score:,.1f}",
            gauges=gauges,
        )

    def close(self) -> None:
        self._progress.stop()
