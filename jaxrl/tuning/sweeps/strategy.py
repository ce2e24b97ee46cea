"""The strategy that trains the lanes of a sweep fastest on this machine."""

from __future__ import annotations

from typing import Any

from jaxrl.training import population as populations
from jaxrl.training.population import Strategy
from jaxrl.tuning.sweeps.display import Display
from jaxrl.types import Algorithm


def fastest(
    algo: Algorithm, config: Any, num_lanes: int, planned_steps: float, display: Display
) -> Strategy:
    """Return the fastest strategy for that many lanes, by a short measurement.

    Args:
      planned_steps: environment steps of the whole sweep, inf if unknown.
    """
    if num_lanes == 1:
        return Strategy("vmap")
    display.show_text("measuring strategies")
    configs = populations.stack(config, num_lanes)
    choice = populations.choose(algo, configs, planned_steps=planned_steps)
    rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in choice.steps_per_second.items())
    display.print_line(f"strategy {choice.strategy}; steps/s of all lanes: {rates}")
    display.show_text("compiling")
    return choice.strategy
