"""What the Q-learning algorithms share: epsilon-greedy actions, and values of chosen ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.rollout import Draw
from jaxrl.types import ActionSpace, Array, Discrete


def exploration_noise(space: ActionSpace, num_envs: int) -> Draw:
    """`draw(key) -> (uniform number, random action)`, each `[N]`: what `explore` takes.

    Raises:
      ValueError: if actions are not `Discrete`.
    """
    if not isinstance(space, Discrete):
        raise ValueError(f"Q-learning needs Discrete actions, got the space {space}")

    def draw(key: Array) -> tuple[Array, Array]:
        coin_key, action_key = jax.random.split(key)
        action = jax.random.randint(action_key, (num_envs,), 0, space.n, jnp.int32)
        return jax.random.uniform(coin_key, (num_envs,)), action

    return draw


def best(q_values: Array) -> Array:
    """Greedy actions `[...]` of values `[..., A]`."""
    return jnp.argmax(q_values, axis=-1).astype(jnp.int32)


def explore(q_values: Array, epsilon: Array | float, noise: tuple[Array, Array]) -> Array:
    """Epsilon-greedy actions `[N]`; epsilon is one number or `[N]`."""
    coin, random_action = noise
    return jnp.where(coin < epsilon, random_action, best(q_values))


def value_of(q_values: Array, action: Array) -> Array:
    """The values `[...]` of actions `[...]`, of values `[..., A]`."""
    return jnp.take_along_axis(q_values, action[..., None], axis=-1)[..., 0]
