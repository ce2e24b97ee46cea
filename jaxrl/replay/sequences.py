"""Replay of sequences: whole rollouts in a ring, and the agent's memory before each of them.

A sequence begins where a rollout does, so the memory stored there is exact. A rollout's row of
priorities belongs to the sequence that begins with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.replay import frames
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
    """The places of sequences of `length` rows over rollouts of `num_steps`."""

    length: int
    num_steps: int
    frame_stack: int

    @property
    def rollouts_after(self) -> int:
        """Return the rollouts after a sequence's first one until the sequence is whole."""
        return -(-self.length // self.num_steps) - 1

    @property
    def rollouts_before(self) -> int:
        """Return the rollouts before a sequence that its first stacks of frames need."""
        return -(-(self.frame_stack - 1) // self.num_steps)


def as_row(layout: Layout, trajectory: Trajectory) -> Row:
    """Return steps as the replay stores them."""
    obs = frames.as_stored(trajectory.obs, layout.frame_stack)
    return Row(
        inputs=trajectory.inputs._replace(obs=obs),
        action=trajectory.action,
        reward=trajectory.reward,
        terminated=trajectory.terminated,
        ended=trajectory.terminated | trajectory.truncated,
    )


def prioritize(layout: Layout, priorities: Array, max_priority: Array, cores: Replay) -> Array:
    """Return the priorities `[rollouts, N]` after a rollout was added.

    The newest whole sequence gets the largest priority. Sequences that are not yet whole get 0. So
    do those that begin with the oldest rollouts: with the one to be overwritten next, and with the
    `rollouts_before` after it, whose stacks of frames may lack the oldest ones.
    """
    newest_rollout = cores.num_added - 1
    newest_whole = newest_rollout - layout.rollouts_after
    before = layout.rollouts_before
    incomplete = newest_rollout - jnp.arange(layout.rollouts_after)
    oldest = newest_rollout + 1 + jnp.arange(1 + before)
    priorities = priorities.at[newest_whole % cores.capacity].set(
        jnp.where(newest_whole >= before, max_priority, 0.0)
    )
    priorities = priorities.at[incomplete % cores.capacity].set(0.0)
    return priorities.at[oldest % cores.capacity].set(0.0)


def read(layout: Layout, replay: Replay, cores: Replay, rollouts: Array, envs: Array) -> Sequences:
    """Return the sequences that begin with these rollouts, `[B]`.

    Args:
      replay: of `Row`.
      cores: the agent's memory before each rollout.
    """
    times = rollouts * layout.num_steps + jnp.arange(layout.length)[:, None]
    slots = times % replay.capacity
    rows = replay.rows
    others = rows._replace(inputs=rows.inputs._replace(obs=()))
    found = jax.tree.map(lambda ring: ring[slots, envs], others)
    obs = frames.observations(rows.inputs.obs, slots, envs, layout.frame_stack)
    core = jax.tree.map(lambda ring: ring[rollouts, envs], cores.rows)
    return Sequences(found._replace(inputs=found.inputs._replace(obs=obs)), core)
