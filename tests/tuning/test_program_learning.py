"""A hyperparameter search, wholly compiled, learns CartPole."""

import functools

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.tuning import Choice, HyperTrick, LogUniform, Status, search

CARTPOLE = {
    "learning_rate": LogUniform(1e-5, 1e-1),
    "gamma": Choice((0.8, 0.9, 0.95, 0.99, 0.999)),
    "entropy_coef": LogUniform(1e-4, 1e-1),
}


@pytest.mark.exhaustive
@pytest.mark.usefixtures("optimized")
def test_a_search_of_64_trials_solves_cartpole_in_one_call():
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4))
    config = jaxrl.PPOConfig(num_steps=128)
    run = functools.partial(
        search, algo, config, CARTPOLE, HyperTrick(64, 8), 16, 12, strategy="shard-map"
    )
    result = jax.jit(run)(jax.random.key(0))
    assert np.nanmax(result.ledger.scores) >= 475
    ended = np.isin(result.ledger.status, [Status.STOPPED, Status.COMPLETED])
    assert ended.all()
    assert result.ledger.reported.sum() < 0.7 * 64 * 8
