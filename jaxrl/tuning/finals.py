"""Finals: the best settings of a search train again, on seeds that no trial used.

A search picks its best trial by the very scores that it reports. The highest of many noisy scores
is partly luck, so it overstates what its settings reach with another seed. New runs tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import stdtrit

from jaxrl import checks
from jaxrl.tuning.explorers import of_agents
from jaxrl.tuning.objectives import agent_returns
from jaxrl.tuning.schedulers import ledger as ledgers
from jaxrl.tuning.schedulers.contract import Ledger, Status
from jaxrl.tuning.schedulers.wrapper import Capped, Wrapper
from jaxrl.types import Algorithm, Array


@dataclass(frozen=True)
class Finals:
    """New runs of a search's best settings, which choose its winner."""

    top: int = 4
    """Trials whose settings train again, chosen by the mean of their agents' last two scores."""
    repeats: int = 5
    """New runs of each, for all phases, with as many agents as a trial has."""
    share: float = 0.2
    """The most that finals may cost, as a share of all phases of all trials, or of those that
    `max_steps` allows."""

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "top", "repeats")
        checks.fields(self, checks.number, "share", allowed=checks.POSITIVE)

    def most(self, num_trials: int, allowed: float = math.inf) -> int:
        """Return how many settings of a search of N trials the share allows.

        Args:
          allowed: how many whole trials the cap of the search allows.
        """
        budget = self.share * min(num_trials, allowed)
        return min(int(budget / self.repeats + 1e-9), num_trials)

    def check(self, num_trials: int, allowed: float = math.inf) -> None:
        """Raise `ValueError` if N trials, or those that a cap allows, are too few for these finals.

        Args:
          allowed: see `most`.
        """
        if self.top > num_trials:
            raise ValueError(f"top must be at most {num_trials}, all trials, got {self.top}")
        runs, whole = self.top * self.repeats, min(num_trials, allowed)
        if self.top > self.most(num_trials, allowed):
            trials, more = f"the {num_trials} trials of the search", "search more trials"
            if whole < num_trials:
                trials = f"the {whole:.3g} whole trials that max_steps allows"
                more = "raise max_steps (--max-steps)"
            raise ValueError(
                f"finals of {self.top} settings with {self.repeats} runs each are {runs} runs, "
                f"{runs / whole:.3g} times {trials}, more than "
                f"share={self.share:.3g}; lower top or repeats (--final-trials, --final-runs), "
                f"raise share (--final-share), or {more}"
            )


@dataclass(frozen=True)
class WithFinals(Wrapper):
    """A search and its finals as one scheduler, whose last `top * repeats` trials are the finals.

    They are PAUSED until no trial of the search can go on.
    """

    finals: Finals

    def __post_init__(self) -> None:
        allowed = math.inf
        if isinstance(self.search, Capped):
            allowed = self.search.max_phases / self.search.num_phases
        self.finals.check(self.search.num_trials, allowed)

    @property
    def num_trials(self) -> int:
        """The trials of the search and the runs of the finals."""
        return self.search.num_trials + self.finals.top * self.finals.repeats

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        """Judge as the search does; once none of its trials can go on, the finals may begin."""
        number = self.search.num_trials
        own = of_search(self, ledger)
        judged = self.search.judge(own, jnp.minimum(trial, number - 1))
        status = jnp.where(trial < number, judged, own.status)
        # ASHA leaves some trials paused for ever.
        is_idle = (status >= Status.STOPPED) | (status == Status.PAUSED)
        has_ended = (is_idle | (own.reported >= self.num_phases)).all()
        finals = ledger.status[number:]
        begins = has_ended & (finals == Status.PAUSED)
        return jnp.concatenate([status, jnp.where(begins, Status.WAITING, finals)])


def start(scheduler: WithFinals) -> Ledger:
    """Return the ledger before the first report, in which the finals wait for the search."""
    ledger = ledgers.start(scheduler)
    number = scheduler.search.num_trials
    return ledger._replace(status=ledger.status.at[number:].set(Status.PAUSED))


def of_search(scheduler: WithFinals, ledger: Ledger) -> Ledger:
    """Return the rows of the search's trials."""
    return jax.tree.map(lambda x: x[: scheduler.search.num_trials], ledger)


def of_finals(scheduler: WithFinals, ledger: Ledger) -> Ledger:
    """Return the rows of the finals, `[top * repeats]`; those of a setting follow each other."""
    return jax.tree.map(lambda x: x[scheduler.search.num_trials :], ledger)


def mean_of_last_two(scores: Array | np.ndarray) -> Array:
    """Return the mean of the last two scores that are not NaN, `[..., P] -> [...]`, else -inf.

    Two scores are less subject to luck than the highest one of all phases.
    """
    has_score = ~jnp.isnan(scores)
    left = jnp.cumsum(has_score[..., ::-1], axis=-1)[..., ::-1]  # scores from each phase on
    is_late = has_score & (left <= 2)
    mean = jnp.nanmean(jnp.where(is_late, scores, jnp.nan), axis=-1)
    return jnp.where(jnp.isnan(mean), -jnp.inf, mean)


def mean_interval(scores: np.ndarray) -> tuple[float, float]:
    """Return the ends of Student's 95% interval of the mean of a setting's runs.

    A percentile bootstrap of three runs would contain the mean of all runs in 75% of cases only.
    The ends are NaN for a single run, or if a run has no finite score.

    Args:
      scores: of the runs, `[repeats]`.
    """
    if len(scores) < 2 or not np.isfinite(scores).all():
        return np.nan, np.nan
    number = len(scores)
    half = stdtrit(number - 1, 0.975) * np.std(scores, ddof=1) / np.sqrt(number)
    return float(np.mean(scores) - half), float(np.mean(scores) + half)


def finalists(scheduler: WithFinals, ledger: Ledger, parent: Array) -> tuple[Array, Array]:
    """Return the trials `[top]` whose settings the finals take, the best first, and their scores.

    A score is the mean of the last two of a trial's agent.

    Args:
      parent: `[N, P]`, `SearchResult.parent`.
    """
    late = mean_of_last_two(of_agents(of_search(scheduler, ledger).scores, parent))
    scores, trials = jax.lax.top_k(late, scheduler.finals.top)
    return trials, scores


def retrain(
    algo: Algorithm, config: Any, updates_per_phase: int, schedule: dict[str, Array], key: Array
) -> Array:
    """Return the mean return in each phase, `[P]`, of a new agent that trains with a schedule.

    `vmap` it over schedules and keys.

    Args:
      config: gives the values that the schedule lacks.
      schedule: hyperparameters of each phase, `[P]` each, such as a trial's row of
        `SearchResult.schedule`.
    """

    def phase(state: Any, values: dict[str, Array]) -> tuple[Any, Any]:
        now = config.replace(**values)
        return jax.lax.scan(lambda s, _: algo.update(now, s), state, length=updates_per_phase)

    first = config.replace(**{name: x[0] for name, x in schedule.items()})
    _, metrics = jax.lax.scan(phase, algo.init(first, key), schedule)
    return agent_returns(metrics)
