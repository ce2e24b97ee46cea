"""Samplers in a search: one program, whose later trials learn from the scores of earlier ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweep_runs import SPACE, UPDATES, search_of, toy_algorithm
from toy_algorithm import ToyConfig

from jaxrl.tuning import (
    ASHA,
    PBT,
    Choice,
    ExpectedImprovement,
    Finals,
    HyperTrick,
    Integer,
    LogUniform,
    RandomSearch,
    Sobol,
    When,
    trial_key,
)
from jaxrl.tuning.spaces import space as spaces
from jaxrl.tuning.trial_start import agent_keys, sampler_key

KEY = jax.random.key(5)
SCHEDULER = RandomSearch(12, 2)
IMPROVEMENT = ExpectedImprovement(initial=4, candidates=32)


def search_by(sampler, scheduler=SCHEDULER, num_lanes=3, **arguments):
    return search_of(scheduler, num_lanes, sampler=sampler, **arguments)


@pytest.mark.slow
def test_sobol_gives_each_trial_its_point_on_any_number_of_lanes():
    planned = Sobol().plan(sampler_key(KEY), 12, SPACE)
    for num_lanes in (3, 12):
        result = jax.jit(search_by(Sobol(), num_lanes=num_lanes))(KEY)
        for name in SPACE:
            np.testing.assert_allclose(result.values[name], planned[name], rtol=1e-6)


def check_values(result):
    """Check that the first four trials have their plan, and later ones their own values."""
    planned = IMPROVEMENT.plan(sampler_key(KEY), 12, SPACE)
    for name, x in result.values.items():
        is_planned = np.isclose(x, planned[name], rtol=1e-6)
        np.testing.assert_array_equal(is_planned, np.arange(12) < 4)
        np.testing.assert_array_equal(result.values_by_phase[name], np.stack([x] * 3, axis=1))


def test_trials_of_several_agents_train_with_the_values_that_are_chosen():
    """The toy's parameters are their initial values plus all learning rates."""
    result = jax.jit(search_by(IMPROVEMENT, HyperTrick(12, 3), seeds_per_trial=2))(KEY)
    check_values(result)
    best, scores = int(result.best_trial), np.asarray(result.ledger.scores)
    assert best >= 4
    params = toy_algorithm().init(ToyConfig(), agent_keys(trial_key(KEY, best), 2)[0]).params
    num_updates = UPDATES * (np.nanargmax(scores[best]) + 1)
    params += num_updates * result.values["learning_rate"][best]
    np.testing.assert_allclose(result.best_state.params, params, rtol=1e-5)


@pytest.mark.slow
def test_trials_may_pause_and_finals_follow():
    result = jax.jit(search_by(IMPROVEMENT, ASHA(12, 3), finals=Finals(1, 2, 0.5)))(KEY)
    check_values(result)
    assert np.isfinite(result.finals.scores).all()


@pytest.mark.exhaustive
def test_a_search_is_vmapped_over_keys():
    run = search_by(IMPROVEMENT)
    both = jax.jit(jax.vmap(run))(jnp.stack([jax.random.key(6), KEY]))
    one = jax.jit(run)(KEY)
    for name in SPACE:
        np.testing.assert_allclose(both.values[name][1], one.values[name], rtol=1e-3)
    assert (both.values["gamma"][0] != both.values["gamma"][1]).all()


def quadratic(config):
    """Return the score of settings, at most 0."""
    rate = (jnp.log10(config.learning_rate) + 3.3) / 4
    return -(rate**2) - ((config.gamma - 0.75) / 0.6) ** 2


@pytest.mark.exhaustive
def test_the_best_of_its_trials_beats_the_best_random_one():
    algo = toy_algorithm()

    def update(config, state):
        state, metrics = algo.update(config, state)
        score = quadratic(config) * jnp.float32(3)
        return state, metrics | {"episode_return_sum": score, "episode_count": jnp.int32(3)}

    def best(sampler):
        run = search_by(sampler, RandomSearch(24, 1), 4, algo=algo._replace(update=update))
        scores = jax.jit(jax.vmap(run))(jax.random.split(KEY, 12)).ledger.scores
        return np.asarray(scores).max((1, 2))

    improved, random = best(ExpectedImprovement(candidates=128)), best(None)
    assert np.mean(improved > random) > 0.8
    assert np.median(improved) > np.median(random) / 4


@dataclasses.dataclass(frozen=True)
class Grid:
    """A sampler of few lines, as users write."""

    per_field: int = 2

    def plan(self, key, num_trials, space):
        trial = jnp.arange(num_trials)[:, None] // self.per_field ** jnp.arange(len(space))
        return spaces.at(space, (trial % self.per_field + 0.5) / self.per_field)


def test_a_sampler_of_ones_own_plans_without_keys():
    space = {"gamma": Choice((0.5, 0.6)), "learning_rate": SPACE["learning_rate"]}
    values = jax.jit(search_by(Grid(), RandomSearch(4, 1), 2, space=space))(KEY).values
    np.testing.assert_allclose(values["gamma"], [0.5, 0.6, 0.5, 0.6])
    np.testing.assert_allclose(values["learning_rate"], [1e-4, 1e-4, 1e-2, 1e-2], rtol=1e-4)


@pytest.mark.parametrize(
    "sampler",
    [None, pytest.param(IMPROVEMENT, marks=pytest.mark.exhaustive)],
    ids=["random", "ExpectedImprovement"],
)
def test_inactive_fields_keep_the_value_of_the_config(sampler):
    """The config's rate is the best one; scores of all rates in the space are lower by half."""
    space = {
        "gamma": Choice((0.5, 0.6)),
        "learning_rate": When("gamma", 0.6, LogUniform(1e-6, 1e-5)),
    }
    result = jax.jit(search_by(sampler, space=space, finals=Finals(1, 2, 0.5)))(KEY)
    is_active = np.asarray(result.values["gamma"]) == np.float32(0.6)
    assert 0 < is_active.sum() < 12
    rates = np.asarray(result.values["learning_rate"])
    np.testing.assert_array_equal(rates == np.float32(ToyConfig().learning_rate), ~is_active)
    scores = np.asarray(result.ledger.scores[:, 1])
    assert scores[is_active].max() < 45 < scores[~is_active].min()
    assert not is_active[result.best_trial]
    assert (result.finals.scores[..., 1] > 45).all()


def test_bad_samplers_are_refused_by_name():
    for sampler in ("sobol", Sobol, SPACE["gamma"]):
        with pytest.raises(ValueError, match=r"sampler must be a sampler, .* or None, got"):
            search_by(sampler)(KEY)
    with pytest.raises(ValueError, match="num_lanes=12 all 12 trials begin at once: take fewer"):
        search_by(IMPROVEMENT, num_lanes=12)(KEY)
    with pytest.raises(ValueError, match=r"initial=12 trials keep points of Sobol, .* 12 trials"):
        search_by(ExpectedImprovement(initial=12))(KEY)
    with pytest.raises(ValueError, match=r"ExpectedImprovement .* at once: take another sampler"):
        search_by(IMPROVEMENT, PBT(12, 2), 12)(KEY)

    class Short(Grid):
        def plan(self, key, num_trials, space):
            return super().plan(key, num_trials - 1, space)

    with pytest.raises(ValueError, match=r"Short\(.*\): `plan` must return .*\[12\].*\[11\]"):
        search_by(Short())(KEY)
    with pytest.raises(ValueError, match=r"ExpectedImprovement.candidates must be .*, got 0"):
        ExpectedImprovement(candidates=0)
    with pytest.raises(ValueError, match=r"space must be .* at least one distribution, got {}"):
        search_by(Sobol(), space={})(KEY)
    with pytest.raises(ValueError, match="static fields"):
        search_by(Sobol(), space={"num_steps": Integer(1, 3)})(KEY)
