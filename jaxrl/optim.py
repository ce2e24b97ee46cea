"""Optimizers whose learning rate, clip norm and decay are traced values.

The optax transformation is rebuilt at each update from the config's numbers and stored nowhere;
only its arrays are kept in the state. So learning rates can be vmapped over and changed at will.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from jaxrl.types import Array, PyTree

Number = Array | float


def adam(eps: Number, max_grad_norm: Number) -> optax.GradientTransformation:
    """Adam (Kingma & Ba 2015) after clipping by global norm, without the learning rate.

    The parameters are handled as one flat vector, which makes a whole update of a small network 5%
    faster than clipping and Adam over its many leaves (experiments/benchmarks/NOTES.md).
    """
    return optax.flatten(
        optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.scale_by_adam(eps=eps))
    )


def linear_decay(value: Number, num_updates: Array, decay_updates: Number) -> Array:
    """`value`, falling linearly to 0 over `decay_updates` updates; constant if that is 0."""
    fraction = 1.0 - num_updates / jnp.maximum(decay_updates, 1)
    return jnp.where(decay_updates > 0, value * jnp.maximum(fraction, 0.0), value)


def apply_updates(params: PyTree, updates: PyTree, learning_rate: Number) -> PyTree:
    """One step of size `learning_rate` against `updates`."""
    return jax.tree.map(lambda p, u: (p - learning_rate * u).astype(p.dtype), params, updates)
