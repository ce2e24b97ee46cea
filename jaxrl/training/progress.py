"""Metrics of updates, summed up to a run's totals and rows.

Beside returns and losses, a row has what GA3C (Babaeizadeh et al. 2017) watches: predictions
(actions chosen) and trainings (gradient steps) per second, and how long the program and the
simulators wait for each other.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxrl.envs.host import callback
from jaxrl.envs.host.callback import HostState
from jaxrl.envs.host.pools import HostTime

Row = dict[str, float]
SUMS = (
    "episode_return_sum", "episode_length_sum", "episode_count", "valid_steps", "gradient_steps"
)  # fmt: skip
"""The metrics that a row adds up over its updates; it averages the others."""
RECENT_EPISODES = 100


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

    @property
    def mean_return(self) -> float | None:
        """Return the mean of at least the last 100 episodes; None before the first."""
        count = sum(count for _, count in self.recent)
        return sum(total for total, _ in self.recent) / count if count else None

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


def simulator_time(state: Any) -> HostTime | None:
    """Return the time that a training state's host environments took, None without such.

    The sum over this machine's pools; call it outside `jit` only.
    """
    env_state = getattr(getattr(state, "simulation", None), "env_state", None)
    if not isinstance(env_state, HostState):
        return None
    shards = [np.asarray(shard.data).reshape(-1) for shard in env_state.pool.addressable_shards]
    times = callback.host_times(set(np.concatenate(shards).tolist()))
    if not times:
        return None
    return HostTime(*(sum(seconds) for seconds in zip(*times, strict=True)))


def waiting_shares(before: HostTime | None, after: HostTime | None) -> Row:
    """Return who waited between two `simulator_time`s; empty without simulators.

    `simulator_wait` is the share of the time that the program waited for simulators,
    `simulator_idle` the share in which no simulator worked: means over the devices.
    """
    if before is None or after is None:
        return {}
    lived, waited, simulated = (b - a for a, b in zip(before, after, strict=True))
    lived = max(lived, 1e-9)
    return {"simulator_wait": waited / lived, "simulator_idle": 1 - simulated / lived}


def throughput_text(metrics: dict[str, np.ndarray], seconds: float, waits: Row) -> str:
    """Return a text for the progress bar: trainings per second and `waiting_shares`.

    Args:
      metrics: of the updates that took `seconds`.
    """
    parts = []
    if "gradient_steps" in metrics:
        parts.append(f"{float(metrics['gradient_steps'].sum()) / seconds:,.1f} trainings/s")
    if waits:
        wait, idle = waits["simulator_wait"], waits["simulator_idle"]
        parts.append(f"simulators: wait {wait:.0%}, idle {idle:.0%}")
    return ", ".join(parts)
