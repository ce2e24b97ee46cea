"""Torsos: from observations `[B, ...]` to features `[B, F]`.

Images are channels-last. Weights are orthogonal (Saxe et al. 2014, arXiv 1312.6120), scaled by
sqrt(2). Torsos have the attributes `hidden_sizes`, widths of the dense layers in units;
`activation`, one of `ACTIVATIONS`, after each layer; `dtype`, in which they compute; `layer_norm`:
whether each layer's features are normalized before the activation (Ba et al. 2016, arXiv
1607.06450), those of a convolution at each place by itself; and `max_byte`, the highest value of
uint8 observations, by which they are divided. Parameters are float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

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


class MLP(nn.Module):
    """Dense layers over the flattened observation."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    dtype: Any = jnp.float32
    layer_norm: bool = False
    max_byte: float = 255

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        x = _as_float(self, obs).reshape(obs.shape[0], -1)
        for size in self.hidden_sizes:
            x = nn.Dense(size, kernel_init=_KERNEL_INIT, dtype=self.dtype)(x)
            x = ACTIVATIONS[self.activation](_normalizer(self)(x))
        return x


class ConvNet(nn.Module):
    """Convolutions without padding, then dense layers.

    Attributes:
      convolutions: `(features, kernel size, stride)` of each.
    """

    convolutions: tuple[tuple[int, int, int], ...]
    hidden_sizes: tuple[int, ...]
    activation: str = "relu"
    dtype: Any = jnp.float32
    layer_norm: bool = False
    max_byte: float = 255

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        layers = [
            Conv(
                features, (size, size), (stride, stride), kernel_init=_KERNEL_INIT, dtype=self.dtype
            )
            for features, size, stride in self.convolutions
        ]
        normalizers = [_normalizer(self) for _ in layers]

        def convolved(images: Array) -> Array:
            x = _as_float(self, images)
            for layer, normalized in zip(layers, normalizers, strict=True):
                x = ACTIVATIONS[self.activation](normalized(layer(x)))
            return x

        x = jnp.concatenate([convolved(images) for images in convolution.blocks(obs)])
        return MLP(self.hidden_sizes, self.activation, self.dtype, self.layer_norm)(x)


class ImpalaResNet(nn.Module):
    """The deep network of IMPALA (Espeholt et al. 2018, arXiv 1802.01561, fig. 3), without LSTM.

    Each of its three groups is a convolution, a pooling and two residual blocks. On a CPU a batch
    passes in small parts that stay in its caches, and the gradient computes their activations
    again.
    """

    hidden_sizes: tuple[int, ...] = (256,)
    activation: str = "relu"
    dtype: Any = jnp.float32
    layer_norm: bool = False
    max_byte: float = 255

    @nn.compact
    def __call__(self, obs: Array) -> Array:
        size = convolution.small_block(obs)
        if self.is_initializing() or size >= len(obs):
            x = self._convolved(obs)
        else:
            number = -(-len(obs) // size)
            padded = jnp.pad(obs, ((0, number * size - len(obs)), *[(0, 0)] * 3))
            convolved = nn.remat(ImpalaResNet._convolved, prevent_cse=False)
            # The carry is not used.
            in_turn = nn.scan(
                lambda torso, _, images: (None, convolved(torso, images)),
                variable_broadcast="params",
                split_rngs={"params": False},
            )
            _, parts = in_turn(self, None, padded.reshape(number, size, *obs.shape[1:]))
            x = parts.reshape(-1, *parts.shape[2:])[: len(obs)]
        return MLP(self.hidden_sizes, self.activation, self.dtype, self.layer_norm)(x)

    def _convolved(self, images: Array) -> Array:
        """Return the activations after all groups, `[B, H, W, C]`."""
        activation = ACTIVATIONS[self.activation]

        def convolve(x: Array, features: int) -> Array:
            conv = Conv(
                features, (3, 3), padding="SAME", kernel_init=_KERNEL_INIT, dtype=self.dtype
            )
            return _normalizer(self)(conv(x))

        x = _as_float(self, images)
        for features in (16, 32, 32):
            x = max_pool(convolve(x, features), (3, 3), (2, 2), "SAME")
            for _ in range(2):
                block = convolve(activation(x), features)
                x = x + convolve(activation(block), features)
        return activation(x)


class DictTorso(nn.Module):
    """A torso for each named part of a `Dict` observation; returns their features side by side.

    Attributes:
      torsos: `(name, torso)` pairs.
    """

    torsos: tuple[tuple[str, nn.Module], ...]

    @nn.compact
    def __call__(self, obs: dict[str, Array]) -> Array:
        return jnp.concatenate([torso(obs[name]) for name, torso in self.torsos], -1)


def _normalizer(torso: Any) -> Callable[[Array], Array]:
    """Return what a torso does to the features of a layer before the activation."""
    return nn.LayerNorm(dtype=torso.dtype) if torso.layer_norm else lambda x: x


def _as_float(torso: Any, obs: Array) -> Array:
    """Return observations in the type of a torso; of uint8 ones their share of the highest."""
    scale = 1 / torso.max_byte if obs.dtype == jnp.uint8 else 1
    return obs.astype(torso.dtype) * jnp.asarray(scale, torso.dtype)


NATURE_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""The network of Mnih et al. 2015, `(features, kernel size, stride)` of each layer."""
GA3C_CONVOLUTIONS = ((16, 8, 4), (32, 4, 2))
"""The network of Mnih et al. 2013 (arXiv 1312.5602), which A3C and GA3C use."""
GA3C_CONVOLUTIONS_42 = ((16, 4, 2), (32, 4, 2))
"""The same for pictures of half the size: its first kernel and stride are halved, so that the last
layer has 9x9 places as on 84x84. `GA3C_CONVOLUTIONS` leave 3x3 of 42x42, too few for a small ball
(docs/algorithms/atari.md)."""


class _ImageTorso(NamedTuple):
    """A torso for images."""

    convolutions: tuple[tuple[int, int, int], ...] | None  # of a `ConvNet`; None: `ImpalaResNet`
    hidden_sizes: tuple[int, ...]  # default widths of the dense layers, in units
    smallest: int  # least height and width of an image, in pixels


_IMAGE_TORSOS = {
    "minatar_cnn": _ImageTorso(((16, 3, 1),), (128,), 3),  # Young & Tian 2019, arXiv 1903.03176
    "ga3c_cnn": _ImageTorso(GA3C_CONVOLUTIONS, (256,), 20),
    "ga3c_cnn_42": _ImageTorso(GA3C_CONVOLUTIONS_42, (256,), 10),
    "nature_cnn": _ImageTorso(NATURE_CONVOLUTIONS, (512,), 36),
    "impala_resnet": _ImageTorso(None, (256,), 8),
} | {  # GA3C's larger networks, Babaeizadeh et al. 2017, arXiv 1611.06256
    f"ga3c_large_stride{stride}": _ImageTorso(
        ((32, 8, stride), (32, 4, 2), (64, 4, 2)), (256,), 8 + 9 * stride
    )
    for stride in (4, 3, 2, 1)
}
TORSOS = ("mlp", *_IMAGE_TORSOS)
"""The names that `make_torso` takes."""


def choose_torso(shape: tuple[int, ...]) -> str:
    """Return the name of the default torso for observations of this shape."""
    if len(shape) != 3 or min(shape[:2]) < _IMAGE_TORSOS["minatar_cnn"].smallest:
        return "mlp"
    is_large = min(shape[:2]) >= _IMAGE_TORSOS["nature_cnn"].smallest
    return "nature_cnn" if is_large else "minatar_cnn"


def takes(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether the torso of this name takes observations of this shape."""
    return name == "mlp" or (len(shape) == 3 and min(shape[:2]) >= _IMAGE_TORSOS[name].smallest)


def takes_none(name: str, shape: tuple[int, ...]) -> ValueError:
    """Return the error that the torso of this name does not take observations of this shape."""
    smallest = _IMAGE_TORSOS[name].smallest
    return ValueError(
        f"torso {name!r} takes images [height, width, channels] of at least "
        f"{smallest}x{smallest}, but observations have shape {shape}; "
        "choose torso='mlp' or pass a network of your own"
    )


def make_torso(
    name: str, hidden_sizes: tuple[int, ...] | None, activation: str | None, **attributes: Any
) -> nn.Module:
    """Build a torso by name; None for its default sizes and activation.

    Args:
      **attributes: the others that all torsos have.
    """
    if name == "mlp":
        sizes = (64, 64) if hidden_sizes is None else hidden_sizes
        return MLP(sizes, activation or "tanh", **attributes)
    convolutions, default_sizes, _ = _IMAGE_TORSOS[name]
    sizes = default_sizes if hidden_sizes is None else hidden_sizes
    if convolutions is None:
        return ImpalaResNet(sizes, activation or "relu", **attributes)
    return ConvNet(convolutions, sizes, activation or "relu", **attributes)
