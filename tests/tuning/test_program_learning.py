"""A hyperparameter search, wholly compiled, learns CartPole."""

import functools

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.tuning import Choice, HyperTrick, LogUniform, RandomSearch, Status, search

CARTPOLE = {
    "learning_rate": LogUniform(1e-5, 1e-1),
    "gamma": Choice((0.8, 0.9, 0.95, 0.99, 0.999)),
    "entropy_coef": LogUniform(1e-4, 1e-1),
}


def cartpole_search(scheduler):
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4))
    config = jaxrl.PPOConfig(num_steps=128)
    return jax.jit(
        functools.partial(search, algo, config, CARTPOLE, scheduler, 16, 12, strategy="shard-map")
    )


@pytest.mark.learning
def test_a_search_of_64_trials_solves_cartpole_in_one_call():
    result = cartpole_search(HyperTrick(64, 8))(jax.random.key(0))
    assert np.nanmax(result.ledger.scores) >= 475
    ended = np.isin(result.ledger.status, [Status.STOPPED, Status.COMPLETED])
    assert ended.all()
    assert result.ledger.reported.sum() < 0.7 * 64 * 8


@pytest.mark.slow
def test_hypertrick_is_no_worse_than_random_search_of_the_same_budget():
    """Random search runs as many full trials as HyperTrick's phases cost."""
    trick, keys = cartpole_search(HyperTrick(64, 8)), jax.random.split(jax.random.key(1), 5)
    found = [trick(key) for key in keys]
    budget = round(np.mean([r.ledger.reported.sum() for r in found]) / 8)
    uniform = cartpole_search(RandomSearch(int(budget), 8))
    best = [np.nanmax(r.ledger.scores) for r in found]
    other = [np.nanmax(uniform(key).ledger.scores) for key in keys]
    assert np.mean(best) >= np.mean(other) - 1
