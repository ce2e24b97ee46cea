"""Sobol's sequence against SciPy's, and its scrambling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import qmc

from jaxrl.tuning import Choice, LogUniform, Sobol, Uniform
from jaxrl.tuning.samplers.sobol import shifted, sobol_points

CUBE = {"a": Uniform(0.0, 1.0), "b": Uniform(0.0, 1.0), "c": Uniform(0.0, 1.0)}


def planned(key, number=64):
    values = Sobol().plan(key, number, CUBE)
    return np.stack([values[name] for name in sorted(CUBE)], axis=-1)


def test_without_the_shift_points_are_those_of_scipy():
    key = jax.random.key(3)
    bits = np.asarray(jax.random.bits(key, (3,))) >> 8
    found = (planned(key) * 2**24).astype(np.uint32) ^ bits
    expected = qmc.Sobol(3, scramble=False).random_base2(6)
    np.testing.assert_array_equal(found / 2**24, expected)


@pytest.mark.parametrize("number", [1, 5, 8])
def test_the_first_trials_have_the_same_points_however_many_there_are(number):
    np.testing.assert_array_equal(sobol_points(number, 2), sobol_points(16, 2)[:number])


def test_the_shift_is_of_all_bits_and_stays_below_one():
    points = jnp.array([[0, 2**32 - 1]], jnp.uint32)
    ones = jnp.full(2, 2**32 - 1, jnp.uint32)
    np.testing.assert_array_equal(shifted(points, ones), [[1 - 2.0**-24, 0]])


def test_points_cover_the_cube_more_evenly_than_random_ones():
    keys = jax.random.split(jax.random.key(0), 20)
    evenly = [qmc.discrepancy(planned(key)) for key in keys]
    randomly = [qmc.discrepancy(np.asarray(jax.random.uniform(key, (64, 3)))) for key in keys]
    assert max(evenly) < 0.5 * min(randomly)


def test_each_point_is_uniform_over_keys():
    found = np.stack([planned(key, 2) for key in jax.random.split(jax.random.key(1), 400)])
    deciles = np.quantile(found, np.linspace(0, 1, 11), axis=0)
    np.testing.assert_allclose(
        deciles, np.linspace(0, 1, 11)[:, None, None] * np.ones((1, 2, 3)), atol=0.1
    )


def test_strata_of_every_distribution_are_filled_equally():
    space = {"x": LogUniform(1e-4, 1.0), "y": Choice((0.9, 0.99, 0.999, 0.5))}
    values = Sobol().plan(jax.random.key(2), 16, space)
    decades = np.floor(np.log10(np.asarray(values["x"]))).astype(int)
    pairs = set(zip(decades.tolist(), np.asarray(values["y"]).tolist(), strict=True))
    assert len(pairs) == 16
