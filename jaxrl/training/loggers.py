"""Sinks for the rows of a run: files, TensorBoard, Weights & Biases, the terminal and a picture.

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from jaxrl.training.progress import RECENT_EPISODES, Row


class Sink(Protocol):
    """A place that takes rows."""

    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


class JsonlSink:
    """A file with one JSON object a line; opening it drops the rows after update `resume_from`."""

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


def open_sinks(run_dir: Path, update: int, steps: int) -> list[Sink]:
    """Open the files of a run directory that take rows; drop rows after `update` and `steps`."""
    return [
        JsonlSink(run_dir / "metrics.jsonl", update),
        TensorBoardSink(run_dir / "tensorboard", steps),
    ]


def read_jsonl(path: Path) -> list[Row]:
    """Return all whole rows of a metrics file; none if it does not exist."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:  # a kill cut off the last line
            break
    return rows


class TensorBoardSink:
    """TensorBoard's event file, scalars over environment steps; for `tensorboard --logdir`.

    TensorBoard ignores events after step `resume_from` that an earlier process wrote.
    """

    def __init__(self, directory: Path, resume_from: int = 0):
        # Not SummaryWriter: its thread dies on a full disk, and its users wait for ever.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.summary import scalar

        events: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        self._event, self._scalar = events.Event, scalar
        directory.mkdir(parents=True, exist_ok=True)
        self._events = EventsWriter(str(directory / "events"), f".{os.getpid()}")
        if resume_from:
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
            raise ImportError("WandbSink needs wandb: pip install wandb") from error
        self._run = wandb.init(**init_arguments)

    def write(self, row: Row) -> None:
        self._run.log(row, step=int(row["steps"]))

    def close(self) -> None:
        self._run.finish()


WIDE_TERMINAL = 130
"""Columns of a terminal that has room for the throughput too."""


class ProgressBar:
    """A line in the terminal: phase of the run, steps, steps per second, return, time left."""

    def __init__(self, total_steps: int, visible: bool):
        self._console = Console(stderr=True)
        is_wide = self._console.width >= WIDE_TERMINAL
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),  # the room that the others leave
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[score]}"),
            *([TextColumn("{task.fields[throughput]}")] if is_wide else []),
            TimeRemainingColumn(),
            console=self._console,
            disable=not visible,
        )
        self._visible = visible
        self._task = self._progress.add_task(
            "starting", total=total_steps, rate="", score="", throughput=""
        )
        self._progress.start()

    def say(self, text: str) -> None:
        """Show the phase of the run, such as "compiling"."""
        self._progress.update(self._task, description=text)

    def announce(self, text: str) -> None:
        """Print a line above the bar."""
        if self._visible:
            self._progress.console.print(text)

    def advance(self, steps: int, rate: float, score: float | None, throughput: str) -> None:
        """Show the steps done, steps per second, mean return and throughput."""
        self._progress.update(
            self._task,
            completed=steps,
            rate=f"{rate:,.0f} steps/s",
            score="" if score is None else f"return {score:,.1f}",
            throughput=throughput,
        )

    def close(self) -> None:
        self._progress.stop()


def smoothed_returns(
    rows: Sequence[Row], episodes: int = RECENT_EPISODES, over: str = "steps"
) -> tuple[np.ndarray, np.ndarray]:
    """Return steps (or `seconds`), and the mean return of at least the last `episodes` episodes."""
    rows = [row for row in rows if row.get("episode_count", 0) > 0]
    counts = np.array([row["episode_count"] for row in rows])
    sums = np.array([row["episode_return"] for row in rows]) * counts
    count_until, sum_until = np.cumsum(counts), np.cumsum(sums)
    start = np.searchsorted(count_until, count_until - episodes, side="right") - 1
    before = lambda totals: np.where(start >= 0, totals[start], 0)  # noqa: E731
    means = (sum_until - before(sum_until)) / np.maximum(count_until - before(count_until), 1)
    return np.array([row[over] for row in rows]), means


def plot_curve(
    runs: dict[str, list[Row]], title: str, path: Path, baseline: float | None = None
) -> None:
    """Draw a PNG of the mean return of the last 100 episodes over steps, one line a run.

    Dots are evaluations; `baseline` is the random policy's return.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for label, rows in runs.items():
        steps, means = smoothed_returns(rows)
        line = axes.plot(steps, means, label=label)[0]
        evaluated = [row for row in rows if "eval_return" in row]
        axes.plot(
            [row["steps"] for row in evaluated],
            [row["eval_return"] for row in evaluated],
            "o",
            color=line.get_color(),
            markersize=4,
        )
    if baseline is not None:
        axes.axhline(baseline, color="gray", linestyle="--", label="random policy")
    axes.set(title=title, xlabel="environment steps", ylabel="return, mean of last 100 episodes")
    axes.grid(alpha=0.3)
    if len(runs) > 1 or baseline is not None:
        axes.legend(frameon=False)
    figure.savefig(path)


def plot_run(run_dir: Path, title: str) -> Path:
    """Draw `curve.png` of a run and return its path."""
    path = run_dir / "curve.png"
    plot_curve({run_dir.name: read_jsonl(run_dir / "metrics.jsonl")}, title, path)
    return path
