"""The outcome of a search in one program."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.tuning.explorers import of_agents
from jaxrl.tuning.finals import (
    WithFinals,
    finalists,
    mean_interval,
    mean_of_last_two,
    of_finals,
)
from jaxrl.tuning.objectives import Scores
from jaxrl.tuning.schedulers.contract import Ledger
from jaxrl.types import Array, PyTree


class FinalScores(NamedTuple):
    """The finals of a search: `top` settings with `repeats` new runs each."""

    trial: Array
    """`[top]` int32: the trials whose settings these are, in the order of the search."""
    scores: Array
    """`[top, repeats, P]`."""
    objectives: Scores
    """The scores of several objectives by name, `[top, repeats, P]` each."""
    score: Array
    """`[top]`: the mean over runs and over their last two phases; -inf if a run has no score."""

    @property
    def run_scores(self) -> Array:
        """The mean of each run's last two scores, `[top, repeats]`; -inf for runs without one."""
        return mean_of_last_two(self.scores)

    @property
    def interval(self) -> np.ndarray:
        """The ends of Student's 95% interval of each `score`, `[top, 2]`; not within `jit`.

        They are NaN for a single run, or if a run has no score. The winner's mean is rather too
        high, since it is the best of several.
        """
        return np.apply_along_axis(mean_interval, -1, np.asarray(self.run_scores))


class SearchResult(NamedTuple):
    """The outcome of a search of N trials of at most P phases."""

    ledger: Ledger
    """The scores that trials are compared by, and the status of each trial at the end."""
    objectives: Scores
    """The scores of several objectives by name, `[N, P]` each, NaN in phases that did not run; it
    is empty for a single objective."""
    values: dict[str, Array]
    """The hyperparameters with which the trials began, `[N]` each: the config's where a field is
    inactive (`When`)."""
    values_by_phase: dict[str, Array]
    """Those of each phase, `[N, P]`; an `Explorer` such as `PBT` changes them, no other scheduler
    does."""
    parent: Array
    """`[N, P]` int32: the trial whose agent each trial continued with after a phase."""
    lane: Array
    """`[N, P]` int32: the lane that ran each phase, -1 if none did."""
    round: Array
    """`[N, P]` int32: the round in which each phase ran, -1 if none."""
    num_rounds: Array
    """The rounds of the search and its finals."""
    finals: FinalScores | None
    best_trial: Array
    """The winner of the finals; without them the trial with the highest score of all phases. It is
    -1 if no score is finite; a setting of the finals has one if all its runs have."""
    best_state: PyTree
    """That trial's first agent, without environments on the host: at the end of the first run of
    its finals, or after the phase with the highest score; an arbitrary agent if no score is finite.
    """

    # The three properties are of one search; those of several are, for example,
    # jax.vmap(lambda result: result.schedule)(results).

    @property
    def late_scores(self) -> Array:
        """The mean of the last two scores of the agent with which each trial ended, `[N]`.

        Two scores are less subject to luck than the highest one of all phases. Phases without an
        ended episode are left out; it is -inf for trials without a score. An agent that an
        `Explorer` copied in the last phase brings the score of the phase before with it.
        """
        return mean_of_last_two(of_agents(self.ledger.scores, self.parent))

    @property
    def late_objectives(self) -> Array:
        """The `late_scores` by each objective, `[N, M]`, for `pareto_front`."""
        scores = [*self.objectives.values()] or [self.ledger.scores]
        return jnp.stack([mean_of_last_two(of_agents(x, self.parent)) for x in scores], axis=-1)

    @property
    def schedule(self) -> dict[str, Array]:
        """The values, `[N, P]` each, that led to the agent with which each trial ended."""
        return {name: of_agents(x, self.parent) for name, x in self.values_by_phase.items()}


def final_scores(
    scheduler: WithFinals, ledger: Ledger, objectives: Scores, parent: Array
) -> FinalScores:
    """Return the scores of the finals, given those of the whole search and its `parent`."""
    shape = (scheduler.finals.top, scheduler.finals.repeats)
    runs = of_finals(scheduler, ledger)
    trial, in_search = finalists(scheduler, ledger, parent)
    mean = mean_of_last_two(runs.scores).reshape(shape).mean(1)
    return FinalScores(
        trial=trial,
        scores=runs.scores.reshape(*shape, -1),
        objectives=jax.tree.map(
            lambda x: x[scheduler.search.num_trials :].reshape(*shape, -1), objectives
        ),
        # A capped search may end with fewer trials that have a score than finalists.
        score=jnp.where(jnp.isfinite(in_search), mean, -jnp.inf),
    )
