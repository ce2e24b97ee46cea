"""Metrics of updates, summed up to a run's totals and rows.

Beside returns and losses, a row has what GA3C (Babaeizadeh et al. 2017) watches: predictions
(actions chosen) and trainings (gradient steps) per second.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.files import schema

Row = dict[str, float]
SUMS = (
    "episode_return_sum", "episode_length_sum", "episode_count", "valid_steps", "gradient_steps"
)  # fmt: skip
"""The metrics that a row adds up over its updates; it averages the others."""
NEEDED = frozenset(SUMS[:-1])
"""The metrics that every algorithm's update has."""
RECENT_EPISODES = 100

_NUMBERS = schema.list_of(schema.NUMBER)
_PAIR = schema.Kind("a pair of numbers", lambda x: _NUMBERS.holds(x) and len(x) == 2)
COLUMNS = schema.Kind(
    "an object of lists of numbers",
    lambda x: isinstance(x, dict) and all(map(_NUMBERS.holds, x.values())),
)
PROGRESS: schema.Table = {
    "update": schema.Field(schema.INDEX),
    "steps": schema.Field(schema.INDEX),
    "episodes": schema.Field(schema.INDEX),
    "seconds": schema.Field(schema.NUMBER),
    "compile_seconds": schema.Field(schema.NUMBER),
    "recent": schema.Field(schema.list_of(_PAIR)),
    "row": schema.Field(COLUMNS),
    "row_seconds": schema.Field(schema.NUMBER),
}
"""The fields of a run's progress in its checkpoints."""


@dataclasses.dataclass
class Progress:
    """Totals since the first update, over all resumes; every checkpoint holds them."""

    update: int = 0
    steps: int = 0
    """Valid environment steps."""
    episodes: int = 0
    seconds: float = 0.0
    """Time of training, without compilation, evaluation and checkpoints."""
    compile_seconds: float = 0.0
    recent: list[list[float]] = dataclasses.field(default_factory=list)
    """`[sum of returns, number]` of the episodes of the last rows, at least `RECENT_EPISODES`."""
    row: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    """Metrics of the updates since the last row."""
    row_seconds: float = 0.0

    @classmethod
    def from_json(cls, saved: Any, update: int | None, path: Path) -> Progress:
        """Return the progress that a checkpoint holds.

        Args:
          saved: `vars` of the progress.
          update: the checkpoint's number.
          path: its file, for errors.

        Raises:
          ValueError: if it is no progress or that of another update.
        """
        try:
            schema.check(saved, PROGRESS)
            check_number("update", saved["update"], update)
            return cls(**{name: saved[name] for name in PROGRESS})
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from error

    @property
    def mean_return(self) -> float | None:
        """Return the mean of at least the last 100 episodes; None before the first."""
        total = sum(total for total, _ in self.recent) + sum(self.row.get("episode_return_sum", []))
        count = sum(count for _, count in self.recent) + sum(self.row.get("episode_count", []))
        return total / count if count else None

    def totals(self) -> dict[str, Any]:
        """Return the totals that a run's summary shows."""
        return {
            "updates": self.update,
            "valid_steps": self.steps,
            "seconds": self.seconds,
            "steps_per_second": self.steps / self.seconds if self.seconds else None,
            "compile_seconds": self.compile_seconds,
            "episodes": self.episodes,
            "mean_return": self.mean_return,
        }

    @property
    def row_updates(self) -> int:
        """Return the number of updates since the last row."""
        return len(next(iter(self.row.values()), []))

    def add(self, metrics: dict[str, np.ndarray], seconds: float) -> None:
        """Add updates with metrics `[updates]`, which took `seconds` together."""
        self.update += len(metrics["valid_steps"])
        self.steps += int(metrics["valid_steps"].sum())
        self.episodes += int(metrics["episode_count"].sum())
        self.seconds += seconds
        self.row_seconds += seconds
        for name, values in metrics.items():
            self.row.setdefault(name, []).extend(values.astype(np.float64).tolist())

    def end_row(self, steps_per_update: int) -> Row:
        """Return the row of the updates since the last one: totals, means, losses and rates."""
        updates, seconds = self.row_updates, max(self.row_seconds, 1e-9)
        columns = {name: np.array(values) for name, values in self.row.items()}
        sums = {name: float(x.sum()) for name, x in columns.items() if name in SUMS}
        means = {name: float(x.mean()) for name, x in columns.items() if name not in SUMS}
        self.row, self.row_seconds = {}, 0.0
        count = sums["episode_count"]
        row = {
            "update": self.update,
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "steps_per_second": round(sums["valid_steps"] / seconds, 1),
            "episode_count": count,
        }
        if count:
            self.recent.append([sums["episode_return_sum"], count])
            row["episode_return"] = sums["episode_return_sum"] / count
            row["episode_length"] = sums["episode_length_sum"] / count
        while sum(n for _, n in self.recent[1:]) >= RECENT_EPISODES:
            self.recent.pop(0)
        row |= means
        row["predictions_per_second"] = round(updates * steps_per_update / seconds, 1)
        if "gradient_steps" in sums:
            row["trainings_per_second"] = round(sums["gradient_steps"] / seconds, 2)
        return row


def check_number(name: str, value: int, update: int | None) -> None:
    """Raise `ValueError` unless a field has the number of the checkpoint that it is in."""
    if value != update:
        raise ValueError(f"{name} must be {update}, the number of the checkpoint, got {value}")
