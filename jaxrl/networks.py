"""Networks in Flax Linen: torsos from observations to features, and heads on top of them.

A policy network is any Flax module whose call takes observations `[B, ...]` and returns
`(distribution, value)`, the value of shape `[B]`. `ActorCritic` builds one from torsos, and
`actor_critic` chooses the torso by the observation's shape.

Torsos take images channels-last. uint8 images are scaled by 1/255. Weights are orthogonal
(Saxe et al. 2014), scaled by sqrt(2), the policy head's by 0.01, the value head's by 1. `dtype`
is the torso's compute type; parameters and heads stay float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.convolution import Conv, max_pool
from jaxrl.distributions import Categorical, DiagonalNormal, Distribution
from jaxrl.types import Array, Discrete, Space

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "swish": nn.swish,
}
_KERNEL_INIT = nn.initializers.orthogonal(math.sqrt(2))


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
        activation = ACTIVATIONS[self.activation]
        x = _as_float(obs, self.dtype)
        for features, size, stride in self.convolutions:
            x = Conv(
                features, (size, size), (stride, stride), kernel_init=_KERNEL_INIT, dtype=self.dtype
            )(x)
            x = activation(x)
        return MLP(self.hidden_sizes, self.activation, self.dtype)(x)


NATURE_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Mnih et al. 2015."""
GA3C_CONVOLUTIONS = ((16, 8, 4), (32, 4, 2))
"""The small network of Mnih et al. 2013, which A3C and GA3C (Babaeizadeh et al. 2017) use."""
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


class ActorCritic(nn.Module):
    """Policy and value heads over a torso, or over one torso each if `critic_torso` is given."""

    action_space: Space
    torso: nn.Module
    critic_torso: nn.Module | None = None

    @nn.compact
    def __call__(self, obs: Array) -> tuple[Distribution, Array]:
        features = self.torso(obs).astype(jnp.float32)
        critic_features = features
        if self.critic_torso is not None:
            critic_features = self.critic_torso(obs).astype(jnp.float32)
        size = (
            self.action_space.n
            if isinstance(self.action_space, Discrete)
            else int(np.prod(self.action_space.shape))
        )
        out = nn.Dense(size, kernel_init=nn.initializers.orthogonal(0.01), name="policy")(features)
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0), name="value")(
            critic_features
        )[..., 0]
        if isinstance(self.action_space, Discrete):
            return Categorical(out), value
        log_scale = self.param("log_scale", nn.initializers.zeros, (size,))
        return DiagonalNormal(out, log_scale), value


def has_own_critic(network: nn.Module) -> bool:
    """Whether values are computed apart from the policy, so that either can be had alone."""
    return isinstance(network, ActorCritic) and network.critic_torso is not None


TORSOS = ("mlp", "minatar_cnn", "ga3c_cnn", "nature_cnn", "impala_resnet")


def choose_torso(shape: tuple[int, ...]) -> str:
    """The name of the usual torso for observations of this shape."""
    if len(shape) != 3:
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
      ValueError: if there is no such torso, or it can't take observations of this shape.
    """
    if name not in TORSOS:
        raise ValueError(f"unknown torso {name!r}; there are {', '.join(TORSOS)}")
    smallest = {"mlp": 0, "minatar_cnn": 3, "impala_resnet": 8, "ga3c_cnn": 20, "nature_cnn": 36}
    if name != "mlp" and (len(shape) != 3 or min(shape[:2]) < smallest[name]):
        raise ValueError(
            f"torso {name!r} takes images [height, width, channels] of at least "
            f"{smallest[name]}x{smallest[name]}, but observations have shape {shape}; "
            "choose torso='mlp' or pass a network of your own"
        )
    if name == "mlp":
        return MLP(hidden_sizes or (64, 64), activation or "tanh", dtype)
    activation = activation or "relu"
    if name == "impala_resnet":
        return ImpalaResNet((16, 32, 32), hidden_sizes or (256,), activation, dtype)
    convolutions, default_sizes = {
        "minatar_cnn": (MINATAR_CONVOLUTIONS, (128,)),
        "ga3c_cnn": (GA3C_CONVOLUTIONS, (256,)),
        "nature_cnn": (NATURE_CONVOLUTIONS, (512,)),
    }[name]
    return ConvNet(convolutions, hidden_sizes or default_sizes, activation, dtype)


def actor_critic(
    observation_space: Space,
    action_space: Space,
    torso: str = "auto",
    hidden_sizes: tuple[int, ...] | None = None,
    activation: str | None = None,
    dtype: Any = jnp.float32,
) -> ActorCritic:
    """The usual actor-critic for these spaces: one CNN for both heads, or an MLP for each.

    Args:
      torso: one of `TORSOS`, or `"auto"` to choose by the observation's shape.
      hidden_sizes: widths of the dense layers; None for the torso's own.
      activation: `"tanh"`, `"relu"` or `"swish"`; None for the torso's own.
      dtype: compute type of the torsos, such as `jnp.bfloat16`.
    """
    shape = observation_space.shape
    name = choose_torso(shape) if torso == "auto" else torso

    def build() -> nn.Module:
        return make_torso(name, shape, hidden_sizes, activation, dtype)

    return ActorCritic(action_space, build(), build() if name == "mlp" else None)


def num_parameters(params: Any) -> int:
    """How many numbers a tree of parameters holds."""
    return sum(x.size for x in jax.tree.leaves(params))
