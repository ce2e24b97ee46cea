"""What a sweep writes down: its description, and `sweep.json`, what became of its trials."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl import config as fields
from jaxrl import manifest as manifests
from jaxrl.checkpoint import check_path
from jaxrl.envs.hosted import SPEED_ONLY
from jaxrl.rundir import held
from jaxrl.tuning import space as spaces
from jaxrl.tuning.schedulers import Ledger, Scheduler, Status
from jaxrl.types import Algorithm

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


@contextlib.contextmanager
def open_run_dir(directory: Path, description: dict[str, Any], resume: bool) -> Iterator[bool]:
    """Make the sweep's directory; refuse what would damage another.

    Until the block ends, no other process may open it.

    Yields:
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
        with held(directory):
            yield False
        return
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(f"{directory} is not empty and holds no sweep; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    with held(directory):
        empty = {"trials": [], "spans": [], "seconds": 0.0, "occupancy": 0.0, "elsewhere": 0}
        write(directory, description | empty)
        yield True


def clear(directory: Path) -> None:
    """Empty the directory of a sweep that could not begin."""
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def write(directory: Path, summary: dict[str, Any]) -> None:
    """`sweep.json`, whole or not at all."""
    temporary = directory / f".{NAME}"
    temporary.write_text(json.dumps(summary, indent=1) + "\n")
    temporary.replace(directory / NAME)
