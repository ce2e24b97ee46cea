"""Replay of n-step transitions: every step once in a ring, and a priority for each.

The ring holds the ends of episodes too, so returns stop at them, and truncated ones bootstrap from
their true last observation.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax.numpy as jnp

from jaxrl.replay import ring
from jaxrl.replay.ring import Replay
from jaxrl.types import Array, PyTree, Trajectory


class Layout(Protocol):
    """The fields of an algorithm's config that say how transitions are stored and read."""

    @property
    def num_steps(self) -> int:
        """Steps of each environment in a rollout, the rows of one addition to the ring."""
        ...

    @property
    def n_step(self) -> int: ...
    @property
    def frame_stack(self) -> int: ...
    @property
    def gamma(self) -> float: ...


class Row(NamedTuple):
    """A step of N environments in the replay; leaves `[N, ...]`."""

    obs: PyTree  # the newest frame alone if `frame_stack` > 1
    first: Array
    action: Array
    reward: Array
    terminated: Array
    ended: Array  # terminated or truncated


class Batch(NamedTuple):
    """Transitions of n steps, leaves `[B, ...]`."""

    obs: PyTree
    action: Array
    reward: Array  # discounted sum
    discount: Array  # of the value after it: gamma^n, or 0 after a termination
    last_obs: PyTree
    valid: Array  # float32: 0 where the rows don't belong together


def as_row(config: Layout, trajectory: Trajectory) -> Row:
    """Steps as the replay stores them."""
    return Row(
        obs=ring.as_stored(trajectory.obs, config.frame_stack),
        first=trajectory.inputs.first,
        action=trajectory.action,
        reward=trajectory.reward,
        terminated=trajectory.terminated,
        ended=trajectory.terminated | trajectory.truncated,
    )


def prioritize(
    config: Layout, priorities: Array | None, max_priority: Array | None, memory: Replay
) -> Array | None:
    """Priorities `[capacity, N]` once a rollout was added; None for none.

    Its rows get the largest priority once their n steps are there.
    """
    if priorities is None or max_priority is None:
        return None
    # New rows wait for the n rows after them; the next to be overwritten lose their older frames.
    now = memory.num_added
    waiting = now - config.n_step + jnp.arange(config.n_step + config.frame_stack - 1)
    ready = now - config.n_step - config.num_steps + jnp.arange(config.num_steps)
    allowed = (ready >= config.frame_stack - 1)[:, None]
    priorities = priorities.at[ready % memory.capacity].set(jnp.where(allowed, max_priority, 0.0))
    return priorities.at[waiting % memory.capacity].set(0.0)


def read(config: Layout, memory: Replay, slots: Array, envs: Array) -> Batch:
    """The n-step transitions that begin at these slots."""
    rows, n = memory.rows, config.n_step

    def window(rows: Array, length: int = n) -> Array:
        return ring.window(rows, slots, envs, length)

    def observe(slots: Array) -> PyTree:
        return ring.observations(rows.obs, slots, envs, config.frame_stack)

    ended = window(rows.ended)
    goes_on = jnp.cumprod(jnp.concatenate([jnp.ones_like(ended[:1]), ~ended[:-1]]), axis=0) > 0
    discounts = config.gamma ** jnp.arange(n)[:, None]
    length = goes_on.sum(0)
    terminated = (goes_on & window(rows.terminated)).any(0)
    # A row that only led to a new episode (or, after a resumed run, to another one) is no step.
    seams = goes_on & window(rows.first, n + 1)[1:]
    return Batch(
        obs=observe(slots),
        action=rows.action[slots, envs],
        reward=(goes_on * discounts * window(rows.reward)).sum(0),
        discount=jnp.where(terminated, 0.0, jnp.asarray(config.gamma) ** length),
        last_obs=observe((slots + length) % memory.capacity),
        valid=(~seams.any(0)).astype(jnp.float32),
    )
