"""The numbers of a hyperparameter sweep: who leads, where values lie, and what decides a score.

They are computed from what the sweep's `sweep.json` holds. A phase's score there is a number, None
if no episode ended in it, or "-inf" if the trial diverged.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

Sweep = Mapping[str, Any]
"""What `sweep.json` holds."""

_FEWEST_SCORED = 4


def leaderboard(sweep: Sweep) -> list[dict[str, Any]]:
    """The trials that have a finite score, best first; equal ones by their number.

    Each has `trial`, `best_score` of all its phases, `last_score` (-inf if it diverged; phases
    without a score are passed over), `phases` it reported, `status` and `values`.
    """
    rows = []
    for trial in sweep["trials"]:
        scores = phase_scores(trial)
        if np.isfinite(scores).any():
            rows.append(
                {
                    "trial": trial["trial"],
                    "best_score": float(scores[np.isfinite(scores)].max()),
                    "last_score": float(scores[~np.isnan(scores)][-1]),
                    "phases": len(scores),
                    "status": trial["status"],
                    "values": trial["values"],
                }
            )
    return sorted(rows, key=lambda row: (-row["best_score"], row["trial"]))


def best_so_far(sweep: Sweep) -> tuple[np.ndarray, np.ndarray]:
    """Seconds at which phases with a finite score ended, and the best score until each."""
    scores = {trial["trial"]: phase_scores(trial) for trial in sweep["trials"]}
    ends, reported = [], []
    for span in sorted(sweep["spans"], key=lambda span: span["end"]):
        of_trial = scores.get(span["trial"], np.empty(0))
        # A sweep that was interrupted has spans whose phases never reported.
        if span["phase"] < len(of_trial) and math.isfinite(of_trial[span["phase"]]):
            ends.append(span["end"])
            reported.append(of_trial[span["phase"]])
    return np.array(ends, float), np.maximum.accumulate(np.array(reported, float))


def phase_scores(trial: Mapping[str, Any]) -> np.ndarray:
    """A trial's score in each phase: NaN where no episode ended, -inf where the trial diverged."""
    return np.array([math.nan if s is None else float(s) for s in trial["scores"]], float)


def duration(sweep: Sweep) -> float:
    """Seconds that a sweep took until now; never 0, for it is the length of an axis."""
    return max([sweep.get("seconds") or 0.0, *(span["end"] for span in sweep["spans"])]) or 1.0


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit that suits a time of so many seconds: its own seconds, and its name."""
    if seconds >= 2 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if seconds >= 120 else (1.0, "seconds")


def position(distribution: Mapping[str, Any], value: Any) -> float:
    """Where a value is on its hyperparameter's axis, from 0 to 1; NaN if it is not on it.

    Numbers are placed from `low` to `high`, in the logarithm if that is how they are drawn; the
    values of a choice are evenly spaced in their order.
    """
    if distribution["kind"] == "Choice":
        labels = _labels(distribution)
        if _label(value) not in labels:
            return math.nan
        return labels.index(_label(value)) / (len(labels) - 1) if len(labels) > 1 else 0.5
    if value is None:
        return math.nan
    scale = math.log if _is_log(distribution) else float
    low, high = scale(distribution["low"]), scale(distribution["high"])
    # Single precision may put a value just outside its bounds.
    return (scale(_clip(distribution, value)) - low) / (high - low)


def positions(space: Mapping[str, Any], values: Mapping[str, Any]) -> list[float]:
    """A trial's position on each axis; NaN where it has no value."""
    return [
        position(distribution, values[name]) if name in values else math.nan
        for name, distribution in space.items()
    ]


def ticks(distribution: Mapping[str, Any], most: int = 12) -> list[tuple[float, str]]:
    """Positions on a hyperparameter's axis, and their labels; of a choice at most `most`."""
    if distribution["kind"] == "Choice":
        labels = _labels(distribution)
        step = -(-len(labels) // most)
        center = 0.5 if len(labels) == 1 else 0.0
        spaces = max(len(labels) - 1, 1)
        return [(center + i / spaces, labels[i]) for i in range(0, len(labels), step)]
    low, high = distribution["low"], distribution["high"]
    if _is_log(distribution):
        numbers = _log_ticks(low, high)
    else:
        locator = MaxNLocator(10, integer=True) if _is_integer(distribution) else MaxNLocator(5)
        numbers = locator.tick_values(low, high)
    return [(position(distribution, x), f"{x:.4g}") for x in numbers if low <= x <= high]


def importances(sweep: Sweep) -> dict[str, float]:
    """How much each hyperparameter decides whether a trial is among the best; the sum is 1.

    PED-ANOVA (Watanabe et al. 2023, arXiv 2304.10255) compares how values are distributed among
    the best trials, a tenth but at least five, with how they are among all. It sees ranks alone,
    so trials that only diverged take part, as the worst.

    Raises:
      ValueError: if there are too few scores, or they do not tell hyperparameters apart.
      ImportError: without optuna.
    """
    best = {row["trial"]: row["best_score"] for row in leaderboard(sweep)}
    if len(best) < _FEWEST_SCORED:
        raise ValueError(f"of at least {_FEWEST_SCORED} trials with a score there are {len(best)}")
    if len(set(best.values())) == 1:
        raise ValueError("all trials have the same score")
    try:
        import optuna
    except ImportError as error:
        raise ImportError("optuna is missing; pip install 'jaxrl[tune]'") from error

    diverged = [
        trial["trial"] for trial in sweep["trials"] if np.isneginf(phase_scores(trial)).any()
    ]
    best = dict.fromkeys(diverged, -np.finfo(float).max) | best
    distributions = {name: _optuna_distribution(d) for name, d in sweep["space"].items()}
    trials = []
    for trial in sweep["trials"]:
        if trial["trial"] in best:
            params = _optuna_params(sweep["space"], trial["values"])
            trials.append(
                optuna.trial.create_trial(
                    value=best[trial["trial"]],
                    params=params,
                    distributions={name: distributions[name] for name in params},
                )
            )
    share = min(max(0.1, 5 / len(trials)), 0.5)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            # What it warns of, too few or equal trials, ends in the error below.
            warnings.simplefilter("ignore")
            study = optuna.create_study(direction="maximize")
            study.add_trials(trials)
            evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=share)
            found = optuna.importance.get_param_importances(
                study, evaluator=evaluator, normalize=False
            )
    finally:
        optuna.logging.set_verbosity(verbosity)
    total = sum(found.values())
    if not total > 0:
        raise ValueError("the best trials have the same values as all others")
    shares = {name: float(found.get(name, 0.0) / total) for name in sweep["space"]}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _is_log(distribution: Mapping[str, Any]) -> bool:
    return distribution["kind"] in ("LogUniform", "QLogUniform")


def _is_integer(distribution: Mapping[str, Any]) -> bool:
    return distribution["kind"] in ("Integer", "QLogUniform")


def _clip(distribution: Mapping[str, Any], value: Any) -> Any:
    return min(max(value, distribution["low"]), distribution["high"])


def _label(value: Any) -> str:
    """Of one value of a choice; 1 and 1.0 are the same."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:.12g}" if is_number else str(value)


def _labels(distribution: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(_label(value) for value in distribution["values"]))


def _log_ticks(low: float, high: float) -> list[float]:
    """Both bounds, and round numbers between them that leave room for their labels."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1,) if len(decades) > 3 else (1, 2, 5)
    room = 0.08 * math.log(high / low)
    kept = [low, high]
    for digit in digits:  # powers of ten come before others
        for number in (digit * 10.0**decade for decade in decades):
            if low < number < high and min(abs(math.log(number / x)) for x in kept) > room:
                kept.append(number)
    return sorted(kept)


def _optuna_distribution(distribution: Mapping[str, Any]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if distribution["kind"] == "Choice":
        return CategoricalDistribution(_labels(distribution))
    of_kind = IntDistribution if _is_integer(distribution) else FloatDistribution
    return of_kind(distribution["low"], distribution["high"], log=_is_log(distribution))


def _optuna_params(space: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's values that are on their axes."""
    params = {}
    for (name, distribution), height in zip(space.items(), positions(space, values), strict=True):
        if not math.isnan(height):
            value, is_choice = values[name], distribution["kind"] == "Choice"
            params[name] = _label(value) if is_choice else _clip(distribution, value)
    return params
