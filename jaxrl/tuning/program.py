"""A hyperparameter search that is one compiled program: `jax.jit(partial(search, ...))(key)`.

N trials run on W lanes, in rounds of one phase each. After a round every lane reports its trial's
score, the scheduler judges, and free lanes take their next trials. The program ends when no trial
is left.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl import checks
from jaxrl.training import population as populations
from jaxrl.training.population import FRESH, KEEP, RESUME, Strategy
from jaxrl.tuning import schedulers
from jaxrl.tuning import space as spaces
from jaxrl.tuning.schedulers import Ledger, Scheduler, Status
from jaxrl.types import Algorithm, Array, Metrics, PyTree, check_agent


class SearchResult(NamedTuple):
    """The outcome of a search of N trials of at most P phases."""

    ledger: Ledger
    """All scores, and the status of each trial at the end."""
    values: dict[str, Array]
    """The searched hyperparameters, `[N]` each."""
    lane: Array
    """`[N, P]` int32: the lane that ran each phase, -1 if none did."""
    round: Array
    """`[N, P]` int32: the round in which each phase ran, -1 if none."""
    num_rounds: Array
    best_trial: Array
    """The trial with the highest score of all phases; -1 if no score is finite."""
    best_state: PyTree
    """That trial's agent after that phase, without environments on the host; an untrained agent
    if no score is finite."""


class _Best(NamedTuple):
    """The best score so far, its trial, and the trial's agent."""

    score: Array
    trial: Array
    state: PyTree


class _Carry(NamedTuple):
    """The arrays that the search carries from round to round."""

    trial: Array  # [W] int32, -1 on a free lane
    states: PyTree  # [W, ...]
    kept: PyTree  # [N, ...]: agents of paused trials, None if the scheduler pauses none
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
    """Search for the config that scores best, as a pure function to `jit`, or `vmap` over keys.

    A phase's score is the mean return of the episodes that ended in it; -inf if a loss was not
    finite, NaN if no episode ended.

    Args:
      config: gives the values that are not searched.
      space: traced fields only; `jaxrl.tuning.sweep` searches static ones too.
      key: the source of all randomness; see `trial_key` and `trial_values`.

    Raises:
      ValueError: for static or unknown fields in the space, values that the config refuses, or
        sizes below 1.
    """
    check_agent(algo, config)
    num_lanes = checks.integer("num_lanes", num_lanes)
    updates_per_phase = checks.integer("updates_per_phase", updates_per_phase)
    key = checks.random_key("key", key)
    schedulers.check_scheduler(scheduler)
    _check_space(space, config)
    num_trials, num_phases = scheduler.num_trials, scheduler.num_phases
    num_lanes = min(num_lanes, num_trials)
    lanes = populations.population(algo, num_lanes, strategy)
    values = jax.vmap(lambda trial: trial_values(space, key, trial))(jnp.arange(num_trials))
    keys = jax.vmap(lambda trial: trial_key(key, trial))(jnp.arange(num_trials))

    def configs_of(trial: Array) -> Any:
        return populations.stack(config, num_lanes, **jax.tree.map(lambda x: x[trial], values))

    def run_round(carry: _Carry) -> _Carry:
        """Train every lane for a phase, report, judge, and fill the free lanes."""
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
            has_left = active & ~_is_running(ledger, carry.trial)
            place = jnp.where(has_left, carry.trial, num_trials)
            kept = jax.tree.map(lambda x, new: x.at[place].set(new, mode="drop"), kept, learners)
        return fill_lanes(carry._replace(states=states, kept=kept, ledger=ledger, best=best))

    def fill_lanes(carry: _Carry) -> _Carry:
        """Give free lanes their next trials."""
        ledger, trial = _assign(carry.ledger, carry.trial)
        continues = _is_running(carry.ledger, carry.trial) | (trial < 0)
        has_begun = ledger.reported[trial] > 0
        change = jnp.where(continues, KEEP, jnp.where(has_begun, RESUME, FRESH))
        saved = jax.tree.map(lambda x: x[trial], carry.kept)  # None without kept agents
        states = lanes.refill(configs_of(trial), carry.states, keys[trial], change, saved)
        return carry._replace(trial=trial, states=states, ledger=ledger)

    def start() -> _Carry:
        ledger, trial = _assign(schedulers.start(scheduler), jnp.full(num_lanes, -1, jnp.int32))
        states = lanes.init(configs_of(trial), keys[trial])
        one = jax.tree.map(lambda x: x[0], without_host_envs(algo, states))
        kept = None
        if scheduler.pauses:
            kept = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_trials, *x.shape)), one)
        unset = jnp.full((num_trials, num_phases), -1, jnp.int32)
        best = _Best(jnp.float32(-jnp.inf), jnp.int32(-1), one)
        return _Carry(trial, states, kept, ledger, unset, unset, jnp.int32(0), best)

    end = jax.lax.while_loop(lambda carry: (carry.trial >= 0).any(), run_round, start())
    return SearchResult(
        end.ledger, values, end.lane, end.round, end.num_rounds, end.best.trial, end.best.state
    )


def _check_space(space: spaces.Space, config: Any) -> None:
    spaces.check(space, config)
    if static := spaces.static_names(space, type(config)):
        raise ValueError(
            f"search is one program and cannot search the static fields {static}, which change the "
            "program; leave them out, or use jaxrl.tuning.sweep"
        )


def trial_key(key: Array, trial: Array | int) -> Array:
    """Return the key of a trial's agent, given the search's key."""
    key, trial = checks.random_key("key", key), checks.index("trial", trial)
    return jax.random.fold_in(jax.random.fold_in(key, trial), 0)


def trial_values(space: spaces.Space, key: Array, trial: Array | int) -> dict[str, Array]:
    """Return the hyperparameters that random search gives to a trial, given the search's key."""
    spaces.check_distributions(space)
    key, trial = checks.random_key("key", key), checks.index("trial", trial)
    return spaces.draw(space, jax.random.fold_in(jax.random.fold_in(key, trial), 1))


def phase_score(metrics: Metrics) -> Array:
    """Return the score of a phase, given the metrics `[updates]` of its updates.

    It is the mean return of the episodes that ended; NaN without one, -inf if a loss is not finite.
    """
    episodes = metrics["episode_count"].sum()
    mean = metrics["episode_return_sum"].sum() / jnp.maximum(episodes, 1)
    diverged = ~jnp.isfinite(metrics["loss"]).all()
    score = jnp.where(episodes > 0, mean, jnp.nan)
    return jnp.where(diverged | jnp.isinf(score), -jnp.inf, score).astype(jnp.float32)


def without_host_envs(algo: Algorithm, states: PyTree) -> PyTree:
    """Return agents without environments on the host, which cannot be copied or saved."""
    return states if algo.env.checkpointable else states._replace(simulation=None)


def _better(best: _Best, trial: Array, scores: Array, learners: PyTree) -> _Best:
    """Return the best so far, after lanes have scored; NaN is never better."""
    top = jnp.argmax(jnp.where(jnp.isnan(scores), -jnp.inf, scores))
    is_better = scores[top] > best.score
    new = _Best(scores[top], trial[top], jax.tree.map(lambda x: x[top], learners))
    return jax.tree.map(lambda new, old: jnp.where(is_better, new, old), new, best)


def _record(carry: _Carry, active: Array) -> _Carry:
    """Record on which lane and in which round the active lanes' phases ran."""
    num_trials, num_phases = carry.lane.shape
    trial = jnp.where(active, carry.trial, num_trials)
    phase = jnp.minimum(carry.ledger.reported[carry.trial], num_phases - 1)
    lane = carry.lane.at[trial, phase].set(jnp.arange(len(trial)), mode="drop")
    when = carry.round.at[trial, phase].set(carry.num_rounds, mode="drop")
    return carry._replace(lane=lane, round=when, num_rounds=carry.num_rounds + 1)


def _report(scheduler: Scheduler, ledger: Ledger, trial: Array, scores: Array) -> Ledger:
    """Report the scores of all lanes, in the order of the lanes."""

    def step(ledger: Ledger, lane: tuple[Array, Array]) -> tuple[Ledger, None]:
        trial, score = lane
        after = schedulers.report(scheduler, ledger, trial, score)
        return jax.tree.map(lambda old, new: jnp.where(trial < 0, old, new), ledger, after), None

    return jax.lax.scan(step, ledger, (trial, scores))[0]


def _assign(ledger: Ledger, trial: Array) -> tuple[Ledger, Array]:
    """Assign trials to the free lanes, in the order of the lanes; return every lane's trial."""

    def step(ledger: Ledger, trial: Array) -> tuple[Ledger, Array]:
        after, found = schedulers.assign(ledger)
        ledger = jax.tree.map(lambda old, new: jnp.where(trial >= 0, old, new), ledger, after)
        return ledger, jnp.where(trial >= 0, trial, found)

    # A trial that pauses and is READY at once gives up its lane, and is assigned like any other.
    return jax.lax.scan(step, ledger, jnp.where(_is_running(ledger, trial), trial, -1))


def _is_running(ledger: Ledger, trial: Array) -> Array:
    return (trial >= 0) & (ledger.status[trial] == Status.RUNNING)
