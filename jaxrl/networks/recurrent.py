"""Memory: a GRU or LSTM between torso and head, unrolled over time with resets at episode starts.

One convention everywhere: a network with a memory takes `Inputs` with leaves `[T, N, ...]` and the
core's state before them, and forgets that state wherever `first` holds. A step is a sequence with
T = 1. Networks without a memory take observations `[B, ...]`; `apply` treats both alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import checks
from jaxrl.networks.initializers import orthogonal
from jaxrl.spaces import ACTION_MASK, ActionSpace, Discrete, MultiDiscrete
from jaxrl.types import Array, Inputs, PyTree

CORES = {"gru": nn.GRUCell, "lstm": nn.OptimizedLSTMCell}


class Recurrent(nn.Module):
    """`head(core(torso(obs)))`; the core is one of `CORES`.

    With `use_last_action_reward` the core also takes the last action (one-hot if discrete) and the
    last reward, as in IMPALA and R2D2 (Espeholt et al. 2018, Kapturowski et al. 2019). The reward
    is clipped to [-1, 1], which R2D2 does not do.

    Attributes:
      action_space: of the environment.
      torso: `obs [B, ...] -> features [B, F]`.
      head: takes the core's output `[B, core_size]`.
      core: "gru" or "lstm".
      core_size: units of the core.
      masked: whether the head takes the observation's action mask.
    """

    action_space: ActionSpace
    torso: nn.Module
    head: nn.Module
    core: str
    core_size: int
    use_last_action_reward: bool = False
    masked: bool = False

    def __post_init__(self) -> None:
        module = "a flax.linen.Module"
        checks.fields(self, checks.instance, "action_space", kind=ActionSpace, text="a space")
        checks.fields(self, checks.instance, "torso", "head", kind=nn.Module, text=module)
        checks.fields(self, checks.choice, "core", choices=tuple(CORES))
        checks.fields(self, checks.integer, "core_size")
        checks.fields(self, checks.flag, "use_last_action_reward", "masked")
        super().__post_init__()

    def initial_core(self, num_envs: int) -> PyTree:
        """Return the state at the start of episodes: zeros, leaves `[num_envs, core_size]`."""
        zeros = jnp.zeros((num_envs, self.core_size), jnp.float32)
        return (zeros, zeros) if self.core == "lstm" else zeros

    @nn.compact
    def __call__(self, inputs: Inputs, core: PyTree) -> tuple[PyTree, Any]:
        lead = inputs.first.shape
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), inputs.obs)
        features = self.torso(rows).astype(jnp.float32).reshape(*lead, -1)
        if self.use_last_action_reward:
            last = [_as_vector(self.action_space, inputs.last_action)]
            last += [jnp.clip(inputs.last_reward, -1.0, 1.0)[..., None]]
            same_episode = ~inputs.first[..., None]
            features = jnp.concatenate([features, *(x * same_episode for x in last)], -1)

        def step(cell: nn.Module, core: PyTree, row: tuple[Array, Array]) -> tuple[PyTree, Array]:
            features, first = row
            core = jax.tree.map(lambda x: jnp.where(first[:, None], 0.0, x), core)
            return cell(core, features)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        cell = CORES[self.core](self.core_size, recurrent_kernel_init=orthogonal(1.0))
        core, features = scan(cell, core, (features, inputs.first))
        mask = {ACTION_MASK: rows[ACTION_MASK]} if self.masked else {}
        outputs = self.head(features.reshape(-1, self.core_size), **mask)
        return core, jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), outputs)


def _as_vector(space: ActionSpace, action: Array) -> Array:
    """Return actions `[T, N, ...]` as features `[T, N, F]`."""
    if isinstance(space, Discrete):
        return jax.nn.one_hot(action, space.n, dtype=jnp.float32)
    if isinstance(space, MultiDiscrete):
        parts = [
            jax.nn.one_hot(action[..., i], size, dtype=jnp.float32)
            for i, size in enumerate(space.sizes)
        ]
        return jnp.concatenate(parts, -1)
    return action.reshape(*action.shape[:2], -1)


def is_recurrent(network: nn.Module) -> bool:
    """Return True if a network has a memory, and so takes sequences."""
    return hasattr(network, "initial_core")


def initial_core(network: nn.Module, num_envs: int) -> PyTree:
    """Return the memory at the start of N episodes; `()` for a network without one."""
    return network.initial_core(num_envs) if is_recurrent(network) else ()


def init(network: nn.Module, key: Array, inputs: Inputs) -> PyTree:
    """Return new parameters, given inputs `[T, N, ...]` of the right shapes."""
    if is_recurrent(network):
        return network.init(key, inputs, initial_core(network, inputs.first.shape[1]))
    return network.init(key, jax.tree.map(lambda x: x[0], inputs.obs))


class NoBatchError(ValueError):
    """A network gave an array that does not lead with the batch."""


def apply(network: nn.Module, params: PyTree, core: PyTree, inputs: Inputs) -> tuple[PyTree, Any]:
    """Apply a network, with or without a memory, to inputs `[T, N, ...]`.

    Args:
      core: the memory before the inputs, leaves `[N, ...]`.

    Returns:
      The memory after the inputs, and the network's outputs `[T, N, ...]`.
    """
    if is_recurrent(network):
        return network.apply(params, inputs, core)
    lead = inputs.first.shape
    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), inputs.obs)
    outputs = network.apply(params, rows)
    for x in jax.tree.leaves(outputs):
        if x.shape[:1] != (math.prod(lead),):
            raise NoBatchError(
                f"each array that it gives must lead with the batch, [{math.prod(lead)}, ...], but "
                f"one is {list(x.shape)}; broadcast it"
            )
    return core, jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), outputs)


Apply = Callable[[PyTree, PyTree, Inputs], tuple[PyTree, Any]]
"""`apply(params, core, inputs) -> (core, outputs)`: `apply` above for one network."""


def apply_step(apply: Apply, params: PyTree, core: PyTree, inputs: Inputs) -> tuple[PyTree, Any]:
    """Apply a network to one step: inputs and outputs `[N, ...]`."""
    core, outputs = apply(params, core, one_step(inputs))
    return core, jax.tree.map(lambda x: x[0], outputs)


def without_memory(obs: PyTree) -> Inputs:
    """Return the inputs `[N, ...]` of a network that sees observations alone."""
    unseen = jnp.zeros(len(jax.tree.leaves(obs)[0]))
    return Inputs(obs, unseen, unseen, unseen)


def one_step(tree: PyTree) -> PyTree:
    """Return leaves `[N, ...]` as a sequence of one step, `[1, N, ...]`."""
    return jax.tree.map(lambda x: x[None], tree)
