"""A vmapped population never hangs: jax 0.10 on a CPU of one or two cores did, now and then."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import jaxrl

PROGRAM = """
import jax, jaxrl
algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4))
config = jaxrl.PPOConfig(num_steps=128)
learn = jax.jit(jax.vmap(lambda key: jaxrl.train(algo, config, key, 60)[1]))
metrics = learn(jax.random.split(jax.random.key(0), 16))
print(int(metrics["valid_steps"].sum()))
"""


def train_population(cores):
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment["PYTHONPATH"] = str(Path(jaxrl.__file__).parents[1])
    finished = subprocess.run(
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {cores})\n{PROGRAM}"],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=True,
    )
    assert int(finished.stdout) > 16 * 60 * 4 * 100


def cores_available():
    return sorted(os.sched_getaffinity(0))


needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="binds processes to cores, which Linux alone can"
)


@needs_affinity
def test_a_population_of_sixteen_finishes():
    train_population(set(cores_available()[:2]))


@needs_affinity
@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(20))
def test_a_population_of_sixteen_finishes_twenty_times(attempt):
    train_population(set(cores_available()[: 1 + attempt % 2]))
