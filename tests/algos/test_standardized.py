"""Observations that algorithms standardize by running statistics."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_algorithms import CONFIGS, algorithm, assert_close, learn, start

import jaxrl
from jaxrl.ops.normalization import RunningStatistics
from jaxrl.training.compilation import train_chunk

MEAN, STD = 64.0, 8.0
ONE_OF_EACH = [
    "dqn",
    pytest.param("ppo", marks=pytest.mark.slow),
    *(pytest.param(n, marks=pytest.mark.exhaustive) for n in ("a2c", "impala", "pqn", "r2d2")),
]


@dataclasses.dataclass(frozen=True)
class Shifted:
    """An environment whose observations have another mean and scale."""

    env: Any

    def __getattr__(self, name):
        return getattr(self.env, name)

    def init(self, key):
        return self._shift(*self.env.init(key))

    def step(self, key, state, action):
        return self._shift(*self.env.step(key, state, action))

    def _shift(self, state, timestep):
        return state, timestep._replace(obs=MEAN + STD * timestep.obs)


@functools.cache
def beginning(name):
    """Return an algorithm on shifted observations, a config that standardizes, and a state."""
    algo = getattr(jaxrl, name)(Shifted(algorithm(name).env))
    config = CONFIGS[name].replace(normalize_observations=True)
    return algo, config, jax.jit(algo.init)(config, jax.random.key(0))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_an_agent_learns_from_them_as_if_they_were_standardized_before(name):
    plain, _ = learn(name, CONFIGS[name], start(name), 6)
    algo, config, state = beginning(name)
    known = RunningStatistics(jnp.float32(1e30), jnp.full(4, MEAN), jnp.full(4, STD**2))
    state = jax.tree.map(jnp.copy, state._replace(obs_statistics=known))
    state, _ = train_chunk(algo, config, state, jnp.int32(6))
    assert_close(state.params, plain.params, rtol=1e-3, atol=1e-4)

    obs = jax.random.normal(jax.random.key(1), (64, 4))
    act = {True: algo.act, False: algorithm(name).act}
    (_, shifted), (_, actions) = (
        act[is_shifted](config, of, (), x, jax.random.key(2), True)
        for is_shifted, of, x in ((True, state, MEAN + STD * obs), (False, plain, obs))
    )
    assert (shifted == actions).mean() > 0.95  # a tie may fall the other way


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_statistics_count_every_step(name):
    algo, config, state = beginning(name)
    state, metrics = train_chunk(algo, config, jax.tree.map(jnp.copy, state), jnp.int32(6))
    steps = np.asarray(metrics["valid_steps"])[:6].sum()
    assert steps > 0
    np.testing.assert_allclose(state.obs_statistics.count, steps, rtol=1e-4)


@dataclasses.dataclass(frozen=True)
class InParts(Shifted):
    """The environment with its observations as a part, beside an action mask."""

    @property
    def observation_space(self):
        mask = jaxrl.Box.of((2,), np.float32, 0, 1)
        return jaxrl.Dict.of(place=self.env.observation_space, action_mask=mask)

    def _shift(self, state, timestep):
        parts = {"place": MEAN + STD * timestep.obs, "action_mask": jnp.eye(2)}
        return state, timestep._replace(obs=parts)


@pytest.mark.parametrize("name", [*CONFIGS])
def test_parts_are_standardized_and_action_masks_are_not(name):
    algo = getattr(jaxrl, name.partition("-")[0])(InParts(algorithm(name).env))
    config = CONFIGS[name].replace(normalize_observations=True)
    state = jax.eval_shape(algo.init, config, jax.random.key(0))
    after, _ = jax.eval_shape(algo.update, config, state)
    assert state.obs_statistics["place"].mean.shape == (4,)
    assert state.obs_statistics["action_mask"] is None
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )
