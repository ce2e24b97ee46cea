"""The guarantees of all schedulers, and how busy they keep their lanes."""

import itertools
import math

import numpy as np
import pytest
from scheduler_cases import ALL, normal_scores, unit_times

from jaxrl.tuning import timeline
from jaxrl.tuning.schedulers.contract import Status
from jaxrl.tuning.schedulers.halving import ASHA, HyperBand, SuccessiveHalving
from jaxrl.tuning.schedulers.hypertrick import HyperTrick
from jaxrl.tuning.schedulers.wrapper import Capped


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
    wall, busy, ends = zip(*outcomes[halving], strict=True)
    for ledger in ends:  # 16 trials to phase 1, 8 to phase 2, 4 to phase 4
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
    capped = Capped(scheduler, cap)
    scores = normal_scores(capped, 0)
    spans, _ = timeline.simulate(capped, 8, unit_times(capped), scores)
    assert cap <= len(spans) < cap + 8
    assert timeline.occupancy(spans, 8) >= 0.9
