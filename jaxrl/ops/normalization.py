"""Running mean and variance, for observations and for the scale of returns."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.device_axis import SINGLE_DEVICE, Axis
from jaxrl.types import Array, Box, ObservationSpace, Trajectory

CLIP = 10.0
EPSILON = 1e-8


class RunningStatistics(NamedTuple):
    """Mean and variance of everything seen; `mean` and `variance` of one element's shape."""

    count: Array
    mean: Array
    variance: Array


def start(shape: tuple[int, ...]) -> RunningStatistics:
    """A unit prior of negligible weight."""
    return RunningStatistics(
        jnp.asarray(1e-4, jnp.float32), jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32)
    )


def init_obs_statistics(space: ObservationSpace, wanted: bool) -> RunningStatistics | None:
    """For observations of a `Box`, if `wanted`.

    Raises:
      ValueError: if they are a `Dict`.
    """
    if not wanted:
        return None
    if not isinstance(space, Box):
        raise ValueError(
            "normalize_observations takes observations that are one array, these are "
            f"{space}; leave it off (False, --no-normalize-observations)"
        )
    return start(space.shape)


def update(
    statistics: RunningStatistics, batch: Array, valid: Array, axis: Axis = SINGLE_DEVICE
) -> RunningStatistics:
    """Merge a weighted batch (Chan et al. 1979, parallel variance), of all devices.

    Args:
      batch: `[..., *shape]`.
      valid: the leading axes of `batch`; rows where it is false do not count.
    """
    lead = valid.ndim
    batch = batch.astype(jnp.float32).reshape(-1, *batch.shape[lead:])
    weights = valid.reshape(-1, *(1,) * (batch.ndim - 1)).astype(jnp.float32)
    batch_count = axis.sum(weights.sum())
    safe_count = jnp.maximum(batch_count, 1.0)
    batch_mean = axis.sum((weights * batch).sum(0)) / safe_count
    batch_variance = axis.sum((weights * (batch - batch_mean) ** 2).sum(0)) / safe_count
    count = statistics.count + batch_count
    delta = batch_mean - statistics.mean
    share = batch_count / count
    variance = (
        statistics.variance * (1 - share) + batch_variance * share + delta**2 * share * (1 - share)
    )
    return RunningStatistics(count, statistics.mean + delta * share, variance)


def standardize(statistics: RunningStatistics | None, x: Array) -> Array:
    """`(x - mean) / std`, clipped to +-10; None leaves `x` as it is."""
    if statistics is None:
        return x
    z = (x - statistics.mean) * jax.lax.rsqrt(statistics.variance + EPSILON)
    return jnp.clip(z, -CLIP, CLIP)


def rescale(statistics: RunningStatistics, x: Array) -> Array:
    """`x / std`, clipped to +-10; the mean stays, so signs do."""
    return jnp.clip(x * jax.lax.rsqrt(statistics.variance + EPSILON), -CLIP, CLIP)


def discounted_sums(
    rewards: Array, ended: Array, running: Array, gamma: Array | float
) -> tuple[Array, Array]:
    """Discounted sums of past rewards, whose spread is the scale of the rewards.

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


def init_reward_scale(num_envs: int) -> RewardScale:
    """Nothing seen yet."""
    return RewardScale(start(()), jnp.zeros(num_envs, jnp.float32))


def scale_rewards(
    scale: RewardScale,
    rewards: Array,
    ended: Array,
    valid: Array,
    gamma: Array | float,
    axis: Axis = SINGLE_DEVICE,
) -> tuple[RewardScale, Array]:
    """Take in a rollout's rewards `[T, N]` and divide them by the spread seen so far."""
    running, sums = discounted_sums(rewards, ended, scale.running, gamma)
    statistics = update(scale.statistics, sums, valid, axis)
    return RewardScale(statistics, running), rescale(statistics, rewards)


def update_obs_statistics(
    statistics: RunningStatistics | None, trajectory: Trajectory, axis: Axis = SINGLE_DEVICE
) -> RunningStatistics | None:
    """Statistics after a rollout; None stays."""
    if statistics is None:
        return None
    return update(statistics, trajectory.obs, trajectory.valid, axis)


def update_reward_scale(
    scale: RewardScale | None,
    trajectory: Trajectory,
    gamma: Array | float,
    axis: Axis = SINGLE_DEVICE,
) -> tuple[RewardScale | None, Trajectory]:
    """The scale after a rollout, and the rollout with scaled rewards; None leaves it as it is."""
    if scale is None:
        return None, trajectory
    # Of a resumed run the episodes before it have no end.
    begun = trajectory.inputs.first[0]
    scale = scale._replace(running=jnp.where(begun, 0.0, scale.running))
    ended = trajectory.terminated | trajectory.truncated
    scale, reward = scale_rewards(scale, trajectory.reward, ended, trajectory.valid, gamma, axis)
    return scale, trajectory._replace(reward=reward)
