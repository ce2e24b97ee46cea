"""Build a network from a config and the environment's spaces, and check a caller's own network.

A network is any Flax module that maps observations `[B, ...]` to outputs with leaves `[B, ...]`:
`(distribution, value)` for an actor-critic, action values `[B, A]` for Q-learning. A network with
a memory takes sequences instead (see `jaxrl.networks.recurrent`).
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl import config as fields
from jaxrl.networks.heads import ActorCriticHead, QHead
from jaxrl.networks.recurrent import CORES, Recurrent
from jaxrl.networks.torsos import (
    ACTIVATIONS,
    MLP,
    TORSOS,
    DictTorso,
    choose_torso,
    make_torso,
    takes,
    takes_none,
)
from jaxrl.ops.distributions import Categorical, JointCategorical, MultiCategorical
from jaxrl.spaces import (
    ACTION_MASK,
    ActionSpace,
    Box,
    Dict,
    Discrete,
    ObservationSpace,
    has_action_mask,
    sizes_of,
)
from jaxrl.types import PyTree


@fields.config
class NetworkConfig(fields.Config):
    """The fields by which every algorithm's config describes its network.

    All are static, since they shape the program. A network that the caller passes to the algorithm
    replaces the described one.
    """

    torso: str = fields.static("auto")
    """Layers that take the observation: "mlp", "minatar_cnn", "ga3c_cnn", "ga3c_cnn_42",
    "nature_cnn", "impala_resnet", "ga3c_large_stride1" to "ga3c_large_stride4", or "auto" to choose
    by the observation's shape."""
    hidden_sizes: tuple[int, ...] | None = fields.static(None)
    """Widths of the dense layers, in units; None for the torso's default."""
    activation: str | None = fields.static(None)
    """"tanh", "relu" or "swish"; None for the torso's default."""
    layer_norm: bool = fields.static(False)
    """Normalize the features of each layer of the torso before its activation (Ba et al. 2016)."""
    compute_dtype: str = fields.static("float32")
    """Type in which the torso computes: "float32" or "bfloat16". Parameters stay float32."""
    core: str | None = fields.static(None)
    """Memory between torso and head: "gru", "lstm" or None."""
    core_size: int = fields.static(128)
    """Width of the memory, in units; unused without one."""
    use_last_action_reward: bool = fields.static(False)
    """Whether the memory also takes the last action and reward (IMPALA, Espeholt et al. 2018);
    unused without one."""

    def __post_init__(self) -> None:
        checks.fields(self, checks.choice, "torso", choices=("auto", *TORSOS))
        if self.hidden_sizes is not None:
            checks.fields(self, checks.sizes, "hidden_sizes")
        checks.fields(self, checks.choice, "activation", choices=(None, *ACTIVATIONS))
        checks.fields(self, checks.choice, "compute_dtype", choices=("float32", "bfloat16"))
        checks.fields(self, checks.choice, "core", choices=(None, *CORES))
        checks.fields(self, checks.integer, "core_size")
        checks.fields(self, checks.flag, "use_last_action_reward", "layer_norm")

    def make_torso(self, space: ObservationSpace) -> nn.Module:
        """Return the torso for observations of `space`; of a `Dict`, a torso for each part.

        Parts that the chosen torso does not take have the default one, and action masks an MLP.

        Raises:
          ValueError: if it takes no part.
        """
        shapes = [part.shape for part in _features(space)]
        is_for_images = self.torso not in ("auto", "mlp")
        if is_for_images and not any(takes(self.torso, shape) for shape in shapes):
            raise takes_none(self.torso, shapes[0] if shapes else ())
        return self._torso_of(space)

    def _torso_of(self, space: ObservationSpace, is_mask: bool = False) -> nn.Module:
        if isinstance(space, Dict):
            torsos = ((name, self._torso_of(x, name == ACTION_MASK)) for name, x in space.parts)
            return DictTorso(tuple(torsos))
        is_chosen = self.torso != "auto" and takes(self.torso, space.shape)
        name = self.torso if is_chosen else choose_torso(space.shape)
        return make_torso(
            "mlp" if is_mask else name,
            self.hidden_sizes,
            self.activation,
            dtype=jnp.dtype(self.compute_dtype),
            layer_norm=self.layer_norm,
            max_byte=_max_byte(space),
        )


@fields.config
class PolicyConfig(NetworkConfig):
    """The fields by which the config of an actor-critic describes its network."""

    initial_std: float = fields.static(1.0)
    """Standard deviation of Box actions, in their units, before training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, checks.number, "initial_std", allowed=checks.POSITIVE)


class FeedForward(nn.Module):
    """A network without memory, `head(torso(obs))`.

    Attributes:
      torso: maps observations `[B, ...]` to features `[B, F]`.
      head: maps features to the network's outputs.
      critic_torso: computes the features of the value; None if policy and value share a torso.
      masked: whether the head takes the observation's `ACTION_MASK`.
    """

    torso: nn.Module
    head: nn.Module
    critic_torso: nn.Module | None = None
    masked: bool = False

    def __post_init__(self) -> None:
        modules = ["torso", "head"] + ([] if self.critic_torso is None else ["critic_torso"])
        checks.fields(self, checks.instance, *modules, kind=nn.Module, text="a flax.linen.Module")
        checks.fields(self, checks.flag, "masked")
        super().__post_init__()

    @nn.compact
    def __call__(self, obs: PyTree) -> Any:
        torsos = [self.torso] + ([] if self.critic_torso is None else [self.critic_torso])
        features = [torso(obs).astype(jnp.float32) for torso in torsos]
        return self.head(*features, **({ACTION_MASK: obs[ACTION_MASK]} if self.masked else {}))


def actor_critic(
    observation_space: ObservationSpace,
    action_space: ActionSpace,
    config: PolicyConfig | None = None,
) -> FeedForward | Recurrent:
    """Build the actor-critic that `config` describes; its outputs are `(distribution, value)`.

    Policy and value share a CNN, the torsos of a `Dict`, or a memory; an MLP without memory is one
    for each. An `ACTION_MASK` among the observations masks the policy.

    Raises:
      ValueError: if actions are a Box whose shape is not `[d]`.
    """
    config = PolicyConfig() if config is None else config
    _check_spaces(observation_space, action_space, config)
    if isinstance(action_space, Box) and len(action_space.shape) != 1:
        raise ValueError(
            f"actions have shape {action_space.shape}, but policies return vectors; flatten the "
            "actions in the environment"
        )
    torso = config.make_torso(observation_space)
    critic_torso = config.make_torso(observation_space) if isinstance(torso, MLP) else None
    head = ActorCriticHead(action_space, config.initial_std)
    return _assemble(observation_space, action_space, config, torso, head, critic_torso)


def q_network(
    observation_space: ObservationSpace,
    action_space: ActionSpace,
    config: NetworkConfig | None = None,
) -> FeedForward | Recurrent:
    """Build the Q-network that `config` describes; its outputs are action values `[B, A]`.

    Its head is dueling if the config has this field, and it is True.

    Raises:
      ValueError: if actions are not `Discrete`.
    """
    config = NetworkConfig() if config is None else config
    _check_spaces(observation_space, action_space, config)
    if not isinstance(action_space, Discrete):
        raise ValueError(f"Q-learning needs Discrete actions, got the space {action_space}")
    torso = config.make_torso(observation_space)
    head = QHead(action_space.n, getattr(config, "dueling", False))
    return _assemble(observation_space, action_space, config, torso, head, None)


def _check_spaces(observation_space: Any, action_space: Any, config: Any) -> None:
    """Raise `ValueError` for arguments that are no spaces and no config."""
    text = "a space, such as jaxrl.Box or jaxrl.Discrete"
    checks.instance("observation_space", observation_space, ObservationSpace, text)
    checks.instance("action_space", action_space, ActionSpace, text)
    checks.instance("config", config, NetworkConfig, "a jaxrl.networks.NetworkConfig")


def _features(space: ObservationSpace) -> list[Box]:
    """Return the arrays of a space, also of parts of parts, but no action mask."""
    if isinstance(space, Dict):
        parts = [part for name, part in space.parts if name != ACTION_MASK]
        return [array for part in parts for array in _features(part)]
    return [space]


def _max_byte(space: Box) -> float:
    """Return the highest value of a space of uint8; 255 for others, or if its bounds tell none."""
    high = float(space.bounds()[1].max(initial=0))
    return high if space.dtype == np.uint8 and 0 < high < 255 else 255.0


def _assemble(
    observation_space: ObservationSpace,
    action_space: ActionSpace,
    config: NetworkConfig,
    torso: nn.Module,
    head: nn.Module,
    critic_torso: nn.Module | None,
) -> FeedForward | Recurrent:
    """Return a network with the memory that `config` asks for, or without one."""
    masked = has_action_mask(observation_space, action_space)
    if config.core is None:
        return FeedForward(torso, head, critic_torso, masked)
    memory = (config.core, config.core_size, config.use_last_action_reward)
    return Recurrent(action_space, torso, head, *memory, masked)


def has_own_critic(network: nn.Module) -> bool:
    """Return whether policy and value share no layer, so that either can be computed alone."""
    return isinstance(network, FeedForward) and network.critic_torso is not None


def num_parameters(params: PyTree) -> int:
    """Return how many numbers a tree of parameters holds."""
    return sum(np.size(x) for x in jax.tree.leaves(params))


def find_actor_critic_problem(action_space: ActionSpace, outputs: Any) -> str:
    """Return why a network's outputs `[B, ...]` do not fit an actor-critic; "" if they fit."""
    is_pair = isinstance(outputs, tuple) and len(outputs) == 2
    if not is_pair or not hasattr(outputs[0], "log_prob"):
        return f"it must return (distribution, value), not {outputs}"
    distribution, value = outputs
    methods = ("noise", "from_noise", "sample", "mode", "log_prob", "entropy")
    if lacking := [name for name in methods if not hasattr(distribution, name)]:
        kind = type(distribution).__name__
        return f"its {kind} lacks {', '.join(lacking)} of jaxrl.ops.distributions.Distribution"
    if getattr(value, "ndim", None) != 1:
        return f"its values must be [B], not {value}"
    actions = jax.eval_shape(type(distribution).mode, distribution)
    if actions.shape[1:] != action_space.shape:
        return f"its policy is over actions {actions}, those of the environment are {action_space}"
    sizes = _sizes(distribution)
    wanted = () if isinstance(action_space, Box) else sizes_of(action_space)
    if sizes and wanted and sizes != wanted:
        found, needed = (" x ".join(map(str, each)) for each in (sizes, wanted))
        return f"its policy is over {found} actions, the environment has {needed}"
    return ""


def _sizes(distribution: Any) -> tuple[int, ...]:
    """Return the number of values of each integer that a policy draws; () for other policies."""
    match distribution:
        case Categorical():
            return (distribution.logits.shape[-1],)
        case MultiCategorical():
            return tuple(part.logits.shape[-1] for part in distribution.parts)
        case JointCategorical():
            return tuple(distribution.sizes)
    return ()


def find_q_network_problem(action_space: ActionSpace, outputs: Any) -> str:
    """Return why a network's outputs `[B, ...]` are no action values; "" if they fit."""
    shape, number = getattr(outputs, "shape", None), getattr(action_space, "n", None)
    if number is None:  # the algorithm refuses such actions with a message of its own
        return ""
    if shape is None or len(shape) != 2 or shape[-1] != number:
        return f"it must return action values [B, {number}], not {outputs}"
    return ""
