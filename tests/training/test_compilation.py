"""Options for XLA that change nothing but speed, and the cache of compiled programs."""

import chex
import jax
import pytest

import jaxrl
from jaxrl.training import compilation

WIDTH = "xla_cpu_prefer_vector_width"
WIDE: dict = {WIDTH: 512}


@pytest.mark.parametrize(
    ("env_id", "changes", "flags", "options"),
    [
        ("CartPole-v1", {}, "", WIDE),
        ("CartPole-v1", {"core": "lstm"}, "", WIDE),
        ("CartPole-v1", {}, f"--{WIDTH}=128", {}),  # the user's own
        ("Breakout-MinAtar", {"torso": "minatar_cnn"}, "", {}),
    ],
    ids=["dense", "recurrent", "flag", "convolution"],
)
def test_programs_without_convolutions_get_wide_vectors(
    monkeypatch, env_id, changes, flags, options
):
    monkeypatch.setenv("XLA_FLAGS", flags)
    algo = jaxrl.ppo(jaxrl.make(env_id, num_envs=4))
    config = jaxrl.PPOConfig(num_steps=16, num_minibatches=2, **changes)
    assert jaxrl.compiler_options(algo, config) == options


@pytest.mark.slow
def test_wide_vectors_give_the_same_results():
    algo = jaxrl.a2c(jaxrl.make("CartPole-v1", num_envs=2))
    train = jax.jit(jaxrl.train, static_argnums=(0, 3))
    arguments = jaxrl.A2CConfig(num_steps=2, hidden_sizes=(16,)), jax.random.key(0)
    lowered = train.lower(algo, *arguments, 3)
    _, plain = lowered.compile()(*arguments)
    _, wide = lowered.compile(WIDE)(*arguments)
    chex.assert_trees_all_close(wide, plain, rtol=1e-4, atol=1e-5)


def test_users_without_a_home_have_no_cache(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(compilation.Path, "home", no_home)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert compilation.cache_directory() is None
    compilation.enable_compilation_cache()
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(compilation.cache_directory()) == "/somewhere/jaxrl"
