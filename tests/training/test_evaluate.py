"""Evaluation: whole episodes, as many of each environment."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweep_runs import toy_algorithm
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl.envs.host import callback
from jaxrl.rollouts.simulation import start
from jaxrl.training.evaluate import evaluate_separately, frames


def test_each_environment_counts_the_same_number_of_episodes():
    env = jaxrl.make("probe/Episode-v0", num_envs=3, limit=7)
    algo, config, key = toy(env), ToyConfig(), jax.random.key(0)
    state = algo.init(config, key)
    scores = jaxrl.evaluate(algo, config, state, env, key, 2)
    assert scores.episode_return.tolist() == [7.0] * 6
    assert scores.episode_length.tolist() == [7.0] * 6
    cut = jaxrl.evaluate(algo, config, state, env, key, 2, False, 5)  # 10 steps of each
    assert np.isnan(np.asarray(cut.episode_return)).tolist() == [False, True] * 3


def test_a_score_has_all_its_digits_after_many_episodes():
    env = jaxrl.make("probe/Episode-v0", num_envs=3, limit=7)
    algo, config, key = toy(env), ToyConfig(), jax.random.key(0)
    state = algo.init(config, key)
    begun = start(env, key)
    large = begun.episodes._replace(return_sum=jnp.full(3, 1e9))  # where float32 has steps of 64
    simulation = begun._replace(episodes=large)
    scores = jaxrl.evaluate(algo, config, state, env, key, 2, simulation=simulation)
    assert scores.episode_return.tolist() == [7.0] * 6


def test_parameters_in_place_of_a_state_are_refused():
    algo, config = toy(), ToyConfig()
    state = algo.init(config, jax.random.key(0))
    with pytest.raises(ValueError, match=r"state must be a training state, as algo.init returns"):
        jaxrl.evaluate(algo, config, state.params, algo.env, jax.random.key(0))


def test_the_simulator_of_pictures_is_closed():
    algo, config, key = toy(), ToyConfig(), jax.random.key(0)
    state, before = algo.init(config, key), set(callback._groups)
    env = jaxrl.make("gymnasium/CartPole-v1", 1, vectorization_mode="sync").for_rendering()
    pictures: Any = frames(algo, config, state, env, key)
    assert next(pictures)[0].shape == (400, 600, 3)
    assert set(callback._groups) - before
    pictures.close()
    assert set(callback._groups) <= before


def test_an_evaluation_in_pieces_has_the_same_scores_and_can_be_stopped(monkeypatch):
    monkeypatch.setattr("jaxrl.training.evaluate.PIECE_STEPS", 7)

    def act(config, state, *arguments):  # of the parameters, so that it runs on their device
        memory, action = toy_algorithm().act(config, state, *arguments)
        return memory, action * (state.params[0] < jnp.inf)

    algo, config = toy_algorithm()._replace(act=act), ToyConfig()
    state = jax.device_put(algo.init(config, jax.random.key(0)), jax.devices()[-1])
    ended: list[int] = []
    programs, jit = [], jax.jit

    def record(function, *arguments, **options):
        program: Any = jit(function, *arguments, **options)
        programs.append((program, program._cache_size()))  # with those of other calls
        return program

    with monkeypatch.context() as patch:
        patch.setattr(jax, "jit", record)
        scores = evaluate_separately(algo, config, state, 20, 5, watch=ended.append)
    compiled = [program._cache_size() - before for program, before in programs]
    assert compiled == [1, 1]  # to play, and to begin
    whole = jaxrl.evaluate(algo, config, state, algo.env.for_evaluation(16), jax.random.key(5), 2)
    chex.assert_trees_all_equal(scores, jax.tree.map(lambda x: np.asarray(x)[:20], whole))
    assert len(ended) > 2
    assert ended == sorted(ended)

    def stop(num_ended):
        if num_ended:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_separately(algo, config, state, 20, 5, watch=stop)


def test_an_agent_plays_in_environments_of_its_spaces_only():
    algo, config, key = toy(jaxrl.make("CartPole-v1", 2)), ToyConfig(), jax.random.key(0)
    state = algo.init(config, key)
    for name in ("Acrobot-v1", "Pendulum-v1", "probe/Episode-v0"):
        env = jaxrl.make(name, 2)
        with pytest.raises(ValueError, match=r"env must have the \w+_space of .*CartPole.*has "):
            jaxrl.evaluate(algo, config, state, env, key)
