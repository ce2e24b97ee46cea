"""Timelines of a search: when each trial ran on which lane, and a simulation of it.

`simulate` runs a scheduler on given phase durations and scores, to see what a schedule costs
before it is run. A sweep records the same spans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl import checks
from jaxrl.checks import POSITIVE
from jaxrl.tuning.schedulers.contract import Ledger, Scheduler, Status, require_scheduler
from jaxrl.tuning.schedulers.halving import ASHA, HyperBand, SuccessiveHalving
from jaxrl.tuning.schedulers.hypertrick import HyperTrick
from jaxrl.tuning.schedulers.ledger import assign, report, start
from jaxrl.tuning.schedulers.random_search import RandomSearch


class Span(NamedTuple):
    """One phase of a trial on a lane."""

    lane: int
    trial: int
    phase: int
    begin: float
    """In seconds from the search's beginning, or in the unit of the simulation's durations."""
    end: float


def simulate(
    scheduler: Scheduler, num_lanes: int, durations: np.ndarray, scores: np.ndarray
) -> tuple[list[Span], Ledger]:
    """Simulate a search whose phases last and score as given.

    Lanes whose phases end at the same time first report, in the order of the lanes; then the free
    ones take their next trials in the same order.

    Args:
      durations: `[N, P]`, > 0: how long each phase of each trial lasts.
      scores: `[N, P]`: what each trial reports after each phase.

    Returns:
      The spans in the order of their ends, and the ledger with all reports.

    Raises:
      ValueError: for bad arguments.
    """
    require_scheduler(scheduler)
    num_lanes = checks.integer("num_lanes", num_lanes)
    shape = (scheduler.num_trials, scheduler.num_phases)
    durations = checks.array("durations", durations, shape, POSITIVE)
    scores = checks.array("scores", scores, shape)
    ledger = start(scheduler)
    spans: list[Span] = []
    trials, ends = [-1] * num_lanes, [math.inf] * num_lanes
    now = 0.0
    while True:
        for lane in range(num_lanes):
            if trials[lane] < 0:
                ledger, assigned = assign(ledger)
                trials[lane] = trial = int(assigned)
                if trial >= 0:
                    ends[lane] = now + float(durations[trial, int(ledger.reported[trial])])
        now = min(ends)
        if math.isinf(now):
            return spans, ledger
        for lane in [lane for lane, end in enumerate(ends) if end == now]:
            trial = trials[lane]
            phase = int(ledger.reported[trial])
            spans.append(Span(lane, trial, phase, now - durations[trial, phase], now))
            ledger = report(scheduler, ledger, np.int32(trial), np.float32(scores[trial, phase]))
            if ledger.status[trial] == Status.RUNNING:
                ends[lane] = now + float(durations[trial, phase + 1])
            else:
                trials[lane], ends[lane] = -1, math.inf


def expected_phases(scheduler: Scheduler) -> float:
    """Return the mean number of phases of a search whose scores are exchangeable.

    Raises:
      ValueError: for schedulers other than random search, HyperTrick and the halving ones.
    """
    match scheduler:
        case RandomSearch(num_trials, num_phases):
            return num_trials * num_phases
        case HyperTrick(num_trials, num_phases, rate):
            return num_trials * sum((1 - rate) ** phase for phase in range(num_phases))
        case ASHA(num_trials, num_phases):
            shape, rng = (num_trials, num_phases), np.random.default_rng(0)
            searches = [simulate(scheduler, 6, np.ones(shape), rng.random(shape)) for _ in range(4)]
            return float(np.mean([len(spans) for spans, _ in searches]))
        case HyperBand() | SuccessiveHalving():
            return sum(
                rung.num_trials * (rung.num_phases - before)
                for rungs in scheduler.brackets
                for rung, before in zip(rungs, (0, *(r.num_phases for r in rungs)), strict=False)
            )
    raise checks.refuse("scheduler", "one whose cost has a formula or can be simulated", scheduler)


def wall_time(spans: Sequence[Span]) -> float:
    """Return the time from the first span's beginning to the last one's end."""
    _check_spans(spans)
    return max(s.end for s in spans) - min(s.begin for s in spans)


def occupancy(spans: Sequence[Span], num_lanes: int) -> float:
    """Return the share of the wall time in which lanes trained, a mean over lanes."""
    _check_spans(spans)
    num_lanes = checks.integer("num_lanes", num_lanes)
    return sum(s.end - s.begin for s in spans) / (num_lanes * wall_time(spans))


def _check_spans(spans: Any) -> None:
    is_sequence = isinstance(spans, Sequence) and len(spans) > 0
    if not is_sequence or not all(isinstance(span, Span) for span in spans):
        raise checks.refuse("spans", "a sequence of spans that is not empty", spans)
