"""Every algorithm's program is made for GPUs and TPUs, on a machine that has none."""

import re

import jax
import pytest
from small_algorithms import CONFIGS, algorithm, few_in_every_run

import jaxrl
from jaxrl.algos import ALGORITHMS

# What XLA brings for each platform: QR decompositions, for the orthogonal initializers.
CALLS = {
    "cpu": {"lapack_sgeqrf_ffi", "lapack_sorgqr_ffi"},
    "cuda": {"cusolver_geqrf_ffi", "cusolver_orgqr_ffi"},
    "tpu": {"Qr", "ProductOfElementaryHouseholderReflectors"},
}
VARIANTS = [name for name in CONFIGS if name not in ALGORITHMS]


def programs(name, env_id, num_members=None, platforms=("cuda", "tpu")):
    """Return the text of the program that initializes and trains, by platform.

    Args:
      num_members: of a population of that size; None for one agent.
    """

    def train(key):
        return jaxrl.train(algorithm(name, env_id), CONFIGS[name], key, 3)

    if num_members is None:
        traced = jax.jit(train).trace(jax.random.key(0))
    else:
        traced = jax.jit(jax.vmap(train)).trace(jax.random.split(jax.random.key(0), num_members))
    return {name: traced.lower(lowering_platforms=(name,)).as_text() for name in platforms}


def check_calls(texts):
    """Check that no program calls anything but what its platform has, such as Python."""
    for platform, text in texts.items():
        assert set(re.findall(r"custom_call @(\w+)", text)) <= CALLS[platform], platform
        for transfer in ("infeed", "outfeed", "send", "recv"):
            assert f"stablehlo.{transfer}" not in text


@few_in_every_run("ppo", "r2d2", of=ALGORITHMS)
def test_training_on_pictures_has_a_program_for_every_platform(name):
    texts = programs(name, "frames")
    check_calls(texts)
    for text in texts.values():  # these pictures are small
        assert "stablehlo.convolution" not in text


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "maze/FindAndReturn-v0"])
def test_environments_on_the_device_have_a_program_for_every_platform(env_id):
    check_calls(programs("a2c", env_id))


def test_a_population_has_a_program_for_every_platform():
    check_calls(programs("a2c", "CartPole-v1", 4))


@pytest.mark.slow
@few_in_every_run("impala-lstm", "dqn-prioritized", "pqn-lstm", of=VARIANTS)
def test_variants_have_a_program_for_every_platform(name):
    check_calls(programs(name, "CartPole-v1"))


def test_the_check_finds_a_call_of_the_host():
    texts = programs("a2c", "envpool/CartPole-v1", platforms=("cpu",))
    with pytest.raises(AssertionError, match="callback"):
        check_calls(texts)
