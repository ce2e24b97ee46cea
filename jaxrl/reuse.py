"""The forward pass of a rollout, reused by the learner that follows it with the same parameters.

An algorithm that takes one gradient step on each rollout evaluates its network twice on every
observation: to act, and to learn. What the layers gave, dense ones and convolutions, can be kept
with the rollout and put in the place of what learning would compute. The compiler then drops that
computation, since the gradients of a linear layer need its inputs and weights only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.convolution import Conv
from jaxrl.types import Array

Result = TypeVar("Result")


def recorded(function: Callable[..., Result], *args: Any) -> tuple[Result, tuple[Array, ...]]:
    """`function(*args)`, and what its layers gave, in the order of their calls."""
    outputs: list[Array] = []

    def note(layer: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        output = layer(*args, **kwargs)
        if _is_layer(context):
            outputs.append(output)
        return output

    with nn.intercept_methods(note):
        result = function(*args)
    return result, tuple(outputs)


def replayed(outputs: tuple[Array, ...], function: Callable[..., Result], *args: Any) -> Result:
    """`function(*args)`, whose layers give what was recorded, with their own gradients.

    Without any outputs they compute their own.
    """
    if not outputs:
        return function(*args)
    left = iter(outputs)

    def replace(layer: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        output = layer(*args, **kwargs)
        return _instead(output, next(left)) if _is_layer(context) else output

    with nn.intercept_methods(replace):
        return function(*args)


def _is_layer(context: Any) -> bool:
    return isinstance(context.module, nn.Dense | Conv) and context.method_name == "__call__"


@jax.custom_vjp
def _instead(computed: Array, known: Array) -> Array:
    """`known`, with the gradient of `computed`, which is the same number."""
    del computed
    return known


def _forward(computed: Array, known: Array) -> tuple[Array, None]:
    del computed
    return known, None


def _backward(_: None, gradient: Array) -> tuple[Array, Array]:
    return gradient, jnp.zeros_like(gradient)


_instead.defvjp(_forward, _backward)
