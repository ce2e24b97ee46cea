"""Optimizers whose learning rate, clip norm and decay are traced values.

The optax transformation is built anew at each update from the config's numbers and is stored
nowhere; the training state keeps its arrays only. So learning rates can be vmapped over and
changed at any update.
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


def adam(learning_rate: Number, eps: Number, max_grad_norm: Number) -> optax.GradientTransformation:
    """Return Adam (Kingma & Ba 2015) after clipping gradients by their global norm."""
    return _complete(optax.scale_by_adam(eps=eps), learning_rate, max_grad_norm)


def radam(
    learning_rate: Number, eps: Number, max_grad_norm: Number
) -> optax.GradientTransformation:
    """Return RAdam (Liu et al. 2020) after clipping gradients by their global norm."""
    return _complete(optax.scale_by_radam(eps=eps), learning_rate, max_grad_norm)


def rmsprop(
    learning_rate: Number,
    decay: Number,
    eps: Number,
    max_grad_norm: Number,
    eps_inside_root: bool = True,
    initial: Number = 0.0,
) -> optax.GradientTransformation:
    """Return RMSProp (Hinton 2012) after clipping gradients by their global norm.

    Args:
      eps_inside_root: divide by `sqrt(mean g^2 + eps)`, as A3C's paper and TensorFlow do, and not
        by `sqrt(mean g^2) + eps`, as PyTorch does. An eps of 0.1 means something else in each.
      initial: where the mean of squares starts: 0, or 1 as in TensorFlow.
    """
    inner = optax.scale_by_rms(decay, eps, initial, eps_in_sqrt=eps_inside_root)
    return _complete(inner, learning_rate, max_grad_norm)


def _complete(
    inner: optax.GradientTransformation, learning_rate: Number, max_grad_norm: Number
) -> optax.GradientTransformation:
    """Clip before `inner`, scale after it, and handle few parameters as one vector.

    Scaling by the learning rate adds no state.

    One vector makes a whole update of a small network 5% faster than many small leaves; for a CNN
    XLA on a CPU fuses that vector with the convolutions' gradients, and a step takes thirty times
    as long (docs/explanation/benchmark-notes.md).
    """
    inner = optax.chain(optax.clip_by_global_norm(max_grad_norm), inner)
    flat = optax.flatten(inner)
    scale = optax.scale_by_learning_rate(learning_rate)

    def chosen(params: PyTree) -> optax.GradientTransformation:
        return flat if sum(x.size for x in jax.tree.leaves(params)) <= FEW_PARAMETERS else inner

    def init(params: PyTree) -> PyTree:
        return chosen(params).init(params)

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        updates, state = chosen(updates).update(updates, state, params)
        updates, _ = scale.update(updates, optax.EmptyState())
        return updates, state

    return optax.GradientTransformation(init, update)


def linear_schedule(
    start: Number, end: Number, num_updates: Number, total_updates: Number
) -> Array:
    """Return the number between `start` and `end` on a line over `total_updates`.

    It stays at `end` afterwards, and at `start` if `total_updates` is 0.
    """
    fraction = jnp.minimum(num_updates / jnp.maximum(total_updates, 1), 1.0)
    return jnp.where(total_updates > 0, start + (end - start) * fraction, start)


def gradient_step(
    optimizer: optax.GradientTransformation,
    objective: Callable[[PyTree], tuple[Array, Any]],
    params: PyTree,
    opt_state: PyTree,
    axis: Axis = SINGLE_DEVICE,
) -> tuple[PyTree, PyTree, Any]:
    """Take one step down the gradient of `objective(params) -> (loss, aux)`.

    Args:
      axis: the devices over which the gradient is averaged; `aux` stays each device's own.

    Returns:
      The parameters and the optimizer's state after the step, and `aux` before it.
    """
    grads, aux = jax.grad(objective, has_aux=True)(params)
    updates, opt_state = optimizer.update(axis.mean(grads), opt_state, params)
    return optax.apply_updates(params, updates), opt_state, aux
