"""An algorithm's network on an environment, with or without a memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import checks
from jaxrl.networks import recurrent
from jaxrl.networks.recurrent import Apply
from jaxrl.ops.normalization import ObsStatistics, standardize
from jaxrl.rollouts.simulation import Simulation, start
from jaxrl.spaces import ActionSpace, ObservationSpace, zeros
from jaxrl.types import Array, Env, Inputs, Memory, PyTree, check_environments

STEPS_CHECKED = 7


@dataclass(frozen=True)
class Agent:
    """The caller's network, or else the one that `build` makes from a config."""

    env: Env
    network: nn.Module | None
    build: Callable[[ObservationSpace, ActionSpace, Any], nn.Module]
    check: Callable[[ActionSpace, Any], str]
    """`check(action_space, outputs) -> problem`: says what is wrong with the outputs `[B, ...]` of
    the caller's network, "" if nothing is."""

    def __post_init__(self) -> None:
        check_environments(self.env)
        if self.network is not None:
            checks.instance(
                "network", self.network, nn.Module, "an instance of a flax.linen.Module"
            )
            try:
                hash(self.network)
            except TypeError as error:
                name = type(self.network).__name__
                raise ValueError(
                    f"the fields of the network {name} must be hashable, for jit: give tuples, not "
                    f"lists or arrays ({error})"
                ) from error

    def network_of(self, config: Any) -> nn.Module:
        """Return the network for a config."""
        if self.network is not None:
            return self.network
        return self.build(self.env.observation_space, self.env.action_space, config)

    def start(
        self, config: Any, key: Array, simulation: Simulation | None = None, extras: PyTree = None
    ) -> tuple[PyTree, Simulation, Array]:
        """Return new parameters, the beginning of N episodes, and a key for what follows.

        Args:
          simulation: environments whose episodes have just begun, instead of new ones.
          extras: what the agent's policy gives beside actions, leaves `[N, ...]`.
        """
        network_key, env_key, key = jax.random.split(key, 3)
        core = self.initial_core(config, self.env.num_envs)
        simulation = start(self.env, env_key, core, simulation, extras)
        inputs = recurrent.one_step(simulation.inputs)
        params = recurrent.init(self.network_of(config), network_key, inputs)
        if self.network is not None:
            self._check(config, params, core, inputs)
        return params, simulation, key

    def _check(self, config: Any, params: PyTree, core: PyTree, inputs: Inputs) -> None:
        """Raise `ValueError` if the caller's network does not fit the environment or the config."""
        # Several steps, so that an output without a batch axis does not pass for a batch of one.
        steps = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((STEPS_CHECKED, *x.shape[1:]), x.dtype), inputs
        )
        name = type(self.network).__name__
        if others := sorted(set(params) - {"params"}):
            raise ValueError(
                f"the network {name} has the collections {others}, but only parameters are "
                "trained; use LayerNorm in place of BatchNorm"
            )
        kind = getattr(config, "core", None)
        if kind is not None and not recurrent.is_recurrent(self.network_of(config)):
            raise ValueError(
                f"{type(config).__name__}.core={kind!r} describes a network that the config makes, "
                f"but {name} has no memory; pass a jaxrl.networks.Recurrent, or set core=None"
            )
        try:
            _, outputs = jax.eval_shape(self.apply(config), params, core, steps)
            problem = self.check(self.env.action_space, jax.tree.map(_of_step, outputs))
        except recurrent.NoBatchError as error:
            problem = str(error)
        if problem:
            raise ValueError(f"the network {name} does not fit {self.env.id}: {problem}")

    def apply(self, config: Any, obs_statistics: ObsStatistics = None) -> Apply:
        """Return `apply(params, core, inputs) -> (core, outputs)` over inputs `[T, N, ...]`.

        Args:
          obs_statistics: standardize observations by them; None leaves observations as they are.
        """
        network = self.network_of(config)

        def apply(params: PyTree, core: PyTree, inputs: Inputs) -> tuple[PyTree, Any]:
            inputs = inputs._replace(obs=standardize(obs_statistics, inputs.obs))
            return recurrent.apply(network, params, core, inputs)

        return apply

    def act(
        self,
        config: Any,
        params: PyTree,
        memory: Any,
        obs: PyTree,
        choose: Callable[[Any], Array],
        obs_statistics: ObsStatistics = None,
    ) -> tuple[Memory, Array]:
        """Return the memory after acting on observations `[N, ...]`, and the actions `[N, ...]`.

        Args:
          memory: a `Memory`, or `()` at the start of episodes.
          choose: `choose(outputs) -> actions`, from the network's outputs `[N, ...]`.
        """
        memory = memory or self._start_memory(config, obs)
        inputs = Inputs(obs, memory.first, memory.last_action, memory.last_reward)
        apply = self.apply(config, obs_statistics)
        core, outputs = recurrent.apply_step(apply, params, memory.core, inputs)
        action = choose(outputs)
        # The reward is 0 until the caller fills in what was paid.
        return Memory(
            core, action, jnp.zeros_like(memory.last_reward), jnp.zeros_like(memory.first)
        ), action

    def initial_core(self, config: Any, num_envs: int) -> PyTree:
        """Return the memory at the start of N episodes; `()` for a network without one."""
        return recurrent.initial_core(self.network_of(config), num_envs)

    def _start_memory(self, config: Any, obs: PyTree) -> Memory:
        """Return the memory at the start of episodes with first observations `[N, ...]`."""
        num_envs = jax.tree.leaves(obs)[0].shape[0]
        return Memory(
            core=self.initial_core(config, num_envs),
            last_action=zeros(self.env.action_space, num_envs),
            last_reward=jnp.zeros(num_envs, jnp.float32),
            first=jnp.ones(num_envs, bool),
        )


def _of_step(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
