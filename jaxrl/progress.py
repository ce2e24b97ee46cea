"""Where a run stands, and the rows that say so."""

from __future__ import annotations

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

    @property
    def mean_return(self) -> float | None:
        """Over (at least) the last 100 episodes."""
        count = sum(count for _, count in self.recent)
        return sum(total for total, _ in self.recent) / count if count else None

    def count(self, row: Row, updates: int) -> None:
        """Take in a row that covers so many updates."""
        self.update += updates
        self.steps += int(row["valid_steps"])
        self.episodes += int(row["episode_count"])
        if row["episode_count"]:
            self.recent.append([row["episode_return_sum"], row["episode_count"]])
        while self.recent and sum(n for _, n in self.recent) - self.recent[0][1] >= 100:
            self.recent.pop(0)


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
