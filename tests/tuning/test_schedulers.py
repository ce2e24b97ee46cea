"""Schedulers against their papers' figures, hand-made cases, and each other's guarantees."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.tuning import schedulers, timeline
from jaxrl.tuning.halving import ASHA, HyperBand, SuccessiveHalving
from jaxrl.tuning.schedulers import HyperTrick, RandomSearch, Status

ALL = [
    RandomSearch(12, 4),
    HyperTrick(12, 4),
    SuccessiveHalving(12, 4, eta=2),
    HyperBand(4, eta=2),
    ASHA(12, 4, eta=2),
]


def unit_times(scheduler):
    return np.ones((scheduler.num_trials, scheduler.num_phases))


def normal_scores(scheduler, seed):
    shape = (scheduler.num_trials, scheduler.num_phases)
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# --- Lanes ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_free_lanes_take_the_paused_trials_with_most_phases_first(data):
    """Lane after lane takes the next one, as if it had asked alone."""
    statuses = st.lists(st.sampled_from(list(Status)), min_size=7, max_size=7)
    status = np.array(data.draw(statuses), np.int32)
    reported = np.array(data.draw(st.lists(st.integers(0, 3), min_size=7, max_size=7)), np.int32)
    lanes = data.draw(st.permutations([*range(7), -1, -1, -1]))[:5]
    ledger = schedulers.start(RandomSearch(7, 4))._replace(status=status, reported=reported)
    after, trials = jax.jit(schedulers.assign_lanes)(ledger, np.array(lanes, np.int32))

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
    ledger = schedulers.start(scheduler)
    ledger, trials = schedulers.assign_lanes(ledger, jnp.full(6, -1, jnp.int32))
    trials = np.where([True, True, False, True, False, True], trials, -1)
    expected = ledger
    for trial, score in zip(trials, scores, strict=True):
        if trial >= 0:
            expected = schedulers.report(scheduler, expected, trial, score)
    report_lanes = jax.jit(schedulers.report_lanes, static_argnums=0)
    jax.tree.map(
        np.testing.assert_array_equal, report_lanes(scheduler, ledger, trials, scores), expected
    )


# --- HyperTrick ----------------------------------------------------------------------------------


@functools.cache
def completions(num_phases):
    """Return how many phases trials report `[100, N]`, with exchangeable scores."""
    scheduler = HyperTrick(100, num_phases, 0.25)

    def search(key):
        """Run rounds of 25 lanes; all phases last equally long."""
        scores = jax.random.uniform(key, (100, num_phases))

        def step(carry, _):
            ledger, trials = schedulers.assign_lanes(*carry)
            round_scores = scores[trials, ledger.reported[trials]]
            return (schedulers.report_lanes(scheduler, ledger, trials, round_scores), trials), None

        start = (schedulers.start(scheduler), jnp.full(25, -1, jnp.int32))
        (ledger, _), _ = jax.lax.scan(step, start, length=4 * num_phases + 40)
        return ledger

    ledgers = jax.jit(jax.vmap(search))(jax.random.split(jax.random.key(0), 100))
    assert (ledgers.status >= Status.STOPPED).all()
    return np.asarray(ledgers.reported)


@pytest.mark.parametrize(("num_phases", "expected"), [(10, 0.3775), (5, 0.6102)])
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


def reference_hypertrick(scores, rate, order):
    """Return, by plain Python, which trials pass phase 0 when they report in this order."""
    passed, seen = {}, []
    for count, trial in enumerate(order, start=1):
        score = scores[trial]
        below = sum(s < score for s in seen) + 0.5 * sum(s == score for s in seen)
        seen += [] if math.isnan(score) else [score]
        spared = count <= len(scores) * (1 - math.sqrt(rate))
        bottom = len(seen) > 1 and below + 0.5 < math.sqrt(rate) * len(seen)
        passed[trial] = (score > -math.inf and (spared or not bottom)) or math.isnan(score)
    return [passed[trial] for trial in range(len(scores))]


def status_after_reports(scheduler, scores, order):
    """Return the status of all trials after each has begun and reported, in this order."""
    ledger = schedulers.start(scheduler)
    for _ in scores:
        ledger, _ = schedulers.assign(ledger)
    for trial in order:
        ledger = schedulers.report(scheduler, ledger, jnp.int32(trial), jnp.float32(scores[trial]))
    return np.asarray(ledger.status)


values = st.sampled_from([0.0, 1.0, 1.0, 2.5, -3.0, math.nan, -math.inf])


@settings(deadline=None, max_examples=40)
@given(st.lists(values, min_size=9, max_size=9), st.permutations(range(9)), st.booleans())
def test_hypertrick_with_ties_divergence_and_trials_without_a_score(scores, order, strict):
    rate = 0.36 if strict else 0.09
    status = status_after_reports(HyperTrick(9, 3, rate), scores, order)
    expected = reference_hypertrick(scores, rate, order)
    assert (status == Status.RUNNING).tolist() == expected


def test_equal_scores_go_on_and_diverged_trials_stop_though_all_or_the_earliest_did():
    scores = [-math.inf, 500.0, 500.0, 500.0]
    status = status_after_reports(HyperTrick(4, 2, 0.25), scores, range(4))
    assert status.tolist() == [Status.STOPPED] + [Status.RUNNING] * 3
    status = status_after_reports(HyperTrick(4, 2, 0.25), [-math.inf] * 4, range(4))
    assert status.tolist() == [Status.STOPPED] * 4


# --- successive halving, HyperBand, ASHA ---------------------------------------------------------

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
    ledger = schedulers.start(scheduler)
    while (trial := int((found := schedulers.assign(ledger))[1])) >= 0:
        ledger = found[0]
        while ledger.status[trial] == Status.RUNNING:
            phase = int(ledger.reported[trial])
            if phase == most[trial]:
                ledger = schedulers.stop(scheduler, ledger, np.int32(trial))
            else:
                ledger = schedulers.report(scheduler, ledger, np.int32(trial), scores[trial, phase])
    reported = np.asarray(ledger.reported)
    np.testing.assert_array_equal(reported, halved(scheduler, scores, most))
    expected = np.where(reported == 9, Status.COMPLETED, Status.STOPPED)
    np.testing.assert_array_equal(ledger.status, expected)


def test_asha_and_hypertrick_judge_no_other_trial_when_a_cap_ends_one():
    for scheduler in (ASHA(9, 9), HyperTrick(9, 9)):
        ledger = schedulers.start(scheduler)
        for trial in range(4):
            ledger = schedulers.report(scheduler, schedulers.begin(ledger, trial), trial, trial)
        for trial in (0, 3, 8):  # paused or running, READY, and not begun
            after = schedulers.stop(scheduler, ledger, np.int32(trial))
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
    ledger, running, reported = schedulers.start(scheduler), set(), [0] * scheduler.num_trials
    came = {rung: [] for rung in scheduler.rungs}  # trials in the order of their reports
    paused, ready = set(), set()
    while True:
        if len(running) < 5 and (not running or rng.random() < 0.5):
            ledger, trial = schedulers.assign(ledger)
            if (trial := int(trial)) < 0 and not running:
                break
            running |= {trial} - {-1}
            ready.discard(trial)
        if not running:
            continue
        trial = int(rng.choice(sorted(running)))
        score = scores[trial, reported[trial]]
        ledger = schedulers.report(scheduler, ledger, np.int32(trial), score)
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


# --- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", ALL, ids=lambda s: type(s).__name__)
def test_every_trial_ends_and_none_runs_twice_at_once(scheduler):
    rng = np.random.default_rng(1)
    durations = rng.lognormal(size=(scheduler.num_trials, scheduler.num_phases))
    spans, ledger = timeline.simulate(scheduler, 5, durations, normal_scores(scheduler, 1))
    assert not np.isin(np.asarray(ledger.status), [Status.WAITING, Status.RUNNING]).any()
    for name, count in (("trial", scheduler.num_trials), ("lane", 5)):
        for number in range(count):
            ours = [span for span in spans if getattr(span, name) == number]
            assert all(a.end <= b.begin + 1e-9 for a, b in itertools.pairwise(ours))
    begun = {span.trial for span in spans}
    phases = {trial: [s.phase for s in spans if s.trial == trial] for trial in begun}
    assert all(p == list(range(len(p))) for p in phases.values())


def preempted(spans):
    """Return the trials that left their lane before their end, or had to wait."""
    trials = {s.trial: [t for t in spans if t.trial == s.trial] for s in spans}
    return [
        trial
        for trial, ours in trials.items()
        if any(a.lane != b.lane or b.begin - a.end > 1e-9 for a, b in itertools.pairwise(ours))
    ]


def idle_while_waiting(spans, num_lanes, num_trials):
    """Return whether a lane was idle although a trial had not begun yet."""
    begun = sorted(min(s.begin for s in spans if s.trial == t) for t in {s.trial for s in spans})
    last_begin = begun[-1] if len(begun) == num_trials else math.inf
    for lane in range(num_lanes):
        ours = [s for s in spans if s.lane == lane]
        edges = [(0.0, ours[0].begin)]
        edges += [(a.end, b.begin) for a, b in itertools.pairwise(ours)]
        edges.append((ours[-1].end, math.inf))
        if any(gap_end > gap + 1e-9 and gap < last_begin - 1e-9 for gap, gap_end in edges):
            return True
    return False


@pytest.mark.parametrize("times", ["unit", "log-normal"])
def test_hypertrick_keeps_sixteen_trials_on_six_lanes_busy_where_halving_waits(times):
    """Sixteen trials of four phases on six lanes, against successive halving of the same."""
    trick, halving = HyperTrick(16, 4, 0.25), SuccessiveHalving(16, 4, eta=2)
    outcomes = {trick: [], halving: []}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        durations = np.ones((16, 4)) if times == "unit" else rng.lognormal(0, 0.5, (16, 4))
        scores = rng.normal(size=(16, 4))
        for scheduler, results in outcomes.items():
            spans, ledger = timeline.simulate(scheduler, 6, durations, scores)
            work = sum(s.end - s.begin for s in spans)
            assert work == pytest.approx(
                sum(durations[t, : ledger.reported[t]].sum() for t in range(16))
            )
            results.append((timeline.wall_time(spans), timeline.occupancy(spans, 6), ledger))
            if scheduler is trick:
                assert not preempted(spans)
                assert not idle_while_waiting(spans, 6, 16)
    wall, busy, ledgers = zip(*outcomes[halving], strict=True)
    for ledger in ledgers:  # 16 trials to phase 1, 8 to phase 2, 4 to phase 4
        assert sorted(np.asarray(ledger.reported)) == [1] * 8 + [2] * 4 + [4] * 4
    if times == "unit":
        # 16 phases on 6 lanes take 3 rounds, 8 take 2, and the last 4 trials 2 more: 32 phases in
        # 7 rounds of 6.
        assert set(wall) == {7.0}
        np.testing.assert_allclose(busy, 32 / 42)
    trick_busy = np.mean([result[1] for result in outcomes[trick]])
    assert trick_busy > np.mean(busy) + (0.05 if times == "unit" else 0.15)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HyperTrick(0, 3), "num_trials must be an integer >= 1, got 0"),
        (lambda: HyperTrick(4, 3, 1.0), r"eviction_rate must be in \[0, 1\), got 1.0"),
        (lambda: ASHA(4, 3, eta=1), "eta must be an integer >= 2, got 1"),
        (lambda: HyperBand(0), "num_phases must be an integer >= 1, got 0"),
        (lambda: ASHA(9, 2), "num_phases must be at least eta=3, got 2"),
        (lambda: HyperBand(2), "num_phases must be at least eta=3, got 2"),
        (lambda: HyperBand(3, times=0), "times must be an integer >= 1, got 0"),
        (
            lambda: SuccessiveHalving(9, 3, times=2),
            "times must divide num_trials=9, got 2: each part has as many trials",
        ),
        (
            lambda: SuccessiveHalving(12, 9, times=6),
            "times=6 leaves parts of 2 trials, fewer than eta=3",
        ),
    ],
)
def test_impossible_schedulers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("scheduler", "cap"), [(HyperTrick(48, 5), 74), (ASHA(48, 9), 60)])
def test_lanes_are_busy_until_the_end_of_a_capped_search_with_trials_to_spare(scheduler, cap):
    capped = schedulers.Capped(scheduler, cap)
    scores = normal_scores(capped, 0)
    spans, _ = timeline.simulate(capped, 8, unit_times(capped), scores)
    assert cap <= len(spans) < cap + 8
    assert timeline.occupancy(spans, 8) >= 0.9


# --- Equal budgets -------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("planned", "num_spared"), [(4, 2), (8, 4)])
def test_reserves_do_not_change_the_rule_of_hypertrick(planned, num_spared):
    scheduler = schedulers.Extended(HyperTrick(planned, 2), 8)
    ledger = schedulers.start(scheduler)
    for trial in range(8):  # each is worse than all before
        ledger = schedulers.report(scheduler, schedulers.begin(ledger, trial), trial, -trial)
    stopped = np.asarray(ledger.status) == Status.STOPPED
    np.testing.assert_array_equal(stopped, np.arange(8) >= num_spared)


def test_a_budget_of_hyperbands_can_be_spent_by_all():
    # Of 9 phases: 9 trials for 1, 3 for 3, 1 for 9; 5 for 3, 1 for 9; 3 for 9.
    hyperband = (9 + 3 * 2 + 6) + (5 * 3 + 6) + 3 * 9
    # 31 trials for 1, 10 for 3, 3 for 9.
    assert hyperband == 31 + 10 * 2 + 3 * 6
    budget = timeline.hyperband_budget(9, 3)
    assert budget == timeline.Budget(9, 3, 31, 3 * hyperband)
    assert budget.whole_trials * 9 == budget.total
    with pytest.raises(ValueError, match="costs the 51 phases of 3 HyperBands of 5 phases; use 3"):
        timeline.hyperband_budget(5, 3)
    with pytest.raises(ValueError, match="costs the 138 phases of 2 HyperBands of 9 phases"):
        timeline.hyperband_budget(9, 2)
