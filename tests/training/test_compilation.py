"""Options for XLA that change nothing but speed, and the cache of compiled programs."""

import os

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


def test_users_without_a_home_have_no_cache(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(compilation.Path, "home", no_home)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert compilation.cache_directory() is None
    compilation.enable_compilation_cache()
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(compilation.cache_directory()) == "/somewhere/jaxrl"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the cache of a user who has set none; JAX's setting is restored afterwards."""
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path / "jaxrl"
    jax.config.update("jax_compilation_cache_dir", before)


def test_only_the_user_can_write_to_the_cache(cache):
    (cache / "xla").mkdir(parents=True)
    cache.chmod(0o777)
    (cache / "xla").chmod(0o775)
    compilation.enable_compilation_cache()
    assert jax.config.values["jax_compilation_cache_dir"] == str(cache / "xla")
    assert [path.stat().st_mode & 0o777 for path in (cache, cache / "xla")] == [0o755, 0o755]


def test_a_new_cache_is_private(cache):
    compilation.enable_compilation_cache()
    assert [path.stat().st_mode & 0o777 for path in (cache, cache / "xla")] == [0o700, 0o700]


def test_another_users_cache_is_not_used(cache, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.warns(UserWarning, match="is another user's.* set JAX_COMPILATION_CACHE_DIR"):
        compilation.enable_compilation_cache()
    assert jax.config.values["jax_compilation_cache_dir"] is None
