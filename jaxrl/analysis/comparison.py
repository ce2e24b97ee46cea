"""Read runs, group those that differ by their seed alone, and compute their curves and scores.

A method is an algorithm with its settings. A group is all runs of one method on one environment.
"""

from __future__ import annotations

import collections
import itertools
import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.analysis.atari57 import game_of, human_normalized
from jaxrl.envs.host_adapter import learning_options
from jaxrl.ops.statistics import Estimate, estimate
from jaxrl.training.curve import smoothed_returns
from jaxrl.training.loggers import read_jsonl
from jaxrl.training.progress.rows import Row
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.directory import SUMMARY, read_summary
from jaxrl.tuning.sweeps import sweep_file as sweeps

_CURVE_POINTS = 200
_MOST_NAMED = 3  # settings in a method's label; with more it has a number
_NEEDED = ("seed", "command", "versions", "git_commit", "hardware")


class Run(NamedTuple):
    """A run's directory, with its manifest and its rows of metrics."""

    directory: Path
    manifest: dict[str, Any]
    rows: list[Row]

    @property
    def env_id(self) -> str:
        return self.manifest["env"]["id"]

    @property
    def seed(self) -> int:
        return self.manifest["seed"]

    @property
    def final_return(self) -> float:
        """Return the mean return of the last 100 training episodes."""
        return float(smoothed_returns(self.rows)[1][-1])

    @property
    def evaluation(self) -> float | None:
        """Return the mean return of the last evaluation, None without one."""
        found = [row["eval_return"] for row in self.rows if "eval_return" in row]
        return found[-1] if found else None

    @property
    def commands(self) -> list[str]:
        """Return the command that started the run, and those that resumed it."""
        origins = [self.manifest, *self.manifest.get("resumptions", [])]
        return [origin["command"] for origin in origins]

    @property
    def is_finished(self) -> bool:
        """Return whether the run trained to its end."""
        is_over = (self.directory / SUMMARY).exists()
        return is_over and not read_summary(self.directory)["interrupted"]


class Group(NamedTuple):
    """Runs of one method on one environment; they differ by their seeds."""

    method: str
    env_id: str
    settings: dict[str, Any]
    runs: tuple[Run, ...]

    @property
    def final_returns(self) -> np.ndarray:
        """Return the final returns `[num_runs, 1]`, as `jaxrl.ops.statistics` takes them."""
        return np.array([[run.final_return] for run in self.runs])


def read_run(directory: Path) -> Run:
    """Read a run's manifest and metrics.

    Raises:
      FileNotFoundError, ValueError: if `directory` is not a run's, or no episode ended in the run.
    """
    if (directory / sweeps.NAME).exists():
        raise ValueError(
            f"{directory} holds a sweep, not a run; leave it out (its page is "
            f"{directory / 'report.html'})"
        )
    manifest = manifests.read(directory, _NEEDED)
    path = directory / "metrics.jsonl"
    if "trial" in manifest:
        raise ValueError(
            f"{directory} holds an agent that a sweep kept, without its learning curve; give "
            "directories of runs"
        )
    rows = [row for row in read_jsonl(path) if "steps" in row]
    needed = {"episode_return", "steps", "seconds"}
    if not any(row.get("episode_count") and needed <= row.keys() for row in rows):
        raise ValueError(
            f"no episode ended in {path}, or its rows lack one of {sorted(needed)}; train the run "
            "for longer, or leave it out"
        )
    return Run(directory, manifest, rows)


def run_settings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide a result, besides algorithm, environment and seed."""
    env, config = manifest["env"], manifest["config"]
    options, agent = learning_options(env["options"]), manifest.get("init_from")
    return {
        "total_steps": manifest.get("total_steps"),
        "num_envs": env["num_envs"],
        **{f"env.{name}" if name in config else name: value for name, value in options.items()},
        **config,
        "custom_network": manifest.get("custom_network", False),
        **({} if agent is None else {"init_from": _name_of_agent(agent)}),
    }


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs by environment, then by method, in the order in which each first appears.

    Warns of runs with networks of their users and without labels, since nothing tells whether their
    networks are the same.

    Raises:
      ValueError: if two runs of a group have the same seed, or there are no runs.
    """
    if not runs:
        raise ValueError("there are no runs to compare; give directories of runs")
    found: dict[tuple[str, str], dict[int, Run]] = collections.defaultdict(dict)
    for run in runs:
        by_seed = found[run.env_id, _identity(run)]
        if run.seed in by_seed:
            raise ValueError(
                f"{by_seed[run.seed].directory} and {run.directory} have the same settings and "
                f"seed {run.seed}; give one of them, or each a label (--label of jaxrl train)"
            )
        by_seed[run.seed] = run
    labels = _labels(runs)
    groups = []
    for (env_id, method), by_seed in found.items():
        own = tuple(by_seed.values())
        if len(own) > 1 and own[0].manifest.get("custom_network") and not _label(own[0]):
            warnings.warn(
                f"{own[0].directory} and {own[1].directory} have networks of your own and no "
                "labels, so they count as one method; if their networks differ, train with a "
                "label for each",
                stacklevel=2,
            )
        groups.append(Group(labels[method], env_id, run_settings(own[0].manifest), own))
    env_ids = list(dict.fromkeys(run.env_id for run in runs))
    return sorted(groups, key=lambda group: env_ids.index(group.env_id))


def differing_names(columns: Collection[Mapping[str, Any]]) -> list[str]:
    """Return the names whose values are unequal, or missing, in some of the columns."""
    names = dict.fromkeys(itertools.chain(*columns))
    return [
        name
        for name in names
        if len({_as_text(column[name]) if name in column else None for column in columns}) > 1
    ]


def mean_curve(group: Group, over: str) -> tuple[np.ndarray, Estimate]:
    """Return a learning curve: the return of the last 100 episodes, mean over seeds.

    Args:
      over: `steps` or `seconds`.

    Returns:
      Points on that axis and estimates, leaves `[num_points]`. Both end where the seed that is
      shortest ends.
    """
    curves = [smoothed_returns(run.rows, over=over) for run in group.runs]
    for run, curve in zip(group.runs, curves, strict=True):
        if not np.isfinite(curve).all():
            raise ValueError(
                f"{run.directory / 'metrics.jsonl'} has values whose mean return over {over} is "
                "not finite; leave the run out"
            )
    stop = min(x[-1] for x, _ in curves)
    start = min(stop, max(x[0] for x, _ in curves))
    grid = np.linspace(start, stop, _CURVE_POINTS)
    returns = np.array([np.interp(grid, x, y) for x, y in curves])
    return grid, estimate(lambda scores: scores.mean(-2), returns)


def has_human_scores(groups: Sequence[Group]) -> bool:
    """Return whether all environments are Atari games with a human's score."""
    return all(game_of(group.env_id) is not None for group in groups)


def scores_over_games(
    groups: Sequence[Group],
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return human-normalized scores over all games by method.

    Returns:
      Scores `[num_runs, num_games]` of the methods that have equally many runs on each game, and
      for each other method the reason why it is left out.
    """
    env_ids = dict.fromkeys(group.env_id for group in groups)
    scores, left_out = {}, {}
    for method in dict.fromkeys(group.method for group in groups):
        own = {group.env_id: group for group in groups if group.method == method}
        missing = [env_id for env_id in env_ids if env_id not in own]
        counts = sorted({len(group.runs) for group in own.values()})
        if missing:
            left_out[method] = f"no run on {', '.join(missing)}"
        elif len(counts) > 1:
            left_out[method] = f"{counts[0]} to {counts[-1]} seeds a game, not equally many"
        else:
            columns = [human_normalized(e, own[e].final_returns) for e in env_ids]
            scores[method] = np.concatenate(columns, 1)
    return scores, left_out


def _name_of_agent(agent: Mapping[str, Any]) -> str:
    """Return a text that is equal for the same agent that runs began from."""
    return f"{agent['run_id']}, update {agent.get('update')}" if agent.get("run_id") else "an agent"


def _identity(run: Run) -> str:
    """Return a text that is equal for runs of one method.

    Runs with a label may begin from agents of their own, such as one for each seed.
    """
    settings = run_settings(run.manifest)
    if _label(run):
        settings.pop("init_from", None)
    return _as_text([_name(run), settings])


def _as_text(value: Any) -> str:
    """Return JSON data as a text that is equal for equal data; 1 and 1.0 are equal."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [plain(part) for part in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return json.dumps(plain(value), sort_keys=True)


def _name(run: Run) -> str:
    """Return the label that a run was given, or the name of its algorithm."""
    return _label(run) or run.manifest["algorithm"]


def _label(run: Run) -> str | None:
    """Return the label that a run was given."""
    return run.manifest.get("label")


def _labels(runs: Sequence[Run]) -> dict[str, str]:
    """Return short names of the methods by identity.

    A name is the runs' label or algorithm, and the settings that differ among the methods of that
    name, or a number if more than `_MOST_NAMED` settings differ.
    """
    methods = {_identity(run): (_name(run), run_settings(run.manifest)) for run in runs}
    labels, used = {}, collections.Counter[str]()
    for identity, (shared, own) in methods.items():
        rivals = [others for name, others in methods.values() if name == shared]
        names = differing_names(rivals)
        values = ", ".join(f"{name}={own[name]}" for name in names if name in own)
        number = f"#{rivals.index(own) + 1}"
        label = f"{shared} {values if len(names) <= _MOST_NAMED else number}".strip()
        used[label] += 1  # a run's own label may be such a name
        labels[identity] = label if used[label] == 1 else f"{label} ({used[label]})"
    return labels
