"""Samplers: which values a trial of a study gets, and how Optuna stores them.

"random" and "sobol" draw the values that a search in one program draws. The others learn from the
trials that have ended: "gp" from the completed ones only, "tpe" and "cmaes" from stopped ones as
well. "tpe" and "gp" are Optuna's. Its CMA-ES keeps a pickled optimizer in the study, and reading a
pickle may run any code, so "cmaes" is `jaxrl.tuning.samplers.cma_es`, which keeps none.

A conditional field has no value in trials where it is inactive. "gp" draws it at random where it is
active, and "cmaes" refuses it.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl.files import schema
from jaxrl.tuning.samplers import cma_es
from jaxrl.tuning.samplers.optional_optuna import ignore_experimental_warnings, import_optuna
from jaxrl.tuning.samplers.optuna_values import distribution_of, stored_choice, suggest
from jaxrl.tuning.spaces import space as spaces
from jaxrl.tuning.studies.damage import DamagedStudyError
from jaxrl.tuning.studies.storage import study_view, trial_of

SAMPLERS = ("random", "sobol", "tpe", "cmaes", "gp")
GENERATION = "cmaes generation"
"""User attribute of a trial: the generation that CMA-ES drew it for."""

Draw = Callable[[int], dict[str, Any]]
"""`draw(index)` gives the values of the trial with this index to these two."""


def require_sampler(name: str, space: spaces.Space) -> None:
    """Raise if a sampler cannot search the space, or a package that it needs is not installed."""
    import_optuna()
    conditional = sorted(field for field, part in space.items() if isinstance(part, spaces.When))
    if name == "cmaes" and conditional:
        raise ValueError(
            f"sampler='cmaes' cannot search the conditional fields {conditional}: use 'random', "
            "'sobol', 'tpe' or 'gp', or search them in all trials"
        )
    needed = {"cmaes": "cmaes", "gp": "torch"}.get(name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        raise ImportError(f"the sampler {name!r} needs {needed}: pip install {needed}")


class TrialSampler:
    """Chooses and stores the values of a study's trials.

    Args:
      name: one of `SAMPLERS`.
      seed: of the samplers that learn from trials.
      draw: used by "random" and "sobol".
    """

    def __init__(self, study: Any, space: spaces.Space, name: str, seed: int, draw: Draw):
        self._study = study_view(study, self._as_sampled)
        self._conditions = {n: part for n, part in space.items() if isinstance(part, spaces.When)}
        plain = spaces.unconditional(space)
        # A condition's field comes first.
        self._space = {key: plain[key] for key in sorted(plain, key=self._order)}
        self._name, self._seed, self._draw = name, seed, draw
        self._ended: dict[int, Any] = {}
        """The trials that have ended, by number, as samplers see them: they change no more."""

    def values(self, trial: Any, index: int) -> dict[str, Any]:
        """Return a trial's values; choose and store those that it lacks.

        Values that are sampled together have a sampler that is seeded by the trial's index, others
        one of the index and the value's name. So a sweep that was killed between two values chooses
        the same ones when it resumes, unless other workers' trials began or ended meanwhile.
        """
        self._check(trial)
        self._study.sampler = self._sampler(index)
        asking = trial_of(self._study, trial)
        if not {*self._space} <= {*trial.params} and not trial.state.is_finished():
            _ = asking.relative_params  # sampled now, not by the sampler of the first missing value
        drawn = self._draw_by_cma_es(asking, index)
        values: dict[str, Any] = {}
        for name, distribution in self._space.items():
            if not self._is_active(name, values):
                continue
            if name in drawn:
                self._study.sampler = _drawing_sampler(functools.partial(drawn.get, name))
            else:
                self._study.sampler = self._sampler(index, name)
            values[name] = suggest(asking, name, distribution)
        return values

    def stored_values(self, trial: Any) -> dict[str, Any]:
        """Return the values that a trial has stored.

        Raises:
          DamagedStudyError: if it lacks some.
        """
        self._check(trial)
        values: dict[str, Any] = {}
        lacking = []
        for name, distribution in self._space.items():
            if not self._is_active(name, values):
                continue
            if name in trial.params:
                values[name] = suggest(trial, name, distribution)
            else:
                lacking.append(name)
        if lacking:
            raise DamagedStudyError(f"trial {trial.number} lacks its values of {lacking}")
        return values

    def _order(self, name: str) -> tuple[bool, str]:
        return name in self._conditions, name

    def _is_active(self, name: str, values: dict[str, Any]) -> bool:
        """Return whether a field is searched in a trial, given the values that come before."""
        condition = self._conditions.get(name)
        # An unknown condition is that of a damaged trial.
        return condition is None or (condition.name in values and condition.holds(values))

    def _check(self, trial: Any) -> None:
        """Raise `DamagedStudyError` if a trial has values that are not of the space."""
        for name, searched in self._space.items():
            expected = distribution_of(searched)
            stored = trial.distributions.get(name, expected)
            if stored != expected:
                raise DamagedStudyError(f"trial {trial.number} has {name} of {stored}")
        generation = trial.user_attrs.get(GENERATION, 0)
        if not schema.is_integer(generation, 0):
            raise DamagedStudyError(f"trial {trial.number} has the {GENERATION} {generation!r}")

    def _as_sampled(self, trial: Any) -> Any:
        if (known := self._ended.get(trial.number)) is not None:
            return known
        self._check(trial)
        if not trial.state.is_finished():
            return trial
        return self._ended.setdefault(trial.number, rank_silent_trial_last(trial))

    def _sampler(self, index: int, name: str = "") -> Any:
        samplers, seed = import_optuna().samplers, self._seed_of(index, name)
        with ignore_experimental_warnings():
            match self._name:
                case "tpe":
                    return samplers.TPESampler(seed=seed)
                case "cmaes":  # of choices
                    return samplers.RandomSampler(seed=seed)
                case "gp":
                    return samplers.GPSampler(seed=seed, warn_independent_sampling=False)
        return _drawing_sampler(lambda: self._draw(index)[name])

    def _draw_by_cma_es(self, asking: Any, index: int) -> dict[str, Any]:
        """Return a trial's values by CMA-ES and store their generation; {} if it needs none."""
        names = list(cma_es.searchable(self._space))
        if self._name != "cmaes" or set(names) <= set(asking.params):
            return {}
        finished = [t for t in self._study.get_trials(deepcopy=False) if t.state.is_finished()]
        finished.sort(key=lambda t: (t.datetime_complete, t.number))
        ended = [
            cma_es.Solution(
                trial.user_attrs.get(GENERATION),
                {name: trial.params[name] for name in names if name in trial.params},
                score,
            )
            for trial in finished
            if (score := last_score(trial)) is not None
        ]
        axes = {name: self._space[name] for name in names}
        generation, drawn = cma_es.draw(axes, ended, self._seed_of(index))
        asking.set_user_attr(GENERATION, generation)
        return drawn

    def _seed_of(self, index: int, name: str = "") -> int:
        entropy = [self._seed, index, *name.encode()]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])


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


def last_score(trial: Any) -> float | None:
    """Return the score of a trial that completed or was stopped; None if it has none."""
    if trial.state.name == "COMPLETE":
        return trial.value
    scores = trial.intermediate_values
    return scores[max(scores)] if trial.state.name == "PRUNED" and scores else None


def _drawing_sampler(draw: Callable[[], Any]) -> Any:
    """Return an Optuna sampler whose value is what `draw` returns."""
    samplers = import_optuna().samplers

    class DrawingSampler(samplers.BaseSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            return stored_choice(draw())

    return DrawingSampler()
