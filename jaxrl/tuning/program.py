"""A whole hyperparameter search as one program: `jax.jit(partial(search, ...))(key)`.

N trials run on W lanes, in rounds of one phase each. After a round every lane reports its trial's
score, the scheduler judges, and lanes that became free take their next trials at once; all of it
inside the program, which ends when no trial is left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.training import population as populations
from jaxrl.training.population import FRESH, KEEP, RESUME, Strategy
from jaxrl.tuning import schedulers
from jaxrl.tuning import space as spaces
from jaxrl.tuning.schedulers import Ledger, Scheduler, Status
from jaxrl.types import Algorithm, Array, Metrics, PyTree


class SearchResult(NamedTuple):
    """What a search found; N trials of at most P phases."""

    ledger: Ledger
    values: dict[str, Array]
    """The hyperparameters that were searched, `[N]` each."""
    lane: Array
    """`[N, P]` int32: where a phase was run, -1 if it was not."""
    round: Array
    """`[N, P]` int32: when."""
    num_rounds: Array
    best_trial: Array
    """The one with the highest score of all phases and trials; -1 if none is finite."""
    best_state: PyTree
    """Its agent, as it was after that phase; of -1, one that nobody trained."""


class _Best(NamedTuple):
    score: Array
    trial: Array
    state: PyTree


class _Carry(NamedTuple):
    trial: Array  # [W] int32, -1 on an idle lane
    states: PyTree  # [W, ...]
    kept: PyTree  # [N, ...]: agents that pause, None if the scheduler lets none pause
    ledger: Ledger
    lane: Array
    round: Array
    num_rounds: Array
    best: _Best


def search(
    algo: Algorithm,
    config: Any,
    space: spaces.Space,
    scheduler: Scheduler,
    num_lanes: int,
    updates_per_phase: int,
    key: Array,
    strategy: str | Strategy = "vmap",
) -> SearchResult:
    """Search for the config that scores best. Pure: `jit` it, `vmap` it over keys.

    A phase's score is the mean return of the episodes that ended in it; -inf if a loss was not
    finite, NaN if no episode ended.

    Args:
      config: gives the values that are not searched.
      space: of traced fields; trials that differ in static ones are different programs, which
        `jaxrl.tuning.sweep` runs.
      key: everything random comes from it; see `trial_key` and `trial_values`.

    Raises:
      ValueError: for static or unknown fields in the space, values that the config refuses, or
        sizes below 1.
    """
    schedulers.check_counts(num_lanes=num_lanes, updates_per_phase=updates_per_phase)
    spaces.check(space, config)
    if static := spaces.static_names(space, type(config)):
        raise ValueError(
            f"one program cannot search the static fields {static}, which change the program; "
            "leave them out, or use jaxrl.tuning.sweep"
        )
    num_trials, num_phases = scheduler.num_trials, scheduler.num_phases
    num_lanes = min(num_lanes, num_trials)
    lanes = populations.population(algo, num_lanes, strategy)
    values = jax.vmap(lambda trial: trial_values(space, key, trial))(jnp.arange(num_trials))
    keys = jax.vmap(lambda trial: trial_key(key, trial))(jnp.arange(num_trials))

    def configs_of(trial: Array) -> Any:
        return populations.stack(config, num_lanes, **jax.tree.map(lambda x: x[trial], values))

    def play(carry: _Carry) -> _Carry:
        active = carry.trial >= 0
        states, metrics = lanes.update(
            configs_of(carry.trial), carry.states, updates_per_phase, updates_per_phase, active
        )
        learners = without_host_envs(algo, states)
        scores = jax.vmap(phase_score)(metrics)
        carry = _record(carry, active)
        best = _better(carry.best, carry.trial, jnp.where(active, scores, jnp.nan), learners)
        ledger = _report(scheduler, carry.ledger, carry.trial, scores)
        kept = carry.kept
        if kept is not None:
            paused = active & ~_is_running(ledger, carry.trial)
            place = jnp.where(paused, carry.trial, num_trials)
            kept = jax.tree.map(
                lambda all, some: all.at[place].set(some, mode="drop"), kept, learners
            )
        return refilled(carry._replace(states=states, kept=kept, ledger=ledger, best=best))

    def refilled(carry: _Carry) -> _Carry:
        """Free lanes take their next trials."""
        ledger, trial = _assign(carry.ledger, carry.trial)
        goes_on = _is_running(carry.ledger, carry.trial) | (trial < 0)
        begun = ledger.reported[trial] > 0
        change = jnp.where(goes_on, KEEP, jnp.where(begun, RESUME, FRESH))
        saved = None
        if carry.kept is not None:
            saved = jax.tree.map(lambda x: x[trial], carry.kept)
        states = lanes.refill(configs_of(trial), carry.states, keys[trial], change, saved)
        return carry._replace(trial=trial, states=states, ledger=ledger)

    def first() -> _Carry:
        ledger, trial = _assign(schedulers.start(scheduler), jnp.full(num_lanes, -1, jnp.int32))
        states = lanes.init(configs_of(trial), keys[trial])
        one = jax.tree.map(lambda x: x[0], without_host_envs(algo, states))
        kept = None
        if scheduler.pauses:
            kept = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_trials, *x.shape)), one)
        nowhere = jnp.full((num_trials, num_phases), -1, jnp.int32)
        best = _Best(jnp.float32(-jnp.inf), jnp.int32(-1), one)
        return _Carry(trial, states, kept, ledger, nowhere, nowhere, jnp.int32(0), best)

    end = jax.lax.while_loop(lambda carry: (carry.trial >= 0).any(), play, first())
    return SearchResult(
        end.ledger, values, end.lane, end.round, end.num_rounds, end.best.trial, end.best.state
    )


def trial_key(key: Array, trial: Array | int) -> Array:
    """The key of a trial's agent, given the search's."""
    return jax.random.fold_in(jax.random.fold_in(key, trial), 0)


def trial_values(space: spaces.Space, key: Array, trial: Array | int) -> dict[str, Array]:
    """The hyperparameters that random search gives to a trial, given the search's key."""
    return spaces.draw(space, jax.random.fold_in(jax.random.fold_in(key, trial), 1))


def phase_score(metrics: Metrics) -> Array:
    """The mean return of the episodes that ended in a phase; metrics `[updates]`."""
    episodes = metrics["episode_count"].sum()
    mean = metrics["episode_return_sum"].sum() / jnp.maximum(episodes, 1)
    diverged = ~jnp.isfinite(metrics["loss"]).all()
    score = jnp.where(episodes > 0, mean, jnp.nan)
    return jnp.where(diverged | jnp.isinf(score), -jnp.inf, score).astype(jnp.float32)


def without_host_envs(algo: Algorithm, states: PyTree) -> PyTree:
    """What of agents can be put aside: all but host environments."""
    return states if algo.env.checkpointable else states._replace(simulation=None)


def _better(best: _Best, trial: Array, scores: Array, learners: PyTree) -> _Best:
    """The best so far, after lanes have scored; NaN is never better."""
    top = jnp.argmax(jnp.where(jnp.isnan(scores), -jnp.inf, scores))
    is_better = scores[top] > best.score
    new = _Best(scores[top], trial[top], jax.tree.map(lambda x: x[top], learners))
    return jax.tree.map(lambda new, old: jnp.where(is_better, new, old), new, best)


def _record(carry: _Carry, active: Array) -> _Carry:
    """Note where and when the round's phases ran."""
    num_trials, num_phases = carry.lane.shape
    trial = jnp.where(active, carry.trial, num_trials)
    phase = jnp.minimum(carry.ledger.reported[carry.trial], num_phases - 1)
    lane = carry.lane.at[trial, phase].set(jnp.arange(len(trial)), mode="drop")
    when = carry.round.at[trial, phase].set(carry.num_rounds, mode="drop")
    return carry._replace(lane=lane, round=when, num_rounds=carry.num_rounds + 1)


def _report(scheduler: Scheduler, ledger: Ledger, trial: Array, scores: Array) -> Ledger:
    """All lanes' scores, in the order of the lanes."""

    def step(ledger: Ledger, lane: tuple[Array, Array]) -> tuple[Ledger, None]:
        trial, score = lane
        after = schedulers.report(scheduler, ledger, trial, score)
        return jax.tree.map(lambda old, new: jnp.where(trial < 0, old, new), ledger, after), None

    return jax.lax.scan(step, ledger, (trial, scores))[0]


def _assign(ledger: Ledger, trial: Array) -> tuple[Ledger, Array]:
    """Trials for the free lanes, in the order of the lanes."""

    def step(ledger: Ledger, trial: Array) -> tuple[Ledger, Array]:
        after, found = schedulers.assign(ledger)
        ledger = jax.tree.map(lambda old, new: jnp.where(trial >= 0, old, new), ledger, after)
        return ledger, jnp.where(trial >= 0, trial, found)

    # A lane's own trial may be judged ready: it is then assigned anew, like any other.
    return jax.lax.scan(step, ledger, jnp.where(_is_running(ledger, trial), trial, -1))


def _is_running(ledger: Ledger, trial: Array) -> Array:
    return (trial >= 0) & (ledger.status[trial] == Status.RUNNING)
