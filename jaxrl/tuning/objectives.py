"""Objectives: the score of a trial's phase, given the metrics of its agents in that phase.

A trial has K agents, which differ by their seed only. An objective is a pure function that maps
their metrics, leaves `[K, num_updates]` by the names of docs/reference/metrics.md, to one score;
higher is better. A score of NaN says that no episode ended, -inf that the trial diverged.

The objectives of this module combine the agents' returns (`agent_returns`). They leave out agents
whose episodes have not ended yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxrl import checks
from jaxrl.training.evaluate import evaluate
from jaxrl.types import Algorithm, Array, Metrics

Objective = Callable[[Metrics], Array]


def greedy_metrics(
    algo: Algorithm, config: Any, state: Any, key: Array, num_episodes: int
) -> Metrics:
    """Return an agent's metrics of whole episodes of its greedy policy, `[1]` each.

    They take the places of those of its training episodes, which explore.
    """
    env = algo.env.for_evaluation(num_episodes)
    scores = evaluate(algo, config, state, env, key, 1, greedy=True)
    return {
        "episode_return_sum": jnp.nansum(scores.episode_return)[None],
        "episode_length_sum": jnp.nansum(scores.episode_length)[None],
        "episode_count": (~jnp.isnan(scores.episode_return)).sum()[None],
    }


def check_evaluation(algo: Algorithm, num_episodes: Any) -> int:
    """Return the number of episodes to evaluate, 0 for none.

    Raises:
      ValueError: for a bad number, or episodes on the host.
    """
    num_episodes = checks.integer("evaluation_episodes", num_episodes, 0)
    if num_episodes and not algo.env.checkpointable:
        raise ValueError(
            f"evaluation_episodes={num_episodes} needs environments on the device, but "
            f"{algo.env.id} has its simulators on the host; score training episodes (0)"
        )
    return num_episodes


def agent_returns(metrics: Metrics) -> Array:
    """Return each agent's mean return of the episodes that ended in the phase, `[K]`.

    It is NaN without such an episode, and -inf if a loss was not finite.
    """
    episodes = metrics["episode_count"].sum(-1)
    mean = metrics["episode_return_sum"].sum(-1) / jnp.maximum(episodes, 1)
    diverged = ~jnp.isfinite(metrics["loss"]).all(-1)
    score = jnp.where(episodes > 0, mean, jnp.nan)
    return jnp.where(diverged | jnp.isinf(score), -jnp.inf, score).astype(jnp.float32)


def mean_return(metrics: Metrics) -> Array:
    """Return the mean over agents; -inf if one of them diverged."""
    return jnp.nanmean(agent_returns(metrics))


def median_return(metrics: Metrics) -> Array:
    """Return the median over agents."""
    return jnp.nanmedian(agent_returns(metrics))


def interquartile_mean_return(metrics: Metrics) -> Array:
    """Return the mean over agents without the best and the worst quarter of them."""
    ordered = jnp.sort(agent_returns(metrics))  # NaN comes last
    number = (~jnp.isnan(ordered)).sum()
    cut = number // 4
    place = jnp.arange(len(ordered))
    return jnp.nanmean(jnp.where((place >= cut) & (place < number - cut), ordered, jnp.nan))


def lowest_return(metrics: Metrics) -> Array:
    """Return the return of the worst agent."""
    return jnp.nanmin(agent_returns(metrics))


def mean_minus_deviations(number: float) -> Objective:
    """Return the objective that subtracts `number` standard deviations over agents from the mean.

    It prefers settings that work for most seeds to those that are better on average.
    """
    number = checks.number("number", number, checks.NOT_NEGATIVE)

    def objective(metrics: Metrics) -> Array:
        returns = agent_returns(metrics)
        score = jnp.nanmean(returns) - number * jnp.nanstd(returns)
        return jnp.where(jnp.isneginf(returns).any(), -jnp.inf, score)

    objective.__name__ = f"mean_minus_{number:g}_deviations"  # sweeps record it
    return objective
