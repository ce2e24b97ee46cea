"""Masks of transitions: a masked number reaches no sum and no gradient, even if it is infinite.

A product with a mask of zeros would not do, since `0 * inf` is NaN.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.types import Array, PyTree


def masked_sum(x: Array, valid: Array) -> Array:
    """Return the sum of `x` where `valid` is true (or not 0)."""
    return jnp.where(valid, x, 0).sum()


def zero_invalid(tree: PyTree, valid: Array) -> PyTree:
    """Return the leaves with zeros where `valid` is false.

    Mask what enters a formula, not only what comes out: the gradient of `where(valid, f(x), 0)` is
    `0 * f'(x)` at a masked x.

    Args:
      tree: leaves begin with the axes of `valid`.
    """
    return jax.tree.map(lambda x: jnp.where(_rows(valid, x), x, 0), tree)


def finite_where_invalid(tree: PyTree, valid: Array) -> PyTree:
    """Return the leaves with NaN and infinity replaced by 0 where `valid` is false.

    Use it for parameters of distributions: 0 may be an illegal parameter, so finite values stay.

    Args:
      tree: leaves begin with the axes of `valid`.
    """
    return jax.tree.map(
        lambda x: jnp.where(_rows(valid, x) | jnp.isfinite(x), x, 0).astype(x.dtype), tree
    )


def _rows(valid: Array, x: Array) -> Array:
    """Return the mask as booleans that broadcast to `x`."""
    return (jnp.asarray(valid) != 0).reshape(*valid.shape, *(1,) * (x.ndim - valid.ndim))
