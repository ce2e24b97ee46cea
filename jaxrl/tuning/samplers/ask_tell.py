"""Independent searches by samplers on the host, whose next trials train together."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from jaxrl import checks
from jaxrl.tuning.samplers.optional_optuna import ignore_experimental_warnings, import_optuna
from jaxrl.tuning.samplers.optuna_values import distribution_of
from jaxrl.tuning.samplers.smac_search import SMACSearch
from jaxrl.tuning.spaces import space as spaces

SAMPLERS = ("sobol", "tpe", "smac")


class Search(Protocol):
    """A search that proposes values, some trials at a time."""

    def ask(self, number: int) -> list[dict[str, Any]]:
        """Return the values of the next trials."""
        ...

    def tell(self, scores: np.ndarray) -> None:
        """Report the finite scores of the trials that were asked last; higher is better."""
        ...


class AskTell:
    """S searches in memory, each with a sampler of its own.

    Args:
      space: distributions of numbers.
      sampler: "tpe" (Bergstra et al. 2011) or "sobol" (scrambled points of Sobol's sequence), both
        Optuna's, or "smac" (Lindauer et al. 2022, arXiv 2109.09831).
      seeds: of the samplers, `[S]`.
      num_trials: of each search.
      batch: trials that are asked at a time, except the last ones. SMAC needs both to plan.
    """

    def __init__(
        self, space: spaces.Space, sampler: str, seeds: range, num_trials: int, batch: int
    ):
        checks.choice("sampler", sampler, choices=SAMPLERS)
        self._space = {name: distribution_of(part) for name, part in space.items()}
        self._searches: list[Search] = [
            SMACSearch(self._space, seed, num_trials, batch)
            if sampler == "smac"
            else OptunaSearch(self._space, sampler, seed)
            for seed in seeds
        ]

    def ask(self, number: int) -> dict[str, np.ndarray]:
        """Return the values of the next trials of each search, `[S, number]` each."""
        asked = [search.ask(number) for search in self._searches]
        return {
            name: np.array([[values[name] for values in trials] for trials in asked])
            for name in self._space
        }

    def tell(self, scores: np.ndarray) -> None:
        """Report the finite scores `[S, number]` of the trials that were asked last."""
        for search, row in zip(self._searches, scores, strict=True):
            search.tell(row)


class OptunaSearch:
    """A search by a sampler of Optuna, "tpe" or "sobol"; see `Search`."""

    def __init__(self, space: dict[str, Any], sampler: str, seed: int):
        optuna = import_optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with ignore_experimental_warnings():
            if sampler == "tpe":
                # Trials that are not told yet count as bad ones, so that a batch spreads.
                chosen = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            else:
                chosen = optuna.samplers.QMCSampler(qmc_type="sobol", scramble=True, seed=seed)
                # Otherwise it draws at random until a trial has ended.
                chosen.infer_relative_search_space = lambda study, trial: space
            self._study = optuna.create_study(direction="maximize", sampler=chosen)
        self._space = space
        self._asked: list[Any] = []

    def ask(self, number: int) -> list[dict[str, Any]]:
        self._asked = [self._study.ask(self._space) for _ in range(number)]
        return [trial.params for trial in self._asked]

    def tell(self, scores: np.ndarray) -> None:
        for trial, score in zip(self._asked, scores, strict=True):
            self._study.tell(trial, float(score))
