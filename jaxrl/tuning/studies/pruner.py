"""HyperTrick as a pruner for studies that Optuna itself runs."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.tuning.samplers.optional_optuna import import_optuna
from jaxrl.tuning.schedulers.hypertrick import HyperTrick


def hypertrick_pruner(num_trials: int, eviction_rate: float = 0.25) -> Any:
    """Return HyperTrick as an `optuna.pruners.BasePruner`.

    It works with any `objective(trial)` that reports a score for growing steps, the same in all
    trials, and asks `trial.should_prune()` after each, in studies that maximize and in studies that
    minimize. The first step is phase 0, whatever its number.

    Args:
      num_trials: N, how many trials the study will run.
      eviction_rate: r, the share of trials that stop at the end of each phase.
    """
    rule = HyperTrick(num_trials, num_phases=1, eviction_rate=eviction_rate)
    num_trials, pruners = rule.num_trials, import_optuna().pruners

    class HyperTrickPruner(pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            step = trial.last_step
            if step is None:
                return False
            phase = len(trial.intermediate_values) - 1
            sign = 1.0 if study.direction.name == "MAXIMIZE" else -1.0
            others = [
                sign * t.intermediate_values[step]
                for t in study.get_trials(deepcopy=False)
                if step in t.intermediate_values and t.number != trial.number
            ]
            # Always of the same shape, for which JAX compiles once.
            scores = np.full(max(num_trials, len(others)), np.nan, np.float32)
            scores[: len(others)] = others
            score = jnp.float32(sign * trial.intermediate_values[step])
            num_reported = jnp.int32(len(others) + 1)
            return bool(
                rule.should_stop(score, jnp.asarray(scores), jnp.int32(phase), num_reported)
            )

    return HyperTrickPruner()
