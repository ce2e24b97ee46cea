"""Expected improvement against NumPy and SciPy in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_gaussian_process import dense_posterior
from scipy.special import erfcx
from scipy.stats import norm, rankdata

from jaxrl.ops import gaussian_process
from jaxrl.ops.gaussian_process import JITTER, Kernel, Points
from jaxrl.tuning import Choice, ExpectedImprovement, LogUniform, Sobol, Uniform
from jaxrl.tuning.samplers.expected_improvement import (
    choose_in_turn,
    log_expected_improvement,
    model,
    normal_scores,
)
from jaxrl.tuning.schedulers.contract import Ledger, Status

N = 12
KERNEL = Kernel(0.3, 0.0, 0.1)
SPACE = {"gamma": Choice((0.9, 0.99)), "rate": LogUniform(1e-4, 1e-1), "x": Uniform(-1.0, 1.0)}


def test_the_expected_improvement_is_that_of_the_formula():
    z = np.array([-60, -20, -9, -7.9, -5, -3, -1, 0, 1, 4, 6, 1000])
    deviation = 0.3
    found = log_expected_improvement(
        jnp.array(z * deviation, jnp.float32), jnp.float32(deviation**2)
    )
    below = np.minimum(z, 0)  # where the sum of both terms loses digits in double precision too
    factor = 1 + below * np.sqrt(np.pi / 2) * erfcx(-below / np.sqrt(2))
    expected = np.where(
        z < 0,
        norm.logpdf(below) + np.log(factor),
        np.log(norm.pdf(np.maximum(z, 0)) + np.maximum(z, 0) * norm.cdf(z)),
    )
    np.testing.assert_allclose(found, np.log(deviation) + expected, rtol=1e-5, atol=5e-3)


def test_trials_of_one_phase_have_the_normal_scores_of_their_ranks():
    scores = np.random.default_rng(0).normal(size=N).astype(np.float32)
    scores[:3] = (-np.inf, np.nan, scores[5])  # diverged, no episode, equal
    observed, has_score = normal_scores(jnp.array(scores[:, None]))
    known = ~np.isnan(scores)
    np.testing.assert_array_equal(has_score, known)
    expected = norm.ppf((rankdata(scores[known]) - 0.5) / known.sum())
    np.testing.assert_allclose(np.asarray(observed)[known], expected, rtol=1e-4, atol=1e-5)


def test_trials_are_compared_in_the_last_phase_that_both_have_scored():
    generator = np.random.default_rng(1)
    scores = generator.normal(size=(N, 4)).astype(np.float32)
    scores[np.arange(4) >= generator.integers(0, 5, N)[:, None]] = np.nan
    scores[0] = (1.0, np.nan, 2.0, np.nan)
    observed, has_score = normal_scores(jnp.array(scores))
    for trial in range(N):
        won = []
        for other in range(N):
            both = np.flatnonzero(~np.isnan(scores[trial] + scores[other]))
            if len(both):
                a, b = scores[trial, both[-1]], scores[other, both[-1]]
                won.append((a > b) + 0.5 * (a == b))
        assert has_score[trial] == bool(won)
        if won:
            assert observed[trial] == pytest.approx(norm.ppf(np.mean(won)), abs=1e-5)


def test_a_trial_that_diverges_late_loses_to_all_that_stopped_before():
    scores = np.full((4, 3), np.nan, np.float32)
    scores[0] = (9.0, 8.0, -np.inf)
    scores[1:, 0] = (1.0, 2.0, 3.0)
    observed, _ = normal_scores(jnp.array(scores))
    np.testing.assert_array_equal(np.argsort(observed), [0, 1, 2, 3])


def test_trials_are_chosen_one_after_another_and_those_without_a_score_count():
    """The reference solves anew after each choice, with an observation at its mean."""
    generator = np.random.default_rng(2)
    planned, candidates = generator.random((N, 2)), generator.random((30, 2))
    observed, trials = generator.normal(size=N), np.arange(N)
    has_score, is_chosen = trials < 6, (trials >= 8) & (trials < 11)
    is_unknown = ~has_score & (trials < 11)  # the last has not begun
    points = Points(jnp.zeros(N), jnp.array(planned, jnp.float32))
    kernel = Kernel(*map(jnp.float32, KERNEL))
    posterior = gaussian_process.fit(
        kernel, points, jnp.array(observed, jnp.float32), jnp.array(has_score)
    )
    highest = 0.3
    places = choose_in_turn(
        posterior, jnp.float32(highest), points.inputs, jnp.array(candidates, jnp.float32),
        jnp.array(is_unknown), jnp.array(is_chosen),
    )  # fmt: skip

    def timed(inputs):
        return np.insert(inputs, 0, 0, axis=1)

    known, values, expected = planned[has_score], observed[has_score], planned.copy()
    for trial in np.flatnonzero(is_unknown):
        if is_chosen[trial]:
            mean, deviation = dense_posterior(KERNEL, timed(known), values, timed(candidates))
            z = (mean - highest) / deviation
            gain = deviation * (norm.pdf(z) + z * norm.cdf(z))
            expected[trial] = candidates[gain.argmax()]
            candidates = np.delete(candidates, gain.argmax(), axis=0)
        place = expected[trial][None]
        mean = dense_posterior(KERNEL, timed(known), values, timed(place))[0]
        known, values = np.concatenate([known, place]), np.concatenate([values, mean])
    np.testing.assert_allclose(places, expected, rtol=1e-6)
    assert len(np.unique(expected[is_chosen], axis=0)) == 3


def ledger_of(scores):
    scores = jnp.asarray(scores, jnp.float32)
    reported = (~jnp.isnan(scores)).sum(1)
    status = jnp.where(reported > 0, Status.COMPLETED, Status.WAITING)
    return Ledger(scores, reported, status)


def chosen(scores, begins, sampler):
    key = jax.random.key(0)
    values = sampler.plan(key, N, SPACE)
    found = jax.jit(lambda *a: sampler.choose(*a, SPACE))(key, begins, ledger_of(scores), values)
    return values, found


@pytest.mark.parametrize("has_scores", [False, True])
def test_a_plan_holds_for_the_initial_trials_and_until_there_is_a_score(has_scores):
    scores = np.full((N, 2), np.nan)
    if has_scores:
        scores[:6] = np.arange(6)[:, None]
    begins = (np.arange(N) >= 6) & (np.arange(N) < 10)
    planned, found = chosen(scores, begins, ExpectedImprovement(initial=8))
    sobol = Sobol().plan(jax.random.key(0), N, SPACE)
    for name in SPACE:
        np.testing.assert_array_equal(planned[name], sobol[name])
    changed = np.asarray(found["rate"] != planned["rate"])
    np.testing.assert_array_equal(changed, has_scores & begins & (np.arange(N) >= 8))
    assert np.isin(found["gamma"], np.array([0.9, 0.99], np.float32)).all()
    assert (np.abs(found["x"]) <= 1).all()
    for name in SPACE:
        assert found[name].dtype == planned[name].dtype


def test_trials_beyond_the_candidates_keep_their_plan():
    scores = np.where(np.arange(N) < 6, np.arange(N), np.nan)[:, None]
    planned, found = chosen(scores, np.arange(N) >= 6, ExpectedImprovement(1, candidates=4))
    changed = np.asarray(found["rate"] != planned["rate"])
    np.testing.assert_array_equal(changed, (np.arange(N) >= 6) & (np.arange(N) < 10))


@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_later_trials_are_near_the_best_ones(scale):
    """The score is highest at x = 0.5, and -inf above 0.8."""
    sampler, begins = ExpectedImprovement(initial=4), np.arange(N) == N - 1
    x = np.asarray(sampler.plan(jax.random.key(0), N, SPACE)["x"])
    score = np.where(x > 0.8, -np.inf, scale * -((x - 0.5) ** 2))
    score = np.where(begins, np.nan, score)[:, None]
    assert abs(chosen(score, begins, sampler)[1]["x"][-1] - 0.5) < 0.25


def test_the_model_is_that_of_the_largest_likelihood():
    """Smooth scores have a long kernel with little noise, scores of pure noise much of it."""
    generator = np.random.default_rng(3)
    places = generator.random((40, 2)).astype(np.float32)
    has_score = jnp.ones(40, bool)
    smooth = model(jnp.array(places), jnp.array(2 * places[:, 0] - 1), has_score).kernel
    rough = model(jnp.array(places), jnp.array(generator.normal(size=40), jnp.float32), has_score)
    assert smooth.lengthscale >= 0.8
    assert smooth.noise == pytest.approx(0.01)
    assert rough.kernel.noise == pytest.approx(0.5)


def test_joint_predictions_are_those_of_the_single_points():
    generator = np.random.default_rng(4)
    data, new = generator.random((8, 2)), generator.random((5, 2))
    observed = generator.normal(size=8)
    points = [Points(jnp.zeros(len(x)), jnp.array(x, jnp.float32)) for x in (data, new)]
    posterior = gaussian_process.fit(
        Kernel(*map(jnp.float32, KERNEL)), points[0], jnp.array(observed), jnp.ones(8, bool)
    )
    mean, covariances = gaussian_process.predict_jointly(posterior, points[1])
    single = gaussian_process.predict(posterior, points[1])
    np.testing.assert_allclose(mean, single[0], atol=1e-5)
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariances)), single[1], atol=1e-4)
    sure = gaussian_process.expect_jointly(posterior.kernel, covariances, jnp.int32(2))
    own = float(covariances[2, 2])
    assert sure[2, 2] == pytest.approx(own - own**2 / (own + 0.1 + JITTER), rel=1e-4)
