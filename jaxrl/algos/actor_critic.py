"""The parts that PPO, A2C and IMPALA share: hyperparameters, acting, rollouts and metrics.

PQN has the same metrics.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl import checks
from jaxrl import config as fields
from jaxrl.algos import hyperparameters
from jaxrl.device_axis import axis_of
from jaxrl.networks import build, recurrent
from jaxrl.networks.recurrent import Apply
from jaxrl.ops import optimizers
from jaxrl.rollouts import pipelined
from jaxrl.rollouts.agent import Agent
from jaxrl.rollouts.rollout import episode_metrics, rollout
from jaxrl.rollouts.simulation import Simulation
from jaxrl.types import Array, Env, Inputs, Memory, Metrics, PyTree, Trajectory


@fields.config
class ActorCriticConfig(hyperparameters.AlgorithmConfig, build.PolicyConfig):
    """Hyperparameters that the algorithms share; the defaults are PPO's."""

    learning_rate: float = 2.5e-3
    value_coef: float = 0.5
    """Weight c_v of the value loss."""
    entropy_coef: float = 0.01
    """Weight c_e of the entropy bonus."""
    max_grad_norm: float = 0.5
    num_steps: int = fields.static(128)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.traced_fields(self, checks.NOT_NEGATIVE, "value_coef", "entropy_coef")


@fields.config
class RMSPropConfig(ActorCriticConfig):
    """Hyperparameters that A2C and IMPALA share: one pass over a rollout with RMSProp."""

    learning_rate: float = 3e-3
    entropy_coef: float = 0.003
    rmsprop_decay: float = 0.999
    """Decay of RMSProp's mean of squared gradients in a gradient step, in [0, 1]."""
    rmsprop_eps: float = 1e-5
    """RMSProp's epsilon."""
    rmsprop_initial: float = 0.0
    """Initial mean of squared gradients; 1 in TensorFlow, and so in GA3C and Baselines."""
    eps_inside_root: bool = fields.static(True)
    """RMSProp's epsilon inside the root, as in A3C's paper and TensorFlow, or outside, as in
    PyTorch and Cleanba."""
    num_steps: int = fields.static(16)
    num_minibatches: int = fields.static(1)
    """Parts of a rollout, each of whole environments, of one gradient step each, in turn."""
    sum_losses: bool = fields.static(False)
    """Sum the losses of a minibatch, as A3C, GA3C and IMPALA do, instead of averaging them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.traced_fields(self, checks.POSITIVE, "rmsprop_eps")
        checks.traced_fields(self, checks.NOT_NEGATIVE, "rmsprop_initial")
        checks.traced_fields(self, checks.UNIT_INTERVAL, "rmsprop_decay")
        checks.fields(self, checks.integer, "num_minibatches")
        checks.fields(self, checks.flag, "eps_inside_root", "sum_losses")


def rmsprop_of(config: RMSPropConfig, num_updates: Array | int) -> optax.GradientTransformation:
    """Return the optimizer of the update after `num_updates`, RMSProp."""
    return optimizers.rmsprop(
        hyperparameters.annealed_learning_rate(config, num_updates),
        config.rmsprop_decay,
        config.rmsprop_eps,
        config.max_grad_norm,
        config.eps_inside_root,
        config.rmsprop_initial,
    )


class PolicyExtras(NamedTuple):
    """Numbers that the behaviour policy gave when it acted; leaves float32 `[T, N]`."""

    log_prob: Array
    value: Array


def agent_of(env: Env, network: nn.Module | None) -> Agent:
    """Return the agent with the caller's network, or with the one that a config describes."""
    return Agent(env, network, build.actor_critic, build.find_actor_critic_problem)


def start(
    agent: Agent, config: Any, key: Array, simulation: Simulation | None
) -> tuple[PyTree, Simulation, Array]:
    """Return new parameters, the beginning of N episodes, and a key for what follows."""
    zeros = jnp.zeros(agent.env.num_envs, jnp.float32)
    return agent.start(config, key, simulation, PolicyExtras(zeros, zeros))


def collect(
    env: Env, apply: Apply, params: PyTree, simulation: Simulation, key: Array, num_steps: int
) -> tuple[Simulation, Trajectory]:
    """Return the simulation after a rollout of the policy, and the rollout with `PolicyExtras`."""

    def policy(core: PyTree, inputs: Inputs, noise: PyTree) -> tuple[PyTree, Array, PolicyExtras]:
        core, (distribution, value) = recurrent.apply_step(apply, params, core, inputs)
        action = distribution.from_noise(noise)
        extras = PolicyExtras(distribution.log_prob(action), value)
        return core, action, jax.tree.map(lambda x: x.astype(jnp.float32), extras)

    def draw(key: Array) -> PyTree:
        _, (distribution, _) = jax.eval_shape(
            lambda core, inputs: recurrent.apply_step(apply, params, core, inputs),
            simulation.core,
            simulation.inputs,
        )
        of_all_devices = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((len(x) * axis_of(env).size, *x.shape[1:]), x.dtype),
            distribution,
        )
        return of_all_devices.noise(key)

    return rollout(env, policy, draw, simulation, key, num_steps)


def bootstrap(apply: Apply, params: PyTree, simulation: Simulation) -> Array:
    """Return the value `[N]` of the observations at which the rollout stopped."""
    _, (_, value) = recurrent.apply_step(apply, params, simulation.core, simulation.inputs)
    return value


def values_of(network: nn.Module, apply: Apply, params: PyTree, trajectory: Trajectory) -> Array:
    """Return the values `[T, N]` of a rollout's observations, by the policy that collected it."""
    if not build.has_own_critic(network):
        return trajectory.extras.value
    # The critic takes the rollout as one batch, so the compiler drops it from the rollout's steps.
    _, (_, values) = apply(params, (), trajectory.inputs)
    return values


def metrics(
    env: Env,
    config: Any,
    num_updates: Array,
    simulation: Simulation,
    trajectory: Trajectory,
    losses: Metrics,
    gradient_steps: Array | int = 1,
    actor_lag: Array | int = 0,
) -> Metrics:
    """Return the metrics of an update.

    Args:
      num_updates: before this one.
      losses: their means over all devices.
      actor_lag: gradient steps by which the actors' parameters lag at the update's start.
    """
    steps = jnp.int32(gradient_steps)
    learning_rate = hyperparameters.annealed_learning_rate(config, num_updates)
    share_sent_ahead = pipelined.lag(env, len(trajectory.reward)) * (num_updates > 0)
    return (
        episode_metrics(env, simulation, trajectory)
        | losses
        | {
            "learning_rate": jnp.asarray(learning_rate, jnp.float32),
            "gradient_steps": steps,
            "policy_lag": actor_lag + (steps - 1) / 2 + steps * share_sent_ahead,
        }
    )


def act(
    agent: Agent, config: Any, state: Any, memory: Any, obs: PyTree, key: Array, greedy: bool
) -> tuple[Memory, Array]:
    """Return the memory after acting on observations `[N, ...]`, and the actions `[N, ...]`.

    Args:
      state: the algorithm's, with `params` and `obs_statistics`.
      memory: a `Memory`, or `()` at the start of episodes.
    """

    def choose(outputs: Any) -> Array:
        distribution, _ = outputs
        return distribution.mode() if greedy else distribution.sample(key)

    return agent.act(config, state.params, memory, obs, choose, state.obs_statistics)
