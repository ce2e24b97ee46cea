"""What GA3C (Babaeizadeh et al. 2017) watches while it trains: predictions and trainings a second,
and who waits for whom.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl.envs.host import pools
from jaxrl.envs.host.callback import HostState
from jaxrl.envs.host.pools import HostTime


def host_time(state: Any) -> HostTime | None:
    """Where the time of a training state's host environments went, of all on this machine; None
    without such. Outside `jit` only."""
    env_state = getattr(getattr(state, "simulation", None), "env_state", None)
    if not isinstance(env_state, HostState):
        return None
    shards = [np.asarray(shard.data).reshape(-1) for shard in env_state.pool.addressable_shards]
    times = pools.host_times(set(np.concatenate(shards).tolist()))
    if not times:
        return None
    return HostTime(*(sum(seconds) for seconds in zip(*times, strict=True)))


def shares(before: HostTime | None, after: HostTime | None) -> dict[str, float]:
    """`simulator_wait`, the share of the time between that the program waited for simulators, and
    `simulator_idle`, the share in which none simulated; of several devices the mean."""
    if before is None or after is None:
        return {}
    lived, waited, simulated = (b - a for a, b in zip(before, after, strict=True))
    lived = max(lived, 1e-9)
    return {"simulator_wait": waited / lived, "simulator_idle": 1 - simulated / lived}


def rates(row: dict[str, float], predictions: float, seconds: float) -> dict[str, float]:
    """Predictions, which are actions chosen, and trainings, which are gradient steps, a second."""
    seconds = max(seconds, 1e-9)
    found = {"predictions_per_second": round(predictions / seconds, 1)}
    if "gradient_steps" in row:
        found["trainings_per_second"] = round(row["gradient_steps"] / seconds, 2)
    return found


def line(gauges: dict[str, float]) -> str:
    """For the progress bar."""
    parts = []
    if "trainings_per_second" in gauges:
        parts.append(f"{gauges['trainings_per_second']:,.1f} trainings/s")
    if "simulator_wait" in gauges:
        wait, idle = gauges["simulator_wait"], gauges["simulator_idle"]
        parts.append(f"simulators: wait {wait:.0%}, idle {idle:.0%}")
    return ", ".join(parts)
