"""An algorithm's network on an environment, with or without a memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax

from jaxrl.networks import recurrent
from jaxrl.ops.normalization import RunningStatistics, standardize
from jaxrl.rollouts.simulation import Simulation, start
from jaxrl.types import ActionSpace, Array, Env, Inputs, Memory, ObservationSpace, PyTree

STEPS_CHECKED = 7


@dataclass(frozen=True)
class Agent:
    """The caller's network, or else the one that `build` makes of a config."""

    env: Env
    network: nn.Module | None
    build: Callable[[ObservationSpace, ActionSpace, Any], nn.Module]
    check: Callable[[ActionSpace, Any], str]
    """`check(action_space, outputs) -> problem` of what the caller's network gives, `[B, ...]`, or
    "" if there is none."""

    def __post_init__(self) -> None:
        if not hasattr(self.env, "observation_space"):
            raise ValueError(f"environments are made by jaxrl.make(id, num_envs), got {self.env!r}")
        if self.network is not None and not isinstance(self.network, nn.Module):
            raise ValueError(f"a network is an instance of a flax.linen.Module, got {self.network}")

    def network_of(self, config: Any) -> nn.Module:
        if self.network is not None:
            return self.network
        return self.build(self.env.observation_space, self.env.action_space, config)

    def start(
        self,
        config: Any,
        network_key: Array,
        env_key: Array,
        simulation: Simulation | None = None,
        extras: PyTree = None,
    ) -> tuple[PyTree, Simulation]:
        """Parameters, and the beginning of N episodes, in the environments of `simulation` if it is
        given; `extras` are what the agent's policy gives beside actions."""
        core = self.initial_core(config, self.env.num_envs)
        simulation = start(self.env, env_key, core, simulation, extras)
        inputs = recurrent.one_step(simulation.inputs)
        params = recurrent.init(self.network_of(config), network_key, inputs)
        if self.network is not None:
            self._check(config, params, core, inputs)
        return params, simulation

    def _check(self, config: Any, params: PyTree, core: PyTree, inputs: Inputs) -> None:
        """Raise `ValueError` if the caller's network does not fit the environment."""
        # Of several steps, so that what has no batch is not as long as one.
        steps = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((STEPS_CHECKED, *x.shape[1:]), x.dtype), inputs
        )
        unroll = partial(self.unroll, config)
        try:
            _, outputs = jax.eval_shape(unroll, params, core, steps)
            problem = self.check(self.env.action_space, jax.tree.map(_of_step, outputs))
        except recurrent.NoBatchError as error:
            problem = str(error)
        if problem:
            name = type(self.network).__name__
            raise ValueError(f"the network {name} does not fit {self.env.id}: {problem}")

    def unroll(
        self,
        config: Any,
        params: PyTree,
        core: PyTree,
        inputs: Inputs,
        obs_statistics: RunningStatistics | None = None,
    ) -> tuple[PyTree, Any]:
        """The core's state after `inputs`, and the network's outputs, both `[T, N, ...]`;
        observations are standardized by their statistics, if there are any."""
        inputs = inputs._replace(obs=standardize(obs_statistics, inputs.obs))
        return recurrent.unroll(self.network_of(config), params, core, inputs)

    def initial_core(self, config: Any, num_envs: int) -> PyTree:
        """The memory at the start of N episodes; `()` for a network without one."""
        return recurrent.initial_core(self.network_of(config), num_envs)

    def start_memory(self, config: Any, obs: PyTree) -> Memory:
        """The memory at the start of episodes whose first observations are `obs`, `[N, ...]`."""
        return recurrent.start_memory(self.network_of(config), self.env.action_space, obs)


def _of_step(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
