"""Schedulers: which trials of a search go on, which stop, and what a free lane runs next.

A search trains N trials for at most P phases each; after each phase a trial reports a score, higher
is better. A `Ledger` holds all that has been reported. A scheduler is a frozen dataclass with one
pure function of it, `judge`, which says what a report means for every trial. The same function
runs inside a jitted search and on the host, where the ledger comes from a study's storage.

Scores: NaN means that no episode ended in the phase; such a trial is not ranked and goes on, except
where ranks decide who goes on (successive halving), where it is last but for -inf, the score of
a diverged trial. Equal scores count half below and half above, or go by trial number where exactly
so many must be chosen.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxrl.types import Array


class Status(enum.IntEnum):
    """Where a trial stands."""

    WAITING = 0  # not yet begun
    RUNNING = 1  # on a lane
    PAUSED = 2  # off its lane, until others have reported
    READY = 3  # was paused, may go on
    STOPPED = 4  # terminated early
    COMPLETED = 5  # reported all its phases


class Ledger(NamedTuple):
    """What a search of N trials and P phases knows."""

    scores: Array  # [N, P] float32; NaN where there is none
    reported: Array  # [N] int32, phases
    status: Array  # [N] int32, of `Status`


class Scheduler(Protocol):
    """A rule for ending trials early: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def num_trials(self) -> int: ...

    @property
    def num_phases(self) -> int:
        """Of a trial that is never stopped."""
        ...

    @property
    def pauses(self) -> bool:
        """Whether a trial may leave its lane and go on later, so that its state must be kept."""
        ...

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        """The status `[N]` of every trial after `trial` has reported a phase but its last."""
        ...


def start(scheduler: Scheduler) -> Ledger:
    """Before the first report."""
    num_trials = scheduler.num_trials
    return Ledger(
        scores=jnp.full((num_trials, scheduler.num_phases), jnp.nan, jnp.float32),
        reported=jnp.zeros(num_trials, jnp.int32),
        status=jnp.full(num_trials, Status.WAITING, jnp.int32),
    )


def begin(ledger: Ledger, trial: int) -> Ledger:
    """A trial runs from its start, whatever was known of it."""
    return Ledger(
        scores=ledger.scores.at[trial].set(jnp.nan),
        reported=ledger.reported.at[trial].set(0),
        status=ledger.status.at[trial].set(Status.RUNNING),
    )


@functools.partial(jax.jit, static_argnums=0)
def report(scheduler: Scheduler, ledger: Ledger, trial: Array, score: Array) -> Ledger:
    """Take in the score of a trial's next phase, and judge."""
    phase = ledger.reported[trial]
    ledger = ledger._replace(
        scores=ledger.scores.at[trial, phase].set(score), reported=ledger.reported.at[trial].add(1)
    )
    status = scheduler.judge(ledger, trial)
    completed = phase + 1 >= scheduler.num_phases
    own = jnp.where(completed, Status.COMPLETED, status[trial])
    return ledger._replace(status=status.at[trial].set(own))


@jax.jit
def assign(ledger: Ledger) -> tuple[Ledger, Array]:
    """The trial for a free lane: of those that may go on the one furthest ahead, else the first
    that waits; -1 if there is none."""
    is_ready = ledger.status == Status.READY
    is_waiting = ledger.status == Status.WAITING
    furthest = jnp.argmax(jnp.where(is_ready, ledger.reported, -1))
    trial = jnp.where(is_ready.any(), furthest, jnp.argmax(is_waiting)).astype(jnp.int32)
    found = is_ready.any() | is_waiting.any()
    status = jnp.where(found, ledger.status.at[trial].set(Status.RUNNING), ledger.status)
    return ledger._replace(status=status), jnp.where(found, trial, -1)


@dataclass(frozen=True)
class RandomSearch:
    """Every trial runs to its end."""

    num_trials: int
    num_phases: int
    pauses: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        check_counts(num_trials=self.num_trials, num_phases=self.num_phases)

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        return ledger.status


@dataclass(frozen=True)
class HyperTrick:
    """Asynchronous early termination without waiting (arXiv 1902.02725).

    Of the trials that report phase p, the earliest `N (1 - sqrt r) (1 - r)^p` go on; a later one
    stops if it is in the bottom `sqrt r` quantile of the scores reported for p so far. A share r of
    those that reach a phase is expected to stop at its end, and trials are worth
    `E[alpha] = (1 - (1 - r)^P) / (r P)` of their full work on average. No lane ever waits.
    """

    num_trials: int
    num_phases: int
    eviction_rate: float = 0.25
    """r, the share of trials to stop in each phase."""
    pauses: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        check_counts(num_trials=self.num_trials, num_phases=self.num_phases)
        if not 0 <= self.eviction_rate < 1:
            raise ValueError(
                f"HyperTrick.eviction_rate must be in [0, 1), got {self.eviction_rate}"
            )

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        phase = ledger.reported[trial] - 1
        score = ledger.scores[trial, phase]
        others = ledger.scores[:, phase].at[trial].set(jnp.nan)
        evict = self.evicts(score, others, phase, num_reported=(ledger.reported > phase).sum())
        status = jnp.where(evict, Status.STOPPED, ledger.status[trial])
        return ledger.status.at[trial].set(status)

    def evicts(self, score: Array, others: Array, phase: Array, num_reported: Array) -> Array:
        """Whether a trial with this score stops.

        Args:
          others: the other trials' scores of the phase, NaN where there is none.
          num_reported: trials that have reported the phase, this one included.
        """
        root = math.sqrt(self.eviction_rate)
        spared = self.num_trials * (1 - root) * (1 - self.eviction_rate) ** phase
        below = (others < score).sum() + 0.5 * (others == score).sum()
        count = (~jnp.isnan(others)).sum() + 1
        return (num_reported > spared) & ~jnp.isnan(score) & (below + 0.5 < root * count)


def check_counts(**counts: int) -> None:
    """Raise `ValueError` unless all are integers from 1."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be an integer >= 1, got {value!r}")
