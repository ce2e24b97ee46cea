"""Replay of past steps in the training state: a ring of rows `[capacity, N, ...]`.

The ring is part of the scan's carry. It is only ever written by `dynamic_update_slice` and read by
gathers, so XLA updates it in place; nothing here may return it from a `cond`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.device_axis import SINGLE_DEVICE, Axis
from jaxrl.types import Array, PyTree


class Replay(NamedTuple):
    """The last rows of N environments."""

    rows: PyTree  # leaves [capacity, N, ...]
    num_added: Array  # int32: rows added, once the ring is full less whole rounds of it

    @property
    def capacity(self) -> int:
        return jax.tree.leaves(self.rows)[0].shape[0]

    @property
    def size(self) -> Array:
        """Rows that are there."""
        return jnp.minimum(self.num_added, self.capacity)

    @property
    def oldest(self) -> Array:
        """The slot of the oldest row."""
        return (self.num_added - self.size) % self.capacity


def start(rows: PyTree, capacity: int, block: int) -> Replay:
    """An empty ring for at least `capacity` rows, a whole number of blocks.

    Args:
      rows: arrays or shapes of one row, `[N, ...]`.
      block: rows of each `add`.
    """
    capacity = -(-capacity // block) * block
    empty = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), rows)
    return Replay(empty, jnp.int32(0))


def add(replay: Replay, rows: PyTree) -> Replay:
    """Write a block of rows `[block, N, ...]` over the oldest ones."""
    slot = replay.num_added % replay.capacity
    block = jax.tree.leaves(rows)[0].shape[0]
    written = jax.tree.map(
        lambda ring, x: jax.lax.dynamic_update_slice_in_dim(ring, x.astype(ring.dtype), slot, 0),
        replay.rows,
        rows,
    )
    added, capacity = replay.num_added + block, replay.capacity
    return Replay(written, jnp.where(added >= 2 * capacity, added - capacity, added))


def window(ring: Array, slots: Array, envs: Array, length: int) -> Array:
    """`length` rows from each slot on, `[length, B, ...]`; slots and envs are `[B]`."""
    times = (slots + jnp.arange(length)[:, None]) % ring.shape[0]
    return ring[times, envs]


def uniform_slots(
    key: Array,
    replay: Replay,
    num_envs: int,
    batch_size: int,
    before: int,
    after: int,
    axis: Axis = SINGLE_DEVICE,
) -> tuple[Array, Array]:
    """Slots and environments, uniform over rows that have `before` older and `after` newer rows in
    the ring; each `[B]`, this device's share of `batch_size`.

    Stratified: one draw from each of `batch_size` equal parts of all environments. So devices that
    hold equal parts of them draw equal shares of a batch, and together what one would.
    """
    slot_key, env_key = jax.random.split(key)
    count = jnp.maximum(replay.size - before - after, 1)
    rows = jax.random.randint(slot_key, (batch_size,), before, before + count)
    parts = jnp.arange(batch_size) + jax.random.uniform(env_key, (batch_size,))
    envs = (parts * (num_envs * axis.size / batch_size)).astype(jnp.int32)
    # Rounding may put a draw on the far edge of its part.
    envs = jnp.clip(axis.shard(envs) - axis.index * num_envs, 0, num_envs - 1)
    return (replay.oldest + axis.shard(rows)) % replay.capacity, envs


# --- frame stacks --------------------------------------------------------------------------------


class Frame(NamedTuple):
    """The newest image of a stack; leaves `[..., H, W]` and `[...]`."""

    image: Array
    alone: Array  # bool: all images of the stack are this one, as after a reset


def newest_frame(obs: Array) -> Frame:
    """What is new in stacked images `[..., H, W, K]`, the newest last."""
    return Frame(obs[..., -1], (obs == obs[..., -1:]).all((-3, -2, -1)))


def restack(frames: Frame, slots: Array, envs: Array, num_frames: int) -> Array:
    """The stacks `[..., H, W, num_frames]` that ended with the frames at `slots`, `envs`.

    Exact for environments whose stacks either go on over a reset, as Atari's do when only a life
    is lost, or begin as copies of the first image.

    Args:
      frames: leaves `[capacity, N, ...]`.
    """
    history = [slots]
    for _ in range(num_frames - 1):
        slot = history[-1]
        older = (slot - 1) % frames.image.shape[0]
        history.append(jnp.where(frames.alone[slot, envs], slot, older))
    # A loop, since XLA would fuse a gather into the convolution that reads it, and so look up slots
    # and frames anew for each pixel of each patch: forty times the time of a gradient step.
    stacks = jax.lax.map(lambda slot: frames.image[slot, envs], jnp.stack(history[::-1]))
    return jnp.moveaxis(stacks, 0, -1)


def as_stored(obs: PyTree, num_frames: int) -> PyTree:
    """Observations as the ring keeps them: the newest frame alone of stacks of `num_frames`."""
    return newest_frame(obs) if num_frames > 1 else obs


def observations(ring: PyTree, slots: Array, envs: Array, num_frames: int) -> PyTree:
    """The observations at `slots`, `envs` of a ring of what `as_stored` gave."""
    if num_frames > 1:
        return restack(ring, slots, envs, num_frames)
    return jax.tree.map(lambda x: x[slots, envs], ring)


# --- prioritized sampling ------------------------------------------------------------------------


class Draws(NamedTuple):
    """Indices into a flat array of priorities, `[B]`, and their probabilities."""

    index: Array
    probability: Array


def proportional(key: Array, priorities: Array, batch_size: int) -> Draws:
    """Draw with probability proportional to `priorities` (Schaul et al. 2016, section 3.3).

    Stratified: one draw from each of `batch_size` equal parts of the total. A sum tree of depth
    two, with branches of the square root of the number: its sums cost one pass over the array,
    which a CPU or GPU does faster than it follows pointers.

    Args:
      priorities: `[M]`, >= 0. If all are 0, the draws are of probability 0.
    """
    width = max(1, int(priorities.size**0.5))
    padded = jnp.pad(priorities, (0, -priorities.size % width)).reshape(-1, width)
    sums = padded.sum(1)
    total = sums.sum()
    parts = (jnp.arange(batch_size) + jax.random.uniform(key, (batch_size,))) / batch_size
    block, rest = _find(jnp.broadcast_to(sums, (batch_size, sums.size)), parts * total)
    column, _ = _find(padded[block], rest)
    index = block * width + column
    return Draws(index, jnp.where(total > 0, priorities[index] / total, 0.0))


def _find(weights: Array, wanted: Array) -> tuple[Array, Array]:
    """Where each row's running sum passes `wanted`, and what is wanted of that entry.

    Running sums are rounded and may rise where a weight is 0, so entries of weight 0 are excluded
    by themselves, and the last other one takes what rounding leaves over.

    Args:
      weights: `[B, M]`, >= 0; wanted: `[B]`.
    """
    ends = jnp.cumsum(weights, axis=1)
    positive = weights > 0
    passed = (ends > wanted[:, None]) & positive
    last = weights.shape[1] - 1 - jnp.argmax(positive[:, ::-1], axis=1)
    found = jnp.where(passed.any(1), jnp.argmax(passed, axis=1), last)
    rows = jnp.arange(weights.shape[0])
    return found, wanted - (ends[rows, found] - weights[rows, found])


def importance_weights(probability: Array, count: Array, beta: Array | float) -> Array:
    """`(1 / (count P))^beta`, to be divided by the largest of the batch (Schaul et al. 2016)."""
    return (1.0 / jnp.maximum(count * probability, 1e-12)) ** beta
