"""Random minibatches: a shuffle without a sort."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.types import Array

ROUNDS = 8


def shuffled_indices(key: Array, num_minibatches: int, size: int) -> Array:
    """A random split of `0 .. size - 1`, `[num_minibatches, size of each]`.

    Each number goes to its place by a keyed bijection, a Feistel network (Luby & Rackoff 1988)
    over the next power of two, applied again to what falls outside; so nothing is sorted, as in
    Mitchell et al. 2021 (arXiv 2106.06161). Sorting is what a shuffle costs otherwise.

    Raises:
      ValueError: if `size` is not a multiple of `num_minibatches`.
    """
    if size % num_minibatches:
        raise ValueError(f"{size} rows do not split into {num_minibatches} minibatches")
    bits = max((size - 1).bit_length(), 2)
    round_keys = jax.random.bits(key, (ROUNDS,), jnp.uint32)
    places = _permute(jnp.arange(size, dtype=jnp.uint32), round_keys, bits)
    if size < 1 << bits:
        places = jax.lax.while_loop(
            lambda x: (x >= size).any(),
            lambda x: jnp.where(x >= size, _permute(x, round_keys, bits), x),
            places,
        )
    return places.astype(jnp.int32).reshape(num_minibatches, -1)


def _permute(x: Array, round_keys: Array, bits: int) -> Array:
    """A bijection of the integers of so many bits: halves take turns to be xored with a hash of
    the other."""
    left_bits, right_bits = bits - bits // 2, bits // 2
    left, right = x >> right_bits, x & ((1 << right_bits) - 1)
    for i in range(ROUNDS):
        left, right = right, left ^ (_hash(right ^ round_keys[i]) >> (32 - left_bits))
        left_bits, right_bits = right_bits, left_bits
    return left << right_bits | right


def _hash(x: Array) -> Array:
    """A bijection of 32-bit words whose high bits depend on all bits (MurmurHash3's finalizer)."""
    x = (x ^ x >> 16) * jnp.uint32(0x85EBCA6B)
    x = (x ^ x >> 13) * jnp.uint32(0xC2B2AE35)
    return x ^ x >> 16
