"""The importance of each hyperparameter of a sweep, by PED-ANOVA (Watanabe et al. 2023)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrl.analysis.sweep_axes import (
    choice_label,
    choice_labels,
    clip,
    is_integer,
    is_log,
    positions,
)
from jaxrl.tuning.ranking import best_values, leaderboard, phase_scores, values_in
from jaxrl.tuning.samplers.optional_optuna import import_optuna

_MIN_TRIALS = 4
_DIVERGED = -np.finfo(float).max


def importances(sweep: Mapping[str, Any]) -> dict[str, float]:
    """Return how much each hyperparameter decides whether a trial is among the best.

    PED-ANOVA (arXiv 2304.10255) compares the distribution of values among the best trials with
    that among all trials. The best are a tenth, but at least five, or half of fewer than ten. Only
    ranks matter, so trials that end diverged take part as the worst.

    Args:
      sweep: the content of `sweep.json`.

    Returns:
      Shares with sum 1 by name, the largest first.

    Raises:
      ValueError: if there are too few scores, or they do not differ, or values do not.
      ImportError: without optuna.
    """
    scores = {row["trial"]: row["best_score"] for row in leaderboard(sweep["trials"])}
    if len(scores) < _MIN_TRIALS:
        raise ValueError(f"it needs {_MIN_TRIALS} trials with a score, but there are {len(scores)}")
    if len(set(scores.values())) == 1:
        raise ValueError("all trials have the same score")
    for trial in sweep["trials"]:
        known = phase_scores(trial)
        known = known[~np.isnan(known)]
        if len(known) and np.isneginf(known[-1]):  # one that diverged earlier became a copy
            scores[trial["trial"]] = _DIVERGED
    shares = _ped_anova(sweep, scores)
    total = sum(shares.values())
    if not total > 0:
        raise ValueError("the best trials have the same values as all others")
    found = {name: float(shares.get(name, 0.0) / total) for name in sweep["space"]}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _ped_anova(sweep: Mapping[str, Any], scores: Mapping[int, float]) -> dict[str, float]:
    """Return Optuna's importances of the trials that have a score, not normalized."""
    optuna = import_optuna()
    distributions = {name: _distribution(of) for name, of in sweep["space"].items()}
    trials = []
    for trial in sweep["trials"]:
        if trial["trial"] in scores:
            score = scores[trial["trial"]]
            is_worst = score == _DIVERGED
            values = values_in(trial, len(trial["scores"]) - 1) if is_worst else best_values(trial)
            params = _params(sweep["space"], values)
            own = {name: distributions[name] for name in params}
            trials.append(optuna.trial.create_trial(value=score, params=params, distributions=own))
    best_share = min(max(0.1, 5 / len(trials)), 0.5)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # `importances` raises for what the warnings say.
    with warnings.catch_warnings(action="ignore"):
        study = optuna.create_study(direction="maximize")
        study.add_trials(trials)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=best_share)
        return optuna.importance.get_param_importances(study, evaluator=evaluator, normalize=False)


def _distribution(described: Mapping[str, Any]) -> Any:
    """Return Optuna's distribution of a described one."""
    kinds = import_optuna().distributions
    if described["kind"] == "Choice":
        return kinds.CategoricalDistribution(choice_labels(described))
    kind = kinds.IntDistribution if is_integer(described) else kinds.FloatDistribution
    return kind(described["low"], described["high"], log=is_log(described))


def _params(space: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's values that lie on their axes, as Optuna's distributions take them."""
    params = {}
    for (name, distribution), place in zip(space.items(), positions(space, values), strict=True):
        if not math.isnan(place):
            value, is_choice = values[name], distribution["kind"] == "Choice"
            params[name] = choice_label(value) if is_choice else clip(distribution, value)
    return params
