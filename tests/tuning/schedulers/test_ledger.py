"""Lanes report and take trials as one after another would."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_cases import ALL

from jaxrl.tuning.schedulers import ledger as ledgers
from jaxrl.tuning.schedulers.contract import Status
from jaxrl.tuning.schedulers.random_search import RandomSearch


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_free_lanes_take_the_paused_trials_with_most_phases_first(data):
    """Lane after lane takes the next one, as if it had asked alone."""
    statuses = st.lists(st.sampled_from(list(Status)), min_size=7, max_size=7)
    status = np.array(data.draw(statuses), np.int32)
    reported = np.array(data.draw(st.lists(st.integers(0, 3), min_size=7, max_size=7)), np.int32)
    lanes = data.draw(st.permutations([*range(7), -1, -1, -1]))[:5]
    ledger = ledgers.start(RandomSearch(7, 4))
    ledger = ledger._replace(status=jnp.array(status), reported=jnp.array(reported))
    after, trials = jax.jit(ledgers.assign_lanes)(ledger, np.array(lanes, np.int32))

    status = status.copy()
    for lane, trial in enumerate(lanes):
        if trial >= 0 and ledger.status[trial] == Status.RUNNING:
            assert trials[lane] == trial
            continue
        ready = [(-reported[i], i) for i in range(7) if status[i] == Status.READY]
        waiting = [(0, i) for i in range(7) if status[i] == Status.WAITING]
        _, expected = min(ready or waiting or [(0, -1)])
        assert trials[lane] == expected
        if expected >= 0:
            status[expected] = Status.RUNNING
    np.testing.assert_array_equal(after.status, status)


@pytest.mark.parametrize("scheduler", ALL, ids=str)
def test_lanes_report_one_after_another_and_empty_ones_nothing(scheduler):
    scores = np.array([0.5, np.nan, -1, 2, -np.inf, 1], np.float32)
    ledger = ledgers.start(scheduler)
    ledger, trials = ledgers.assign_lanes(ledger, jnp.full(6, -1, jnp.int32))
    trials = np.where([True, True, False, True, False, True], trials, -1)
    expected = ledger
    for trial, score in zip(trials, scores, strict=True):
        if trial >= 0:
            expected = ledgers.report(scheduler, expected, trial, score)
    report_lanes = jax.jit(ledgers.report_lanes, static_argnums=0)
    jax.tree.map(
        np.testing.assert_array_equal, report_lanes(scheduler, ledger, trials, scores), expected
    )
