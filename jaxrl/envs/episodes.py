"""Statistics of whole episodes, updated at every step, in memory that does not grow.

Returns are sums of the raw reward over whole games, even if the learner sees clipped rewards and
an end at every lost life.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from jaxrl.types import Array, Metrics, TimeStep


class EpisodeStatistics(NamedTuple):
    """Running episodes and the sums over those that ended; leaves `[N]`."""

    running_return: Array
    running_length: Array
    return_sum: Array
    length_sum: Array
    count: Array


def start(timestep: TimeStep) -> EpisodeStatistics:
    """Begin statistics at the first step of N episodes."""
    zeros = jnp.zeros(timestep.first.shape, jnp.float32)
    counts = jnp.zeros(timestep.first.shape, jnp.int32)
    return EpisodeStatistics(zeros, counts, zeros, counts, counts)


def update(statistics: EpisodeStatistics, timestep: TimeStep) -> EpisodeStatistics:
    """Count the transition into `timestep`."""
    raw_reward = timestep.reward if timestep.raw_reward is None else timestep.raw_reward
    game_over = timestep.terminated | timestep.truncated
    if timestep.game_over is not None:
        game_over = timestep.game_over
    running_return = statistics.running_return + raw_reward
    running_length = statistics.running_length + ~timestep.first
    return EpisodeStatistics(
        running_return=jnp.where(game_over, 0.0, running_return),
        running_length=jnp.where(game_over, 0, running_length),
        return_sum=statistics.return_sum + jnp.where(game_over, running_return, 0.0),
        length_sum=statistics.length_sum + jnp.where(game_over, running_length, 0),
        count=statistics.count + game_over,
    )


def forget_ended(statistics: EpisodeStatistics) -> EpisodeStatistics:
    """Drop the sums over ended episodes, keep the running ones."""
    zeros = jnp.zeros_like(statistics.count)
    return statistics._replace(
        return_sum=jnp.zeros_like(statistics.return_sum), length_sum=zeros, count=zeros
    )


def summarize(statistics: EpisodeStatistics) -> Metrics:
    """Return the metrics of all ended episodes, summed over environments."""
    return {
        "episode_return_sum": statistics.return_sum.sum(),
        "episode_length_sum": statistics.length_sum.sum(),
        "episode_count": statistics.count.sum(),
    }
