"""A hyperparameter search that is one compiled program: `jax.jit(partial(search, ...))(key)`.

N trials run on W lanes, in rounds of one phase each. A trial is one agent, or several that differ
by their seed. After a round every lane reports its trial's score, the scheduler judges, and free
lanes take their next trials. Finals, if asked for, follow in the same loop. The program ends when
no trial is left.
"""

from __future__ import annotations

from typing import Any

import jax

from jaxrl import checks
from jaxrl.training import population as populations
from jaxrl.training.population import Strategy
from jaxrl.tuning import objectives
from jaxrl.tuning.explorers import AdaptiveSampler, Explorer, Sampler, check_room
from jaxrl.tuning.finals import Finals, WithFinals
from jaxrl.tuning.objectives import Objectives
from jaxrl.tuning.rounds import Rounds
from jaxrl.tuning.schedulers.contract import Scheduler, require_scheduler
from jaxrl.tuning.schedulers.wrapper import Capped
from jaxrl.tuning.search_result import SearchResult
from jaxrl.tuning.spaces import space as spaces
from jaxrl.types import Algorithm, Array, check_agent


def search(
    algo: Algorithm,
    config: Any,
    space: spaces.Space,
    scheduler: Scheduler,
    num_lanes: int,
    updates_per_phase: int,
    key: Array,
    strategy: str | Strategy = "vmap",
    *,
    sampler: Sampler | None = None,
    objective: Objectives = objectives.mean_return,
    evaluation_episodes: int = 0,
    seeds_per_trial: int = 1,
    finals: Finals | None = None,
    max_steps: int | None = None,
) -> SearchResult:
    """Search for the config that scores best, as a pure function to `jit`, or `vmap` over keys.

    Args:
      config: gives the values that are not searched.
      space: traced fields only; `jaxrl.tuning.sweep` searches static ones too.
      num_lanes: trials at the same time.
      key: the source of all randomness; see `trial_key` and `trial_values`.
      sampler: gives trials their hyperparameters, such as `jaxrl.tuning.Sobol()`; by default they
        are random (`trial_values`).
      objective: gives the score of a phase (`jaxrl.tuning.objectives`), or a dictionary of several
        by name; the first one compares trials.
      evaluation_episodes: score that many episodes of each agent's greedy policy, played after the
        phase, instead of its training episodes. Their steps do not count as training.
      seeds_per_trial: agents of a trial, which train side by side with different seeds.
      finals: train the best settings again, with new seeds, and choose the winner by these runs.
      max_steps: environment steps of all trials, without finals, after which the search ends. The
        lanes finish their phases.

    Raises:
      ValueError: for static or unknown fields in the space, values that the config refuses, sizes
        below 1, evaluation on the host, an objective that looks for another metric or returns no
        number, finals that cost more than their share, fewer lanes than trials for an `Explorer`,
        or no fewer for an `AdaptiveSampler`.
    """
    check_agent(algo, config)
    num_lanes = checks.integer("num_lanes", num_lanes)
    updates_per_phase = checks.integer("updates_per_phase", updates_per_phase)
    seeds_per_trial = checks.integer("seeds_per_trial", seeds_per_trial)
    evaluation_episodes = objectives.check_evaluation(algo, evaluation_episodes)
    key = checks.random_key("key", key)
    require_scheduler(scheduler)
    _check_space(space, config)
    objective = objectives.check_objective(objective)
    if finals is not None:
        checks.instance("finals", finals, Finals, "jaxrl.tuning.Finals(top, repeats) or None")
    if max_steps is not None:
        max_steps = checks.integer("max_steps", max_steps, most=checks.MAX_LONG, whole_floats=True)
    if isinstance(scheduler, Explorer):
        check_room(scheduler, num_lanes, max_steps=max_steps)
    if max_steps is not None:
        num_steps = algo.env.num_envs * algo.num_steps(config) * updates_per_phase
        max_phases = -(-max_steps // (num_steps * seeds_per_trial))
        scheduler = Capped(scheduler, min(max_phases, checks.MAX_COUNT))
    if sampler is not None:
        _check_sampler(sampler, space, scheduler, num_lanes)
    num_lanes = min(num_lanes, scheduler.num_trials)
    rounds = Rounds(
        algo, config, space, sampler, scheduler, updates_per_phase, key, objective,
        evaluation_episodes, seeds_per_trial,
        None if finals is None else WithFinals(scheduler, finals),
        populations.population(algo, num_lanes * seeds_per_trial, strategy),
    )  # fmt: skip
    is_left = lambda carry: (carry.trial >= 0).any()  # noqa: E731
    return rounds.result(jax.lax.while_loop(is_left, rounds.run, rounds.start()))


def _check_space(space: spaces.Space, config: Any) -> None:
    spaces.check(space, config)
    if static := spaces.static_names(space, type(config)):
        raise ValueError(
            f"search is one program and cannot search the static fields {static}, which change the "
            "program; leave them out, or use jaxrl.tuning.sweep"
        )


def _check_sampler(sampler: Any, space: spaces.Space, scheduler: Scheduler, num_lanes: int) -> None:
    if isinstance(sampler, type) or not isinstance(sampler, Sampler):
        raise checks.refuse("sampler", "a sampler, such as jaxrl.tuning.Sobol(), or None", sampler)
    if not space:
        raise checks.refuse("space", "a dictionary with at least one distribution", space)
    num_trials = scheduler.num_trials
    if isinstance(sampler, AdaptiveSampler) and num_lanes >= num_trials:
        ways_out = "another sampler"
        if not isinstance(scheduler, Explorer):  # which needs a lane for each trial
            ways_out = f"fewer lanes, or {ways_out}"
        raise ValueError(
            f"{type(sampler).__name__} chooses by the scores of earlier trials, but with "
            f"num_lanes={num_lanes} all {num_trials} trials begin at once: take {ways_out}"
        )
