"""The display of a running sweep: a live table of its lanes and of the best trials so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from jaxrl.training.progress.bar import LogLines
from jaxrl.tuning.ranking import leaderboard, values_in

TOP = 5
"""How many of the best trials are shown."""
SHARE = 0.05
"""The share of a sweep's time that its display may take: there may be many trials."""


class Display:
    """A live table in the terminal; in a log, a line every 30 seconds.

    Args:
      description: what `sweep.json` says of the sweep besides its trials.
    """

    def __init__(self, description: dict[str, Any], is_visible: bool):
        is_finals = "finalists" in description["scheduler"]
        self._what = "runs of the finals" if is_finals else "trials"
        self._num_trials = description["scheduler"]["num_trials"]
        self._num_phases = description["scheduler"]["num_phases"]
        self._caps = [description.get(name) or math.inf for name in ("max_steps", "max_seconds")]
        self._due = 0.0
        console = Console(stderr=True)
        self._live = Live(Text("starting"), console=console, auto_refresh=False)
        self._line = "starting"
        self._lines = LogLines(console, lambda: self._line)
        self._is_visible, self._is_live = is_visible, is_visible and console.is_terminal

    def start(self) -> None:
        """Show the display until it is closed."""
        if self._is_live:
            self._live.start()
        elif self._is_visible:
            self._lines.start()

    def show_text(self, text: str) -> None:
        """Show a text in place of the tables, before there are any."""
        self._line = text
        if self._is_live:
            self._live.update(Text(text), refresh=True)

    def print_line(self, text: str) -> None:
        """Print a line above the tables, which stays."""
        if self._is_visible:
            self._live.console.print(text, highlight=False)

    def show(
        self,
        seconds: float,
        steps: int,
        count_elsewhere: Callable[[], int],
        running: list[tuple[int, int, int]],
        describe: Callable[[], list[dict[str, Any]]],
        is_last: bool = False,
    ) -> None:
        """Show the tables, unless nobody sees them or they were shown too shortly before.

        Args:
          seconds, steps: how long the sweep has taken, and the environment steps in this time.
          count_elsewhere: returns how many trials other workers have begun.
          running: lane, trial and phase of each lane that runs a trial.
          describe: returns all trials, as `sweep.json` has them.
          is_last: whether the tables stay as they are now, and so must be shown.
        """
        began = time.perf_counter()
        if not self._is_visible or (began < self._due and not is_last):
            return
        trials = describe()
        best = leaderboard(trials)[:TOP]
        score = f", best score {best[0]['best_score']:.2f}" if best else ""
        elsewhere = count_elsewhere()
        is_waiting = elsewhere and not (running or is_last)
        waits = ", waiting for other workers" if is_waiting else ""
        line = headline(seconds, steps, elsewhere, trials, self._num_trials, self._what)
        known = [] if elsewhere else trials  # nothing says how fast other workers are
        left = seconds_left(seconds, steps, known, self._num_trials, *self._caps)
        time_left = "" if is_last or math.isinf(left) else f", about {left:,.0f} s left"
        self._line = line + time_left + score + waits
        if self._is_live:
            tables = [self._lane_table(running, trials)] + [_best_table(best)] * bool(best)
            self._live.update(Group(Text(self._line), *tables), refresh=True)
        self._due = began + (time.perf_counter() - began) / SHARE

    def close(self) -> None:
        """Leave the terminal as it is now."""
        self._lines.close()
        if self._is_live:
            self._live.stop()

    def _lane_table(
        self, running: list[tuple[int, int, int]], trials: list[dict[str, Any]]
    ) -> Table:
        by_index = {trial["trial"]: trial for trial in trials}
        table = Table("lane", "trial", "phase", "last score", "values")
        for lane, index, phase in running:
            trial = by_index[index]
            last = trial["scores"][-1] if trial["scores"] else None
            place, values = f"{phase + 1}/{self._num_phases}", values_in(trial, phase)
            table.add_row(str(lane), str(index), place, _score(last), _values(values))
        return table


def _best_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("best so far", "trial", "phases", "status", "values")
    for row in rows:
        score, trial, phases = _score(row["best_score"]), str(row["trial"]), str(row["phases"])
        table.add_row(score, trial, phases, row["status"], _values(row["values"]))
    return table


def headline(
    seconds: float,
    steps: int,
    elsewhere: int,
    trials: list[dict[str, Any]],
    num_trials: int,
    what: str = "trials",
) -> str:
    """Return a line that says how far the sweep is.

    Args:
      trials: of this worker.
      what: what the trials are called.
    """
    ended = _num_ended(trials)
    others = f", {elsewhere} by other workers" if elsewhere else ""
    return (
        f"{ended}/{num_trials} {what} ended, {len(trials) - ended} under way{others}, "
        f"{seconds:,.0f} s, {steps / max(seconds, 1e-9):,.0f} steps/s"
    )


def seconds_left(
    seconds: float,
    steps: int,
    trials: list[dict[str, Any]],
    num_trials: int,
    max_steps: float,
    max_seconds: float,
) -> float:
    """Return the seconds until the last trial ends or a cap is reached, at the pace so far.

    They are infinite as long as there is no cap and no trial has ended.
    """
    shares = [seconds / max_seconds, steps / max_steps, _num_ended(trials) / num_trials]
    done = max(shares)
    return max(seconds / done - seconds, 0.0) if done else math.inf


def _num_ended(trials: list[dict[str, Any]]) -> int:
    return sum(trial["status"] in ("stopped", "completed") for trial in trials)


def _score(score: Any) -> str:
    return f"{score:.2f}" if isinstance(score, float) else str(score or "")


def _values(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )
