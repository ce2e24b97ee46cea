"""Pure functions of the ledger of a search: trials begin, report, stop, and take free lanes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxrl.tuning.schedulers.contract import Ledger, Scheduler, Status
from jaxrl.types import Array


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


def ranks(scores: Array, included: Array) -> Array:
    """Return ranks `[N]` from 0, the best first; trials that are not included come last.

    A score of NaN ranks above -inf and below all others.
    """
    lowest = jnp.finfo(jnp.float32).min
    cost = jnp.where(included, -jnp.where(jnp.isnan(scores), lowest, scores), jnp.nan)
    order = jnp.argsort(cost, stable=True)  # NaN comes last
    return jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))
