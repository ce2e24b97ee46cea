"""HyperTrick against its paper's figures and a rule in plain Python."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_cases import unit_times

from jaxrl.tuning import timeline
from jaxrl.tuning.schedulers import ledger as ledgers
from jaxrl.tuning.schedulers.contract import Status
from jaxrl.tuning.schedulers.hypertrick import HyperTrick


@functools.cache
def completions(num_phases):
    """Return how many phases trials report `[100, N]`, with exchangeable scores."""
    scheduler = HyperTrick(100, num_phases, 0.25)

    def search(key):
        """Run rounds of 25 lanes; all phases last equally long."""
        scores = jax.random.uniform(key, (100, num_phases))

        def step(carry, _):
            ledger, trials = ledgers.assign_lanes(*carry)
            round_scores = scores[trials, ledger.reported[trials]]
            return (ledgers.report_lanes(scheduler, ledger, trials, round_scores), trials), None

        start = (ledgers.start(scheduler), jnp.full(25, -1, jnp.int32))
        (ledger, _), _ = jax.lax.scan(step, start, length=4 * num_phases + 40)
        return ledger

    found = jax.jit(jax.vmap(search))(jax.random.split(jax.random.key(0), 100))
    assert (found.status >= Status.STOPPED).all()
    return np.asarray(found.reported)


@pytest.mark.parametrize(
    ("num_phases", "expected"),
    [(10, 0.3775), pytest.param(5, 0.6102, marks=pytest.mark.exhaustive)],
)
def test_hypertrick_completes_as_much_as_its_paper_says(num_phases, expected):
    assert completions(num_phases).mean() / num_phases == pytest.approx(expected, abs=0.01)


def test_hypertrick_evicts_the_same_share_in_each_phase():
    reported = completions(10)
    for phase in range(6):
        reached = (reported > phase).sum()
        stopped = (reported == phase + 1).sum()
        assert stopped / reached == pytest.approx(0.25, abs=0.025)


@pytest.mark.parametrize(("num_phases", "rate"), [(10, 0.25), (5, 0.1)])
def test_hypertrick_with_every_later_reporter_evicted_does_the_least_work(num_phases, rate):
    """Scores fall with time, so each trial is the worst so far and stops unless it is spared."""
    scheduler = HyperTrick(200, num_phases, rate)
    scores = np.zeros((200, num_phases), np.float32) - np.arange(200)[:, None]
    _, ledger = timeline.simulate(scheduler, 1, unit_times(scheduler), scores)
    root = math.sqrt(rate)
    floor = (1 + (1 - root) * (1 - (1 - rate) ** (num_phases - 1)) / rate) / num_phases
    assert np.mean(ledger.reported) / num_phases == pytest.approx(floor, abs=0.01)


def test_hypertrick_never_stops_the_only_trial_with_a_score_in_a_phase():
    # At this rate fewer than one trial is spared from phase 2 on.
    scheduler, scores = HyperTrick(10, 5, 0.5), np.random.default_rng(0).random((10, 5))
    _, ledger = timeline.simulate(scheduler, 3, unit_times(scheduler), scores)
    assert (ledger.status == Status.COMPLETED).any()
    alone, others = jnp.float32(0.5), jnp.full(10, jnp.nan)
    assert not scheduler.should_stop(alone, others, jnp.int32(4), jnp.int32(1))
    # Other trials had no score in this phase.
    assert not scheduler.should_stop(alone, others, jnp.int32(4), jnp.int32(4))


def reference_hypertrick(scores, rate, picks):
    """Search by plain Python; `picks` choose which of the running trials reports next.

    Returns:
      The trials in the order of their reports, and the status of each trial at the end.
    """
    num_trials, num_phases = len(scores), len(scores[0])
    status, reported = [Status.RUNNING] * num_trials, [0] * num_trials
    seen, counts, order = [[] for _ in range(num_phases)], [0] * num_phases, []
    for pick in picks:
        running = [trial for trial in range(num_trials) if status[trial] == Status.RUNNING]
        if not running:
            break
        trial = running[pick % len(running)]
        phase, earlier = reported[trial], seen[reported[trial]]
        score = scores[trial][phase]
        below = sum(s < score for s in earlier) + 0.5 * sum(s == score for s in earlier)
        earlier += [] if math.isnan(score) else [score]
        counts[phase] += 1
        spared = counts[phase] <= num_trials * (1 - math.sqrt(rate)) * (1 - rate) ** phase
        bottom = len(earlier) > 1 and below + 0.5 < math.sqrt(rate) * len(earlier)
        goes_on = (score > -math.inf and (spared or not bottom)) or math.isnan(score)
        reported[trial] += 1
        order.append(trial)
        if reported[trial] == num_phases:
            status[trial] = Status.COMPLETED
        elif not goes_on:
            status[trial] = Status.STOPPED
    return order, status


def status_after_reports(scheduler, scores, order):
    """Return the status of all trials after all have begun, and then reported in this order."""
    ledger, reported = ledgers.start(scheduler), [0] * len(scores)
    for _ in scores:
        ledger, _ = ledgers.assign(ledger)
    for trial in order:
        score = jnp.float32(np.ravel(scores[trial])[reported[trial]])
        ledger = ledgers.report(scheduler, ledger, jnp.int32(trial), score)
        reported[trial] += 1
    return np.asarray(ledger.status)


values = st.sampled_from([0.0, 1.0, 1.0, 2.5, -3.0, math.nan, -math.inf])


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(values, min_size=3, max_size=3), min_size=9, max_size=9),
    st.lists(st.integers(0, 8), min_size=1, max_size=27),
    st.booleans(),
)
def test_hypertrick_with_ties_divergence_and_trials_without_a_score(scores, picks, strict):
    rate = 0.36 if strict else 0.09
    order, expected = reference_hypertrick(scores, rate, picks)
    status = status_after_reports(HyperTrick(9, 3, rate), scores, order)
    assert status.tolist() == expected


def test_equal_scores_go_on_and_diverged_trials_stop_though_all_or_the_earliest_did():
    scores = [-math.inf, 500.0, 500.0, 500.0]
    status = status_after_reports(HyperTrick(4, 2, 0.25), scores, range(4))
    assert status.tolist() == [Status.STOPPED] + [Status.RUNNING] * 3
    status = status_after_reports(HyperTrick(4, 2, 0.25), [-math.inf] * 4, range(4))
    assert status.tolist() == [Status.STOPPED] * 4
