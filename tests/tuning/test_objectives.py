"""Objectives equal to NumPy's statistics of the agents' returns."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.tuning import objectives

RETURNS = [
    [1.0],
    [3.0, 1.0, 7.0, 2.0, 9.0],
    [3.0, np.nan, 7.0, 2.0, 9.0],
    [np.nan, np.nan, np.nan],
    [3.0, -np.inf, 7.0, 2.0, 9.0],
    [-np.inf, np.nan],
]


def metrics_of(returns):
    """Return metrics `[K, 2]` of a phase with these mean returns: episodes end in both updates."""
    returns = np.asarray(returns)
    finite = np.where(np.isfinite(returns), returns, 0.0)
    counts = np.where(np.isnan(returns), 0, 1)[:, None] * np.array([1, 3])
    loss = np.stack([np.zeros(len(returns)), np.where(np.isneginf(returns), np.nan, 0)], 1)
    sums = np.stack([finite - 6, 3 * finite + 6], 1) * (counts > 0)
    return {
        "episode_return_sum": jnp.array(sums),
        "episode_count": jnp.array(counts),
        "loss": jnp.array(loss),
    }


def interquartile_mean(x):
    x = np.sort(x[~np.isnan(x)])
    cut = len(x) // 4
    return x[cut : len(x) - cut].mean()


def mean_minus_two_deviations(x):
    return -np.inf if np.isneginf(x).any() else np.nanmean(x) - 2 * np.nanstd(x)


@pytest.mark.parametrize("returns", RETURNS)
@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (objectives.mean_return, np.nanmean),
        (objectives.median_return, np.nanmedian),
        (objectives.interquartile_mean_return, interquartile_mean),
        (objectives.lowest_return, np.nanmin),
        (objectives.mean_minus_deviations(2), mean_minus_two_deviations),
    ],
)
def test_objectives_are_statistics_of_the_agents_with_ended_episodes(objective, expected, returns):
    metrics = metrics_of(returns)
    np.testing.assert_allclose(objectives.agent_returns(metrics), returns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about agents of which none has a return
        value = expected(np.array(returns))
    np.testing.assert_allclose(objective(metrics), value, rtol=1e-6)


def test_episodes_on_the_host_are_not_evaluated():
    algo = jaxrl.ppo(jaxrl.make("envpool/CartPole-v1", num_envs=2))
    assert objectives.check_evaluation(algo, 0) == 0
    with pytest.raises(ValueError, match=r"evaluation_episodes=3 needs environments on the device"):
        objectives.check_evaluation(algo, 3)


def test_deviations_are_not_negative():
    with pytest.raises(ValueError, match="number must be a number >= 0, got -1"):
        objectives.mean_minus_deviations(-1)
