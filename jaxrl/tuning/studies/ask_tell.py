"""Ask and tell: several independent Optuna studies in memory, whose trials train side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl import checks
from jaxrl.tuning import space as spaces
from jaxrl.tuning.studies.optional_optuna import import_optuna
from jaxrl.tuning.studies.samplers import distribution_of
from jaxrl.tuning.studies.storage import ignore_experimental_warnings

SAMPLERS = ("tpe", "sobol")


class AskTell:
    """S studies of one space, each with a sampler of its own.

    Args:
      space: distributions of numbers.
      sampler: "tpe" (Bergstra et al. 2011), or "sobol" for scrambled points of Sobol's sequence.
      seeds: of the samplers, `[S]`.
    """

    def __init__(self, space: spaces.Space, sampler: str, seeds: range):
        checks.choice("sampler", sampler, choices=SAMPLERS)
        self._space = {name: distribution_of(part) for name, part in space.items()}
        self._studies = [_open_study(self._space, sampler, seed) for seed in seeds]
        self._asked: list[list[Any]] = []

    def ask(self, number: int) -> dict[str, np.ndarray]:
        """Return the values of the next trials of each study, `[S, number]` each."""
        self._asked = [[s.ask(self._space) for _ in range(number)] for s in self._studies]
        return {
            name: np.array([[trial.params[name] for trial in row] for row in self._asked])
            for name in self._space
        }

    def tell(self, scores: np.ndarray) -> None:
        """Report the finite scores `[S, number]` of the trials that were asked last."""
        for study, trials, row in zip(self._studies, self._asked, scores, strict=True):
            for trial, score in zip(trials, row, strict=True):
                study.tell(trial, float(score))


def _open_study(space: dict[str, Any], sampler: str, seed: int) -> Any:
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
        return optuna.create_study(direction="maximize", sampler=chosen)
