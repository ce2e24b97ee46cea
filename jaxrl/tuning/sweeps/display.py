"""What a sweep shows while it runs: its lanes, and the best trials so far."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from jaxrl.tuning.sweeps.ranking import leaderboard

TOP = 5


class Board:
    """A live table on the terminal."""

    def __init__(self, description: dict[str, Any], visible: bool):
        self._description = description
        self._num_trials = description["scheduler"]["num_trials"]
        self._num_phases = description["scheduler"]["num_phases"]
        self._steps = 0.0
        self._console = Console(stderr=True)
        self._live = Live(Text("starting"), console=self._console, auto_refresh=False)
        self._visible = visible

    def start(self) -> None:
        if self._visible:
            self._live.start()

    def say(self, text: str) -> None:
        """Show what is going on before the first phase."""
        if self._visible:
            self._live.update(Text(text), refresh=True)

    def announce(self, text: str) -> None:
        """Leave a line above the table."""
        if self._visible:
            self._live.console.print(text, highlight=False)

    def count(self, steps: float) -> None:
        """Environment steps that were just done."""
        self._steps += steps

    def show(
        self, seconds: float, lanes: list[tuple[int, int, int]], trials: list[dict[str, Any]]
    ) -> None:
        """Lanes with their trial and phase, and all trials as in `sweep.json`."""
        if self._visible:
            head = Text(headline(seconds, self._steps, trials, self._num_trials))
            tables = self._lanes(lanes, trials), self._best(trials)
            self._live.update(Group(head, *tables), refresh=True)

    def close(self) -> None:
        if self._visible:
            self._live.stop()

    def _lanes(self, lanes: list[tuple[int, int, int]], trials: list[dict[str, Any]]) -> Table:
        of_index = {trial["trial"]: trial for trial in trials}
        table = Table("lane", "trial", "phase", "last score", "values")
        for lane, index, phase in lanes:
            trial = of_index[index]
            last = trial["scores"][-1] if trial["scores"] else None
            place = f"{phase + 1}/{self._num_phases}"
            table.add_row(str(lane), str(index), place, _score(last), _values(trial["values"]))
        return table

    def _best(self, trials: list[dict[str, Any]]) -> Table:
        table = Table("best so far", "trial", "phases", "status", "values")
        for row in leaderboard(trials)[:TOP]:
            phases, values = str(row["phases"]), _values(row["values"])
            table.add_row(
                _score(row["best_score"]), str(row["trial"]), phases, row["status"], values
            )
        return table


def headline(seconds: float, steps: float, trials: list[dict[str, Any]], num_trials: int) -> str:
    """How far the sweep is, and how long it may still take."""
    ended = sum(trial["status"] in ("stopped", "completed") for trial in trials)
    left = f", about {seconds * (num_trials / ended - 1):,.0f} s left" if ended else ""
    return (
        f"{ended}/{num_trials} trials ended, {len(trials) - ended} begun, {seconds:,.0f} s, "
        f"{steps / max(seconds, 1e-9):,.0f} steps/s{left}"
    )


def _score(score: Any) -> str:
    return f"{score:.2f}" if isinstance(score, float) else str(score or "")


def _values(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )
