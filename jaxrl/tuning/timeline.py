"""Timelines of a search: when each trial ran on which lane, and a simulation of it.

`simulate` runs a scheduler on given phase durations and scores, to see what a schedule costs
before it is run. A sweep records the same spans.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxrl.tuning.schedulers import Ledger, Scheduler, Status, assign, report, start


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
    """
    durations = np.asarray(durations, np.float64)
    ledger = start(scheduler)
    spans: list[Span] = []
    busy: list[tuple[float, int, int]] = []  # (end, lane, trial), a heap
    idle = list(range(num_lanes))
    now = 0.0
    while True:
        still_idle = []
        for lane in idle:
            ledger, assigned = assign(ledger)
            if (trial := int(assigned)) < 0:
                still_idle.append(lane)
            else:
                heapq.heappush(busy, _phase(ledger, lane, trial, now, durations))
        idle = still_idle
        if not busy:
            return spans, ledger
        now = busy[0][0]
        running = []
        while busy and busy[0][0] == now:
            _, lane, trial = heapq.heappop(busy)
            phase = int(ledger.reported[trial])
            spans.append(Span(lane, trial, phase, now - durations[trial, phase], now))
            ledger = report(scheduler, ledger, np.int32(trial), np.float32(scores[trial, phase]))
            if ledger.status[trial] == Status.RUNNING:
                running.append((lane, trial))
            else:
                idle.append(lane)
        for lane, trial in running:
            heapq.heappush(busy, _phase(ledger, lane, trial, now, durations))
        idle.sort()


def _phase(
    ledger: Ledger, lane: int, trial: int, now: float, durations: np.ndarray
) -> tuple[float, int, int]:
    """Return the end, lane and trial of the phase that a trial begins now."""
    return now + float(durations[trial, int(ledger.reported[trial])]), lane, trial


def wall_time(spans: Sequence[Span]) -> float:
    """Return the time from the first span's beginning to the last one's end."""
    return max(s.end for s in spans) - min(s.begin for s in spans)


def occupancy(spans: Sequence[Span], num_lanes: int) -> float:
    """Return the share of the wall time in which lanes trained, a mean over lanes."""
    return sum(s.end - s.begin for s in spans) / (num_lanes * wall_time(spans))
