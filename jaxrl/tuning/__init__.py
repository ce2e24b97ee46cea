"""Hyperparameter search over populations of agents: `search` in one program, `sweep` on the host.

space = {"learning_rate": LogUniform(1e-5, 1e-2), "gamma": Choice((0.95, 0.99, 0.999))}
scheduler = HyperTrick(num_trials=64, num_phases=8)
run = jax.jit(partial(search, algo, config, space, scheduler, num_lanes, updates_per_phase))
result = run(jax.random.key(0))
"""

from jaxrl.tuning.halving import ASHA, HyperBand, SuccessiveHalving
from jaxrl.tuning.program import SearchResult, search, trial_key, trial_values
from jaxrl.tuning.pruner import hypertrick_pruner
from jaxrl.tuning.schedulers import HyperTrick, Ledger, RandomSearch, Status
from jaxrl.tuning.space import (
    GA3C_SPACE,
    Choice,
    Integer,
    LogUniform,
    QLogUniform,
    Space,
    Uniform,
    static_names,
)
from jaxrl.tuning.sweeps.api import SweepResult, sweep
from jaxrl.tuning.sweeps.state import Phase
from jaxrl.tuning.timeline import Span, occupancy, simulate, wall_time

__all__ = [
    "ASHA",
    "GA3C_SPACE",
    "Choice",
    "HyperBand",
    "HyperTrick",
    "Integer",
    "Ledger",
    "LogUniform",
    "Phase",
    "QLogUniform",
    "RandomSearch",
    "SearchResult",
    "Space",
    "Span",
    "Status",
    "SuccessiveHalving",
    "SweepResult",
    "Uniform",
    "hypertrick_pruner",
    "occupancy",
    "search",
    "simulate",
    "static_names",
    "sweep",
    "trial_key",
    "trial_values",
    "wall_time",
]
