"""Optimizers whose learning rate, clip norm and decay are traced values.

The optax transformation is rebuilt at each update from the config's numbers and stored nowhere;
only its arrays are kept in the state. So learning rates can be vmapped over and changed at will.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.device_axis import SINGLE_DEVICE, Axis
from jaxrl.types import Array, PyTree

Number = Array | float


FEW_PARAMETERS = 2**16


def adam(eps: Number, max_grad_norm: Number) -> optax.GradientTransformation:
    """Adam (Kingma & Ba 2015) after clipping by global norm, without the learning rate."""
    return _flat_if_few(
        optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.scale_by_adam(eps=eps))
    )


def rmsprop(
    decay: Number,
    eps: Number,
    max_grad_norm: Number,
    eps_inside_root: bool = True,
    initial: Number = 0.0,
) -> optax.GradientTransformation:
    """RMSProp (Hinton 2012) after clipping by global norm, without the learning rate.

    `g / sqrt(mean g^2 + eps)` as in A3C's paper and TensorFlow, or `g / (sqrt(mean g^2) + eps)` as
    in PyTorch; eps of 0.1 means something else in each. The mean of squares starts at `initial`: 0,
    or 1 as in TensorFlow.
    """
    return _flat_if_few(
        optax.chain(
            optax.clip_by_global_norm(max_grad_norm),
            optax.scale_by_rms(decay, eps, initial, eps_in_sqrt=eps_inside_root),
        )
    )


def _flat_if_few(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Handle few parameters as one vector, many leaf by leaf.

    One vector makes a whole update of a small network 5% faster than many small leaves; for a CNN
    XLA on a CPU fuses that vector with the convolutions' gradients, and a step takes forty times as
    long (experiments/benchmarks/NOTES.md).
    """
    flat = optax.flatten(inner)

    def chosen(params: PyTree) -> optax.GradientTransformation:
        return flat if sum(x.size for x in jax.tree.leaves(params)) <= FEW_PARAMETERS else inner

    def init(params: PyTree) -> PyTree:
        return chosen(params).init(params)

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        return chosen(updates).update(updates, state, params)

    return optax.GradientTransformation(init, update)


def linear_decay(value: Number, num_updates: Array, decay_updates: Number) -> Array:
    """`value`, falling linearly to 0 over `decay_updates` updates; constant if that is 0."""
    return linear_schedule(value, 0.0, num_updates, decay_updates)


def linear_schedule(start: Number, end: Number, num_updates: Array, total_updates: Number) -> Array:
    """From `start` to `end` over `total_updates`, linearly; always `start` if that is 0."""
    fraction = jnp.minimum(num_updates / jnp.maximum(total_updates, 1), 1.0)
    return jnp.where(total_updates > 0, start + (end - start) * fraction, start)


def apply_updates(params: PyTree, updates: PyTree, learning_rate: Number) -> PyTree:
    """One step of size `learning_rate` against `updates`."""
    return jax.tree.map(lambda p, u: (p - learning_rate * u).astype(p.dtype), params, updates)


def gradient_step(
    optimizer: optax.GradientTransformation,
    objective: Callable[[PyTree], tuple[Array, Any]],
    params: PyTree,
    opt_state: PyTree,
    learning_rate: Number,
    axis: Axis = SINGLE_DEVICE,
) -> tuple[PyTree, PyTree, Any]:
    """One step down the gradient of `objective(params) -> (loss, aux)`.

    Args:
      axis: the devices over which the gradient is averaged; what else the objective gives is not.

    Returns:
      Parameters and optimizer state after it, and what else the objective gave before it.
    """
    grads, aux = jax.grad(objective, has_aux=True)(params)
    updates, opt_state = optimizer.update(axis.mean(grads), opt_state, params)
    return apply_updates(params, updates, learning_rate), opt_state, aux
