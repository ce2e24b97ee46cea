"""What a few runs tell of an algorithm, after Agarwal et al. 2021 (arXiv 2108.13264, "rliable").

Scores are `[..., num_runs, num_tasks]`, normalized where tasks are to weigh alike. Statistics take
the last two axes away, so that they take all resamples of a bootstrap at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Statistic = Callable[[np.ndarray], np.ndarray]


class Estimate(NamedTuple):
    """A statistic of the runs, and its confidence interval."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean(scores: np.ndarray) -> np.ndarray:
    """Mean over runs and tasks; a single outstanding task may decide it."""
    return scores.mean((-2, -1))


def median(scores: np.ndarray) -> np.ndarray:
    """Median over tasks of each one's mean; blind to nearly half of the tasks."""
    return np.median(scores.mean(-2), -1)


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """IQM: the mean of all runs of all tasks but the lowest and the highest quarter of them."""
    ordered = np.sort(scores.reshape(*scores.shape[:-2], -1), -1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(-1)


def optimality_gap(scores: np.ndarray, target: float = 1.0) -> np.ndarray:
    """By how much runs miss `target`, on average; what exceeds it makes up for nothing."""
    return target - np.minimum(scores, target).mean((-2, -1))


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The share of runs that score above each threshold, `[..., num_thresholds]`."""
    return (scores[..., None] > thresholds).mean((-3, -2))


def estimate(
    statistic: Statistic,
    scores: np.ndarray,
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """A statistic and its percentile interval by the stratified bootstrap.

    Runs are drawn again for each task by itself, and tasks are not: the interval is of what other
    runs on the same tasks would give. With one run it has no width, with few it is too narrow.

    Args:
      statistic: `[..., num_runs, num_tasks]` to `[..., *shape]`.
      scores: `[num_runs, num_tasks]`.

    Raises:
      ValueError: for scores of another shape, none, or some that are not finite.
    """
    if scores.ndim != 2 or scores.size == 0:
        raise ValueError(f"scores are [num_runs, num_tasks], got {list(scores.shape)}")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite; a run without a score has to be left out")
    rng = np.random.default_rng(seed)
    runs = rng.integers(len(scores), size=(num_resamples, *scores.shape))
    resampled = statistic(np.take_along_axis(scores[None], runs, 1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail], axis=0)
    return Estimate(statistic(scores), low, high)
