"""Schedulers that halve: of the trials that come as far as a rung, the best 1/eta go on.

Trials pause at a rung until enough others have reached it. Ranks decide, so that one without a
score is ranked too: last, but for those that diverged.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp

from jaxrl.tuning.schedulers import Ledger, Status, check_counts
from jaxrl.types import Array


@dataclass(frozen=True)
class HyperBand:
    """Brackets of successive halving, from many short trials to few long ones (Li et al. 2018,
    JMLR 18:185, algorithm 1).

    With R = `num_phases` and s_max = floor(log_eta R), bracket s = s_max .. 0 begins with
    n = ceil((s_max + 1) eta^s / (s + 1)) trials, and halves them at R eta^-s, R eta^(1-s), ...
    phases.
    """

    num_phases: int
    eta: int = 3
    pauses: bool = dataclasses.field(default=True, init=False)

    def __post_init__(self) -> None:
        check_counts(num_phases=self.num_phases)
        _check_eta(self.eta)

    @property
    def num_trials(self) -> int:
        return sum(rungs[0].num_trials for rungs in self.brackets)

    @property
    def brackets(self) -> tuple[tuple[Rung, ...], ...]:
        deepest = _log(self.num_phases, self.eta)
        brackets = []
        for s in range(deepest, -1, -1):
            num_trials = -(-(deepest + 1) * self.eta**s // (s + 1))
            brackets.append(_halving(num_trials, self.num_phases, s, self.eta))
        return tuple(brackets)

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        return _halve(self.brackets, ledger, trial)


@dataclass(frozen=True)
class _Halving:
    """What the two ways of halving N trials are made with."""

    num_trials: int
    num_phases: int
    eta: int = 3
    pauses: bool = dataclasses.field(default=True, init=False)

    def __post_init__(self) -> None:
        check_counts(num_trials=self.num_trials, num_phases=self.num_phases)
        _check_eta(self.eta)


@dataclass(frozen=True)
class SuccessiveHalving(_Halving):
    """One bracket: the best 1/eta of the trials go on from each rung, once all of it have reported
    (Jamieson & Talwalkar 2016)."""

    @property
    def brackets(self) -> tuple[tuple[Rung, ...], ...]:
        halvings = min(_log(self.num_trials, self.eta), _log(self.num_phases, self.eta))
        return (_halving(self.num_trials, self.num_phases, halvings, self.eta),)

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        return _halve(self.brackets, ledger, trial)


@dataclass(frozen=True)
class ASHA(_Halving):
    """Asynchronous successive halving (Li et al. 2020, MLSys): a trial goes on from a rung as soon
    as it is among the best 1/eta of those that have reached it; other lanes begin new trials."""

    @property
    def rungs(self) -> tuple[int, ...]:
        """Phases after which trials are compared."""
        deepest = _log(self.num_phases, self.eta)
        return tuple(self.num_phases // self.eta**s for s in range(deepest, 0, -1))

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        status = ledger.status
        for phases in self.rungs:
            reached = ledger.reported >= phases
            status = _pause(status, ledger, trial, phases)
            rank = _ranks(ledger.scores[:, phases - 1], reached)
            promoted = rank < reached.sum() // self.eta
            may_go_on = promoted & (status == Status.PAUSED) & (ledger.reported == phases)
            status = jnp.where(may_go_on, Status.READY, status)
        return status


class Rung(NamedTuple):
    """So many trials of a bracket are compared after so many phases."""

    num_trials: int
    num_phases: int


def _halving(num_trials: int, num_phases: int, halvings: int, eta: int) -> tuple[Rung, ...]:
    """The rungs of a bracket; the last one is where its survivors complete."""
    return tuple(
        Rung(max(num_trials // eta**i, 1), num_phases // eta ** (halvings - i))
        for i in range(halvings + 1)
    )


def _halve(brackets: tuple[tuple[Rung, ...], ...], ledger: Ledger, trial: Array) -> Array:
    """Pause a trial at its rung, and once a rung is whole, send its best on and stop the rest."""
    status = ledger.status
    trials = jnp.arange(len(status))
    first = 0
    for rungs in brackets:
        members = (trials >= first) & (trials < first + rungs[0].num_trials)
        first += rungs[0].num_trials
        for rung, after in itertools.pairwise(rungs):
            reached = members & (ledger.reported >= rung.num_phases)
            here = members & (ledger.reported == rung.num_phases)
            status = jnp.where(members, _pause(status, ledger, trial, rung.num_phases), status)
            is_whole = reached.sum() >= rung.num_trials
            rank = _ranks(ledger.scores[:, rung.num_phases - 1], reached)
            verdict = jnp.where(rank < after.num_trials, Status.READY, Status.STOPPED)
            judged = is_whole & here & (status == Status.PAUSED)
            status = jnp.where(judged, verdict, status)
    return status


def _pause(status: Array, ledger: Ledger, trial: Array, phases: int) -> Array:
    """The trial pauses if it has now reported so many phases."""
    arrived = ledger.reported[trial] == phases
    return status.at[trial].set(jnp.where(arrived, Status.PAUSED, status[trial]))


def _ranks(scores: Array, included: Array) -> Array:
    """Ranks `[N]` from 0, the best first; those not included come last."""
    diverged = jnp.isneginf(scores)
    finite = jnp.where(jnp.isnan(scores) | diverged, -jnp.finfo(jnp.float32).max, scores)
    order = jnp.lexsort((-finite, diverged, ~included))
    return jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))


def _log(number: int, base: int) -> int:
    """The integer part of the logarithm."""
    return sum(1 for _ in _powers(number, base))


def _powers(number: int, base: int) -> Iterator[int]:
    power = base
    while power <= number:
        yield power
        power *= base


def _check_eta(eta: int) -> None:
    if isinstance(eta, bool) or not isinstance(eta, int) or eta < 2:
        raise ValueError(f"eta must be an integer >= 2, got {eta!r}")
