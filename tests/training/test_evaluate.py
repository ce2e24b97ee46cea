"""Evaluation: whole episodes, as many of each environment."""

import jax
import numpy as np
from toy_algorithm import ToyConfig, toy

import jaxrl


def test_each_environment_counts_the_same_number_of_episodes():
    env = jaxrl.make("probe/Episode-v0", num_envs=3, limit=7)
    algo, config, key = toy(env), ToyConfig(), jax.random.key(0)
    state = algo.init(config, key)
    scores = jaxrl.evaluate(algo, config, state, env, key, 2)
    assert scores.episode_return.tolist() == [7.0] * 6
    assert scores.episode_length.tolist() == [7.0] * 6
    cut = jaxrl.evaluate(algo, config, state, env, key, 2, False, 9)
    assert np.isnan(np.asarray(cut.episode_return)).tolist() == [False, True] * 3
