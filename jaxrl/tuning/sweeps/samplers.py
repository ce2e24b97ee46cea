"""Samplers: which values a trial of a study gets, and how Optuna stores them.

"random" draws the same values as a search in one program. The others are Optuna's and learn from
the trials that have ended: "gp" from the completed ones only, "tpe" and "cmaes" from stopped ones
as well.
"""

from __future__ import annotations

import copy
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl.config import RENAMED_FIELDS
from jaxrl.tuning import space as spaces
from jaxrl.tuning.optional_optuna import import_optuna
from jaxrl.tuning.sweeps.storage import (
    ignore_experimental_warnings,
    study_view,
    trial_of,
)
from jaxrl.types import Array

SAMPLERS = ("random", "tpe", "cmaes", "gp")

Draw = Callable[[int], dict[str, Any]]
"""`draw(index)` gives the values of the trial with this index to the sampler "random"."""


def check_sampler(name: str) -> None:
    """Raise if there is no such sampler, or if a package that it needs is not installed."""
    if name not in SAMPLERS:
        raise ValueError(f"sampler must be one of {SAMPLERS}, got {name!r}")
    import_optuna()
    needed = {"cmaes": "cmaes", "gp": "torch"}.get(name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        raise ImportError(f"the sampler {name!r} needs {needed}: pip install {needed}")


def draw_of(space: spaces.Space, trial_values: Callable[[int], dict[str, Array]]) -> Draw:
    """Return the function that draws a trial's values as plain Python numbers."""
    compiled = jax.jit(trial_values)
    return lambda index: spaces.values(space, compiled(index))


class TrialSampler:
    """Chooses and stores the values of a study's trials.

    Args:
      name: one of `SAMPLERS`.
      seed: of Optuna's samplers.
      draw: used by the sampler "random" alone.
    """

    def __init__(self, study: Any, space: spaces.Space, name: str, seed: int, draw: Draw):
        self._study = study_view(study, rank_silent_trial_last)
        self._space = {key: space[key] for key in sorted(space)}
        self._name, self._seed, self._draw = name, seed, draw
        stored = {name for trial in study.get_trials(deepcopy=False) for name in trial.params}
        self._stored_names = {new: old for old, new in RENAMED_FIELDS.items() if old in stored}
        """The names under which an older version's study keeps fields that were renamed."""

    def values(self, trial: Any, index: int) -> dict[str, Any]:
        """Return a trial's values; choose and store those that it lacks.

        Each value has a sampler of its own, seeded by the trial's index and the value's name, so
        that a sweep that was killed between two values chooses the same ones when it resumes.
        """
        self._study.sampler = self._sampler(index)
        asking = trial_of(self._study, trial)
        values = {}
        for name, distribution in self._space.items():
            self._study.sampler = self._sampler(index, name)
            values[name] = suggest(asking, self._stored_names.get(name, name), distribution)
        return values

    def _sampler(self, index: int, name: str = "") -> Any:
        samplers = import_optuna().samplers
        entropy = [self._seed, index, *self._stored_names.get(name, name).encode()]
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        with ignore_experimental_warnings():
            match self._name:
                case "tpe":
                    return samplers.TPESampler(seed=seed)
                case "cmaes":
                    return samplers.CmaEsSampler(
                        seed=seed, consider_pruned_trials=True, warn_independent_sampling=False
                    )
                case "gp":
                    return samplers.GPSampler(seed=seed)
        return _drawing_sampler(lambda: self._draw(index)[name])


def rank_silent_trial_last(trial: Any) -> Any:
    """Return a trial as samplers should see it: the worst if its last phase has no score.

    Such a score is stored as NaN. TPE would take it for the best of the stopped trials, and
    CMA-ES could not sort it.
    """
    scores = trial.intermediate_values
    if not trial.state.is_finished() or not scores or not math.isnan(scores[max(scores)]):
        return trial
    trial = copy.copy(trial)
    trial.intermediate_values = {0: -math.inf}
    return trial


def _drawing_sampler(draw: Callable[[], Any]) -> Any:
    """Return an Optuna sampler whose value is what `draw` returns."""
    samplers = import_optuna().samplers

    class DrawingSampler(samplers.BaseSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            return _stored_choice(draw())

    return DrawingSampler()


def suggest(trial: Any, name: str, searched: spaces.Distribution) -> Any:
    """Return the value that a trial has stored, or that the study's sampler now gives to it."""
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
            stored = [_stored_choice(value) for value in values]
            return values[stored.index(trial.suggest_categorical(name, stored))]


def _stored_choice(value: Any) -> Any:
    """Return what Optuna stores for one value of a choice: numbers, texts, or a text for it."""
    is_plain = value is None or isinstance(value, bool | int | float | str)
    return value if is_plain else repr(value)
