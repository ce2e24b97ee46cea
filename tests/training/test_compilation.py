"""Options for XLA, and that they change nothing but speed."""

import functools

import chex
import jax
import pytest

import jaxrl
from jaxrl.training import compilation

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


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 5, 7, 8, 30])
def test_of_every_rollout_a_loop_is_left(num_steps):
    """What XLA is given in one piece instead, it may never finish compiling."""
    algo = jaxrl.a2c(jaxrl.make("CartPole-v1", num_envs=2))
    config = jaxrl.A2CConfig(num_steps=num_steps)
    state = jax.eval_shape(algo.init, config, jax.random.key(0))
    equations = jax.make_jaxpr(algo.update)(config, state).eqns
    scans = [eqn.params for eqn in equations if eqn.primitive.name == "scan"]
    rollout = max(scans, key=lambda scan: len(scan["jaxpr"].eqns))
    assert rollout["length"] == num_steps
    assert rollout["unroll"] == 1 or num_steps // rollout["unroll"] >= 2
    assert rollout["unroll"] == 4 or num_steps < 8


def test_users_without_a_home_have_no_cache(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(compilation.Path, "home", no_home)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert compilation.cache_directory() is None
    compilation.enable_compilation_cache()
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(compilation.cache_directory()) == "/somewhere/jaxrl"
