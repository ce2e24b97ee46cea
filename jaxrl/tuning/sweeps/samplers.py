"""Samplers: which values a trial of a study gets, and what Optuna stores of them.

"random" gives the values that a search in one program draws, too; the others are Optuna's, and
learn from the trials that have ended: "gp" from completed ones alone, the others from stopped ones,
too.
"""

from __future__ import annotations

import copy
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl.tuning import space as spaces
from jaxrl.tuning.sweeps.storage import optuna, quiet
from jaxrl.types import Array

SAMPLERS = ("random", "tpe", "cmaes", "gp")


def check_sampler(name: str) -> None:
    """Raise if there is no such sampler, or it needs what is not installed, before any work."""
    if name not in SAMPLERS:
        raise ValueError(f"sampler must be one of {SAMPLERS}, got {name!r}")
    optuna()  # which all of them need
    needed = {"cmaes": "cmaes", "gp": "torch"}.get(name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        raise ImportError(f"the sampler {name!r} needs {needed}: pip install {needed}")


def sampler_of(
    name: str, seed: int, index: int, searched: str, draw: Callable[[int], dict[str, Any]]
) -> Any:
    """The sampler of a trial's hyperparameter, made anew for each, so that a sweep that was killed
    between two of them draws the same again.

    Args:
      searched: the hyperparameter's name; none for what is drawn of all at once.
      draw: `draw(i)` gives trial i's values to the sampler "random".
    """
    samplers = optuna().samplers
    entropy = [seed, index, *searched.encode()]
    trial_seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
    with quiet():
        match name:
            case "tpe":
                return samplers.TPESampler(seed=trial_seed)
            case "cmaes":
                return samplers.CmaEsSampler(
                    seed=trial_seed, consider_pruned_trials=True, warn_independent_sampling=False
                )
            case "gp":
                return samplers.GPSampler(seed=trial_seed)
    return _keyed_sampler(lambda: draw(index))


def seen_by_samplers(study: Any) -> Any:
    """The study as samplers should see it: a trial without a score at its end is the worst.

    As it is stored, with NaN, Optuna's TPE would take it for the best of the stopped ones, and its
    CMA-ES could not sort.
    """
    base = optuna().Study

    class Seen(base):
        def _get_trials(self, *args: Any, **kwargs: Any) -> list[Any]:
            return [_with_score(trial) for trial in super()._get_trials(*args, **kwargs)]

    return Seen(study.study_name, study._storage)


def _with_score(trial: Any) -> Any:
    scores = trial.intermediate_values
    if not trial.state.is_finished() or not scores or not math.isnan(scores[max(scores)]):
        return trial
    trial = copy.copy(trial)
    trial.intermediate_values = {0: -math.inf}
    return trial


def _keyed_sampler(draw: Callable[[], dict[str, Any]]) -> Any:
    """A sampler that answers with what `draw` gives, if it is asked."""
    samplers = optuna().samplers

    class Keyed(samplers.BaseSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            return _label(draw()[name])

    return Keyed()


def draw_of(space: spaces.Space, trial_values: Callable[[int], dict[str, Array]]) -> Any:
    """`draw(index) -> values` as plain numbers, for the sampler "random"."""
    compiled = jax.jit(trial_values)
    return lambda index: spaces.values(space, compiled(index))


def suggest(trial: Any, name: str, searched: spaces.Distribution) -> Any:
    """The value that the study's sampler gives to a trial, or gave it before."""
    match searched:
        case spaces.Uniform(low, high):
            return trial.suggest_float(name, low, high)
        case spaces.LogUniform(low, high):
            return trial.suggest_float(name, low, high, log=True)
        case spaces.Integer(low, high):
            return trial.suggest_int(name, low, high)
        case spaces.QLogUniform(low, high, 1, None):
            return trial.suggest_int(name, low, high, log=True)
        case spaces.QLogUniform():
            return trial.suggest_categorical(name, searched.ladder)
        case spaces.Choice(values):
            labels = [_label(value) for value in values]
            return values[labels.index(trial.suggest_categorical(name, labels))]


def _label(value: Any) -> Any:
    """What Optuna stores for one of several values."""
    plain = value is None or isinstance(value, bool | int | float | str)
    return value if plain else repr(value)
