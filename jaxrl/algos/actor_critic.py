"""What the actor-critic algorithms share: how such a network acts, and what it remembers of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.device_axis import axis_of
from jaxrl.networks import recurrent, reuse
from jaxrl.ops.distributions import Distribution
from jaxrl.rollouts.agent import Agent
from jaxrl.rollouts.rollout import rollout
from jaxrl.rollouts.simulation import Simulation
from jaxrl.types import Array, Env, Inputs, Memory, PyTree, Trajectory

Apply = Callable[[PyTree, Inputs], tuple[PyTree, tuple[Distribution, Array]]]
"""`apply(core, inputs) -> (core, (distribution, value))` over inputs `[T, N, ...]`."""


class PolicyExtras(NamedTuple):
    """What the behaviour policy knew when it acted; leaves `[T, N]`."""

    log_prob: Array
    value: Array
    layers: reuse.Layers | tuple[()] = ()
    """What the network's layers gave, for a learner with the same parameters (`jaxrl.networks.reuse`)."""


def no_extras(env: Env) -> PolicyExtras:
    """Of no action, `[N]`."""
    return PolicyExtras(jnp.zeros(env.num_envs), jnp.zeros(env.num_envs))


def collect(
    env: Env,
    apply: Apply,
    simulation: Simulation,
    key: Array,
    num_steps: int,
    keep_layers: bool = False,
) -> tuple[Simulation, Trajectory]:
    """A rollout of the policy, with `PolicyExtras`."""

    def evaluate(core: PyTree, inputs: Inputs) -> tuple[PyTree, tuple[Distribution, Array]]:
        core, outputs = apply(core, recurrent.one_step(inputs))
        return core, jax.tree.map(lambda x: x[0], outputs)

    def policy(core: PyTree, inputs: Inputs, noise: PyTree) -> tuple[PyTree, Array, PolicyExtras]:
        if keep_layers:
            (core, (distribution, value)), layers = reuse.recorded(evaluate, core, inputs)
        else:
            (core, (distribution, value)), layers = evaluate(core, inputs), ()
        action = distribution.from_noise(noise)
        return core, action, PolicyExtras(distribution.log_prob(action), value, layers)

    _, (distribution, _) = jax.eval_shape(evaluate, simulation.core, simulation.inputs)
    of_all = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((len(x) * axis_of(env).size, *x.shape[1:]), x.dtype),
        distribution,
    )
    return rollout(env, policy, of_all.noise, simulation, key, num_steps)


def bootstrap(apply: Apply, simulation: Simulation) -> Array:
    """The value `[N]` of where the environments stand."""
    _, (_, value) = apply(simulation.core, recurrent.one_step(simulation.inputs))
    return value[0]


def act(
    agent: Agent, config: Any, state: Any, memory: Any, obs: PyTree, key: Array, greedy: bool
) -> tuple[Memory, Array]:
    """One action for each observation `[N, ...]`, and the memory after it.

    Args:
      state: the algorithm's, with `params` and `obs_statistics`.
      memory: a `Memory`, or `()` at the start of episodes.
    """
    memory = memory or agent.start_memory(config, obs)
    inputs = recurrent.one_step(recurrent.recall(memory, obs))
    core, (distribution, _) = agent.unroll(
        config, state.params, memory.core, inputs, state.obs_statistics
    )
    distribution = jax.tree.map(lambda x: x[0], distribution)
    action = distribution.mode() if greedy else distribution.sample(key)
    return recurrent.remember(memory, core, action), action
