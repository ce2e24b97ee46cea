"""What a sweep writes down: its description, and `sweep.json`, what became of its trials."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl import config as fields
from jaxrl.envs.host.base import SPEED_ONLY
from jaxrl.training import manifest as manifests
from jaxrl.training.checkpoint import check_path
from jaxrl.training.run_dir import directory_lock
from jaxrl.tuning import space as spaces
from jaxrl.tuning.schedulers import Ledger, Scheduler, Status
from jaxrl.tuning.timeline import Span, occupancy
from jaxrl.types import Algorithm


@dataclass
class Run:
    """A trial on a lane, within its phase."""

    trial: int
    began: float  # seconds since the sweep began
    updates: int = 0
    episodes: float = 0.0
    return_sum: float = 0.0
    diverged: bool = False

    def count(self, row: dict[str, float], updates: int) -> None:
        """Take in a row of metrics that covers so many updates."""
        self.updates += updates
        self.episodes += row["episode_count"]
        self.return_sum += row["episode_return_sum"]
        self.diverged |= not math.isfinite(row["loss"])

    @property
    def score(self) -> float:
        """The mean return of the phase's episodes; NaN without one, -inf if the trial diverged."""
        if not self.episodes and not self.diverged:
            return math.nan
        # In the precision of the ledger, so that store and ledger agree.
        score = float(np.float32(self.return_sum / max(self.episodes, 1)))
        return -math.inf if self.diverged or math.isinf(score) else score


@dataclass
class Progress:
    """What a sweep knows between two chunks; saved with each checkpoint."""

    ledger: Ledger
    runs: list[Run | None]
    """On each lane."""
    values: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Of each trial that has begun."""
    trial_updates: dict[int, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    """Updates of each gang until lanes may report."""
    chunks: int = 0
    """How often gangs have come back from training for a while."""
    seconds: float = 0.0

    def phase(self, trial: int) -> int:
        """The phase that a trial is in, from 0."""
        return int(self.ledger.reported[trial])

    def trials(self) -> list[dict[str, Any]]:
        """As `sweep.json` has them."""
        return trials(self.ledger, self.values)

    def lines(self) -> list[tuple[int, int, int]]:
        """What runs: lane, trial and phase of each."""
        return [
            (lane, run.trial, self.phase(run.trial))
            for lane, run in enumerate(self.runs)
            if run is not None
        ]

    def on_lanes(self) -> set[int]:
        """The trials that run."""
        return {run.trial for run in self.runs if run is not None}

    def summary(self, seconds: float, elsewhere: int) -> dict[str, Any]:
        """As `sweep.json` has it, so many seconds after the sweep began.

        Args:
          elsewhere: trials of the study that other workers have.
        """
        return {
            "trials": self.trials(),
            "spans": [span._asdict() for span in self.spans],
            "seconds": seconds,
            "occupancy": occupancy(self.spans, len(self.runs)) if self.spans else 0.0,
            "elsewhere": elsewhere,
        }

    def to_json(self, seconds: float) -> dict[str, Any]:
        """For a checkpoint taken so many seconds after the sweep began."""
        return {
            "ledger": [np.asarray(x).tolist() for x in self.ledger],
            "runs": [None if run is None else dataclasses.asdict(run) for run in self.runs],
            "values": [[trial, plain(v)] for trial, v in self.values.items()],
            "trial_updates": list(self.trial_updates.items()),
            "spans": self.spans,
            "left": self.left,
            "chunks": self.chunks,
            "seconds": seconds,
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Progress:
        saved = fields.with_current_names(saved)
        scores, reported, status = saved["ledger"]
        return cls(
            ledger=Ledger(
                jnp.asarray(scores, jnp.float32),
                jnp.asarray(reported, jnp.int32),
                jnp.asarray(status, jnp.int32),
            ),
            runs=[None if run is None else Run(**run) for run in saved["runs"]],
            values={
                trial: unplain(fields.with_current_names(values))
                for trial, values in saved["values"]
            },
            trial_updates=dict(saved["trial_updates"]),
            spans=[Span(*span) for span in saved["spans"]],
            left=saved["left"],
            chunks=saved["chunks"],
            seconds=saved["seconds"],
        )


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
        summary = fields.with_current_names(json.loads((directory / NAME).read_text()))
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
        with directory_lock(directory):
            yield False
        return
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(f"{directory} is not empty and holds no sweep; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    with directory_lock(directory):
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
