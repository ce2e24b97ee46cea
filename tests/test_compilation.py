"""Options for XLA, and that they change nothing but speed."""

import functools

import chex
import jax
import pytest

import jaxrl

WIDTH = "xla_cpu_prefer_vector_width"
OPTIONS: dict = {WIDTH: 512}


@pytest.fixture
def dense():
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4))
    return algo, jaxrl.PPOConfig(num_steps=16)


def test_dense_networks_get_wide_vectors(dense, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    assert jaxrl.compiler_options(*dense) == {WIDTH: 512}


def test_recurrent_networks_get_wide_vectors(dense, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    algo, config = dense
    recurrent = config.replace(core="lstm", num_minibatches=2)
    assert jaxrl.compiler_options(algo, recurrent) == {WIDTH: 512}


def test_convolutions_get_none(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    algo = jaxrl.ppo(jaxrl.make("Breakout-MinAtar", num_envs=4))
    assert jaxrl.compiler_options(algo, jaxrl.PPOConfig(num_steps=16, torso="minatar_cnn")) == {}


def test_the_users_width_stays(dense, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--{WIDTH}=128")
    assert jaxrl.compiler_options(*dense) == {}


def test_results_are_the_same(dense):
    algo, config = dense
    train = functools.partial(jaxrl.train, algo, num_updates=3)
    lowered = jax.jit(train).lower(config, jax.random.key(0))
    plain = lowered.compile()(config, jax.random.key(0))
    wide = lowered.compile(OPTIONS)(config, jax.random.key(0))
    chex.assert_trees_all_close(wide[1], plain[1], rtol=1e-4, atol=1e-5)
