"""Prioritized sampling (Schaul et al. 2016): draws in proportion to priorities, and weights."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.types import Array


class Draws(NamedTuple):
    """Indices into a flat array of priorities, `[B]`, and their probabilities."""

    index: Array
    probability: Array


def draw_proportionally(key: Array, priorities: Array, batch_size: int) -> Draws:
    """Draw with probability proportional to `priorities` (Schaul et al. 2016, section 3.3).

    Draws are stratified: one from each of `batch_size` equal parts of the total. The search uses a
    sum tree of depth two with branches of the square root of M entries: its sums cost one pass over
    the array, and a CPU or GPU does that faster than it follows pointers. An entry with less than
    2^-24 of the total lies between two random numbers of single precision: whether it can be drawn
    depends on the other priorities, and changes with them.

    Args:
      priorities: `[M]`, >= 0. If all are 0, the draws have probability 0.
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
    """Return the entry where each row's running sum passes `wanted`, and the rest within it.

    Running sums are rounded and may rise at an entry of weight 0, so such entries are excluded
    explicitly; the last positive entry takes the draws beyond the rounded total.

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


def importance_weights(probability: Array, beta: Array | float) -> Array:
    """Return `(1 / P)^beta`, to be divided by the largest of the batch (section 3.4).

    The paper's `(1 / (N P))^beta` with N entries is the same after the division.

    Args:
      probability: P of each draw, `[B]`.
      beta: 0 for no correction, 1 for a full one.
    """
    return (1.0 / jnp.maximum(probability, 1e-12)) ** beta
