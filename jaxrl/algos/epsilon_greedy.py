"""Epsilon-greedy behaviour: the best action by its value, or now and then a random one."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.device_axis import axis_of
from jaxrl.networks.heads import MASKED_LOGIT
from jaxrl.rollouts.rollout import Draw, rollout
from jaxrl.rollouts.simulation import Simulation
from jaxrl.types import ActionSpace, Array, Discrete, Env, Inputs, PyTree, Trajectory


def exploration_noise(space: ActionSpace, num_envs: int, epsilon: Array | float) -> Draw:
    """`draw(key) -> (whether to explore, a number of [0, 1) that chooses the random action)`, each
    `[num_envs]`: what `explore` takes.

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


def best(q_values: Array) -> Array:
    """Greedy actions `[...]` of values `[..., A]`."""
    return jnp.argmax(q_values, axis=-1).astype(jnp.int32)


def explore(q_values: Array, noise: tuple[Array, Array]) -> Array:
    """Epsilon-greedy actions `[N]` of values `[N, A]`; random ones among those not forbidden."""
    explores, place = noise
    rank = jnp.cumsum(q_values > MASKED_LOGIT, axis=-1)
    random_action = jnp.argmax(rank > place[:, None] * rank[:, -1:], axis=-1).astype(jnp.int32)
    return jnp.where(explores, random_action, best(q_values))


def act(
    space: ActionSpace, q_values: Array, epsilon: Array | float, key: Array, greedy: bool
) -> Array:
    """Actions `[N]` of values `[N, A]`: greedy ones, or epsilon-greedy ones."""
    if greedy:
        return best(q_values)
    return explore(q_values, exploration_noise(space, len(q_values), epsilon)(key))


def collect(
    env: Env,
    q_values: Callable[[PyTree, Inputs], tuple[PyTree, Array]],
    epsilon: Array | float,
    simulation: Simulation,
    key: Array,
    num_steps: int,
) -> tuple[Simulation, Trajectory]:
    """An epsilon-greedy rollout.

    Args:
      q_values: `q_values(core, inputs) -> (core, values [N, A])` over inputs `[N, ...]`.
      epsilon: one number, or one for each of all devices' environments.
    """

    def policy(core: PyTree, inputs: Inputs, noise: PyTree) -> tuple[PyTree, Array, None]:
        core, values = q_values(core, inputs)
        return core, explore(values, noise), None

    draw = exploration_noise(env.action_space, env.num_envs * axis_of(env).size, epsilon)
    return rollout(env, policy, draw, simulation, key, num_steps)
