"""Running mean and variance, for observations and for the scale of returns."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jaxrl.device_axis import SINGLE_DEVICE, Axis
from jaxrl.spaces import ACTION_MASK, Dict, ObservationSpace
from jaxrl.types import Array, PyTree, Trajectory

CLIP = 10.0
EPSILON = 1e-8


class RunningStatistics(NamedTuple):
    """Count, mean and variance of all values so far; `mean` and `variance` have one's shape."""

    count: Array
    mean: Array
    variance: Array


ObsStatistics: TypeAlias = "RunningStatistics | dict[str, ObsStatistics] | None"
"""Statistics of observations: of a `Dict` those of each part, None for what stays as it is."""


def start(shape: tuple[int, ...]) -> RunningStatistics:
    """Return mean 0 and variance 1 with the weight of 1e-4 samples, as in OpenAI Baselines.

    After n samples of mean m this has added about 1e-4 m^2 / n to the variance, which is much for
    values far from 0 that hardly vary.
    """
    return RunningStatistics(
        jnp.asarray(1e-4, jnp.float32), jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32)
    )


def start_obs_statistics(space: ObservationSpace) -> ObsStatistics:
    """Return the statistics of no observations; action masks have none."""
    if isinstance(space, Dict):
        return {
            name: None if name == ACTION_MASK else start_obs_statistics(part)
            for name, part in space.parts
        }
    return start(space.shape)


def update(
    statistics: RunningStatistics, batch: Array, valid: Array, axis: Axis = SINGLE_DEVICE
) -> RunningStatistics:
    """Merge a batch of all devices into the statistics (Chan et al. 1979, parallel variance).

    Args:
      batch: `[..., *shape]`.
      valid: has the leading axes of `batch`; rows where it is false do not count.
    """
    lead = valid.ndim
    batch = batch.astype(jnp.float32).reshape(-1, *batch.shape[lead:])
    is_valid = valid.reshape(-1, *(1,) * (batch.ndim - 1))
    batch_count = axis.sum(is_valid.sum(dtype=jnp.float32))
    safe_count = jnp.maximum(batch_count, 1.0)
    batch_mean = axis.sum(jnp.where(is_valid, batch, 0.0).sum(0)) / safe_count
    squares = jnp.where(is_valid, (batch - batch_mean) ** 2, 0.0)
    batch_variance = axis.sum(squares.sum(0)) / safe_count
    count = statistics.count + batch_count
    delta = batch_mean - statistics.mean
    share = batch_count / count
    variance = (
        statistics.variance * (1 - share) + batch_variance * share + delta**2 * share * (1 - share)
    )
    return RunningStatistics(count, statistics.mean + delta * share, variance)


def standardize(statistics: ObsStatistics, x: PyTree) -> PyTree:
    """Return `(x - mean) / std`, clipped to +-10; without statistics return `x`."""
    if statistics is None:
        return x
    if isinstance(statistics, dict):
        return {name: standardize(statistics[name], part) for name, part in x.items()}
    z = (x - statistics.mean) * jax.lax.rsqrt(statistics.variance + EPSILON)
    return jnp.clip(z, -CLIP, CLIP)


def rescale(statistics: RunningStatistics, x: Array) -> Array:
    """Return `x / std`, clipped to +-10; without subtracting the mean, so signs stay."""
    return jnp.clip(x * jax.lax.rsqrt(statistics.variance + EPSILON), -CLIP, CLIP)


def discounted_sums(
    rewards: Array, ended: Array, running: Array, gamma: Array | float
) -> tuple[Array, Array]:
    """Return discounted sums of past rewards; their spread is the scale of the rewards.

    Args:
      rewards, ended: `[T, N]`.
      running: `[N]`, the sums before the first row.

    Returns:
      The sums after the last row `[N]` (0 after an end), and all of them `[T, N]`.
    """

    def accumulate(running: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, end = row
        running = gamma * running + reward
        return jnp.where(end, 0.0, running), running

    return jax.lax.scan(accumulate, running, (rewards, ended), unroll=16)


class RewardScale(NamedTuple):
    """The scale of an environment's rewards: the spread of their discounted sums."""

    statistics: RunningStatistics
    running: Array  # [N] discounted sums of the running episodes


def start_reward_scale(num_envs: int) -> RewardScale:
    """Return the scale of no rewards, 1."""
    return RewardScale(start(()), jnp.zeros(num_envs, jnp.float32))


def update_obs_statistics(
    statistics: ObsStatistics, trajectory: Trajectory, axis: Axis = SINGLE_DEVICE
) -> ObsStatistics:
    """Return the statistics after a rollout; None stays None."""

    def updated(statistics: ObsStatistics, obs: PyTree) -> ObsStatistics:
        if statistics is None:
            return None
        if isinstance(statistics, dict):
            return {name: updated(part, obs[name]) for name, part in statistics.items()}
        return update(statistics, obs, trajectory.valid, axis)

    return updated(statistics, trajectory.obs)


def update_reward_scale(
    scale: RewardScale | None,
    trajectory: Trajectory,
    gamma: Array | float,
    axis: Axis = SINGLE_DEVICE,
) -> tuple[RewardScale | None, Trajectory]:
    """Return the scale after a rollout, and the rollout with its rewards divided by the scale.

    The scale is the standard deviation of the discounted sums of rewards (Engstrom et al. 2020,
    arXiv 2005.12729, reward scaling). Without a scale (None) the rewards stay as they are.
    """
    if scale is None:
        return None, trajectory
    # A resumed run starts new episodes, although the ones before it did not end.
    running = jnp.where(trajectory.inputs.first[0], 0.0, scale.running)
    ended = trajectory.terminated | trajectory.truncated
    running, sums = discounted_sums(trajectory.reward, ended, running, gamma)
    statistics = update(scale.statistics, sums, trajectory.valid, axis)
    reward = rescale(statistics, trajectory.reward)
    return RewardScale(statistics, running), trajectory._replace(reward=reward)
