"""Reliable statistics of a few runs, after Agarwal et al. 2021 (arXiv 2108.13264, "rliable").

Scores are `[..., num_runs, num_tasks]`; normalize them if tasks are to have equal weight.
Statistics reduce the last two axes, so they take all resamples of a bootstrap at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Statistic = Callable[[np.ndarray], np.ndarray]


class Estimate(NamedTuple):
    """A statistic of runs with its confidence interval."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean over runs and tasks; a single outstanding task can dominate it."""
    return scores.mean((-2, -1))


def median(scores: np.ndarray) -> np.ndarray:
    """Return the median over tasks of each task's mean; it ignores nearly half of the tasks."""
    return np.median(scores.mean(-2), -1)


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Return the IQM: the mean of all scores without the lowest and the highest quarter."""
    ordered = np.sort(scores.reshape(*scores.shape[:-2], -1), -1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(-1)


def optimality_gap(scores: np.ndarray, target: float = 1.0) -> np.ndarray:
    """Return by how much scores miss `target` on average; scores above it count as `target`."""
    return target - np.minimum(scores, target).mean((-2, -1))


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the share of scores above each threshold, `[..., num_thresholds]`."""
    return (scores[..., None] > thresholds).mean((-3, -2))


def probability_of_improvement(scores: np.ndarray) -> np.ndarray:
    """Return how often a run beats one of another algorithm; ties count half.

    The mean over tasks of the share of all pairs of runs (section 4.3 of the paper).

    Args:
      scores: `[..., num_runs, 2 * num_tasks]`, first those of one algorithm in all tasks, then
        those of the other.
    """
    own, other = np.split(scores, 2, -1)
    differences = own[..., :, None, :] - other[..., None, :, :]
    return (1 + np.sign(differences)).mean((-3, -2, -1)) / 2


def estimate(
    statistic: Statistic,
    scores: np.ndarray,
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Return a statistic with its percentile interval by the stratified bootstrap.

    The bootstrap draws runs for each task separately, and keeps the tasks. So the interval says
    how much other runs on the same tasks would vary. With one run it has no width; with few runs it
    is too narrow: of 1,500 samples of 3, 5 and 10 normal scores, 75%, 85% and 89% of the intervals
    for a mean contain the true one, and 91% (5) and 94% (10) of those for an interquartile mean.

    Args:
      statistic: maps `[..., num_runs, num_tasks]` to `[..., *shape]`.
      scores: `[num_runs, num_tasks]`.

    Raises:
      ValueError: if scores have another shape, are empty, or are not finite.
    """
    if scores.ndim != 2 or scores.size == 0:
        raise ValueError(
            f"scores must be [num_runs, num_tasks] and not empty, got {list(scores.shape)}"
        )
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite; leave out runs without a score")
    rng = np.random.default_rng(seed)
    runs = rng.integers(len(scores), size=(num_resamples, *scores.shape))
    resampled = statistic(np.take_along_axis(scores[None], runs, 1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail], axis=0)
    return Estimate(statistic(scores), low, high)
