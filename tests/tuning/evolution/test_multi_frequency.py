"""MF-PBT: who copies whom and takes whose values, against loops written from the paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.tuning import MFPBT, LogUniform

PERIODS = (1, 2, 4)
N, SIZE, P = 24, 8, 9
RULE = MFPBT(N, P, PERIODS)

succeed = jax.jit(RULE.succeed)


def comparable(score):
    """Return a score that can be compared: NaN ranks above -inf and below all others."""
    return -1e38 if np.isnan(score) else score


def reference(scores, phase):
    """Return parents, sources of values, and which trials explore, by the paper's rules."""
    has_score = np.isfinite(scores)
    scores = [comparable(score) for score in scores]
    parent, source, explores = list(range(N)), list(range(N)), [False] * N

    def ranked(trials):
        return sorted(trials, key=lambda trial: (-scores[trial], trial))

    for own, period in enumerate(PERIODS):
        if (phase + 1) % period:
            continue
        members = range(own * SIZE, (own + 1) * SIZE)
        quarters = np.array_split(ranked(members), 4)
        for winner, loser in zip(quarters[0], quarters[3], strict=True):
            if has_score[winner]:
                parent[loser] = source[loser] = winner
                explores[loser] = True
        outside = ranked(trial for trial in range(N) if trial not in members)
        for trial in quarters[2]:
            migrant = outside[0]
            if has_score[migrant] and scores[migrant] > scores[trial]:
                outside.pop(0)
                parent[trial] = migrant
                is_slower = PERIODS[migrant // SIZE] > period
                source[trial] = migrant if is_slower else quarters[0][0]
    return parent, source, explores


kinds = st.one_of(
    st.sampled_from([np.nan, -np.inf, 0.0, 1.0, 1.0]),
    st.floats(-2, 2, width=32, allow_subnormal=False),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(kinds, min_size=N, max_size=N), st.integers(0, P - 1))
def test_succession_is_that_of_the_paper(scores, phase):
    found = succeed(jnp.int32(phase), jnp.array(scores, jnp.float32))
    for one, expected in zip(found, reference(np.float32(scores), phase), strict=True):
        np.testing.assert_array_equal(one, expected)


def test_values_come_from_slower_populations_or_the_best_of_their_own():
    """All better agents are in the other population, so each third quarter takes two migrants."""
    rule = MFPBT(16, P, (1, 2))
    scores = np.tile(np.arange(16.0), (P, 1)).T.astype(np.float32)
    values = {"x": jnp.tile(jnp.linspace(0.01, 0.02, 16)[:, None], (1, P))}
    own, x = np.arange(16), np.asarray(values["x"][:, 0])
    space = {"x": LogUniform(1e-3, 1e-1)}

    @jax.jit
    def evolve(phase, scores):
        key, parents = jax.random.key(0), jnp.zeros((16, P), jnp.int32)
        return rule.evolve(key, phase, scores, values, parents, space)

    generation = evolve(0, scores)  # the fast population evolves; its best is trial 7
    expected = own.copy()
    expected[[0, 1]], expected[[2, 3]] = [6, 7], [14, 15]
    np.testing.assert_array_equal(generation.parent, expected)
    np.testing.assert_array_equal(generation.values["x"][2:], x[expected][2:])
    ratios = np.asarray(generation.values["x"][:2]) / x[[6, 7]]
    assert all(np.isclose(ratio, [0.8, 1.25], rtol=1e-5).any() for ratio in ratios)

    generation = evolve(1, -scores)  # both do; trial 8 is the best of the slow population
    expected = own.copy()
    expected[[6, 7]], expected[[12, 13]], expected[[14, 15]] = [0, 1], [0, 1], [8, 9]
    np.testing.assert_array_equal(generation.parent, expected)
    expected[[12, 13]] = 8
    kept = [*range(6), *range(8, 14)]
    np.testing.assert_array_equal(generation.values["x"][jnp.array(kept)], x[expected[kept]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"periods must be below num_phases=9, .* got \(1, 10, 25, 50\)"),
        ({"periods": (2,)}, r"periods must be at least two, each above the one before, got \(2,\)"),
        ({"periods": (2, 2)}, "each above the one before"),
        ({"periods": (1, 2, 4, 8)}, "num_trials must be a multiple of 16, .* got 24"),
        ({"periods": PERIODS, "factors": (1.1, 1.2)}, "factors must be one below and one above 1"),
    ],
)
def test_bad_rules_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MFPBT(N, P, **arguments)
