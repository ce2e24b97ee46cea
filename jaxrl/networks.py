"""Networks in Flax Linen: torsos from observations to features, and heads on top of them.

A network is any Flax module whose call takes observations `[B, ...]` and returns outputs with
leaves `[B, ...]`: `(distribution, value)` for an actor-critic, action values `[B, A]` for
Q-learning. One with a memory takes sequences (see `jaxrl.recurrence`). `actor_critic` and
`q_network` build them, the torso chosen by the observation's shape.

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

from jaxrl import config as fields
from jaxrl.convolution import Conv, max_pool
from jaxrl.distributions import Categorical, DiagonalNormal, Distribution, MultiCategorical
from jaxrl.recurrence import CORES, Recurrent
from jaxrl.types import (
    ActionSpace,
    Array,
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    ObservationSpace,
    PyTree,
)

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


class ActorCriticHead(nn.Module):
    """A distribution over actions and a value, from features, or from features each."""

    action_space: ActionSpace

    @nn.compact
    def __call__(
        self, features: Array, critic_features: Array | None = None
    ) -> tuple[Distribution, Array]:
        space = self.action_space
        sizes = space.sizes if isinstance(space, MultiDiscrete) else (num_outputs(space),)
        out = nn.Dense(sum(sizes), kernel_init=nn.initializers.orthogonal(0.01), name="policy")(
            features
        )
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0), name="value")(
            features if critic_features is None else critic_features
        )[..., 0]
        if isinstance(space, Discrete):
            return Categorical(out), value
        if isinstance(space, MultiDiscrete):
            parts = jnp.split(out, np.cumsum(sizes)[:-1], axis=-1)
            return MultiCategorical(tuple(Categorical(part) for part in parts)), value
        log_scale = self.param("log_scale", nn.initializers.zeros, (sum(sizes),))
        return DiagonalNormal(out, jnp.broadcast_to(log_scale, out.shape)), value


def num_outputs(space: Discrete | Box) -> int:
    """How many numbers a head gives for a Discrete or Box action."""
    return space.n if isinstance(space, Discrete) else int(np.prod(space.shape))


class QHead(nn.Module):
    """Values of discrete actions; dueling: V(s) + A(s, a) - mean A(s, .) (Wang et al. 2016)."""

    num_actions: int
    dueling: bool = False

    @nn.compact
    def __call__(self, features: Array) -> Array:
        def dense(size: int, name: str) -> Array:
            return nn.Dense(size, kernel_init=nn.initializers.orthogonal(1.0), name=name)(features)

        advantages = dense(self.num_actions, "advantages" if self.dueling else "values")
        if not self.dueling:
            return advantages
        return dense(1, "value") + advantages - advantages.mean(-1, keepdims=True)


class FeedForward(nn.Module):
    """`head(torso(obs))`, or a torso each for policy and value if `critic_torso` is given."""

    torso: nn.Module
    head: nn.Module
    critic_torso: nn.Module | None = None

    @nn.compact
    def __call__(self, obs: PyTree) -> Any:
        features = self.torso(obs).astype(jnp.float32)
        if self.critic_torso is None:
            return self.head(features)
        return self.head(features, self.critic_torso(obs).astype(jnp.float32))


def has_own_critic(network: nn.Module) -> bool:
    """Whether values are computed apart from the policy, so that either can be had alone."""
    return isinstance(network, FeedForward) and network.critic_torso is not None


TORSOS = (
    "mlp", "minatar_cnn", "ga3c_cnn", "nature_cnn", "impala_resnet", *GA3C_LARGE_CONVOLUTIONS
)  # fmt: skip


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
      ValueError: if it can't take observations of this shape.
    """
    smallest = {"mlp": 0, "minatar_cnn": 3, "impala_resnet": 8, "ga3c_cnn": 20, "nature_cnn": 36}
    smallest |= {f"ga3c_large_stride{stride}": 8 + 9 * stride for stride in (4, 3, 2, 1)}
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
        **{name: (layers, (256,)) for name, layers in GA3C_LARGE_CONVOLUTIONS.items()},
    }[name]
    return ConvNet(convolutions, hidden_sizes or default_sizes, activation, dtype)


@fields.config
class NetworkConfig(fields.Config):
    """The fields by which every agent's config describes its network. All shape the program.

    They are unused if a network of the caller's own is passed to the algorithm.
    """

    torso: str = fields.static("auto")
    """One of `networks.TORSOS`, or "auto" to choose by the observation's shape."""
    hidden_sizes: tuple[int, ...] | None = fields.static(None)
    """Widths of the dense layers; None for the torso's own."""
    activation: str | None = fields.static(None)
    """"tanh", "relu" or "swish"; None for the torso's own."""
    compute_dtype: str = fields.static("float32")
    """"float32" or "bfloat16", of the torsos."""
    core: str | None = fields.static(None)
    """A memory behind the torso: "gru", "lstm" or None."""
    core_size: int = fields.static(128)
    """Width of the memory, if there is one."""
    sees_last: bool = fields.static(False)
    """Whether the memory also takes the last action and reward."""

    def __post_init__(self) -> None:
        fields.check_choice(self, "torso", ("auto", *TORSOS))
        fields.check_sizes(self, "hidden_sizes")
        fields.check_choice(self, "activation", (None, *ACTIVATIONS))
        fields.check_choice(self, "compute_dtype", ("float32", "bfloat16"))
        fields.check_choice(self, "core", (None, *CORES))
        fields.check_count(self, "core_size")
        fields.check_switch(self, "sees_last")

    def make_torso(self, space: ObservationSpace) -> nn.Module:
        """The torso for observations of `space`; one for each part of a `Dict`."""
        if isinstance(space, Dict):
            return DictTorso(tuple((name, self.make_torso(part)) for name, part in space.parts))
        name = choose_torso(space.shape) if self.torso == "auto" else self.torso
        dtype = jnp.dtype(self.compute_dtype)
        return make_torso(name, space.shape, self.hidden_sizes, self.activation, dtype)


def actor_critic(
    observation_space: ObservationSpace,
    action_space: ActionSpace,
    config: NetworkConfig | None = None,
) -> FeedForward | Recurrent:
    """The usual actor-critic for these spaces, `(distribution, value)`.

    Policy and value share a CNN or a memory; feed-forward MLPs are one each.
    """
    config = config or NetworkConfig()
    head = ActorCriticHead(action_space)
    torso = config.make_torso(observation_space)
    if config.core is not None:
        return Recurrent(action_space, torso, head, config.core, config.core_size, config.sees_last)
    critic_torso = config.make_torso(observation_space) if isinstance(torso, MLP) else None
    return FeedForward(torso, head, critic_torso)


def q_network(
    observation_space: ObservationSpace,
    action_space: ActionSpace,
    config: NetworkConfig,
    dueling: bool,
) -> FeedForward | Recurrent:
    """The usual network for Q-learning, action values `[B, A]`.

    Raises:
      ValueError: if actions are not `Discrete`.
    """
    if not isinstance(action_space, Discrete):
        raise ValueError(f"Q-learning needs Discrete actions, got the space {action_space}")
    head = QHead(action_space.n, dueling)
    torso = config.make_torso(observation_space)
    if config.core is not None:
        return Recurrent(action_space, torso, head, config.core, config.core_size, config.sees_last)
    return FeedForward(torso, head)


def num_parameters(params: Any) -> int:
    """How many numbers a tree of parameters holds."""
    return sum(x.size for x in jax.tree.leaves(params))
