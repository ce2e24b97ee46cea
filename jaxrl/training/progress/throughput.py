"""How fast a run trains, and how long its program and its simulators wait for each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl.envs.host import callback
from jaxrl.envs.host.pools import HostTime
from jaxrl.training.progress.rows import Row

NO_TIME = HostTime(0.0, 0.0, 0.0)


def simulator_time(state: Any) -> HostTime:
    """Return the time that a training state's host environments took.

    The sum over this machine's pools; call it outside `jit` only.
    """
    times = callback.host_times(callback.pools_of(state))
    if not times:
        return NO_TIME
    return HostTime(*(sum(seconds) for seconds in zip(*times, strict=True)))


def waiting_shares(spent: HostTime) -> Row:
    """Return who waited while simulators took this time; empty without simulators.

    `simulator_wait` is the share of the time that the program waited for simulators,
    `simulator_idle` the share in which no simulator worked: means over the devices.
    """
    if not spent.elapsed:
        return {}
    wait, busy = spent.waited / spent.elapsed, spent.simulated / spent.elapsed
    return {"simulator_wait": wait, "simulator_idle": 1 - busy}


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
