"""Networks in Flax Linen: heads on top of `jaxrl.networks.torsos`.

A network is any Flax module whose call takes observations `[B, ...]` and returns outputs with
leaves `[B, ...]`: `(distribution, value)` for an actor-critic, action values `[B, A]` for
Q-learning. One with a memory takes sequences (see `jaxrl.networks.recurrent`). `actor_critic` and
`q_network` build them, the torso chosen by the observation's shape.

Heads have orthogonal weights (Saxe et al. 2014), the policy's scaled by 0.01, the values' by 1,
and compute in float32.
"""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import config as fields
from jaxrl.networks.initializers import orthogonal
from jaxrl.networks.recurrent import CORES, Recurrent
from jaxrl.networks.torsos import ACTIVATIONS, MLP, TORSOS, DictTorso, choose_torso, make_torso
from jaxrl.ops.distributions import (
    Categorical,
    DiagonalNormal,
    Distribution,
    JointCategorical,
    MultiCategorical,
)
from jaxrl.types import (
    ACTION_MASK,
    ActionSpace,
    Array,
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    ObservationSpace,
    PyTree,
)

MASKED_LOGIT = -1e9
"""The logit, or the value, of an action that is not allowed."""


class ActorCriticHead(nn.Module):
    """A distribution over actions and a value, from features, or from features each.

    What an `action_mask` (`jaxrl.types.ACTION_MASK`) is 0 for is never chosen, unless it is 0 for
    all. With one over all combinations of MultiDiscrete actions, each combination has a probability
    of its own.
    """

    action_space: ActionSpace

    @nn.compact
    def __call__(
        self,
        features: Array,
        critic_features: Array | None = None,
        action_mask: Array | None = None,
    ) -> tuple[Distribution, Array]:
        space = self.action_space
        sizes = space.sizes if isinstance(space, MultiDiscrete) else (num_outputs(space),)
        together = action_mask is not None and action_mask.shape[1:] == sizes
        num_logits = math.prod(sizes) if together else sum(sizes)
        out = nn.Dense(num_logits, kernel_init=orthogonal(0.01), name="policy")(features)
        value = nn.Dense(1, kernel_init=orthogonal(1.0), name="value")(
            features if critic_features is None else critic_features
        )[..., 0]
        if not isinstance(space, Box):
            lengths = (num_logits,) if together else sizes
            allowed = None if action_mask is None else action_mask.reshape(out.shape) != 0
            parts = _allowed_alone(out, allowed, lengths)
            if isinstance(space, Discrete):
                return Categorical(parts[0]), value
            if together:
                return JointCategorical(parts[0], space.sizes), value
            return MultiCategorical(tuple(map(Categorical, parts))), value
        log_scale = self.param("log_scale", nn.initializers.zeros, (sum(sizes),))
        return DiagonalNormal(out, jnp.broadcast_to(log_scale, out.shape)), value


def _allowed_alone(logits: Array, allowed: Array | None, sizes: tuple[int, ...]) -> list[Array]:
    """Logits `[B, sum(sizes)]` in parts, each with what is not allowed ruled out."""
    ends = np.cumsum(sizes)[:-1]
    parts = jnp.split(logits, ends, axis=-1)
    if allowed is None:
        return parts
    masks = jnp.split(allowed, ends, axis=-1)
    return [_rule_out(part, mask) for part, mask in zip(parts, masks, strict=True)]


def _rule_out(scores: Array, allowed: Array) -> Array:
    """`MASKED_LOGIT` where an action is not allowed, unless none is."""
    return jnp.where(allowed | ~allowed.any(-1, keepdims=True), scores, MASKED_LOGIT)


def num_outputs(space: Discrete | Box) -> int:
    """How many numbers a head gives for a Discrete or Box action."""
    return space.n if isinstance(space, Discrete) else int(np.prod(space.shape))


class QHead(nn.Module):
    """Values of discrete actions; dueling: V(s) + A(s, a) - mean A(s, .) (Wang et al. 2016).

    What an `action_mask` (`jaxrl.types.ACTION_MASK`) is 0 for has the value `MASKED_LOGIT`, unless it
    is 0 for all.
    """

    num_actions: int
    dueling: bool = False

    @nn.compact
    def __call__(self, features: Array, action_mask: Array | None = None) -> Array:
        def dense(size: int, name: str) -> Array:
            return nn.Dense(size, kernel_init=orthogonal(1.0), name=name)(features)

        values = dense(self.num_actions, "advantages" if self.dueling else "values")
        if self.dueling:
            values = dense(1, "value") + values - values.mean(-1, keepdims=True)
        if action_mask is None:
            return values
        return _rule_out(values, action_mask != 0)


class FeedForward(nn.Module):
    """`head(torso(obs))`, or a torso each for policy and value if `critic_torso` is given."""

    torso: nn.Module
    head: nn.Module
    critic_torso: nn.Module | None = None
    masked: bool = False
    """Whether the head is given the observation's action mask."""

    @nn.compact
    def __call__(self, obs: PyTree) -> Any:
        torsos = [self.torso] + ([] if self.critic_torso is None else [self.critic_torso])
        features = [torso(obs).astype(jnp.float32) for torso in torsos]
        return self.head(*features, **({ACTION_MASK: obs[ACTION_MASK]} if self.masked else {}))


def problem_of_actor_critic(action_space: ActionSpace, outputs: Any) -> str:
    """What is wrong with what a network gives for `[B, ...]`; "" if nothing is."""
    is_pair = isinstance(outputs, tuple) and len(outputs) == 2
    if not is_pair or not hasattr(outputs[0], "log_prob"):
        return f"it must return (distribution, value), not {outputs}"
    distribution, value = outputs
    if getattr(value, "ndim", None) != 1:
        return f"its values must be [B], not {value}"
    actions = jax.eval_shape(type(distribution).mode, distribution)
    if actions.shape[1:] != action_space.shape:
        return f"its policy is over actions {actions}, those of the environment are {action_space}"
    if isinstance(distribution, Categorical) and isinstance(action_space, Discrete):
        number = distribution.logits.shape[-1]
        if number != action_space.n:
            return f"its policy is over {number} actions, the environment has {action_space.n}"
    return ""


def problem_of_q_network(action_space: ActionSpace, outputs: Any) -> str:
    """What is wrong with what a network gives for `[B, ...]`; "" if nothing is."""
    shape, number = getattr(outputs, "shape", None), getattr(action_space, "n", None)
    if number is None:  # such actions are refused whatever the network
        return ""
    if shape is None or len(shape) != 2 or shape[-1] != number:
        return f"it must return action values [B, {number}], not {outputs}"
    return ""


def has_own_critic(network: nn.Module) -> bool:
    """Whether values are computed apart from the policy, so that either can be had alone."""
    return isinstance(network, FeedForward) and network.critic_torso is not None


@fields.config
class NetworkConfig(fields.Config):
    """The fields by which every agent's config describes its network. All shape the program.

    They are unused if a network of the caller's own is passed to the algorithm.
    """

    torso: str = fields.static("auto")
    """One of `torsos.TORSOS`, or "auto" to choose by the observation's shape."""
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
    use_last_action_reward: bool = fields.static(False)
    """Whether the memory also takes the last action and reward."""

    def __post_init__(self) -> None:
        fields.check_choice(self, "torso", ("auto", *TORSOS))
        fields.check_sizes(self, "hidden_sizes")
        fields.check_choice(self, "activation", (None, *ACTIVATIONS))
        fields.check_choice(self, "compute_dtype", ("float32", "bfloat16"))
        fields.check_choice(self, "core", (None, *CORES))
        fields.check_count(self, "core_size")
        fields.check_switch(self, "use_last_action_reward")

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

    Policy and value share a CNN or a memory; feed-forward MLPs are one each. Actions that an
    observation's `ACTION_MASK` forbids are not taken.

    Raises:
      ValueError: if actions are a Box of another shape than `[d]`.
    """
    if isinstance(action_space, Box) and len(action_space.shape) != 1:
        raise ValueError(
            f"actions of shape {action_space.shape} must be flattened by the environment: jaxrl's "
            "policies give vectors"
        )
    config = config or NetworkConfig()
    head = ActorCriticHead(action_space)
    torso = config.make_torso(observation_space)
    masked = has_action_mask(observation_space, action_space)
    if config.core is not None:
        memory = (config.core, config.core_size, config.use_last_action_reward)
        return Recurrent(action_space, torso, head, *memory, masked)
    critic_torso = config.make_torso(observation_space) if isinstance(torso, MLP) else None
    return FeedForward(torso, head, critic_torso, masked)


def has_action_mask(observation_space: ObservationSpace, action_space: ActionSpace) -> bool:
    """Whether observations say which actions are allowed.

    Raises:
      ValueError: if they have an `ACTION_MASK` that does not fit the actions.
    """
    parts = dict(observation_space.parts) if isinstance(observation_space, Dict) else {}
    if ACTION_MASK not in parts or isinstance(action_space, Box):
        return False
    sizes = action_space.sizes if isinstance(action_space, MultiDiscrete) else (action_space.n,)
    shapes = [sizes]
    if isinstance(action_space, MultiDiscrete) and len(set(sizes)) == 1:
        shapes.append((len(sizes), sizes[0]))
    if getattr(parts[ACTION_MASK], "shape", None) not in shapes:
        raise ValueError(
            f"the observation's {ACTION_MASK!r} must be an array of shape "
            f"{' or '.join(map(str, shapes))} for actions {action_space}, got {parts[ACTION_MASK]}"
        )
    return True


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
    masked = has_action_mask(observation_space, action_space)
    if config.core is not None:
        memory = (config.core, config.core_size, config.use_last_action_reward)
        return Recurrent(action_space, torso, head, *memory, masked)
    return FeedForward(torso, head, masked=masked)


def num_parameters(params: Any) -> int:
    """How many numbers a tree of parameters holds."""
    return sum(x.size for x in jax.tree.leaves(params))
