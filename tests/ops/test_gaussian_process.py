"""Gaussian processes against dense solves in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_gaussian_process import dense_covariance, dense_posterior

from jaxrl.ops import gaussian_process
from jaxrl.ops.gaussian_process import JITTER, Kernel, Points

M, NUM_EMPTY, D = 14, 3, 2
KERNEL = Kernel(0.4, 0.2, 0.1)


def problem(seed):
    """Return points `[M, 1 + D]`, observations, which slots are set, and new points."""
    rng = np.random.default_rng(seed)
    data = np.concatenate([rng.integers(0, 5, (M, 1)), rng.random((M, D))], axis=1)
    is_set = (rng.random(M) < 0.8) & (np.arange(M) < M - NUM_EMPTY)
    new = np.concatenate([np.full((6, 1), 5), rng.random((6, D))], axis=1)
    return data, rng.normal(size=M), is_set, new


def points(array):
    return Points(jnp.array(array[:, 0], jnp.float32), jnp.array(array[:, 1:], jnp.float32))


def fitted(data, observed, is_set, kernel=KERNEL):
    observed = np.where(is_set, observed, np.nan)  # of empty slots nothing is read
    kernel = Kernel(*map(jnp.float32, kernel))
    return gaussian_process.fit(
        kernel, points(data), jnp.array(observed, jnp.float32), jnp.array(is_set)
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_posterior_is_that_of_a_dense_solve(seed):
    data, observed, is_set, new = problem(seed)
    mean, deviation = gaussian_process.predict(fitted(data, observed, is_set), points(new))
    expected = dense_posterior(KERNEL, data[is_set], observed[is_set], new)
    np.testing.assert_allclose(mean, expected[0], atol=1e-4)
    np.testing.assert_allclose(deviation, expected[1], atol=1e-4)


def test_an_expected_observation_is_one_at_its_mean():
    data, observed, is_set, new = problem(3)
    posterior = fitted(data, observed, is_set)
    known, values = data[is_set], observed[is_set]
    first = gaussian_process.predict(posterior, points(new))[0]
    expect = jax.jit(gaussian_process.expect)
    for slot, place in zip(range(M - NUM_EMPTY, M), new[:NUM_EMPTY], strict=True):
        mean = dense_posterior(KERNEL, known, values, place[None])[0]
        known, values = np.concatenate([known, place[None]]), np.concatenate([values, mean])
        one = points(place[None])
        posterior = expect(posterior, jnp.int32(slot), one.time[0], one.inputs[0])
        found = gaussian_process.predict(posterior, points(new))
        expected = dense_posterior(KERNEL, known, values, new)
        np.testing.assert_allclose(found[0], expected[0], atol=1e-4)
        np.testing.assert_allclose(found[0], first, atol=1e-6)
        np.testing.assert_allclose(found[1], expected[1], atol=1e-4)


def test_the_most_likely_kernel_is_chosen():
    data, observed, is_set, _ = problem(4)
    grid = [(0.1, 0.01, 0.03), (0.4, 0.2, 0.1), (0.8, 0.5, 0.3), (0.8, 0.01, 0.03)]
    likelihoods = []
    for kernel in grid:
        covariance = dense_covariance(Kernel(*kernel), data[is_set], data[is_set])
        covariance += (kernel[2] + JITTER) * np.eye(is_set.sum())
        sign, log_determinant = np.linalg.slogdet(covariance)
        assert sign == 1
        fit = observed[is_set] @ np.linalg.solve(covariance, observed[is_set])
        likelihoods.append(-0.5 * (fit + log_determinant + is_set.sum() * np.log(2 * np.pi)))
        found = gaussian_process.log_likelihood(
            fitted(data, observed, is_set, kernel), jnp.array(observed, jnp.float32)
        )
        assert found == pytest.approx(likelihoods[-1], rel=1e-4)
    kernels = Kernel(*jnp.array(grid).T)
    arguments = (points(data), jnp.array(observed, jnp.float32))
    best = gaussian_process.fit_best(kernels, *arguments, jnp.array(is_set))
    np.testing.assert_allclose(jnp.array(best.kernel), grid[int(np.argmax(likelihoods))], rtol=1e-6)
    none = gaussian_process.fit_best(kernels, *arguments, jnp.zeros(M, bool))
    np.testing.assert_allclose(jnp.array(none.kernel), grid[0], rtol=1e-6)
    np.testing.assert_array_equal(gaussian_process.predict(none, points(data))[1], 1)


def test_equal_points_can_be_observed_many_times():
    data = np.repeat([[1.0, 0.5, 0.5]], 200, axis=0)
    posterior = fitted(data, np.full(200, 2.0), np.ones(200, bool), Kernel(0.8, 0.01, 1e-6))
    mean, deviation = gaussian_process.predict(posterior, points(data[:1]))
    assert mean[0] == pytest.approx(2, abs=0.02)
    assert deviation[0] == pytest.approx(0, abs=0.02)
