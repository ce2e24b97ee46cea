"""Explorers in a search: one program, whose copies are exact and follow their schedule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweep_runs import SEED, UPDATES, search_of, searched, toy_algorithm
from toy_algorithm import ToyConfig

from jaxrl.tuning import MFPBT, PB2, PBT, Finals, ancestors, trial_key

KEY = jax.random.key(SEED)
N, P = 8, 5
EXPLORERS = [PBT(N, P), PB2(N, P, candidates=16), MFPBT(N, P, periods=(1, 2))]


def test_ancestors_are_who_trained_the_agents():
    parent = np.random.default_rng(0).integers(0, N, (N, P))
    expected = np.empty((N, P), int)
    for trial in range(N):
        expected[trial, -1] = trial
        for phase in range(P - 2, -1, -1):
            expected[trial, phase] = parent[expected[trial, phase + 1], phase]
    np.testing.assert_array_equal(ancestors(jnp.array(parent)), expected)
    with pytest.raises(ValueError, match=r"must be that of one search.*by jax.vmap"):
        ancestors(jnp.array([parent, parent]))


@pytest.mark.parametrize(
    "explorer",
    [
        EXPLORERS[0],
        *(pytest.param(explorer, marks=pytest.mark.exhaustive) for explorer in EXPLORERS[1:]),
    ],
    ids=lambda explorer: type(explorer).__name__,
)
def test_copies_are_exact_and_go_on_with_the_values_of_their_schedule(explorer):
    """The toy's parameters are their initial values plus all learning rates."""
    result = searched(explorer, N)
    own, parent = np.arange(N)[:, None], np.asarray(result.parent)
    is_copy = parent != own
    assert is_copy[:, :-1].any(axis=0).all()
    assert not is_copy[:, -1].any()
    rates = np.asarray(result.values_by_phase["learning_rate"])
    changed = rates[:, 1:] != rates[:, :-1]
    assert changed.any()
    assert not (changed & ~is_copy[:, :-1]).any()
    scores = np.asarray(result.ledger.scores)
    trial, phase = np.unravel_index(scores.argmax(), scores.shape)
    line = np.asarray(ancestors(jnp.array(parent[:, : phase + 1])))[trial]
    params = toy_algorithm().init(ToyConfig(), trial_key(KEY, int(line[0]))).params
    params += UPDATES * rates[line, np.arange(phase + 1)].sum()
    np.testing.assert_allclose(result.best_state.params, params, rtol=1e-5)
    schedule = result.schedule["learning_rate"][trial]
    whole = np.asarray(ancestors(result.parent))[trial]
    np.testing.assert_array_equal(schedule, rates[whole, np.arange(P)])


def test_an_agent_brings_its_scores_with_it():
    """The late scores are of the agents with which trials ended, not of replaced ones."""
    result = searched(EXPLORERS[0], N, finals=Finals(4, 1, share=0.5))
    scores, parent = np.asarray(result.ledger.scores), np.asarray(result.parent)
    assert (parent[:, -2] != np.arange(N)).any()
    expected = (scores[:, -1] + scores[parent[:, -2], -2]) / 2
    np.testing.assert_allclose(result.late_scores, expected, rtol=1e-6)
    np.testing.assert_array_equal(result.late_objectives[:, 0], result.late_scores)
    finalists = np.argsort(-expected, kind="stable")[:4]
    assert set(finalists) != {*np.argsort(-scores[:, -2:].mean(1), kind="stable")[:4]}
    np.testing.assert_array_equal(result.finals.trial, finalists)


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", ["map", "shard-vmap"])
def test_the_strategy_does_not_matter(strategy):
    expected, result = searched(EXPLORERS[0], N), searched(EXPLORERS[0], N, strategy=strategy)
    np.testing.assert_array_equal(result.parent, expected.parent)
    np.testing.assert_allclose(result.ledger.scores, expected.ledger.scores, rtol=1e-5)


def test_the_parents_of_earlier_phases_are_known_to_an_explorer():
    """An explorer that copies trial p + 1 in phase p, while all parents before are as it said."""

    class Records(PBT):
        def evolve(self, key, phase, scores, values, parents, space):
            own = jnp.arange(N, dtype=jnp.int32)
            column = jnp.arange(P)
            expected = jnp.where(column < phase, column + 1, own[:, None])
            parent = jnp.where((parents == expected).all(), jnp.full(N, phase + 1), own)
            generation = super().evolve(key, phase, scores, values, parents, space)
            return generation._replace(parent=parent.astype(jnp.int32))

    result = jax.jit(search_of(Records(N, P), N))(KEY)
    expected = np.where(np.arange(P) < P - 1, np.arange(P) + 1, np.arange(N)[:, None])
    np.testing.assert_array_equal(result.parent, expected)
