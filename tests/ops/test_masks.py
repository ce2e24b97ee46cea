"""Masks: what is masked reaches no sum and no gradient, though it be infinite or NaN."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.ops import masks, returns
from jaxrl.ops.normalization import start, update

VALID = jnp.asarray([True, False, True])
BAD = pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])


@BAD
@pytest.mark.parametrize("valid", [VALID, VALID.astype(jnp.float32)])
def test_a_sum_is_that_of_the_valid_numbers(bad, valid):
    x = jnp.asarray([1.0, bad, 2.0])
    assert float(masks.masked_sum(x, valid)) == 3
    np.testing.assert_array_equal(jax.grad(masks.masked_sum)(x, valid), [1, 0, 1])


@BAD
def test_a_formula_of_zeroed_numbers_has_a_finite_gradient(bad):
    def total(x):
        zeroed = masks.zero_invalid({"x": x}, VALID)["x"]
        return masks.masked_sum(jnp.exp(zeroed) * zeroed**2, VALID)

    x = jnp.asarray([1.0, bad, 2.0])
    expected = np.exp(x) * (x**2 + 2 * x)
    np.testing.assert_allclose(jax.grad(total)(x), np.where(VALID, expected, 0), rtol=1e-6)


def test_only_what_is_infinite_and_masked_is_replaced():
    x = jnp.asarray([[1.0, 2.0], [np.inf, 3.0], [np.inf, 4.0]])
    found = masks.finite_where_invalid({"x": x}, VALID)["x"]
    np.testing.assert_array_equal(found, [[1, 2], [0, 3], [np.inf, 4]])


@BAD
@pytest.mark.parametrize("is_terminated", [True, False])
def test_the_row_after_an_end_reaches_no_advantage_before_it(bad, is_terminated):
    """The value there is the bootstrap of a truncation, and not looked at after a termination."""
    rng = np.random.default_rng(0)
    reward, values, log_ratios = rng.normal(size=(3, 5, 2)).astype(np.float32)
    ended = np.zeros((5, 2), bool)
    ended[1, 0] = True
    terminated, truncated = (ended, ~ended & ended) if is_terminated else (~ended & ended, ended)

    def advantages(bad: float) -> Any:
        copies: Any = (reward.copy(), values.copy(), log_ratios.copy())
        r, v, ratio = copies
        r[2, 0] = ratio[2, 0] = bad
        v[2, 0] = bad if is_terminated else v[2, 0]
        rest: Any = (terminated, truncated, 0.9, 0.8)
        gae = returns.generalized_advantages(r, v, v[-1], *rest)
        return gae, *returns.vtrace(ratio, r, v, v[-1], *rest)

    for found, expected in zip(advantages(bad), advantages(0.5), strict=True):
        np.testing.assert_array_equal(np.delete(found, 2, 0), np.delete(expected, 2, 0))
        assert np.isfinite(expected).all()


@BAD
def test_statistics_do_not_see_masked_rows(bad):
    batch = jnp.asarray([1.0, bad, 3.0])
    found = update(start(()), batch, VALID)
    expected = update(start(()), batch[VALID], VALID[VALID])
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
