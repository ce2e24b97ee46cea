"""The rounds of a search in one program: pure functions of what it carries from round to round.

In a round all lanes train for one phase. Then each lane reports its trial's score, the scheduler
judges, and free lanes take their next trials. Finals, if asked for, are the last trials.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.training import population as populations
from jaxrl.training.population import FRESH, KEEP, RESUME, Population
from jaxrl.tuning import finals
from jaxrl.tuning.explorers import (
    AdaptiveSampler,
    Explorer,
    Generation,
    Sampler,
    ancestors,
    next_generation,
)
from jaxrl.tuning.finals import WithFinals
from jaxrl.tuning.objectives import Objectives, Scores, greedy_metrics, names_of, score
from jaxrl.tuning.schedulers import ledger as ledgers
from jaxrl.tuning.schedulers.contract import Ledger, Scheduler
from jaxrl.tuning.search_result import SearchResult, final_scores
from jaxrl.tuning.spaces import space as spaces
from jaxrl.tuning.trial_start import agent_keys, plan, sampler_key, trial_key
from jaxrl.types import Algorithm, Array, Metrics, PyTree


class _Best(NamedTuple):
    """The best score so far, its trial, and the trial's first agent."""

    score: Array
    trial: Array
    state: PyTree


class _Carry(NamedTuple):
    """The arrays that the search carries from round to round.

    N' is the number of trials with the finals' runs, and a lane has K agents.
    """

    trial: Array  # [W] int32, -1 on a free lane
    states: PyTree  # [W * K, ...]
    kept: PyTree  # [N, K, ...]: agents of paused trials, None if the scheduler pauses none
    ledger: Ledger  # of N' trials
    objectives: Scores  # [N', P], empty for a single objective
    values: dict[str, Array]  # [N, P]
    parent: Array  # [N, P]
    lane: Array  # [N', P]
    round: Array  # [N', P]
    num_rounds: Array
    best: _Best
    winners: PyTree  # [top, ...]: the first agent of each setting in the finals, None without


@dataclass(frozen=True)
class Rounds:
    """The rounds of one search; `start`, `run` and `result` are its beginning, middle and end."""

    algo: Algorithm
    config: Any
    space: spaces.Space
    sampler: Sampler | None
    scheduler: Scheduler
    updates_per_phase: int
    key: Array
    objective: Objectives
    evaluation_episodes: int
    seeds_per_trial: int
    finals: WithFinals | None
    agents: Population  # W * K: the K agents of each lane's trial follow each other

    @property
    def whole(self) -> Scheduler:
        """The scheduler of the trials and the finals."""
        return self.finals or self.scheduler

    @property
    def num_trials(self) -> int:
        """The trials of the search, without the runs of the finals."""
        return self.scheduler.num_trials

    @property
    def num_phases(self) -> int:
        return self.scheduler.num_phases

    def start(self) -> _Carry:
        """Begin with the first trials."""
        whole, phases = self.whole, (self.num_trials, self.num_phases)
        trials = jnp.arange(self.num_trials, dtype=jnp.int32)
        planned = plan(self.sampler, self.space, self.key, self.num_trials)
        ledger = ledgers.start(whole) if self.finals is None else finals.start(self.finals)
        num_lanes = self.agents.num_lanes // self.seeds_per_trial
        ledger, trial = ledgers.assign_lanes(ledger, jnp.full(num_lanes, -1, jnp.int32))
        best = _Best(jnp.float32(-jnp.inf), jnp.int32(-1), None)
        whole_phases = (whole.num_trials, self.num_phases)
        unset = jnp.full(whole_phases, -1, jnp.int32)
        objectives = Scores(
            (name, jnp.full(whole_phases, jnp.nan)) for name in names_of(self.objective)
        )
        carry = _Carry(
            trial, None, None, ledger, objectives,
            values={name: jnp.broadcast_to(x[:, None], phases) for name, x in planned.items()},
            parent=jnp.broadcast_to(trials[:, None], phases),
            lane=unset, round=unset, num_rounds=jnp.int32(0), best=best, winners=None,
        )  # fmt: skip
        states = self.agents.init(self.configs_of(carry, trial), self.keys_of(trial))
        agents = self.by_lane(populations.without_host_envs(self.algo, states))
        one = jax.tree.map(lambda x: x[0, 0], agents)
        kept = winners = None
        if self.scheduler.pauses:  # finals never pause
            kept = _copies(jax.tree.map(lambda x: x[0], agents), self.num_trials)
        if self.finals is not None:
            winners = _copies(one, self.finals.finals.top)
        best = best._replace(state=one)
        return carry._replace(states=states, kept=kept, best=best, winners=winners)

    def run(self, carry: _Carry) -> _Carry:
        """Train every lane for a phase, report, judge, and fill the free lanes."""
        active, size = carry.trial >= 0, self.updates_per_phase
        configs = self.configs_of(carry, carry.trial)
        states, metrics = self.agents.update(
            configs, carry.states, size, size, self.of_agents(active)
        )
        if self.evaluation_episodes:
            metrics = metrics | self.evaluate(carry, configs, states)
        scores, named = jax.vmap(partial(score, self.objective))(self.by_lane(metrics))
        ledger = ledgers.report_lanes(self.whole, carry.ledger, carry.trial, scores)
        carry = _record(carry._replace(states=states), active, named)
        carry = self.keep_agents(carry, ledger, scores)
        if isinstance(self.scheduler, Explorer):
            carry = self.evolve(self.scheduler, carry, ledger.scores)
        return self.fill_lanes(carry._replace(ledger=ledger))

    def evaluate(self, carry: _Carry, configs: Any, states: PyTree) -> Metrics:
        """Return the metrics of greedy episodes of all agents, after they have trained a phase."""
        agent = partial(greedy_metrics, self.algo, self.evaluation_episodes)
        agents = populations.over_lanes(agent, self.agents.strategy, self.algo)
        phases = self.of_agents(carry.ledger.reported[carry.trial])
        return agents(configs, states, self.keys_of(carry.trial), phases)

    def keep_agents(self, carry: _Carry, ledger: Ledger, scores: Array) -> _Carry:
        """Keep the agents that may be needed: paused ones, the best one and those of the finals."""
        trial, active = carry.trial, carry.trial >= 0
        agents = self.by_lane(populations.without_host_envs(self.algo, carry.states))
        first = jax.tree.map(lambda x: x[:, 0], agents)
        of_search = active & (trial < self.num_trials)
        best = _better(carry.best, trial, jnp.where(of_search, scores, jnp.nan), first)
        kept, winners = carry.kept, carry.winners
        if kept is not None:
            has_left = active & ~ledgers.is_running(ledger, trial)
            kept = _set(kept, has_left, trial, agents)
        if self.finals is not None:
            repeats, run = self.finals.finals.repeats, trial - self.num_trials
            is_first = (run >= 0) & (run % repeats == 0)
            winners = _set(winners, is_first, run // repeats, first)
        return carry._replace(best=best, kept=kept, winners=winners)

    def evolve(self, explorer: Explorer, carry: _Carry, scores: Array) -> _Carry:
        """Let trials continue as their parents, with the values of the next generation."""
        phase = carry.ledger.reported[0]  # the one that all trials have just trained
        continues = phase < self.num_phases - 1  # neither at the end, nor in the finals
        column = jnp.arange(self.num_phases)

        def evolve() -> Generation:
            return next_generation(
                explorer, self.space, self.key, phase,
                scores[: self.num_trials], carry.values, carry.parent,
            )  # fmt: skip

        def stay() -> Generation:
            return Generation(carry.parent[:, -1], {n: x[:, -1] for n, x in carry.values.items()})

        generation = jax.lax.cond(continues, evolve, stay)  # a model of scores may cost much
        values = {
            name: jnp.where(column > phase, generation.values[name][:, None], before)
            for name, before in carry.values.items()
        }
        is_now = continues & (column == phase)
        parent = jnp.where(is_now, generation.parent[:, None], carry.parent)
        return carry._replace(values=values, parent=parent)

    def fill_lanes(self, carry: _Carry) -> _Carry:
        """Give free lanes their next trials, and let copies of other agents take their places."""
        ledger, trial = ledgers.assign_lanes(carry.ledger, carry.trial)
        continues = ledgers.is_running(carry.ledger, carry.trial) | (trial < 0)
        has_begun = ledger.reported[trial] > 0
        change = jnp.where(continues, KEEP, jnp.where(has_begun, RESUME, FRESH))
        if isinstance(self.sampler, AdaptiveSampler):
            begins = trial[:, None] == jnp.arange(self.num_trials)
            begins = (begins & (change == FRESH)[:, None]).any(0)
            carry = self.choose(self.sampler, carry, ledger, begins)
        saved = None
        if carry.kept is not None:
            saved = jax.tree.map(lambda x: x[trial].reshape(-1, *x.shape[2:]), carry.kept)
        if isinstance(self.scheduler, Explorer):
            # Lane i trains trial i until the finals, in which no agent becomes a copy.
            own = jnp.arange(self.num_trials)
            parent = carry.parent[own, ledger.reported[own] - 1]
            change = jnp.where(continues & (parent != own), RESUME, change)
            saved = self.copies_of(carry.states, parent)
        states = self.agents.refill(
            self.configs_of(carry._replace(ledger=ledger), trial), carry.states,
            self.keys_of(trial), self.of_agents(change), saved,
        )  # fmt: skip
        return carry._replace(trial=trial, states=states, ledger=ledger)

    def choose(
        self, sampler: AdaptiveSampler, carry: _Carry, ledger: Ledger, begins: Array
    ) -> _Carry:
        """Give the trials that begin now, `[N]` bool, the values that the sampler chooses."""
        planned = {name: x[:, 0] for name, x in carry.values.items()}
        known = jax.tree.map(lambda x: x[: self.num_trials], ledger)

        def choose() -> dict[str, Array]:
            return sampler.choose(sampler_key(self.key), begins, known, planned, self.space)

        chosen = jax.lax.cond(begins.any(), choose, lambda: planned)  # a model may cost much
        values = {
            name: jnp.where(begins[:, None], chosen[name][:, None], before)
            for name, before in carry.values.items()
        }
        return carry._replace(values=values)

    def copies_of(self, states: PyTree, trial: Array) -> PyTree:
        """Return the agents of trials `[W]`, which keep the random keys of the lanes."""
        agents = self.by_lane(jnp.arange(self.agents.num_lanes))[trial].reshape(-1)
        return populations.copies(self.algo, states, agents)

    def configs_of(self, carry: _Carry, trial: Array) -> Any:
        """Return the configs of trials `[W]` in their next phases, for all agents."""
        phase = jnp.minimum(carry.ledger.reported[trial], self.num_phases - 1)
        if self.finals is not None:  # a run follows the schedule that led to its finalist
            place = (trial - self.num_trials) // self.finals.finals.repeats
            finalist = finals.finalists(self.finals, carry.ledger, carry.parent)[0][place]
            source = ancestors(carry.parent)[finalist, phase]
            trial = jnp.where(trial < self.num_trials, trial, source)
        values = {name: x[trial, phase] for name, x in carry.values.items()}
        values = spaces.trained(self.space, values, self.config)
        values = {name: self.of_agents(x) for name, x in values.items()}
        return populations.stack(self.config, self.agents.num_lanes, **values)

    def keys_of(self, trial: Array) -> Array:
        """Return the keys of the agents of trials `[W]`."""

        def of_trial(trial: Array) -> Array:
            return agent_keys(trial_key(self.key, trial), self.seeds_per_trial)

        keys = jax.vmap(of_trial)(trial)
        return keys.reshape(-1, *keys.shape[2:])  # jax.random.PRNGKey has two numbers for each

    def of_agents(self, x: Array) -> Array:
        """Return values of the lanes' trials `[W]` for each of their agents, `[W * K]`."""
        return jnp.repeat(x, self.seeds_per_trial)

    def by_lane(self, agents: PyTree) -> PyTree:
        """Return leaves `[W * K, ...]` as `[W, K, ...]`."""
        number = self.seeds_per_trial
        return jax.tree.map(lambda x: x.reshape(-1, number, *x.shape[1:]), agents)

    def result(self, end: _Carry) -> SearchResult:
        """Return the outcome of a search that has ended."""
        best_trial, best_state, scores = end.best.trial, end.best.state, None
        if self.finals is not None:
            scores = final_scores(self.finals, end.ledger, end.objectives, end.parent)
            winner = jnp.argmax(scores.score)
            has_score = jnp.isfinite(scores.score[winner])
            best_trial = jnp.where(has_score, scores.trial[winner], -1)
            best_state = jax.tree.map(lambda x: x[winner], end.winners)
        of_search = lambda x: x[: self.num_trials]  # noqa: E731
        values = spaces.trained(self.space, end.values, self.config)
        return SearchResult(
            ledger=jax.tree.map(of_search, end.ledger),
            objectives=jax.tree.map(of_search, end.objectives),
            values={name: x[:, 0] for name, x in values.items()},
            values_by_phase=values,
            parent=end.parent,
            lane=of_search(end.lane),
            round=of_search(end.round),
            num_rounds=end.num_rounds,
            finals=scores,
            best_trial=best_trial,
            best_state=best_state,
        )


def _copies(tree: PyTree, number: int) -> PyTree:
    """Return `number` copies, leaves `[number, ...]`."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *x.shape)), tree)


def _set(rows: PyTree, chosen: Array, place: Array, new: PyTree) -> PyTree:
    """Return rows in which the chosen lanes' new values `[W, ...]` are at their places `[W]`."""

    def set_rows(rows: Array, new: Array) -> Array:
        return rows.at[jnp.where(chosen, place, len(rows))].set(new, mode="drop")

    return jax.tree.map(set_rows, rows, new)


def _better(best: _Best, trial: Array, scores: Array, learners: PyTree) -> _Best:
    """Return the best so far, after lanes have scored; NaN is never better."""
    top = jnp.argmax(jnp.where(jnp.isnan(scores), -jnp.inf, scores))
    is_better = scores[top] > best.score
    new = _Best(scores[top], trial[top], jax.tree.map(lambda x: x[top], learners))
    return jax.tree.map(lambda new, old: jnp.where(is_better, new, old), new, best)


def _record(carry: _Carry, active: Array, scores: Scores) -> _Carry:
    """Record where and when the active lanes' phases ran, and their scores `[W]` by name."""
    num_trials, num_phases = carry.lane.shape
    trial = jnp.where(active, carry.trial, num_trials)
    phase = jnp.minimum(carry.ledger.reported[carry.trial], num_phases - 1)
    lane = carry.lane.at[trial, phase].set(jnp.arange(len(trial)), mode="drop")
    when = carry.round.at[trial, phase].set(carry.num_rounds, mode="drop")
    objectives = jax.tree.map(
        lambda old, new: old.at[trial, phase].set(new, mode="drop"), carry.objectives, scores
    )
    return carry._replace(
        objectives=objectives, lane=lane, round=when, num_rounds=carry.num_rounds + 1
    )
