"""Successive halving, HyperBand and ASHA against the published table and plain Python."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_cases import normal_scores, unit_times

from jaxrl.tuning import timeline
from jaxrl.tuning.schedulers import ledger as ledgers
from jaxrl.tuning.schedulers.contract import Status
from jaxrl.tuning.schedulers.halving import ASHA, HyperBand, SuccessiveHalving
from jaxrl.tuning.schedulers.hypertrick import HyperTrick

# Li et al. 2018, table 1 (R = 81), and the same formula for R = 27.
BRACKETS = {
    81: [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ],
    27: [
        [(27, 1), (9, 3), (3, 9), (1, 27)],
        [(12, 3), (4, 9), (1, 27)],
        [(6, 9), (2, 27)],
        [(4, 27)],
    ],
}


@pytest.mark.parametrize("phases", [27, 81])
def test_brackets_are_those_of_the_published_table(phases):
    brackets = HyperBand(phases, eta=3).brackets
    assert [[tuple(rung) for rung in bracket] for bracket in brackets] == BRACKETS[phases]
    halving = SuccessiveHalving(phases, phases, eta=3).brackets
    assert [[tuple(rung) for rung in halving[0]]] == BRACKETS[phases][:1]


@pytest.mark.parametrize("scheduler", [SuccessiveHalving(27, 27), HyperBand(27)])
def test_exactly_the_best_of_each_rung_go_on(scheduler):
    scores = normal_scores(scheduler, 3)
    _, ledger = timeline.simulate(scheduler, 5, unit_times(scheduler), scores)
    reported = np.asarray(ledger.reported)
    assert (np.asarray(ledger.status) >= Status.STOPPED).all()
    first = 0
    for bracket in scheduler.brackets:
        survivors = np.arange(first, first + bracket[0].num_trials)
        for rung, after in itertools.pairwise(bracket):
            order = np.argsort(-scores[survivors, rung.num_phases - 1])
            stopped = survivors[order[after.num_trials :]]
            survivors = survivors[order[: after.num_trials]]
            assert (reported[stopped] == rung.num_phases).all()
        assert (reported[survivors] == scheduler.num_phases).all()
        first += bracket[0].num_trials


def halved(scheduler, scores, most):
    """Return, by plain Python, how many phases trials report that a cap ends after `most` phases.

    None of these is the number of phases of a rung.
    """
    reported, first = most.copy(), 0
    for bracket in scheduler.brackets:
        survivors = range(first, first + bracket[0].num_trials)
        for rung, after in itertools.pairwise(bracket):
            arrived = [trial for trial in survivors if most[trial] >= rung.num_phases]
            arrived.sort(key=lambda trial: -scores[trial, rung.num_phases - 1])
            survivors, out = arrived[: after.num_trials], arrived[after.num_trials :]
            reported[out] = rung.num_phases
        first += bracket[0].num_trials
    return reported


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scheduler", [SuccessiveHalving(18, 9, times=2), HyperBand(9)], ids=str)
def test_no_rung_waits_for_trials_that_a_cap_has_ended(scheduler, seed):
    scores = normal_scores(scheduler, seed)
    often = [0, 2, 5, 9, 9, 9]
    most = np.random.default_rng(seed).choice(often, scheduler.num_trials)
    most[[-1, 8]] = 2, 0  # the last trials of brackets, so that no report follows
    ledger = ledgers.start(scheduler)
    while (trial := int((found := ledgers.assign(ledger))[1])) >= 0:
        ledger = found[0]
        while ledger.status[trial] == Status.RUNNING:
            phase = int(ledger.reported[trial])
            if phase == most[trial]:
                ledger = ledgers.stop(scheduler, ledger, np.int32(trial))
            else:
                ledger = ledgers.report(scheduler, ledger, np.int32(trial), scores[trial, phase])
    reported = np.asarray(ledger.reported)
    np.testing.assert_array_equal(reported, halved(scheduler, scores, most))
    expected = np.where(reported == 9, Status.COMPLETED, Status.STOPPED)
    np.testing.assert_array_equal(ledger.status, expected)


def test_asha_and_hypertrick_judge_no_other_trial_when_a_cap_ends_one():
    for scheduler in (ASHA(9, 9), HyperTrick(9, 9)):
        ledger = ledgers.start(scheduler)
        for trial in range(4):
            ledger = ledgers.report(scheduler, ledgers.begin(ledger, trial), trial, trial)
        for trial in (0, 3, 8):  # paused or running, READY, and not begun
            after = ledgers.stop(scheduler, ledger, np.int32(trial))
            expected = np.array(ledger.status)
            expected[trial] = Status.STOPPED
            np.testing.assert_array_equal(after.status, expected)


@pytest.mark.parametrize(
    ("scores", "reported"),
    [
        # Falling: of the first three, six and nine trials, one, two and three are promoted.
        (-np.arange(9), [9, 3, 3, 1, 1, 1, 1, 1, 1]),
        # Rising: from the third on each trial is the best so far, at the second rung too.
        (np.arange(9), [1, 1, 3, 3, 9, 9, 9, 9, 9]),
    ],
)
def test_asha_promotes_the_best_of_those_that_have_come_so_far(scores, reported):
    scheduler = ASHA(9, 9, eta=3)
    assert scheduler.rungs == (1, 3)
    scores = np.repeat(scores[:, None], 9, axis=1)
    _, ledger = timeline.simulate(scheduler, 1, unit_times(scheduler), scores)
    assert np.asarray(ledger.reported).tolist() == reported


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.sampled_from([ASHA(14, 9), ASHA(9, 8, eta=2)]))
def test_asha_promotes_each_trial_once_it_is_among_the_best_of_its_rung(seed, scheduler):
    """Up to five trials run at a time, and report in random order."""
    rng, scores = np.random.default_rng(seed), normal_scores(scheduler, seed)
    ledger, running, reported = ledgers.start(scheduler), set(), [0] * scheduler.num_trials
    came = {rung: [] for rung in scheduler.rungs}  # trials in the order of their reports
    paused, ready = set(), set()
    while True:
        if len(running) < 5 and (not running or rng.random() < 0.5):
            ledger, trial = ledgers.assign(ledger)
            if (trial := int(trial)) < 0 and not running:
                break
            running |= {trial} - {-1}
            ready.discard(trial)
        if not running:
            continue
        trial = int(rng.choice(sorted(running)))
        score = scores[trial, reported[trial]]
        ledger = ledgers.report(scheduler, ledger, np.int32(trial), score)
        reported[trial] += 1
        if (rung := reported[trial]) in came:
            running.remove(trial)
            came[rung].append(trial)
            paused.add(trial)
            ranking = sorted(came[rung], key=lambda t: -scores[t, rung - 1])
            best = set(ranking[: len(ranking) // scheduler.eta])
            ready |= {t for t in best & paused if reported[t] == rung}
            paused -= ready
        elif rung == scheduler.num_phases:
            running.remove(trial)
        for status, expected in ((Status.RUNNING, running), (Status.READY, ready)):
            assert set(np.flatnonzero(np.asarray(ledger.status) == status)) == expected
    assert (np.asarray(ledger.status) == Status.COMPLETED).any()


@pytest.mark.parametrize(
    ("scheduler", "rungs"),
    [(ASHA(9, 9), (1, 3)), (ASHA(8, 9), (3,)), (ASHA(2, 9), ()), (ASHA(7, 10, eta=2), (2, 5))],
)
def test_asha_has_only_rungs_that_let_a_trial_complete(scheduler, rungs):
    assert scheduler.rungs == rungs
    shape = (scheduler.num_trials, scheduler.num_phases)
    scores = np.random.default_rng(0).random(shape)
    _, ledger = timeline.simulate(scheduler, 2, np.ones(shape), scores)
    assert (ledger.status == Status.COMPLETED).any()


def test_a_diverged_trial_is_never_chosen_before_one_without_a_score():
    scheduler = SuccessiveHalving(4, 2, eta=2)
    scores = np.array([[-math.inf], [math.nan], [5.0], [-math.inf]], np.float32).repeat(2, 1)
    _, ledger = timeline.simulate(scheduler, 4, unit_times(scheduler), scores)
    assert np.asarray(ledger.reported).tolist() == [1, 2, 2, 1]


@pytest.mark.parametrize(
    ("once", "three"),
    [
        (SuccessiveHalving(6, 4, eta=2), SuccessiveHalving(18, 4, eta=2, times=3)),
        (HyperBand(3), HyperBand(3, times=3)),
    ],
)
def test_halvings_of_several_times_are_judged_apart_and_leave_fewer_lanes_idle(once, three):
    scores, number = normal_scores(three, 0), once.num_trials
    assert three.num_trials == 3 * number
    spans, ledger = timeline.simulate(three, number, unit_times(three), scores)
    for part in np.split(np.arange(3 * number), 3):
        one, own = timeline.simulate(once, number, unit_times(once), scores[part])
        np.testing.assert_array_equal(ledger.reported[part], own.reported)
        np.testing.assert_array_equal(ledger.status[part], own.status)
    assert timeline.occupancy(spans, number) > timeline.occupancy(one, number)
