"""When each trial ran on each lane: spans, their occupancy, and a simulation of a search.

`simulate` plays a scheduler against given phase durations and scores, to see what a schedule
costs before paying for it; a real search records the same spans.
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
    end: float


def simulate(
    scheduler: Scheduler, num_lanes: int, durations: np.ndarray, scores: np.ndarray
) -> tuple[list[Span], Ledger]:
    """A search whose trials last and score as given.

    Lanes that become free at the same time report first, in their order, then take their next
    trials in the same order.

    Args:
      durations: `[N, P]`, of each phase of each trial, > 0.
      scores: `[N, P]`, what it reports then.

    Returns:
      The spans in the order of their ends, and all that was reported.
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
    return now + float(durations[trial, int(ledger.reported[trial])]), lane, trial


def wall_time(spans: Sequence[Span]) -> float:
    """From the first beginning to the last end."""
    return max(s.end for s in spans) - min(s.begin for s in spans)


def occupancy(spans: Sequence[Span], num_lanes: int) -> float:
    """The share of all lanes' time in which they trained."""
    return sum(s.end - s.begin for s in spans) / (num_lanes * wall_time(spans))
