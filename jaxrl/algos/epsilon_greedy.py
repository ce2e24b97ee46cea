"""Epsilon-greedy behaviour: the action of the largest value, or sometimes a random one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import checks
from jaxrl import config as fields
from jaxrl.algos import hyperparameters
from jaxrl.device_axis import axis_of
from jaxrl.networks import recurrent
from jaxrl.networks.heads import MASKED_LOGIT
from jaxrl.networks.recurrent import Apply
from jaxrl.ops import optimizers
from jaxrl.rollouts.agent import Agent
from jaxrl.rollouts.rollout import Draw, rollout
from jaxrl.rollouts.simulation import Simulation
from jaxrl.spaces import ActionSpace, Discrete
from jaxrl.types import Array, Env, Inputs, Memory, PyTree, Trajectory


@fields.config
class EpsilonConfig(hyperparameters.AlgorithmConfig):
    """Hyperparameters of an epsilon that falls linearly."""

    initial_epsilon: float = 1.0
    """Probability of a random action at the start, in [0, 1]."""
    final_epsilon: float = 0.01
    """Probability of a random action after `exploration_steps`, in [0, 1]."""
    exploration_steps: float = 5e4
    """Environment steps over which epsilon falls linearly."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.traced_fields(self, checks.UNIT_INTERVAL, "initial_epsilon", "final_epsilon")
        checks.traced_fields(self, checks.POSITIVE, "exploration_steps")


def annealed_epsilon(config: EpsilonConfig, env: Env, num_updates: Array) -> Array:
    """Return the probability of a random action in the update after `num_updates`."""
    exploring_updates = config.exploration_steps / hyperparameters.steps_per_update(config, env)
    return optimizers.linear_schedule(
        config.initial_epsilon, config.final_epsilon, num_updates, exploring_updates
    )


def exploration_noise(space: ActionSpace, num_envs: int, epsilon: Array | float) -> Draw:
    """Return `draw(key) -> noise`, the noise that `explore` takes.

    It consists of flags that say where to explore, and of numbers in [0, 1) that choose the random
    actions, each `[num_envs]`.

    Args:
      epsilon: one number or `[num_envs]`.

    Raises:
      ValueError: if actions are not `Discrete`.
    """
    if not isinstance(space, Discrete):
        raise ValueError(f"Q-learning needs Discrete actions, got the space {space}")

    def draw(key: Array) -> tuple[Array, Array]:
        coin_key, action_key = jax.random.split(key)
        explores = jax.random.uniform(coin_key, (num_envs,)) < epsilon
        return explores, jax.random.uniform(action_key, (num_envs,))

    return draw


def greedy_actions(q_values: Array) -> Array:
    """Return the actions `[...]` of the largest values `[..., A]`."""
    return jnp.argmax(q_values, axis=-1).astype(jnp.int32)


def explore(q_values: Array, noise: tuple[Array, Array]) -> Array:
    """Return epsilon-greedy actions `[N]` of values `[N, A]`; masked actions are never drawn."""
    explores, place = noise
    rank = jnp.cumsum(q_values > MASKED_LOGIT, axis=-1)
    random_action = jnp.argmax(rank > place[:, None] * rank[:, -1:], axis=-1).astype(jnp.int32)
    return jnp.where(explores, random_action, greedy_actions(q_values))


def act(
    agent: Agent, epsilon_of: Callable[[Any], Array | float],
    config: Any, state: Any, memory: Any, obs: PyTree, key: Array, greedy: bool,
) -> tuple[Memory, Array]:  # fmt: skip
    """Return the memory after acting on observations `[N, ...]`, and the actions `[N]`.

    Args:
      epsilon_of: `epsilon_of(config)`, the probability of a random action unless `greedy`.
      state: the algorithm's, with `params` and `obs_statistics`.
      memory: a `Memory`, or `()` at the start of episodes.
    """

    def choose(q_values: Array) -> Array:
        if greedy:
            return greedy_actions(q_values)
        draw = exploration_noise(agent.env.action_space, len(q_values), epsilon_of(config))
        return explore(q_values, draw(key))

    return agent.act(config, state.params, memory, obs, choose, state.obs_statistics)


def collect(
    env: Env,
    apply: Apply,
    params: PyTree,
    epsilon: Array | float,
    simulation: Simulation,
    key: Array,
    num_steps: int,
    extras_of: Callable[[Array], PyTree] = lambda q_values: None,
) -> tuple[Simulation, Trajectory]:
    """Return the simulation after an epsilon-greedy rollout, and the rollout.

    Args:
      apply: gives action values `[T, N, A]`.
      epsilon: one number, or one for each environment, over all devices.
      extras_of: `extras_of(q_values [N, A])`, what the rollout keeps of the action values.
    """

    def policy(core: PyTree, inputs: Inputs, noise: PyTree) -> tuple[PyTree, Array, PyTree]:
        core, values = recurrent.apply_step(apply, params, core, inputs)
        return core, explore(values, noise), extras_of(values)

    draw = exploration_noise(env.action_space, env.num_envs * axis_of(env).size, epsilon)
    return rollout(env, policy, draw, simulation, key, num_steps)
