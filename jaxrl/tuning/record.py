"""What a sweep leaves in its directory: `sweep.json`, and the best agents under `best/`."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl import config as fields
from jaxrl import manifest as manifests
from jaxrl.checkpoint import Checkpoints, check_path
from jaxrl.envs.hosted import SPEED_ONLY
from jaxrl.tuning import space as spaces
from jaxrl.tuning.schedulers import Ledger, Scheduler, Status
from jaxrl.types import Algorithm, PyTree

NAME = "sweep.json"
SAME = ("algorithm", "env", "num_envs", "env_options", "config", "seed", "scheduler", "sampler",
        "lanes", "phase", "space")  # fmt: skip
"""What a resumed sweep must have in common with the one before it."""
_SHARED = ("algorithm", "env", "num_envs", "config", "scheduler", "phase", "space")


def shared(description: dict[str, Any]) -> dict[str, Any]:
    """What all workers of a study must have in common: all that learning depends on."""
    options = description["env_options"].items()
    learning = {name: value for name, value in options if name not in SPEED_ONLY}
    return {name: description[name] for name in _SHARED} | {"env_options": learning}


def trials(ledger: Ledger, values: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """All trials that have begun, as `sweep.json` has them; `values` are by trial."""
    scores, reported, status = (np.asarray(x) for x in ledger)
    return [
        {
            "trial": trial,
            "values": plain(own),
            "scores": [_json_score(s) for s in scores[trial, : reported[trial]]],
            "status": Status(status[trial]).name.lower(),
        }
        for trial, own in sorted(values.items())
    ]


def best_score(trial: dict[str, Any]) -> float:
    """The best score of a trial of `sweep.json`; -inf if it has none."""
    return max((s for s in trial["scores"] if isinstance(s, float)), default=-math.inf)


def ranked(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those with a score, the best first."""
    scored = [trial for trial in trials if best_score(trial) > -math.inf]
    return sorted(scored, key=best_score, reverse=True)


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Hyperparameters as JSON has them."""
    return {name: list(x) if isinstance(x, tuple) else x for name, x in values.items()}


def unplain(values: dict[str, Any]) -> dict[str, Any]:
    """What `plain` was given."""
    return {name: tuple(x) if isinstance(x, list) else x for name, x in values.items()}


def _json_score(score: np.floating) -> float | str | None:
    if math.isnan(score):
        return None
    return float(score) if math.isfinite(score) else "-inf"


def describe(
    algo: Algorithm,
    config: Any,
    space: spaces.Space,
    scheduler: Scheduler,
    num_lanes: int,
    phase: Any,
    seed: int,
    sampler: str,
    strategy: str,
) -> dict[str, Any]:
    """What was run, for `sweep.json`."""
    manifests.check_options(algo.env)
    fields_of = [field.name for field in dataclasses.fields(scheduler) if field.init]
    rule = {name: getattr(scheduler, name) for name in ("num_trials", "num_phases")}
    rule = {"name": type(scheduler).__name__} | rule
    rule |= {name: getattr(scheduler, name) for name in fields_of}
    return {
        "algorithm": algo.name,
        "env": algo.env.id,
        "num_envs": algo.env.num_envs,
        "env_options": algo.env.options,
        "config": fields.to_dict(config),
        "seed": seed,
        "scheduler": rule,
        "sampler": sampler,
        "lanes": num_lanes,
        "strategy": strategy,
        "phase": phase._asdict(),
        "space": {
            name: {"kind": type(part).__name__} | json.loads(json.dumps(dataclasses.asdict(part)))
            for name, part in space.items()
        },
        **manifests.provenance(),
    }


def read(directory: Path) -> dict[str, Any]:
    """`sweep.json`.

    Raises:
      ValueError: if it is damaged.
    """
    try:
        summary = json.loads((directory / NAME).read_text())
    except ValueError as error:
        raise ValueError(f"{directory / NAME} is damaged: {error}") from error
    if missing := sorted(set(SAME) - set(summary)):
        raise ValueError(f"{directory / NAME} is damaged: it lacks {missing}")
    return summary


def open_run_dir(directory: Path, description: dict[str, Any], resume: bool) -> bool:
    """Make the sweep's directory; refuse what would damage another.

    Returns:
      Whether it is new.
    """
    check_path(directory)
    if (directory / NAME).exists():
        if not resume:
            raise ValueError(
                f"{directory} already holds a sweep; resume it (resume=True, --resume) or choose "
                "another directory"
            )
        before = read(directory)
        now = json.loads(json.dumps(description))
        changes = [f"{k}: {before.get(k)!r} -> {now[k]!r}" for k in SAME if before.get(k) != now[k]]
        if changes:
            raise ValueError(f"{directory} holds another sweep: " + "; ".join(changes))
        description["command"] = before["command"]
        return False
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(f"{directory} is not empty and holds no sweep; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    empty = {"trials": [], "spans": [], "seconds": 0.0, "occupancy": 0.0, "elsewhere": 0}
    write(directory, description | empty)
    return True


def clear(directory: Path) -> None:
    """Empty the directory of a sweep that could not begin."""
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def write(directory: Path, summary: dict[str, Any]) -> None:
    """`sweep.json`, whole or not at all."""
    temporary = directory / f".{NAME}"
    temporary.write_text(json.dumps(summary, indent=1) + "\n")
    temporary.replace(directory / NAME)


class _Agent(NamedTuple):
    """An agent as it was when it scored best."""

    score: float
    num_updates: int
    learner: PyTree


class BestAgents:
    """The best agents of a sweep, written as runs that `jaxrl.load_policy` loads.

    Args:
      keep: how many.
      per: a hyperparameter of each of whose values the best one is kept too.
    """

    def __init__(self, run_dir: Path, keep: int, per: str | None):
        self._directory, self._keep, self._per = run_dir / "best", keep, per
        self._agents: dict[int, _Agent] = {}

    def deserves(self, trial: int, score: float, trials: list[dict[str, Any]]) -> bool:
        """Whether an agent that has just scored this is to be kept as it is now; those that are no
        longer among the best are forgotten."""
        best = self._best(trials, trial)
        self._agents = {t: agent for t, agent in self._agents.items() if t in best}
        return trial in best and score >= best[trial]

    def keep(self, trial: int, score: float, num_updates: int, learner: PyTree) -> None:
        """Keep an agent, in place of what it was before."""
        self._agents[trial] = _Agent(score, num_updates, learner)

    def forget(self, trial: int) -> None:
        """Keep it no longer."""
        self._agents.pop(trial, None)

    def write(
        self,
        trials: list[dict[str, Any]],
        describe: Callable[[int, float], tuple[bool, dict[str, Any]]],
    ) -> None:
        """Write those that have changed, and delete those that are no longer among the best.

        Args:
          describe: `(trial, score) -> (whether its environments can be saved, manifest)`.
        """
        for trial, agent in self._agents.items():
            directory = self._directory / f"trial-{trial}"
            checkpoints = Checkpoints(directory / "checkpoints", keep=1)
            if checkpoints.latest() != agent.num_updates:
                whole, manifest = describe(trial, agent.score)
                manifests.write(directory, manifest)
                checkpoints.save(agent.num_updates, agent.learner, {}, whole)
            checkpoints.close()
        best = {f"trial-{trial}" for trial in self._best(trials)}
        for directory in self._directory.glob("trial-*"):
            if directory.name not in best:
                shutil.rmtree(directory)

    def _best(self, trials: list[dict[str, Any]], scoring: int | None = None) -> dict[int, float]:
        """The trials whose agents are kept, with their best scores: of those whose agents are at
        hand, which of trials that ended just before a kill are not, and of the one that scores."""
        at_hand = {scoring, *self._agents} | {
            int(path.name.removeprefix("trial-")) for path in self._directory.glob("trial-*")
        }
        order = ranked([trial for trial in trials if trial["trial"] in at_hand])
        chosen = order[: self._keep]
        if self._per is not None:
            of_value: dict[str, dict[str, Any]] = {}
            for trial in order:
                of_value.setdefault(repr(trial["values"][self._per]), trial)
            chosen += of_value.values()
        return {trial["trial"]: best_score(trial) for trial in chosen}
