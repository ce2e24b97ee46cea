"""Population-based training: who copies whom, what they explore, and finals of its schedules."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_runs import SEED, UPDATES, search_of, searched, toy_algorithm
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl.tuning import PBT, Choice, Finals, LogUniform, trial_key

KEY = jax.random.key(SEED)
N, P = 10, 5


def initial_params(key):
    return toy_algorithm().init(ToyConfig(), key).params


@functools.cache
def exploit(number):
    return jax.jit(PBT(number, 2, quantile=0.3).exploit)


scores_of = st.sampled_from([-np.inf, np.nan, 0.0, 1.0, 2.5])


# Few sizes, since each compiles.
@settings(max_examples=30, deadline=None)
@given(st.one_of(*(st.lists(scores_of, min_size=n, max_size=n) for n in (1, 4, 9))))
def test_the_worst_copy_some_of_the_best(scores):
    number = len(scores)
    moved = 0 if number == 1 else max(3 * number // 10, 1)
    value = {True: -1e30, False: -2e30}  # NaN ranks above -inf, below all others
    comparable = [x if np.isfinite(x) else value[bool(np.isnan(x))] for x in scores]
    order = sorted(range(number), key=lambda i: (-comparable[i], i))
    best = {trial for trial in order[:moved] if np.isfinite(scores[trial])}
    worst = set(order[number - moved :]) if best else set()
    parents = {
        tuple(np.asarray(exploit(number)(jax.random.key(seed), jnp.array(scores, jnp.float32))))
        for seed in range(3)
    }
    for parent in parents:
        for trial, copied in enumerate(parent):
            assert (copied in best) if trial in worst else (copied == trial)


def test_explored_values_are_moved_or_drawn_again():
    rule = PBT(2000, 2, resample=0.25)
    space = {"rate": LogUniform(1e-4, 1e-1), "gamma": Choice((0.9, 0.99, 0.999))}
    values = {"rate": jnp.full(2000, 1e-3), "gamma": jnp.full(2000, 0.99)}
    found = jax.jit(lambda key: rule.explore(key, values, space))(KEY)
    ratio = np.asarray(found["rate"]) / 1e-3
    for factor in (0.8, 1.2):
        assert np.isclose(ratio, factor).mean() == pytest.approx(0.375, abs=0.04)
    gammas = np.asarray(found["gamma"]).astype(float).round(3)
    shares = {gamma: (gammas == gamma).mean() for gamma in (0.9, 0.99, 0.999)}
    assert shares[0.99] == pytest.approx(0.25 / 3, abs=0.03)  # only by drawing it again
    assert shares[0.9] == pytest.approx(shares[0.999], abs=0.06)


@pytest.mark.slow
def test_finals_replay_the_schedule_with_new_seeds():
    result = searched(PBT(N, P), N, finals=Finals(2, 2, 0.5))
    for found, expected in zip(result.ledger, searched(PBT(N, P), N).ledger, strict=True):
        np.testing.assert_array_equal(found, expected)
    winner = int(np.argmax(result.finals.score))
    trial = int(result.finals.trial[winner])
    assert result.best_trial == trial
    params = initial_params(trial_key(KEY, N + 2 * winner))
    params += UPDATES * np.asarray(result.schedule["learning_rate"][trial]).sum()
    np.testing.assert_allclose(result.best_state.params, params, rtol=1e-5)


@pytest.mark.slow
def test_agents_with_host_environments_copy_what_was_learned():
    algo = toy(jaxrl.make("envpool/CartPole-v1", num_envs=2))
    run = jax.jit(search_of(PBT(5, 4), 5, algo=algo))
    num_copied = 0
    for seed in range(8):
        key = jax.random.key(seed)
        result = run(key)
        assert ((np.asarray(result.parent) != np.arange(5)[:, None]).sum(0) == [1, 1, 1, 0]).all()
        trial = int(result.best_trial)
        learned, trained = 0.0, [trial]
        for phase in range(int(np.argmax(result.ledger.scores[trial])), -1, -1):
            learned += UPDATES * float(result.values_by_phase["learning_rate"][trained[-1], phase])
            trained.append(int(result.parent[trained[-1], phase - 1]) if phase else trained[-1])
        params = initial_params(trial_key(key, trained[-1])) + learned
        np.testing.assert_allclose(result.best_state.params, params, rtol=1e-5)
        num_copied += len({*trained}) > 1
    assert num_copied  # of the best agents


def test_a_population_trains_side_by_side():
    with pytest.raises(ValueError, match=r"num_lanes must be at least 10, got 4: PBT compares"):
        search_of(PBT(N, P), 4)(KEY)


def test_a_population_is_not_capped():
    with pytest.raises(ValueError, match="max_steps must be left out, got 100: PBT stops no"):
        search_of(PBT(N, P), N)(KEY, max_steps=100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quantile": 0.6}, "quantile must be at most 0.5, got 0.6"),
        ({"factors": (1.1, 1.2)}, "factors must be one below and one above 1"),
        ({"resample": 2.0}, r"resample must be within \[0, 1\], got 2.0"),
    ],
)
def test_bad_rules_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        PBT(N, P, **arguments)
