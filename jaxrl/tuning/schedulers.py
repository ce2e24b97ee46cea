"""Schedulers: which trials of a search continue, which stop, and which one a free lane runs next.

A search trains N trials for at most P phases each. After each phase a trial reports a score; higher
is better. A `Ledger` holds all reports. A scheduler is a frozen dataclass with one pure function of
the ledger, `judge`, which returns the status of every trial after a report. The same function runs
inside a jitted search and on the host, where the ledger comes from a study.

A score is NaN if no episode ended in the phase, and -inf if the trial diverged. HyperTrick doesn't
rank NaN and lets the trial continue, and it stops every diverged one; successive halving ranks NaN
above -inf and below all others.
Where scores are equal, HyperTrick counts half of them as lower; successive halving prefers the
smaller trial index.
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

from jaxrl import checks
from jaxrl.types import Array

MEMBERS = ("num_trials", "num_phases", "pauses", "judge")
"""What every scheduler has."""


class Status(enum.IntEnum):
    """The status of a trial, as checkpoints store it; statuses from STOPPED on have ended."""

    WAITING = 0
    """Not yet begun."""
    RUNNING = 1
    """On a lane."""
    PAUSED = 2
    """Off its lane until others have reported."""
    READY = 3
    """Was paused and may continue."""
    STOPPED = 4
    """Ended early."""
    COMPLETED = 5
    """Reported all its phases."""

    @property
    def has_ended(self) -> bool:
        """True if the trial trains no more."""
        return self >= Status.STOPPED


class Ledger(NamedTuple):
    """All reports of a search of N trials and P phases."""

    scores: Array
    """`[N, P]` float32; NaN where there is none."""
    reported: Array
    """`[N]` int32: how many phases each trial has reported."""
    status: Array
    """`[N]` int32, of `Status`."""


class Scheduler(Protocol):
    """A rule for ending trials early: a frozen dataclass.

    `jaxrl.tuning.check_scheduler` checks schedulers against this contract.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def num_trials(self) -> int:
        """N, the trials of the search."""
        ...

    @property
    def num_phases(self) -> int:
        """P, the phases of a trial that is never stopped."""
        ...

    @property
    def pauses(self) -> bool:
        """True if trials may leave their lanes and continue later, so that agents must be kept."""
        ...

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        """Return the status `[N]` of every trial after `trial` has reported a phase.

        After the last phase of `trial` its own status is ignored. A scheduler that pauses trials is
        also called when a cap ended `trial`, perhaps before its first report. `trial` is then
        STOPPED, and no other trial may wait for it.
        """
        ...


def start(scheduler: Scheduler) -> Ledger:
    """Return the ledger before the first report."""
    num_trials = scheduler.num_trials
    return Ledger(
        scores=jnp.full((num_trials, scheduler.num_phases), jnp.nan, jnp.float32),
        reported=jnp.zeros(num_trials, jnp.int32),
        status=jnp.full(num_trials, Status.WAITING, jnp.int32),
    )


@jax.jit
def begin(ledger: Ledger, trial: Array | int, phases: Array | int = 0) -> Ledger:
    """Return the ledger with a trial that runs after so many phases; later scores are dropped."""
    is_later = jnp.arange(ledger.scores.shape[1]) >= phases
    return Ledger(
        scores=ledger.scores.at[trial].set(jnp.where(is_later, jnp.nan, ledger.scores[trial])),
        reported=ledger.reported.at[trial].set(phases),
        status=ledger.status.at[trial].set(Status.RUNNING),
    )


@functools.partial(jax.jit, static_argnums=0)
def report(scheduler: Scheduler, ledger: Ledger, trial: Array, score: Array) -> Ledger:
    """Return the ledger with the score of a trial's next phase, and the scheduler's decisions.

    A trial of -1 changes nothing.
    """
    is_trial, phase = trial >= 0, ledger.reported[trial]
    # A place outside the arrays has no effect; to select between ledgers would copy all scores.
    place = jnp.where(is_trial, trial, scheduler.num_trials)
    after = ledger._replace(
        scores=ledger.scores.at[place, phase].set(score, mode="drop"),
        reported=ledger.reported.at[place].add(1, mode="drop"),
    )
    status = scheduler.judge(after, trial)
    completed = phase + 1 >= scheduler.num_phases
    own = jnp.where(completed, Status.COMPLETED, status[trial])
    return after._replace(status=jnp.where(is_trial, status.at[trial].set(own), ledger.status))


@functools.partial(jax.jit, static_argnums=0)
def stop(scheduler: Scheduler, ledger: Ledger, trial: Array) -> Ledger:
    """Return the ledger after a cap ended `trial`, with new decisions on the paused trials."""
    ledger = ledger._replace(status=ledger.status.at[trial].set(Status.STOPPED))
    if not scheduler.pauses:
        return ledger
    status = scheduler.judge(ledger, trial)
    return ledger._replace(status=status.at[trial].set(Status.STOPPED))


@jax.jit
def assign(ledger: Ledger) -> tuple[Ledger, Array]:
    """Return the ledger and the trial that a free lane runs next, -1 if there is none."""
    ledger, (trial,) = assign_lanes(ledger, jnp.full(1, -1, jnp.int32))
    return ledger, trial


def report_lanes(scheduler: Scheduler, ledger: Ledger, trial: Array, scores: Array) -> Ledger:
    """Report the scores of trials `[W]`, -1 where there is none, in the order of the lanes."""

    def step(ledger: Ledger, lane: tuple[Array, Array]) -> tuple[Ledger, None]:
        return report(scheduler, ledger, *lane), None

    return jax.lax.scan(step, ledger, (trial, scores))[0]


def assign_lanes(ledger: Ledger, trial: Array) -> tuple[Ledger, Array]:
    """Assign trials to the free lanes, in the order of the lanes; return every lane's trial.

    READY trials come first, those that have reported the most phases before others, then WAITING
    ones; equal ones in the order of trials. A lane is free if its trial, -1 for none, is not in
    training.
    """
    is_ready, is_waiting = ledger.status == Status.READY, ledger.status == Status.WAITING
    group = jnp.where(is_ready, -ledger.reported, jnp.where(is_waiting, 1, 2))
    next_trials = jnp.argsort(group, stable=True).astype(jnp.int32)
    is_free = ~is_running(ledger, trial)
    place = jnp.cumsum(is_free) - 1
    is_assigned = is_free & (place < (is_ready | is_waiting).sum())
    assigned = jnp.where(is_assigned, next_trials[place], -1)
    # Lanes without a new trial write outside the array, which has no effect.
    changed = jnp.where(is_assigned, assigned, len(ledger.status))
    status = ledger.status.at[changed].set(Status.RUNNING, mode="drop")
    return ledger._replace(status=status), jnp.where(is_free, assigned, trial)


def is_running(ledger: Ledger, trial: Array) -> Array:
    """Return which of the lanes' trials `[W]`, -1 where there is none, are in training."""
    return (trial >= 0) & (ledger.status[trial] == Status.RUNNING)


@dataclass(frozen=True)
class RandomSearch:
    """Random search: every trial runs to its end."""

    num_trials: int
    num_phases: int
    pauses: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "num_trials", "num_phases")

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        return ledger.status


@dataclass(frozen=True)
class HyperTrick:
    """HyperTrick: early termination without waiting for other trials (arXiv 1902.02725).

    With N trials, P phases and eviction rate r: of the trials that report phase p (from 0), the
    earliest `N (1 - sqrt r) (1 - r)^p` continue. A later one stops if it lies in the bottom
    `sqrt r` quantile of the scores reported for p so far. The first score of a phase has none to
    compare with, so its trial continues, also where N is too small to spare one. Unlike the paper's
    rule, a trial that diverged always stops: more phases would not bring it back. For exchangeable
    scores, a share r of the trials that reach a phase stops at its end, and the expected share of
    full work is `E[alpha] = (1 - (1 - r)^P) / (r P)`. Scores are exchangeable if the order of
    reports says nothing about them. Where good trials stay good, fewer stop and the search costs
    more: bad ones that were spared fill the bottom quantile of the next phases.
    """

    num_trials: int
    num_phases: int
    eviction_rate: float = 0.25
    """r, the share of trials that stop at the end of each phase."""
    pauses: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "num_trials", "num_phases")
        checks.fields(self, checks.number, "eviction_rate", allowed=checks.BELOW_ONE)

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        phase = ledger.reported[trial] - 1
        score = ledger.scores[trial, phase]
        others = ledger.scores[:, phase].at[trial].set(jnp.nan)
        num_reported = (ledger.reported > phase).sum()
        stops = self.should_stop(score, others, phase, num_reported)
        status = jnp.where(stops, Status.STOPPED, ledger.status[trial])
        return ledger.status.at[trial].set(status)

    def should_stop(self, score: Array, others: Array, phase: Array, num_reported: Array) -> Array:
        """Return whether a trial with this score stops after the phase.

        Args:
          others: the other trials' scores of the phase, NaN where there is none.
          num_reported: how many trials have reported the phase, including this one.
        """
        root = math.sqrt(self.eviction_rate)
        spared = self.num_trials * (1 - root) * (1 - self.eviction_rate) ** phase
        below = (others < score).sum() + 0.5 * (others == score).sum()
        count = (~jnp.isnan(others)).sum() + 1
        is_low = (count > 1) & (below + 0.5 < root * count)
        stops = (num_reported > spared) & ~jnp.isnan(score) & is_low
        return stops | jnp.isneginf(score)


@dataclass(frozen=True)
class Wrapper:
    """A scheduler that changes what another one decides."""

    search: Scheduler

    @property
    def num_trials(self) -> int:
        """The trials of the search."""
        return self.search.num_trials

    @property
    def num_phases(self) -> int:
        """The phases of the search."""
        return self.search.num_phases

    @property
    def pauses(self) -> bool:
        """True if the search pauses trials."""
        return self.search.pauses


@dataclass(frozen=True)
class Capped(Wrapper):
    """A scheduler that ends the search once its trials have reported so many phases in all.

    Those that train at this moment report once more, so the search exceeds the cap by less than one
    phase of all lanes.
    """

    max_phases: int

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "max_phases")

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        """Judge as the search does, and stop all trials once the phases are spent."""
        status = self.search.judge(ledger, trial)
        is_over = (ledger.reported.sum() >= self.max_phases) & (status < Status.STOPPED)
        return jnp.where(is_over, Status.STOPPED, status)


@dataclass(frozen=True)
class Extended(Wrapper):
    """A HyperTrick search that begins more trials than its rule counts with.

    How many phases the rule spends depends on the scores. With trials in reserve and a cap, a
    search spends exactly what it may.
    """

    search: HyperTrick
    total: int

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "total", least=self.search.num_trials)

    @property
    def num_trials(self) -> int:
        """The trials with those in reserve."""
        return self.total

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        """Judge all trials by the same rule."""
        return self.search.judge(ledger, trial)


def ranks(scores: Array, included: Array) -> Array:
    """Return ranks `[N]` from 0, the best first; trials that are not included come last.

    A score of NaN ranks above -inf and below all others.
    """
    lowest = jnp.finfo(jnp.float32).min
    cost = jnp.where(included, -jnp.where(jnp.isnan(scores), lowest, scores), jnp.nan)
    order = jnp.argsort(cost, stable=True)  # NaN comes last
    return jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))


def require_scheduler(scheduler: Any) -> None:
    """Raise `ValueError` unless `scheduler` is a dataclass with the members of `Scheduler`."""
    has_members = all(hasattr(scheduler, name) for name in MEMBERS)
    if isinstance(scheduler, type) or not (has_members and dataclasses.is_dataclass(scheduler)):
        example = (
            "a scheduler, such as jaxrl.tuning.HyperTrick(64, 8), or a frozen dataclass of your "
            f"own with {', '.join(MEMBERS[:-1])} and {MEMBERS[-1]}"
        )
        raise checks.refuse("scheduler", example, scheduler)
