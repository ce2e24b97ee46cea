"""Replay of sequences: whole rollouts in a ring, and the agent's memory before each of them.

A sequence begins where a rollout does, so the memory stored there is the exact one. The row of
priorities that belongs to a rollout is that of the sequence which begins with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.replay import ring
from jaxrl.replay.ring import Replay
from jaxrl.types import Array, Inputs, PyTree, Trajectory


class Row(NamedTuple):
    """A step of N environments in the replay; leaves `[N, ...]`."""

    inputs: Inputs  # `obs` is the newest frame alone if `frame_stack` > 1
    action: Array
    reward: Array
    terminated: Array
    ended: Array  # terminated or truncated


class Sequences(NamedTuple):
    """B sequences from the replay, leaves `[length, B, ...]`."""

    rows: Row
    core: PyTree  # [B, ...], the agent's memory before them


@dataclass(frozen=True)
class Layout:
    """How sequences of `length` rows lie over rollouts of `num_steps`."""

    length: int
    num_steps: int
    frame_stack: int

    @property
    def rollouts_after(self) -> int:
        """Rollouts after the one at whose start a sequence begins, until it is whole."""
        return -(-self.length // self.num_steps) - 1

    @property
    def rollouts_before(self) -> int:
        """Rollouts before a sequence whose frames its first stacks need."""
        return -(-(self.frame_stack - 1) // self.num_steps)


def as_row(layout: Layout, trajectory: Trajectory) -> Row:
    """Steps as the replay stores them."""
    obs = ring.as_stored(trajectory.obs, layout.frame_stack)
    return Row(
        inputs=trajectory.inputs._replace(obs=obs),
        action=trajectory.action,
        reward=trajectory.reward,
        terminated=trajectory.terminated,
        ended=trajectory.terminated | trajectory.truncated,
    )


def prioritize(layout: Layout, priorities: Array, max_priority: Array, cores: Replay) -> Array:
    """Priorities `[rollouts, N]` once a rollout was added.

    The newest sequence that is now whole gets the largest priority; the one that begins with the
    rollout to be overwritten next, and those not yet whole, get none.
    """
    newest_rollout = cores.num_added - 1
    ready = newest_rollout - layout.rollouts_after
    before = layout.rollouts_before
    without = newest_rollout - jnp.arange(layout.rollouts_after)
    oldest = newest_rollout + 1 + jnp.arange(1 + before)
    priorities = priorities.at[ready % cores.capacity].set(
        jnp.where(ready >= before, max_priority, 0.0)
    )
    priorities = priorities.at[without % cores.capacity].set(0.0)
    return priorities.at[oldest % cores.capacity].set(0.0)


def read(layout: Layout, memory: Replay, cores: Replay, rollouts: Array, envs: Array) -> Sequences:
    """The sequences that begin with these rollouts, `[B]`.

    Args:
      memory: of `Row`.
      cores: the agent's memory before each rollout.
    """
    times = rollouts * layout.num_steps + jnp.arange(layout.length)[:, None]
    slots = times % memory.capacity
    rows = memory.rows
    others = rows._replace(inputs=rows.inputs._replace(obs=()))
    found = jax.tree.map(lambda ring: ring[slots, envs], others)
    obs = ring.observations(rows.inputs.obs, slots, envs, layout.frame_stack)
    core = jax.tree.map(lambda ring: ring[rollouts, envs], cores.rows)
    return Sequences(found._replace(inputs=found.inputs._replace(obs=obs)), core)
