"""Records: the JSON files that keep the results of finished runs and studies, and their curves."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from jaxrl.files import schema
from jaxrl.files.changes import changed_settings
from jaxrl.files.whole import write_whole
from jaxrl.networks.heads import ActorCriticHead
from jaxrl.ops import statistics
from jaxrl.spaces import ACTION_MASK, Box, has_action_mask
from jaxrl.training.curve import smoothed_returns
from jaxrl.training.progress.rows import Row
from jaxrl.tuning.finals import mean_interval
from jaxrl.types import Algorithm, Metrics

CURVE_POINTS = 200
"""Points of a recorded learning curve, at most."""
RUNS: schema.Table = {
    "random_policy": schema.Field(schema.object_with({"mean_return": schema.Field(schema.NUMBER)})),
    "runs": schema.Field(schema.list_of(schema.object_with({
        "manifest": schema.Field(schema.OBJECT),
        "summary": schema.Field(
            schema.object_with({"mean_return": schema.Field(schema.NUMBER)})
        ),
        "evaluation": schema.Field(schema.object_with({
            "greedy": schema.Field(schema.SWITCH, required=False),
            "episodes": schema.Field(schema.COUNT),
            "mean_return": schema.Field(schema.NUMBER),
        }), required=False),
    }))),
}  # fmt: skip
"""A record of runs, as `save_runs` writes it."""


def mean_returns_by_part(metrics: Metrics) -> np.ndarray:
    """Return mean returns over 50 parts of training, `[P, parts]`; NaN where no episode ended.

    Args:
      metrics: of P agents and all their updates, leaves `[P, num_updates]`.
    """

    def by_part(name: str) -> np.ndarray:
        values = np.asarray(metrics[name])
        parts = np.array_split(values, min(50, values.shape[1]), axis=1)
        return np.stack([part.sum(1) for part in parts], 1)

    counts = by_part("episode_count")
    return by_part("episode_return_sum") / np.where(counts, counts, np.nan)


def summarize_seeds(
    scores: np.ndarray, statistic: statistics.Statistic = statistics.mean
) -> dict[str, Any]:
    """Return a statistic over seeds `[seeds]`, with its 95% interval and all scores.

    The interval of a mean is Student's, since a bootstrap of three to ten runs contains the true
    mean in 75% to 89% of cases only. Other statistics have the bootstrap's. The ends are None for a
    single seed.
    """
    value, *ends = statistics.estimate(statistic, scores[:, None])
    if statistic is statistics.mean:
        ends = mean_interval(scores)
    low, high = (None if len(scores) < 2 else round(float(end), 4) for end in ends)
    rounded = {"value": round(float(value), 4), "low": low, "high": high}
    return rounded | {"by_seed": scores.round(4).tolist()}


def interval_text(summary: dict[str, Any], digits: int) -> str:
    """Return the value of `summarize_seeds` as text, and its interval if it has one."""
    value = f"{summary['value']:.{digits}f}"
    if summary["low"] is None:
        return value
    return f"{value} ({summary['low']:.{digits}f} to {summary['high']:.{digits}f})"


def rounded_curve(curve: np.ndarray) -> list[float | None]:
    """Return numbers `[T]` as JSON holds them: to three places, and None instead of NaN."""
    return [None if np.isnan(x) else round(float(x), 3) for x in curve]


def save_record(directory: Path, name: str, record: dict[str, Any]) -> Path:
    """Write `name.json`, whole or not at all, and return the path of the picture beside it."""
    path = directory / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(record, indent=1) + "\n")
    return directory / f"{name}.png"


def read_runs(path: Path) -> dict[str, Any]:
    """Return a record of runs, as `save_runs` wrote it.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is damaged, or a record of something else.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no record {path}; give a path, or the name of a file in --results, which is "
            "experiments/results of a clone unless it is given"
        )
    record = schema.read(path, {})
    if missing := [name for name in RUNS if name not in record]:
        raise ValueError(
            f"{path} is no record of runs, which experiments/record.py writes: it has no "
            f"{' and no '.join(missing)}"
        )
    return schema.read(path, RUNS)


def keep_record(
    directory: Path, name: str, settings: dict[str, Any], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return the record of these settings in `name.json`; make and write it if there is none.

    So a study of many parts goes on after a kill with the parts that are not finished.

    Raises:
      ValueError: if the file was made with other settings.
    """
    path = directory / f"{name}.json"
    if not path.exists():
        save_record(directory, name, {"settings": settings, **make()})
    record = json.loads(path.read_text())
    if changes := changed_settings(
        record["settings"], settings, {**record["settings"], **settings}
    ):
        raise ValueError(
            f"{path} was made with other settings; choose another directory, or undo these "
            "changes:\n  " + "\n  ".join(changes)
        )
    return record


def uniformly_random(algo: Algorithm) -> Algorithm:
    """Return the algorithm with a policy that ignores observations, but for their action mask."""
    space = algo.env.action_space
    is_masked = has_action_mask(algo.env.observation_space, space)
    head = ActorCriticHead(space)

    def act(
        config: Any, state: Any, carry: Any, obs: Any, key: jax.Array, greedy: bool
    ) -> tuple[Any, jax.Array]:
        number = len(jax.tree.leaves(obs)[0])
        if isinstance(space, Box):
            low, high = np.clip(space.bounds(), -1e3, 1e3)  # without bounds they would be NaN
            return carry, jax.random.uniform(key, (number, *space.shape), None, low, high)
        # With weights of zero all allowed actions are equally probable.
        features, mask = jnp.zeros((number, 1)), obs[ACTION_MASK] if is_masked else None
        params = jax.tree.map(jnp.zeros_like, head.init(key, features, action_mask=mask))
        distribution, _ = head.apply(params, features, action_mask=mask)
        return carry, distribution.sample(key)

    return algo._replace(act=act)


def describe_scores(returns: np.ndarray) -> dict[str, float]:
    """Return mean, standard deviation and standard error of the returns `[episodes]`.

    Raises:
      ValueError: if episodes were cut short, whose returns are NaN.
    """
    if num_cut := int(np.isnan(returns).sum()):
        raise ValueError(
            f"{num_cut} of {len(returns)} episodes were cut short, so they have no mean return"
        )
    return {
        "episodes": len(returns),
        "mean_return": float(returns.mean()),
        "std": float(returns.std(ddof=1)),
        "standard_error": float(returns.std(ddof=1) / np.sqrt(len(returns))),
    }


def describe_run(
    manifest: dict[str, Any],
    summary: dict[str, Any],
    rows: Sequence[Row],
    returns: np.ndarray | None,
) -> dict[str, Any]:
    """Return a run as its record has it, with the curve thinned to `CURVE_POINTS`.

    Args:
      rows: of its metrics.
      returns: of a greedy evaluation, `[episodes]`; None if there was none.

    Raises:
      ValueError: if no training episode ended, or evaluated ones were cut short.
    """
    if summary["mean_return"] is None:
        raise ValueError(
            f"no training episode of seed {manifest['seed']} ended, so the run has no score; give "
            "it more --total-steps"
        )
    steps, curve = smoothed_returns(rows)
    kept = np.unique(np.linspace(0, len(steps) - 1, CURVE_POINTS).astype(int))
    described = {
        "manifest": manifest,
        "summary": summary,
        "curve": {
            "steps": steps[kept].tolist(),
            "mean_return_of_last_100_episodes": rounded_curve(curve[kept]),
        },
    }
    if returns is not None:
        described["evaluation"] = {"greedy": True} | describe_scores(returns)
    return described


def save_runs(
    directory: Path,
    name: str,
    runs: Sequence[dict[str, Any]],
    random_returns: np.ndarray,
    note: str,
) -> None:
    """Write the record of runs, and its picture beside it, and print a summary.

    Args:
      runs: as `describe_run` returns them.
      random_returns: of a uniformly random policy, `[episodes]`.
      note: a sentence about the circumstances.
    """
    final = {str(run["manifest"]["seed"]): run["summary"]["mean_return"] for run in runs}
    result = {
        "name": name,
        "mean_return": float(np.mean([*final.values()])),
        "mean_return_by_seed": final,
        "random_policy": describe_scores(random_returns),
        "note": note,
        "runs": list(runs),
    }
    _draw(result).savefig(save_record(directory, name, result))
    print(f"{name}: mean return {result['mean_return']:.2f} over {len(runs)} seeds, {final}")
    evaluated = {
        run["manifest"]["seed"]: run["evaluation"]["mean_return"]
        for run in runs
        if "evaluation" in run
    }
    print(f"evaluated: {evaluated}, random policy: {result['random_policy']}")


def _draw(result: dict[str, Any]) -> Figure:
    """Return the curves of a record's runs."""
    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for run in result["runs"]:
        axes.plot(*run["curve"].values(), label=f"seed {run['manifest']['seed']}")
    baseline = result["random_policy"]["mean_return"]
    axes.axhline(baseline, color="gray", linestyle="--", label="random policy")
    manifest = result["runs"][0]["manifest"]
    title = f"{manifest['algorithm'].upper()} on {manifest['env']['id']}"
    axes.set_title(title, parse_math=False)
    axes.set(xlabel="environment steps", ylabel="return, mean of last 100 episodes")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure
