"""Values of searched fields as Optuna's distributions and trials have them."""

from __future__ import annotations

from typing import Any

from jaxrl.tuning.samplers.optional_optuna import import_optuna
from jaxrl.tuning.spaces import distributions
from jaxrl.tuning.spaces import space as spaces


def suggest(trial: Any, name: str, searched: spaces.Distribution) -> Any:
    """Return the value that a trial has stored, or that the study's sampler now gives to it."""
    kinds, distribution = import_optuna().distributions, distribution_of(searched)
    match distribution:
        case kinds.FloatDistribution(low=low, high=high, log=log):
            return trial.suggest_float(name, low, high, log=log)
        case kinds.IntDistribution(low=low, high=high, log=log):
            return trial.suggest_int(name, low, high, log=log)
    chosen = trial.suggest_categorical(name, distribution.choices)
    if isinstance(searched, distributions.Choice):
        return searched.values[distribution.choices.index(chosen)]
    return chosen


def distribution_of(searched: spaces.Distribution) -> Any:
    """Return Optuna's distribution of the values that are stored for a searched field."""
    optuna = import_optuna().distributions
    match searched:
        case distributions.Uniform(low, high):
            return optuna.FloatDistribution(low, high)
        case distributions.LogUniform(low, high):
            return optuna.FloatDistribution(low, high, log=True)
        case distributions.Integer(low, high):
            return optuna.IntDistribution(low, high)
        case distributions.QLogUniform(low, high, 1, None):
            return optuna.IntDistribution(low, high, log=True)
        case distributions.QLogUniform():
            return optuna.CategoricalDistribution(searched.ladder)
        case distributions.Choice(values):
            return optuna.CategoricalDistribution([stored_choice(value) for value in values])


def stored_choice(value: Any) -> Any:
    """Return what Optuna stores for one value of a choice: numbers, texts, or a text for it."""
    is_plain = value is None or isinstance(value, bool | int | float | str)
    return value if is_plain else repr(value)
