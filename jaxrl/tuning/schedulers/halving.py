"""Successive halving, HyperBand and ASHA: the best 1/eta of the trials that reach a rung continue.

A rung is a number of phases after which trials are compared. Trials pause at a rung until enough
others have reached it. Trials without a score are ranked too: above those that diverged, and below
all others. Of equal ones the trial with the smaller index ranks higher.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl import checks
from jaxrl.tuning.schedulers.contract import Ledger, Status
from jaxrl.tuning.schedulers.ledger import ranks
from jaxrl.types import Array


@dataclass(frozen=True)
class HyperBand:
    """HyperBand: brackets of successive halving, from many short trials to few long ones.

    Li et al. 2018 (JMLR 18:185), algorithm 1. With R = `num_phases` and s_max = floor(log_eta R),
    bracket s = s_max .. 0 begins with n = ceil((s_max + 1) eta^s / (s + 1)) trials, and halves them
    at R eta^-s, R eta^(1-s), ... phases.
    """

    num_phases: int
    eta: int = 3
    times: int = 1
    """Runs of all brackets, each with other trials. While trials of one wait at a rung, free lanes
    begin those of the next."""
    pauses: bool = dataclasses.field(default=True, init=False)

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "num_phases", "times")
        _check_eta(self)

    @property
    def num_trials(self) -> int:
        """The trials of all brackets."""
        return sum(rungs[0].num_trials for rungs in self.brackets)

    @property
    def brackets(self) -> tuple[tuple[Rung, ...], ...]:
        """The rungs of each bracket; brackets have consecutive trials, in this order."""
        deepest = _log(self.num_phases, self.eta)
        brackets = []
        for s in range(deepest, -1, -1):
            num_trials = -(-(deepest + 1) * self.eta**s // (s + 1))
            brackets.append(_halving(num_trials, self.num_phases, s, self.eta))
        return self.times * tuple(brackets)

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        return _halve(self.brackets, ledger, trial)


@dataclass(frozen=True)
class _Halving:
    """The fields of a scheduler that halves N trials, and their checks."""

    num_trials: int
    num_phases: int
    eta: int = 3
    pauses: bool = dataclasses.field(default=True, init=False)

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "num_trials", "num_phases")
        _check_eta(self)


@dataclass(frozen=True)
class SuccessiveHalving(_Halving):
    """Successive halving of N trials (Jamieson & Talwalkar 2016, AISTATS).

    The best 1/eta of a rung's trials continue once all of them have reported, or were ended by a
    cap of the sweep.
    """

    times: int = 1
    """Parts of the trials, of equal size, that are halved apart. While trials of one wait at a
    rung, free lanes begin those of the next."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fields(self, checks.integer, "times")
        if self.num_trials % self.times:
            raise ValueError(
                f"times must divide num_trials={self.num_trials}, got {self.times}: each part has "
                "as many trials"
            )
        size = self.num_trials // self.times
        if self.times > 1 and size < self.eta:
            raise ValueError(
                f"times={self.times} leaves parts of {size} trials, fewer than eta={self.eta}, so "
                "none would stop: take a lower times or eta, or more trials"
            )

    @property
    def brackets(self) -> tuple[tuple[Rung, ...], ...]:
        """The rungs of each part; parts have consecutive trials."""
        return self.times * (_bracket(self.num_trials // self.times, self.num_phases, self.eta),)

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        return _halve(self.brackets, ledger, trial)


@dataclass(frozen=True)
class ASHA(_Halving):
    """ASHA: asynchronous successive halving (Li et al. 2020, MLSys).

    A trial continues from a rung as soon as it is among the best 1/eta of those that have reached
    it. Meanwhile, free lanes begin new trials. As in `SuccessiveHalving`, there are only so many
    rungs that N trials suffice to bring one past the last rung.
    """

    @property
    def rungs(self) -> tuple[int, ...]:
        """The numbers of phases after which trials are compared."""
        phases = (rung.num_phases for rung in _bracket(self.num_trials, self.num_phases, self.eta))
        return tuple(phases)[:-1]

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        phases = ledger.reported[trial]
        is_rung = jnp.isin(phases, jnp.array(self.rungs))
        scores = ledger.scores[:, phases - 1]  # outside of `cond`, which would copy all phases

        def promote() -> Array:
            status = ledger.status.at[trial].set(Status.PAUSED)
            reached = ledger.reported >= phases
            rank = ranks(scores, reached)
            is_paused = (status == Status.PAUSED) & (ledger.reported == phases)
            continues = is_paused & (rank < reached.sum() // self.eta)
            return jnp.where(continues, Status.READY, status)

        return jax.lax.cond(is_rung, promote, lambda: ledger.status)


class Rung(NamedTuple):
    """A comparison within a bracket: of how many trials, after how many phases."""

    num_trials: int
    num_phases: int


def _halving(num_trials: int, num_phases: int, halvings: int, eta: int) -> tuple[Rung, ...]:
    """Return the rungs of a bracket; at the last one its surviving trials complete."""
    return tuple(
        Rung(max(num_trials // eta**i, 1), num_phases // eta ** (halvings - i))
        for i in range(halvings + 1)
    )


def _check_eta(scheduler: HyperBand | _Halving) -> None:
    """Check `eta`, and that trials are compared before their last phase."""
    checks.fields(scheduler, checks.integer, "eta", least=2)
    if scheduler.num_phases < scheduler.eta:
        raise ValueError(
            f"num_phases must be at least eta={scheduler.eta}, got {scheduler.num_phases}: trials "
            "are first compared after 1/eta of their phases or less; take more phases or a lower "
            "eta"
        )


def _bracket(num_trials: int, num_phases: int, eta: int) -> tuple[Rung, ...]:
    """Return the bracket with as many rungs as these trials and phases allow."""
    halvings = min(_log(num_trials, eta), _log(num_phases, eta))
    return _halving(num_trials, num_phases, halvings, eta)


def _halve(brackets: tuple[tuple[Rung, ...], ...], ledger: Ledger, trial: Array) -> Array:
    """Return all statuses after a trial has reported or ended: once a rung is full, judge it.

    The trial pauses at its rung. When all trials of the bracket have reached the rung or stopped,
    the best become READY, as many as the next rung has, and the others stop. Trials that were
    stopped by no scheduler take no place among the best.
    """
    # A bracket's last rung is left out: its trials complete.
    pairs = [(b, *pair) for b, rungs in enumerate(brackets) for pair in itertools.pairwise(rungs)]
    if not pairs:
        return ledger.status
    table = [(b, rung.num_phases, after.num_trials) for b, rung, after in pairs]
    bracket_of, phases_of, num_survivors = jnp.array(table).T
    ends = list(itertools.accumulate(rungs[0].num_trials for rungs in brackets))
    brackets_of_trials = jnp.searchsorted(jnp.array(ends), jnp.arange(ends[-1]), side="right")
    bracket = brackets_of_trials[trial]
    is_own = bracket_of == bracket
    is_rung = (is_own & (phases_of == ledger.reported[trial])).any()
    pauses = is_rung & (ledger.status[trial] < Status.STOPPED)
    status = ledger.status.at[trial].set(jnp.where(pauses, Status.PAUSED, ledger.status[trial]))
    members = brackets_of_trials == bracket
    waits = members & (status == Status.PAUSED)
    phases = jnp.min(ledger.reported, initial=ledger.scores.shape[1], where=waits)
    reached, has_stopped = ledger.reported >= phases, status == Status.STOPPED
    scores = ledger.scores[:, phases - 1]  # outside of `cond`, which would copy all phases

    def judge_rung() -> Array:
        rank = ranks(scores, members & reached & ~has_stopped)
        best = rank < num_survivors[jnp.argmax(is_own & (phases_of == phases))]
        verdict = jnp.where(best, Status.READY, Status.STOPPED)
        return jnp.where(waits & (ledger.reported == phases), verdict, status)

    is_full = waits.any() & (reached | has_stopped | ~members).all()
    return jax.lax.cond(is_full, judge_rung, lambda: status)


def _log(number: int, base: int) -> int:
    """Return the integer part of the logarithm, exactly."""
    return next(exponent for exponent in itertools.count() if base ** (exponent + 1) > number)
