"""A vmapped population never hangs, as jax 0.10 did now and then on CPUs of one or two cores."""

import os
import subprocess
import sys

import pytest
from fast_compile import UNOPTIMIZED

PROGRAM = """
import os
os.sched_setaffinity(0, {cores})
import jax, jaxrl
algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4))
config = jaxrl.PPOConfig(num_steps=128)
learn = jax.jit(jax.vmap(lambda key: jaxrl.train(algo, config, key, 6)[1]))
metrics = learn(jax.random.split(jax.random.key(0), 16))
print(int(metrics["valid_steps"].sum()))
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="binds processes to cores")
@pytest.mark.parametrize("attempt", [0, 1, 2])
def test_a_population_of_sixteen_finishes(attempt):
    cores = sorted(os.sched_getaffinity(0))[: 2 - attempt % 2]
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", UNOPTIMIZED)}
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(cores=cores)], capture_output=True, text=True,
        timeout=240, check=True,
        env=environment,
    )  # fmt: skip
    assert int(finished.stdout) > 16 * 6 * 4 * 100
