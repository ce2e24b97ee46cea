"""An algorithm with known scores, and a Ctrl-C at a chosen time, for tests."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import jaxrl
from jaxrl import config as fields
from jaxrl.rollouts.simulation import Simulation, start
from jaxrl.types import Algorithm, Array

BEST_RATE = 1e-3
DIVERGES_FROM = 0.5
NO_EPISODES_BELOW = 0.2


@fields.config
class ToyConfig(fields.Config):
    learning_rate: float = BEST_RATE
    gamma: float = 0.9
    num_steps: int = fields.static(2)
    activation: str = fields.static("tanh")


class ToyState(NamedTuple):
    params: Array
    simulation: Simulation
    key: Array
    num_updates: Array


def quality(learning_rate):
    """Return the limit of a trial's returns, which falls with the distance from the best rate."""
    return 100 - 20 * jnp.abs(jnp.log10(learning_rate / BEST_RATE))


def toy(env=None, network=None):
    """Make the algorithm: returns grow towards `quality`, and high rates give a loss of NaN.

    It has no network; code of the documentation may give one.
    """
    env = env or jaxrl.make("CartPole-v1", num_envs=2)

    def init(config, key, simulation=None):
        env_key, key = jax.random.split(key)
        simulation = start(env, env_key, (), simulation)
        return ToyState(jax.random.normal(key, (3,)), simulation, key, jnp.int32(0))

    def update(config, state):
        noise = jax.random.normal(jax.random.fold_in(state.key, state.num_updates))
        progress = 1 - 0.8**state.num_updates
        score = quality(config.learning_rate) * progress + noise + config.num_steps
        count = jnp.where(config.gamma < NO_EPISODES_BELOW, 0, 3)
        metrics = {
            "episode_return_sum": score * count,
            "episode_length_sum": count * 7,
            "episode_count": count,
            "valid_steps": jnp.int32(config.num_steps * env.num_envs),
            "loss": jnp.where(config.learning_rate >= DIVERGES_FROM, jnp.nan, 1.0),
        }
        params = state.params + config.learning_rate
        return state._replace(params=params, num_updates=state.num_updates + 1), metrics

    def act(config, state, memory, obs, key, greedy):
        return memory, jnp.zeros(len(obs), jnp.int32)

    return Algorithm(init, update, act, env, None, "toy", ToyConfig)


class InterruptAfter:
    """A replacement of `Interrupt` that reports Ctrl-C after so many chunks."""

    def __init__(self, chunks):
        self.left = chunks

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    @property
    def requested(self):
        self.left -= 1
        return self.left < 0
