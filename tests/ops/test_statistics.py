"""Statistics and intervals equal to those of rliable."""

import numpy as np
import pytest
import scipy.stats

from jaxrl.ops.statistics import (
    estimate,
    interquartile_mean,
    mean,
    median,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
)

pytestmark = pytest.mark.smoke

FIVE_BY_SIX = np.array(
    [
        [0.11, 1.92, 0.43, 0.75, 3.07, -0.04],
        [0.29, 0.85, 0.61, 0.58, 2.44, 0.02],
        [0.05, 1.31, 0.37, 0.92, 5.63, 0.13],
        [0.47, 1.08, 0.22, 0.81, 1.76, -0.11],
        [0.18, 1.57, 0.59, 0.66, 4.12, 0.07],
    ]
)
THREE_BY_FIVE = FIVE_BY_SIX[:3, 1:]

# rliable 1.2.0 (arch 7.2.0): `get_interval_estimates` with 50,000 resamples, mean of 5 seeds. The
# standard deviation of each bound over the seeds is below 0.002.
RLIABLE = [
    (FIVE_BY_SIX, mean, 1.0286666666666668, 0.83173, 1.24553),
    (FIVE_BY_SIX, median, 0.5940000000000001, 0.51280, 0.67440),
    (FIVE_BY_SIX, interquartile_mean, 0.6325, 0.55675, 0.73138),
    (FIVE_BY_SIX, optimality_gap, 0.43466666666666665, 0.39673, 0.47220),
    (THREE_BY_FIVE, mean, 1.266, 0.98320, 1.62387),
    (THREE_BY_FIVE, median, 0.75, 0.58, 0.92),
    (THREE_BY_FIVE, interquartile_mean, 0.86, 0.69, 1.04044),
    (THREE_BY_FIVE, optimality_gap, 0.3586666666666666, 0.31360, 0.40320),
]
THRESHOLDS = np.array([0.0, 0.1, 0.5, 1.0, 2.0])
PROFILE = [28 / 30, 25 / 30, 17 / 30, 9 / 30, 4 / 30]
PROFILE_LOW = [26 / 30, 23 / 30, 15 / 30, 7 / 30, 2 / 30]
PROFILE_HIGH = [1.0, 27 / 30, 19 / 30, 10 / 30, 5 / 30]
ONE_RUN_IN_THIRTY = 1 / 30 + 1e-9


@pytest.mark.parametrize(("scores", "statistic", "value", "low", "high"), RLIABLE)
def test_estimates_equal_those_of_rliable(scores, statistic, value, low, high):
    found = estimate(statistic, scores, num_resamples=50_000)
    assert found.value == pytest.approx(value, rel=1e-12)
    assert found.low == pytest.approx(low, abs=0.01)
    assert found.high == pytest.approx(high, abs=0.01)


def test_profiles_equal_those_of_rliable():
    found = estimate(lambda x: performance_profile(x, THRESHOLDS), FIVE_BY_SIX)
    np.testing.assert_allclose(found.value, PROFILE, rtol=1e-12)
    np.testing.assert_allclose(found.low, PROFILE_LOW, atol=ONE_RUN_IN_THIRTY)
    np.testing.assert_allclose(found.high, PROFILE_HIGH, atol=ONE_RUN_IN_THIRTY)


@pytest.mark.parametrize("num_runs", range(1, 8))
def test_the_interquartile_mean_is_scipys_trimmed_mean(num_runs):
    scores = np.random.default_rng(num_runs).normal(size=(num_runs, 3))
    expected = scipy.stats.trim_mean(scores, 0.25, axis=None)
    assert interquartile_mean(scores) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "statistic", [mean, median, interquartile_mean, optimality_gap, probability_of_improvement]
)
def test_statistics_take_leading_axes(statistic):
    batch = np.random.default_rng(0).normal(size=(4, 5, 6))
    np.testing.assert_allclose(statistic(batch), [statistic(scores) for scores in batch])


def test_the_probability_of_improvement_is_that_of_mann_and_whitney():
    rng = np.random.default_rng(0)
    scores = rng.integers(5, size=(9, 4)).astype(float)  # with ties; two tasks
    expected = [
        scipy.stats.mannwhitneyu(scores[:, task], scores[:, 2 + task]).statistic / 9**2
        for task in range(2)
    ]
    assert probability_of_improvement(scores) == pytest.approx(np.mean(expected))
    assert probability_of_improvement(np.array([[2.0, 1.0]])) == 1


def test_the_bootstrap_draws_runs_for_each_task_separately():
    """Check tasks that cancel each other in each run: whole runs would give no width."""
    scores = np.array([[0.0, 1.0], [1.0, 0.0]])
    found = estimate(mean, scores)
    assert (found.low, found.value, found.high) == (0.0, 0.5, 1.0)


def test_one_run_has_an_interval_without_width():
    assert estimate(interquartile_mean, np.array([[3.0, 5.0]])) == (4.0, 4.0, 4.0)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros(3), r"\[num_runs, num_tasks\] and not empty, got \[3\]"),
        (np.zeros((0, 2)), r"got \[0, 2\]"),
        (np.array([[1.0, np.nan]]), "must be finite"),
    ],
)
def test_scores_that_are_not_a_finite_matrix_are_refused(scores, message):
    with pytest.raises(ValueError, match=message):
        estimate(mean, scores)
