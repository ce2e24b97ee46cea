"""A line in the terminal, or in a log, about how far some work is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

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
