"""Torsos in Flax Linen: from observations `[B, ...]` to features `[B, F]`.

They take images channels-last. uint8 images are scaled by 1/255. Weights are orthogonal (Saxe et
al. 2014), scaled by sqrt(2). `dtype` is the compute type; parameters stay float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from jaxrl.networks import convolution
from jaxrl.networks.convolution import Conv, max_pool
from jaxrl.networks.initializers import orthogonal
from jaxrl.types import Array

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "swish": nn.swish,
}
_KERNEL_INIT = orthogonal(math.sqrt(2))


def _as_float(obs: Array, dtype: Any) -> Array:
    scale = 1 / 255 if obs.dtype == jnp.uint8 else 1
    return obs.astype(dtype) * jnp.asarray(scale, dtype)


class MLP(nn.Module):
    """Dense layers over the flattened observation."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        x = _as_float(obs, self.dtype).reshape(obs.shape[0], -1)
        for size in self.hidden_sizes:
            x = nn.Dense(size, kernel_init=_KERNEL_INIT, dtype=self.dtype)(x)
            x = ACTIVATIONS[self.activation](x)
        return x


class ConvNet(nn.Module):
    """Convolutions, each `(features, kernel size, stride)`, then dense layers."""

    convolutions: tuple[tuple[int, int, int], ...]
    hidden_sizes: tuple[int, ...]
    activation: str = "relu"
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        layers = [
            Conv(
                features, (size, size), (stride, stride), kernel_init=_KERNEL_INIT, dtype=self.dtype
            )
            for features, size, stride in self.convolutions
        ]

        def convolved(images: Array) -> Array:
            x = _as_float(images, self.dtype)
            for layer in layers:
                x = ACTIVATIONS[self.activation](layer(x))
            return x

        x = jnp.concatenate([convolved(images) for images in self.blocks(obs)])
        return MLP(self.hidden_sizes, self.activation, self.dtype)(x)

    def blocks(self, obs: Array) -> list[Array]:
        """Return the blocks of a batch that the convolutions take one after another."""
        return convolution.blocks(obs)


NATURE_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Mnih et al. 2015."""
GA3C_CONVOLUTIONS = ((16, 8, 4), (32, 4, 2))
"""The small network of Mnih et al. 2013, which A3C and GA3C (Babaeizadeh et al. 2017) use."""
GA3C_LARGE_CONVOLUTIONS = {
    f"ga3c_large_stride{stride}": ((32, 8, stride), (32, 4, 2), (64, 4, 2))
    for stride in (4, 3, 2, 1)
}
"""GA3C's larger networks, whose cost grows as the stride of the first layer falls."""
MINATAR_CONVOLUTIONS = ((16, 3, 1),)
"""Young & Tian 2019."""


class ImpalaResNet(nn.Module):
    """The deep network of IMPALA (Espeholt et al. 2018, fig. 3), without its LSTM."""

    channels: tuple[int, ...] = (16, 32, 32)
    hidden_sizes: tuple[int, ...] = (256,)
    activation: str = "relu"
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        activation = ACTIVATIONS[self.activation]

        def convolve(x: Array, features: int) -> Array:
            return Conv(
                features, (3, 3), padding="SAME", kernel_init=_KERNEL_INIT, dtype=self.dtype
            )(x)

        x = _as_float(obs, self.dtype)
        for features in self.channels:
            x = max_pool(convolve(x, features), (3, 3), (2, 2), "SAME")
            for _ in range(2):
                block = convolve(activation(x), features)
                x = x + convolve(activation(block), features)
        return MLP(self.hidden_sizes, self.activation, self.dtype)(activation(x))


class DictTorso(nn.Module):
    """A torso for each named part of the observation; their features side by side."""

    torsos: tuple[tuple[str, nn.Module], ...]

    @nn.compact
    def __call__(self, obs: dict[str, Array]) -> Array:
        return jnp.concatenate([torso(obs[name]) for name, torso in self.torsos], -1)


TORSOS = (
    "mlp", "minatar_cnn", "ga3c_cnn", "nature_cnn", "impala_resnet", *GA3C_LARGE_CONVOLUTIONS
)  # fmt: skip


SMALLEST_IMAGE = 3


def choose_torso(shape: tuple[int, ...]) -> str:
    """The name of the usual torso for observations of this shape."""
    if len(shape) != 3 or min(shape[:2]) < SMALLEST_IMAGE:
        return "mlp"
    return "nature_cnn" if min(shape[:2]) >= 36 else "minatar_cnn"


def make_torso(
    name: str,
    shape: tuple[int, ...],
    hidden_sizes: tuple[int, ...] | None,
    activation: str | None,
    dtype: Any,
) -> nn.Module:
    """A torso by name; None takes its own usual sizes and activation.

    Raises:
      ValueError: if it can't take observations of this shape.
    """
    smallest = {
        "mlp": 0,
        "minatar_cnn": SMALLEST_IMAGE,
        "impala_resnet": 8,
        "ga3c_cnn": 20,
        "nature_cnn": 36,
    }
    smallest |= {f"ga3c_large_stride{stride}": 8 + 9 * stride for stride in (4, 3, 2, 1)}
    if name != "mlp" and (len(shape) != 3 or min(shape[:2]) < smallest[name]):
        raise ValueError(
            f"torso {name!r} takes images [height, width, channels] of at least "
            f"{smallest[name]}x{smallest[name]}, but observations have shape {shape}; "
            "choose torso='mlp' or pass a network of your own"
        )
    if name == "mlp":
        sizes = (64, 64) if hidden_sizes is None else hidden_sizes
        return MLP(sizes, activation or "tanh", dtype)
    activation = activation or "relu"
    if name == "impala_resnet":
        sizes = (256,) if hidden_sizes is None else hidden_sizes
        return ImpalaResNet((16, 32, 32), sizes, activation, dtype)
    convolutions, usual_sizes = {
        "minatar_cnn": (MINATAR_CONVOLUTIONS, (128,)),
        "ga3c_cnn": (GA3C_CONVOLUTIONS, (256,)),
        "nature_cnn": (NATURE_CONVOLUTIONS, (512,)),
        **{name: (layers, (256,)) for name, layers in GA3C_LARGE_CONVOLUTIONS.items()},
    }[name]
    sizes = usual_sizes if hidden_sizes is None else hidden_sizes
    return ConvNet(convolutions, sizes, activation, dtype)
