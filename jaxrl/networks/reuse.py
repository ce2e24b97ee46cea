"""The forward pass of a rollout, reused by the learner that follows it with the same parameters.

An algorithm that takes one gradient step on each rollout evaluates its network twice on every
observation: to act, and to learn. What the layers gave, dense ones and convolutions, can be kept
with the rollout and put in the place of what learning would compute. The compiler then drops that
computation, since the gradients of a linear layer need its inputs and weights only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.networks.convolution import Conv
from jaxrl.types import Array

Result = TypeVar("Result")
Layers = dict[str, tuple[Array, ...]]
"""What each layer gave, by its name, in the order of its calls."""


def recorded(function: Callable[..., Result], *args: Any) -> tuple[Result, Layers]:
    """`function(*args)`, and what its layers gave."""
    outputs: defaultdict[str, list[Array]] = defaultdict(list)

    def note(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        if context.method_name == "blocks":
            return [*args]  # one batch of few: that of learning has other blocks
        output = call(*args, **kwargs)
        if _is_layer(context):
            outputs[_name(context)].append(output)
        return output

    with nn.intercept_methods(note):
        result = function(*args)
    return result, {name: tuple(calls) for name, calls in outputs.items()}


def replayed(layers: Layers | tuple[()], function: Callable[..., Result], *args: Any) -> Result:
    """`function(*args)`, whose layers give what was recorded, with their own gradients.

    Without any records they compute their own. Blocks of a batch (`jaxrl.networks.convolution.blocks`) take
    their part of what was recorded of the whole.
    """
    if not layers:
        return function(*args)
    left = {name: list(calls) for name, calls in layers.items()}

    def replace(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        output = call(*args, **kwargs)
        if not _is_layer(context):
            return output
        calls = left[_name(context)]
        known, rest = calls[0][: len(output)], calls[0][len(output) :]
        calls[:1] = [rest] if len(rest) else []
        return _instead(output, known)

    with nn.intercept_methods(replace):
        return function(*args)


def _name(context: Any) -> str:
    return "/".join(context.module.path)


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
