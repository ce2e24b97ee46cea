"""Objectives: the score of a trial's phase, given the metrics of its agents in that phase.

A trial has K agents, which differ by their seed only. An objective is a pure function that maps
their metrics, leaves `[K, num_updates]` by the names of docs/reference/metrics.md, to one score;
higher is better. A score of NaN says that no episode ended, -inf that the trial diverged. A score
of +inf becomes -inf.

Searches and sweeps also take several objectives by name, `{"mean": mean_return, "lowest":
lowest_return}`. Of each of them higher is better: negate costs. Schedulers, explorers, samplers,
finals and leaderboards compare trials by the first one only. The scores of all are stored, and
`pareto_front` compares trials by all.

The objectives of this module combine the agents' returns (`agent_returns`). They leave out agents
whose episodes have not ended yet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import checks
from jaxrl.training.evaluate import evaluate
from jaxrl.types import Algorithm, Array, Metrics

Objective = Callable[[Metrics], Array]
Objectives = Objective | Mapping[str, Objective]
"""One objective, or several by name, of which the first one compares trials."""
Scores = OrderedDict[str, Array]
"""Scores by name. JAX would sort the names of a plain dictionary, and lose which comes first."""


def check_objective(objective: Any) -> Objectives:
    """Return one objective or several; raise `ValueError` for something else."""
    if callable(objective):
        return objective
    if not isinstance(objective, Mapping) or len(objective) < 2:
        kinds = "a function, or a dictionary of two or more functions by name"
        raise checks.refuse("objective", kinds, objective)
    for name, one in objective.items():
        checks.function(f"objective[{checks.text('a name of objective', name)!r}]", one)
    return objective


def names_of(objective: Objectives) -> list[str]:
    """Return the names of several objectives in their order; none of a single one."""
    return [] if callable(objective) else list(objective)


def score(objective: Objectives, metrics: Metrics) -> tuple[Array, Scores]:
    """Return the score that trials are compared by, and all scores by name if there are several.

    Raises:
      ValueError: for an objective that looks for another metric, returns no number, or cannot be
        compiled.
    """
    if callable(objective):
        try:
            found = objective(metrics)
        except KeyError as error:
            raise ValueError(
                f"objective {objective} finds no {error}; the metrics of a phase are "
                f"{sorted(metrics)}"
            ) from error
        except (
            jax.errors.ConcretizationTypeError,
            jax.errors.TracerArrayConversionError,
        ) as error:
            raise ValueError(
                f"objective {objective} must compute by jax.numpy, since it is compiled: metrics "
                "take no float(), .item(), NumPy function or Python `if`"
            ) from error
        try:
            found = jnp.asarray(found).astype(jnp.float32)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"objective must return one number, but {objective} returned {found}"
            ) from error
        if found.shape:
            raise ValueError(
                f"objective must return one number, but {objective} returned an array "
                f"{list(found.shape)}; reduce it, as by .mean()"
            )
        return jnp.where(jnp.isposinf(found), -jnp.inf, found), Scores()
    scores = Scores((name, score(one, metrics)[0]) for name, one in objective.items())
    return next(iter(scores.values())), scores


def check_score(
    objective: Objectives, algo: Algorithm, config: Any, num_episodes: int, seeds_per_trial: int
) -> None:
    """Raise `ValueError`, without any training, if a sweep's objective gives no score of a phase.

    Args:
      num_episodes: those of an evaluation after each phase, 0 for none.
    """

    def scores(config: Any, key: Array) -> tuple[Array, Scores]:
        state, metrics = algo.update(config, algo.init(config, key))
        if num_episodes:
            phase = jnp.int32(0)
            metrics = metrics | greedy_metrics(algo, num_episodes, config, state, key, phase)
        of_phase = (seeds_per_trial, 1)
        return score(
            objective,
            {
                name: jnp.broadcast_to(x, of_phase).astype(jnp.float32)
                for name, x in metrics.items()
            },
        )

    jax.eval_shape(scores, config, jax.random.key(0))  # traced only: no simulator starts


@jax.jit
def pareto_front(scores: Array) -> Array:
    """Return which rows of `[N, M]` scores lie on the Pareto front, `[N]` bool.

    Of each score higher is better. A row lies on the front if no other row is at least as high in
    all scores and higher in one. So equal rows lie on it together. Rows with a score that is not
    finite never lie on it, and keep no other row from it.

    Raises:
      ValueError: for an array of another shape.
    """
    if isinstance(scores, Mapping):
        raise ValueError(
            "scores must be an array [N, M], got scores by name; give a SearchResult's "
            "late_objectives"
        )
    scores = jnp.asarray(scores)
    if scores.ndim != 2:
        raise ValueError(f"scores must be an array [N, M], got one of shape {scores.shape}")
    has_scores = jnp.isfinite(scores).all(-1)
    others, own = scores[None], scores[:, None]
    is_better = (others >= own).all(-1) & (others > own).any(-1) & has_scores
    return has_scores & ~is_better.any(-1)


def greedy_metrics(
    algo: Algorithm, num_episodes: int, config: Any, state: Any, key: Array, phase: Array
) -> Metrics:
    """Return an agent's metrics of whole episodes of its greedy policy, `[1]` each.

    They take the places of those of its training episodes, which explore.

    Args:
      key: the agent's.
      phase: the one after which it is evaluated.
    """
    env = algo.env.for_evaluation(num_episodes)
    key = jax.random.fold_in(jax.random.fold_in(key, phase), 1)
    scores = evaluate(algo, config, state, env, key, 1, greedy=True)
    return {
        "episode_return_sum": jnp.nansum(scores.episode_return)[None],
        "episode_length_sum": jnp.nansum(scores.episode_length)[None],
        "episode_count": (~jnp.isnan(scores.episode_return)).sum()[None],
    }


def check_evaluation(algo: Algorithm, num_episodes: Any) -> int:
    """Return the number of episodes to evaluate, 0 for none.

    Raises:
      ValueError: for a bad number, or episodes on the host.
    """
    num_episodes = checks.integer("evaluation_episodes", num_episodes, 0)
    if num_episodes and not algo.env.checkpointable:
        raise ValueError(
            f"evaluation_episodes={num_episodes} needs environments on the device, but "
            f"{algo.env.id} has its simulators on the host; score training episodes (0)"
        )
    return num_episodes


def agent_returns(metrics: Metrics) -> Array:
    """Return each agent's mean return of the episodes that ended in the phase, `[K]`.

    It is NaN without such an episode, and -inf if a loss was not finite. An algorithm without the
    metric `loss` never diverges.
    """
    episodes = metrics["episode_count"].sum(-1)
    mean = metrics["episode_return_sum"].sum(-1) / jnp.maximum(episodes, 1)
    diverged = ~jnp.isfinite(metrics.get("loss", jnp.zeros_like(mean)[:, None])).all(-1)
    score = jnp.where(episodes > 0, mean, jnp.nan)
    return jnp.where(diverged | jnp.isinf(score), -jnp.inf, score).astype(jnp.float32)


def mean_return(metrics: Metrics) -> Array:
    """Return the mean over agents; -inf if one of them diverged."""
    return jnp.nanmean(agent_returns(metrics))


def median_return(metrics: Metrics) -> Array:
    """Return the median over agents."""
    return jnp.nanmedian(agent_returns(metrics))


def interquartile_mean_return(metrics: Metrics) -> Array:
    """Return the mean over agents without the best and the worst quarter of them."""
    ordered = jnp.sort(agent_returns(metrics))  # NaN comes last
    number = (~jnp.isnan(ordered)).sum()
    cut = number // 4
    place = jnp.arange(len(ordered))
    return jnp.nanmean(jnp.where((place >= cut) & (place < number - cut), ordered, jnp.nan))


def lowest_return(metrics: Metrics) -> Array:
    """Return the return of the worst agent."""
    return jnp.nanmin(agent_returns(metrics))


def mean_minus_deviations(number: float) -> Objective:
    """Return the objective that subtracts `number` standard deviations over agents from the mean.

    It prefers settings that work for most seeds to those that are better on average.
    """
    if isinstance(number, Mapping):  # metrics: the function itself was given as the objective
        raise ValueError("objective must be mean_minus_deviations(1.0), with its number")
    number = checks.number("number", number, checks.NOT_NEGATIVE)

    def objective(metrics: Metrics) -> Array:
        returns = agent_returns(metrics)
        score = jnp.nanmean(returns) - number * jnp.nanstd(returns)
        return jnp.where(jnp.isneginf(returns).any(), -jnp.inf, score)

    objective.__name__ = f"mean_minus_{number:g}_deviations"  # sweeps record it
    return objective
