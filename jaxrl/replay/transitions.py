"""Replay of n-step transitions: every step once in a ring, and a priority for each.

The ring holds the ends of episodes too, so returns stop there, and truncated episodes bootstrap
from their true last observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp

from jaxrl.replay import frames, ring
from jaxrl.replay.ring import Replay
from jaxrl.types import Array, PyTree, Trajectory


@dataclass(frozen=True)
class Layout:
    """The places of `n_step` transitions in a ring that grows by rollouts of `num_steps`."""

    n_step: int
    num_steps: int
    frame_stack: int

    @property
    def rows_before(self) -> int:
        """Return the rows before a transition that its first stack of frames needs."""
        return self.frame_stack - 1


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
    valid: Array  # float32: 0 where the rows are not of one episode


def as_row(layout: Layout, trajectory: Trajectory) -> Row:
    """Return steps as the replay stores them."""
    return Row(
        obs=frames.as_stored(trajectory.obs, layout.frame_stack),
        first=trajectory.inputs.first,
        action=trajectory.action,
        reward=trajectory.reward,
        terminated=trajectory.terminated,
        ended=trajectory.terminated | trajectory.truncated,
    )


def prioritize(
    layout: Layout, priorities: Array | None, max_priority: Array | None, replay: Replay
) -> Array | None:
    """Return the priorities `[capacity, N]` after a rollout was added; None for none.

    Rows get the largest priority once the n rows after them are there.
    """
    if priorities is None or max_priority is None:
        return None
    # New rows wait for the n rows after them. The oldest rows lack frames of their stacks, which
    # were overwritten.
    now = replay.num_added
    waiting = now - layout.n_step + jnp.arange(layout.n_step + layout.rows_before)
    ready = now - layout.n_step - layout.num_steps + jnp.arange(layout.num_steps)
    allowed = (ready >= layout.rows_before)[:, None]
    priorities = priorities.at[ready % replay.capacity].set(jnp.where(allowed, max_priority, 0.0))
    return priorities.at[waiting % replay.capacity].set(0.0)


def read(layout: Layout, replay: Replay, slots: Array, envs: Array, gamma: Array | float) -> Batch:
    """Return the n-step transitions that begin at these slots, `[B]`."""
    rows, n = replay.rows, layout.n_step

    def window(rows: Array, length: int = n) -> Array:
        return ring.window(rows, slots, envs, length)

    def observe(slots: Array) -> PyTree:
        return frames.observations(rows.obs, slots, envs, layout.frame_stack)

    def discount_after(steps: Array) -> Array:
        return (gamma**steps).astype(jnp.float32)  # float64 where jax_enable_x64 is set

    ended = window(rows.ended)
    is_included = jnp.cumprod(jnp.concatenate([jnp.ones_like(ended[:1]), ~ended[:-1]]), axis=0) > 0
    discounts = discount_after(jnp.arange(n)[:, None])
    length = is_included.sum(0)
    terminated = (is_included & window(rows.terminated)).any(0)
    # A row that leads to a new episode is no step: after an end, or where a resumed run began.
    seams = is_included & window(rows.first, n + 1)[1:]
    return Batch(
        obs=observe(slots),
        action=rows.action[slots, envs],
        reward=jnp.where(is_included, discounts * window(rows.reward), 0.0).sum(0),
        discount=jnp.where(terminated, 0.0, discount_after(length)),
        last_obs=observe((slots + length) % replay.capacity),
        valid=(~seams.any(0)).astype(jnp.float32),
    )
