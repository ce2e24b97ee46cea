"""Where a run stands, and the rows that say so."""

from __future__ import annotations

import numpy as np

from jaxrl.chunk import SUMS
from jaxrl.logging import Row


class Progress:
    """Totals since the first update, over all resumes; saved with each checkpoint."""

    def __init__(self) -> None:
        self.update = 0
        self.steps = 0
        self.episodes = 0
        self.seconds = 0.0
        self.compile_seconds = 0.0
        self.recent: list[list[float]] = []  # [return sum, count] of the last rows, >= 100 episodes
        self.row: dict[str, list[float]] = {}  # metrics of the updates since the last row
        self.row_seconds = 0.0

    @property
    def mean_return(self) -> float | None:
        """Over (at least) the last 100 episodes."""
        count = sum(count for _, count in self.recent)
        return sum(total for total, _ in self.recent) / count if count else None

    @property
    def row_updates(self) -> int:
        """Updates since the last row."""
        return len(next(iter(self.row.values()), []))

    def count(self, metrics: dict[str, np.ndarray], seconds: float) -> None:
        """Take in some updates, metrics `[updates]`, which took so long."""
        self.update += len(metrics["valid_steps"])
        self.steps += int(metrics["valid_steps"].sum())
        self.episodes += int(metrics["episode_count"].sum())
        self.seconds += seconds
        self.row_seconds += seconds
        for name, values in metrics.items():
            self.row.setdefault(name, []).extend(values.astype(np.float64).tolist())

    def end_row(self) -> tuple[Row, int, float]:
        """The row of the updates since the last one; how many they were, and their seconds."""
        updates, seconds = self.row_updates, self.row_seconds
        columns = {name: np.array(values) for name, values in self.row.items()}
        row = {name: float(x.sum() if name in SUMS else x.mean()) for name, x in columns.items()}
        if row["episode_count"]:
            self.recent.append([row["episode_return_sum"], row["episode_count"]])
        while self.recent and sum(n for _, n in self.recent) - self.recent[0][1] >= 100:
            self.recent.pop(0)
        self.row, self.row_seconds = {}, 0.0
        return row, updates, seconds


def public_row(row: Row, progress: Progress, seconds: float) -> Row:
    """A row as sinks get it: totals, means over episodes, losses."""
    count = row["episode_count"]
    means = {}
    if count:
        means = {
            "episode_return": row["episode_return_sum"] / count,
            "episode_length": row["episode_length_sum"] / count,
        }
    return {
        "update": progress.update,
        "steps": progress.steps,
        "seconds": round(progress.seconds, 3),
        "steps_per_second": round(row["valid_steps"] / max(seconds, 1e-9), 1),
        "episode_count": count,
        **means,
        **{name: value for name, value in row.items() if name not in SUMS},
    }
