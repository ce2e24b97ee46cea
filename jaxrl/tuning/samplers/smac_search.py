"""A search by SMAC, a package that no extra of jaxrl installs."""

from __future__ import annotations

import importlib
import logging
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.tuning.samplers.optional_optuna import import_optuna


def import_smac() -> Any:
    """Return the module smac, or raise an ImportError that says how to install it."""
    try:
        return importlib.import_module("smac")
    except ImportError as error:
        raise ImportError("this search needs SMAC: pip install smac") from error


class SMACSearch:
    """A search by SMAC's facade for hyperparameters: a random forest and expected improvement.

    At most a quarter of the trials are points of Sobol's sequence. The forest proposes the others;
    it learns from the scores of all trials after every `batch` proposals. One in five proposals is
    random, as SMAC does by default. No setting is tried twice.

    Args:
      space: Optuna's distributions by name.
      seed: of the search.
      num_trials: of the search.
      batch: trials that are asked at a time.
    """

    def __init__(self, space: dict[str, Any], seed: int, num_trials: int, batch: int):
        smac = import_smac()
        facade = smac.HyperparameterOptimizationFacade
        directory = tempfile.mkdtemp(prefix="smac-")  # for its history, which nobody reads
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        scenario = smac.Scenario(
            configuration_space(space, seed), deterministic=True, n_trials=num_trials, seed=seed,
            output_directory=Path(directory),
        )  # fmt: skip
        self._optimizer = facade(
            scenario, _refuse_to_run, overwrite=True, logging_level=logging.ERROR,
            config_selector=facade.get_config_selector(scenario, retrain_after=batch),
        )  # fmt: skip
        self._asked: list[Any] = []

    def ask(self, number: int) -> list[dict[str, Any]]:
        """Return the values of the next trials."""
        self._asked = [self._optimizer.ask() for _ in range(number)]
        return [dict(trial.config) for trial in self._asked]

    def tell(self, scores: np.ndarray) -> None:
        """Report the finite scores of the trials that were asked last; higher is better."""
        value = importlib.import_module("smac.runhistory.dataclasses").TrialValue
        for trial, score in zip(self._asked, scores, strict=True):
            self._optimizer.tell(trial, value(cost=-float(score)))


def configuration_space(space: dict[str, Any], seed: int) -> Any:
    """Return ConfigSpace's form of a space of Optuna's distributions."""
    parts, kinds = importlib.import_module("ConfigSpace"), import_optuna().distributions
    found = parts.ConfigurationSpace(seed=seed)
    for name, distribution in space.items():
        match distribution:
            case kinds.FloatDistribution(low=low, high=high, log=log):
                found.add(parts.Float(name, (low, high), log=log))
            case kinds.IntDistribution(low=low, high=high, log=log):
                found.add(parts.Integer(name, (low, high), log=log))
            case kinds.CategoricalDistribution(choices=choices):
                found.add(parts.Categorical(name, choices))
    return found


def _refuse_to_run(config: Any, seed: int = 0) -> float:
    raise AssertionError("SMAC is told its scores; it runs no trial itself")
