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
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from jaxrl import checks
from jaxrl.files import rows as files
from jaxrl.files.intact import newest_seal
from jaxrl.files.whole import sync, sync_descriptor
from jaxrl.training.progress import RECENT_EPISODES, Row


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
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(lines)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
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


LOG_SECONDS = 30.0
"""Seconds between two lines of a log that is no terminal."""
WIDE_TERMINAL = 130
"""Columns of a terminal that has room for the throughput too."""


class LogLines:
    """Lines that say how far some work is, one every `LOG_SECONDS`, for logs of batch jobs.

    A thread prints them, so that they come during long compilations too.

    Args:
      describe: returns the line.
    """

    def __init__(self, console: Console, describe: Callable[[], str]):
        self._console, self._describe = console, describe
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._print, daemon=True, name="log lines")

    def start(self) -> None:
        """Print lines from now on."""
        self._thread.start()

    def close(self) -> None:
        """Print a last line, and no more."""
        if self._thread.is_alive():
            self._closed.set()
            self._thread.join()
            self._line()

    def _print(self) -> None:
        while not self._closed.wait(LOG_SECONDS):
            self._line()

    def _line(self) -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        text = f"{now} {self._describe()}"
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class ProgressBar:
    """A line about a run: its phase, steps, steps per second, return, time left.

    In a terminal it moves; elsewhere a new one is printed every `LOG_SECONDS`.
    """

    def __init__(self, total_steps: int, visible: bool):
        self._console = Console(stderr=True)
        in_terminal = self._console.is_terminal
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
            disable=not (visible and in_terminal),
        )
        self._visible = visible
        self._lines = LogLines(self._console, self._text)
        self._task = self._progress.add_task(
            "starting", total=total_steps, rate="", score="", throughput=""
        )
        self._progress.start()
        if visible and not in_terminal:
            self._lines.start()

    def say(self, text: str) -> None:
        """Show the phase of the run, such as "compiling"."""
        self._progress.update(self._task, description=text)

    def begin_at(self, steps: int) -> None:
        """Show the steps that a resumed run has done."""
        self._progress.reset(self._task, completed=steps)

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
        self._lines.close()
        self._progress.stop()

    def _text(self) -> str:
        """Return the line as a log has it."""
        task = self._progress.tasks[0]
        parts = [
            task.description,
            f"{task.completed:,.0f}/{task.total:,.0f} steps",
            task.fields["rate"],
            task.fields["score"],
            task.fields["throughput"],
            "" if task.time_remaining is None else f"{format_clock(task.time_remaining)} left",
        ]
        return ", ".join(filter(None, parts))


def format_clock(seconds: float) -> str:
    """Return a duration as hours:minutes:seconds."""
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"


def smoothed_returns(
    rows: Sequence[Row], episodes: int = RECENT_EPISODES, over: str = "steps"
) -> tuple[np.ndarray, np.ndarray]:
    """Return steps (or `seconds`), and the mean return of at least the last `episodes` episodes."""
    rows = [r for r in rows if r.get("episode_count", 0) > 0 and {"episode_return", over} <= {*r}]
    counts = np.array([row["episode_count"] for row in rows])
    sums = np.array([row["episode_return"] for row in rows]) * counts
    count_until, sum_until = np.cumsum([0, *counts]), np.cumsum([0, *sums])
    # How many of the first rows each mean leaves out.
    skipped = np.searchsorted(count_until[1:], count_until[1:] - episodes, side="right")
    count, total = (x[1:] - x[skipped] for x in (count_until, sum_until))
    return np.array([row[over] for row in rows]), total / np.maximum(count, 1)


def plot_run(run_dir: Path, title: str) -> Path:
    """Draw `curve.png` of a run and return its path.

    The line is the mean return of the last 100 episodes over steps, dots are evaluations.
    """
    from matplotlib.figure import Figure

    rows = read_jsonl(run_dir / "metrics.jsonl")
    evaluated = [row for row in rows if {"steps", "eval_return"} <= {*row}]
    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    line = axes.plot(*smoothed_returns(rows))[0]
    steps, returns = [[row[x] for row in evaluated] for x in ("steps", "eval_return")]
    axes.plot(steps, returns, "o", color=line.get_color(), markersize=4)
    axes.set_title(title, parse_math=False)
    axes.set(xlabel="environment steps", ylabel="return, mean of last 100 episodes")
    axes.grid(alpha=0.3)
    path = run_dir / "curve.png"
    figure.savefig(path)
    return path
