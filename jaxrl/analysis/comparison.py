"""Runs side by side: which of them differ by their seed alone, how they learned, what they scored.

Runs of one algorithm with the same settings are a method's; those of one method on one environment
are a group, which differ by their seeds.
"""

from __future__ import annotations

import collections
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.analysis.atari57 import game_of, human_normalized
from jaxrl.analysis.statistics import Estimate, estimate
from jaxrl.envs.host.base import SPEED_ONLY
from jaxrl.training import manifest as manifests
from jaxrl.training.loggers import read_jsonl, smoothed_returns
from jaxrl.training.progress import Row
from jaxrl.tuning.sweeps import state as sweeps

_CURVE_POINTS = 200
_MOST_TOLD = 3
_FACTS = ("algorithm", "env", "config", "seed", "command", "versions", "git_commit", "hardware")


class Run(NamedTuple):
    """What a run left in its directory."""

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
        """Mean of the last 100 episodes."""
        return float(smoothed_returns(self.rows)[1][-1])

    @property
    def evaluation(self) -> float | None:
        """Mean return of the last evaluation, None without one."""
        found = [row["eval_return"] for row in self.rows if "eval_return" in row]
        return found[-1] if found else None


class Group(NamedTuple):
    """Runs that differ by their seeds."""

    method: str
    env_id: str
    settings: dict[str, Any]
    runs: tuple[Run, ...]

    @property
    def final_returns(self) -> np.ndarray:
        """`[num_runs, 1]`, as `jaxrl.analysis.statistics` takes them."""
        return np.array([[run.final_return] for run in self.runs])


def read_run(directory: Path) -> Run:
    """A run that has trained.

    Raises:
      FileNotFoundError, ValueError: if there is none, or nothing to compare in it.
    """
    if not directory.exists():
        raise FileNotFoundError(
            f"{directory} does not exist; give directories of runs, such as runs/ppo-Pong-v5-seed1"
        )
    if (directory / sweeps.NAME).exists():
        raise ValueError(
            f"{directory} holds a sweep, not a run; leave it out, its own page is "
            f"{directory / 'report.html'}"
        )
    manifest = manifests.read(directory)
    if missing := [name for name in _FACTS if name not in manifest]:
        raise ValueError(
            f"{directory / manifests.NAME} lacks {', '.join(missing)}; give runs of jaxrl.run"
        )
    path = directory / "metrics.jsonl"
    if not path.exists():
        raise FileNotFoundError(f"{directory} has no {path.name}; train the run, or leave it out")
    rows = read_jsonl(path)
    if not any(row.get("episode_count") for row in rows):
        raise ValueError(
            f"{path} has no row in which an episode ended; train it for longer, or leave it out"
        )
    return Run(directory, manifest, rows)


def settings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """All that decides what a run computes but its algorithm, environment and seed."""
    env = manifest["env"]
    return {
        "total_steps": manifest.get("total_steps"),
        "num_envs": env["num_envs"],
        **{name: value for name, value in env["options"].items() if name not in SPEED_ONLY},
        **manifest["config"],
        "custom_network": manifest.get("custom_network", False),
    }


def groups(runs: Sequence[Run]) -> list[Group]:
    """Runs by environment, then by method, in the order of the first of each.

    Raises:
      ValueError: if two runs of a group have the same seed, or there are no runs.
    """
    if not runs:
        raise ValueError("there are no runs to compare; give directories of runs")
    found: dict[tuple[str, str], list[Run]] = collections.defaultdict(list)
    for run in runs:
        found[run.env_id, _identity(run)].append(run)
    for together in found.values():
        _check_seeds(together)
    labels = _labels(runs)
    env_ids = list(dict.fromkeys(run.env_id for run in runs))
    return [
        Group(labels[method], env_id, settings(together[0].manifest), tuple(together))
        for (env_id, method), together in sorted(
            found.items(), key=lambda item: env_ids.index(item[0][0])
        )
    ]


def differing(columns: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of what is not the same in all of them; a name that one lacks is."""
    columns = list(columns)
    names = dict.fromkeys(itertools.chain(*columns))
    values = lambda name: {json.dumps(x[name]) if name in x else None for x in columns}  # noqa: E731
    return [name for name in names if len(values(name)) > 1]


def curve(group: Group, over: str) -> tuple[np.ndarray, Estimate]:
    """Mean over seeds of the return of the last 100 episodes, against `steps` or `seconds`.

    Both are `[num_points]`, and end where the first of the seeds does.
    """
    curves = [smoothed_returns(run.rows, over=over) for run in group.runs]
    stop = min(x[-1] for x, _ in curves)
    start = min(stop, max(x[0] for x, _ in curves))
    grid = np.linspace(start, stop, _CURVE_POINTS)
    returns = np.array([np.interp(grid, x, y) for x, y in curves])
    return grid, estimate(lambda scores: scores.mean(-2), returns)


def is_atari(groups: Sequence[Group]) -> bool:
    """Whether all environments have human-normalized scores."""
    return all(game_of(group.env_id) is not None for group in groups)


def over_games(groups: Sequence[Group]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Human-normalized scores `[num_runs, num_games]` by method; why others have none."""
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


def _identity(run: Run) -> str:
    return json.dumps([run.manifest["algorithm"], settings(run.manifest)], sort_keys=True)


def _labels(runs: Sequence[Run]) -> dict[str, str]:
    """Short names of the methods: the algorithm, and what tells it from others or, where that would
    be long, a number."""
    methods = {_identity(run): (run.manifest["algorithm"], settings(run.manifest)) for run in runs}
    labels = {}
    for identity, (algorithm, own) in methods.items():
        rivals = [others for name, others in methods.values() if name == algorithm]
        names = differing(rivals)
        values = ", ".join(f"{name}={own[name]}" for name in names if name in own)
        number = f"#{rivals.index(own) + 1}"
        labels[identity] = f"{algorithm} {values if len(names) <= _MOST_TOLD else number}".strip()
    return labels


def _check_seeds(runs: Sequence[Run]) -> None:
    by_seed: dict[int, Run] = {}
    for run in runs:
        if run.seed in by_seed:
            raise ValueError(
                f"{by_seed[run.seed].directory} and {run.directory} have the same settings and "
                f"seed {run.seed}; give one of them"
            )
        by_seed[run.seed] = run
