"""Replay of past steps in the training state: a ring of rows `[capacity, N, ...]`.

The ring is part of the scan's carry. It is written by `dynamic_update_slice` and read by gathers
only, so XLA updates it in place; no function here may return it from a `cond`.
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
    num_added: Array  # int32: rows added, less whole rounds of a full ring, so it never overflows

    @property
    def capacity(self) -> int:
        return jax.tree.leaves(self.rows)[0].shape[0]

    @property
    def size(self) -> Array:
        """Return the number of rows in the ring."""
        return jnp.minimum(self.num_added, self.capacity)

    @property
    def oldest(self) -> Array:
        """Return the slot of the oldest row."""
        return (self.num_added - self.size) % self.capacity


def start(rows: PyTree, capacity: int, block: int) -> Replay:
    """Return an empty ring for at least `capacity` rows, a whole number of blocks.

    Args:
      rows: arrays or shapes of one row, `[N, ...]`.
      block: rows of each `add`.
    """
    capacity = -(-capacity // block) * block
    empty = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), rows)
    return Replay(empty, jnp.int32(0))


def add(replay: Replay, rows: PyTree) -> Replay:
    """Write a block of rows `[block, N, ...]` over the oldest ones.

    Raises:
      ValueError: if the ring is no whole number of such blocks.
    """
    slot = replay.num_added % replay.capacity
    block = jax.tree.leaves(rows)[0].shape[0]
    if replay.capacity % block:
        raise ValueError(
            f"a ring of {replay.capacity} rows takes no blocks of {block}: give `start` the same "
            "block"
        )
    written = jax.tree.map(
        lambda ring, x: jax.lax.dynamic_update_slice_in_dim(ring, x.astype(ring.dtype), slot, 0),
        replay.rows,
        rows,
    )
    added, capacity = replay.num_added + block, replay.capacity
    return Replay(written, jnp.where(added >= 2 * capacity, added - capacity, added))


def window(ring: Array, slots: Array, envs: Array, length: int) -> Array:
    """Return `length` rows from each slot on, `[length, B, ...]`; slots and envs are `[B]`."""
    times = (slots + jnp.arange(length)[:, None]) % ring.shape[0]
    return ring[times, envs]


def draw_uniformly(
    key: Array,
    replay: Replay,
    num_envs: int,
    batch_size: int,
    before: int,
    after: int,
    axis: Axis = SINGLE_DEVICE,
) -> tuple[Array, Array]:
    """Draw slots and environments uniformly, each `[B]`, this device's share of `batch_size`.

    Rows qualify if the ring has `before` older and `after` newer ones.

    Draws are stratified: one from each of `batch_size` equal parts of all environments. So devices
    with equal parts of the environments draw equal shares of a batch, and together the same batch
    as one device would.
    """
    slot_key, env_key = jax.random.split(key)
    count = jnp.maximum(replay.size - before - after, 1)
    rows = jax.random.randint(slot_key, (batch_size,), before, before + count)
    parts = jnp.arange(batch_size) + jax.random.uniform(env_key, (batch_size,))
    envs = (parts * (num_envs * axis.size / batch_size)).astype(jnp.int32)
    # Rounding may put a draw on the far edge of its part.
    envs = jnp.clip(axis.shard(envs) - axis.index * num_envs, 0, num_envs - 1)
    return (replay.oldest + axis.shard(rows)) % replay.capacity, envs
