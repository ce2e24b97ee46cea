"""The state of a sweep between two chunks of training, and `sweep.json`, which shows it.

Checkpoints hold the state as JSON (`SweepState.to_json`). Their keys are those of run directories
that exist, so they stay when a field gets another name.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxrl import config as fields
from jaxrl.tuning.schedulers import Ledger, Status
from jaxrl.tuning.timeline import Span, occupancy

UNITS = ("updates", "steps", "episodes")
EPISODE_CHECK = 16
"""After this many updates, the episodes of a phase are counted."""


class Phase(NamedTuple):
    """The length of training between two reports of a trial's score."""

    length: int
    unit: str = "updates"
    """"updates", environment "steps" (rounded up to whole updates), or "episodes" that ended."""

    def num_updates(self, steps_per_update: int) -> int:
        """Return the length in updates, of a phase that is not counted in episodes."""
        return math.ceil(self.length / steps_per_update) if self.unit == "steps" else self.length

    def updates_left(self, run: PhaseRun, steps_per_update: int) -> int:
        """Return after how many updates the phase may be over."""
        if self.unit == "episodes":
            return EPISODE_CHECK
        return self.num_updates(steps_per_update) - run.updates

    def is_over(self, run: PhaseRun, steps_per_update: int) -> bool:
        """Return whether the run has trained for the whole phase."""
        if self.unit == "episodes":
            return run.episodes >= self.length or run.diverged
        return run.updates >= self.num_updates(steps_per_update)


@dataclass
class PhaseRun:
    """A trial on a lane, and what it has done of its current phase."""

    trial: int
    began: float
    """Seconds from the sweep's beginning to the phase's."""
    updates: int = 0
    episodes: float = 0.0
    return_sum: float = 0.0
    diverged: bool = False

    def count(self, row: dict[str, float], updates: int) -> None:
        """Add a row of metrics that covers that many updates."""
        self.updates += updates
        self.episodes += row["episode_count"]
        self.return_sum += row["episode_return_sum"]
        self.diverged |= not math.isfinite(row["loss"])

    @property
    def score(self) -> float:
        """The mean return of the phase's episodes; NaN without one, -inf if the trial diverged."""
        if not self.episodes and not self.diverged:
            return math.nan
        # In the precision of the ledger, so that study and ledger agree.
        score = float(np.float32(self.return_sum / max(self.episodes, 1)))
        return -math.inf if self.diverged or math.isinf(score) else score


@dataclass
class SweepState:
    """The state of a sweep between two chunks, without the agents."""

    ledger: Ledger
    runs: list[PhaseRun | None]
    """The run on each lane; None on a free lane."""
    values: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The hyperparameters of each trial that has begun."""
    trial_updates: dict[int, int] = field(default_factory=dict)
    """How many updates each trial has done in all its phases."""
    spans: list[Span] = field(default_factory=list)
    updates_left: list[int] = field(default_factory=list)
    """Updates that each lane group may do until one of its lanes may report."""
    chunks: int = 0
    """How many chunks have been taken in."""
    seconds: float = 0.0
    """Seconds that the sweep had taken when it was last saved."""

    def phase(self, trial: int) -> int:
        """Return the phase that a trial is in, from 0."""
        return int(self.ledger.reported[trial])

    def trials(self) -> list[dict[str, Any]]:
        """Return all trials that have begun, as `sweep.json` has them."""
        scores, reported, status = (np.asarray(x) for x in self.ledger)
        return [
            {
                "trial": trial,
                "values": values_to_json(values),
                "scores": [_score_to_json(s) for s in scores[trial, : reported[trial]]],
                "status": Status(status[trial]).name.lower(),
            }
            for trial, values in sorted(self.values.items())
        ]

    def running(self) -> list[tuple[int, int, int]]:
        """Return lane, trial and phase of each run."""
        return [
            (lane, run.trial, self.phase(run.trial))
            for lane, run in enumerate(self.runs)
            if run is not None
        ]

    def summary(self, seconds: float, elsewhere: int) -> dict[str, Any]:
        """Return what `sweep.json` says of the trials.

        Args:
          seconds: how long the sweep has taken.
          elsewhere: how many trials of the study other workers have begun.
        """
        return {
            "trials": self.trials(),
            "spans": [span._asdict() for span in self.spans],
            "seconds": seconds,
            "occupancy": occupancy(self.spans, len(self.runs)) if self.spans else 0.0,
            "elsewhere": elsewhere,
        }

    def to_json(self, seconds: float) -> dict[str, Any]:
        """Return the state for a checkpoint, when the sweep has taken so many seconds."""
        return {
            "ledger": [np.asarray(x).tolist() for x in self.ledger],
            "runs": [None if run is None else dataclasses.asdict(run) for run in self.runs],
            "values": [[trial, values_to_json(v)] for trial, v in self.values.items()],
            "trial_updates": list(self.trial_updates.items()),
            "spans": self.spans,
            "left": self.updates_left,
            "chunks": self.chunks,
            "seconds": seconds,
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> SweepState:
        """Return the state that `to_json` was called on."""
        saved = fields.with_current_names(saved)
        scores, reported, status = saved["ledger"]
        return cls(
            ledger=Ledger(
                jnp.asarray(scores, jnp.float32),
                jnp.asarray(reported, jnp.int32),
                jnp.asarray(status, jnp.int32),
            ),
            runs=[None if run is None else PhaseRun(**run) for run in saved["runs"]],
            values={trial: values_from_json(values) for trial, values in saved["values"]},
            trial_updates=dict(saved["trial_updates"]),
            spans=[Span(*span) for span in saved["spans"]],
            updates_left=saved["left"],
            chunks=saved["chunks"],
            seconds=saved["seconds"],
        )


def values_to_json(values: dict[str, Any]) -> dict[str, Any]:
    """Return hyperparameters with lists in place of tuples."""
    return {name: list(x) if isinstance(x, tuple) else x for name, x in values.items()}


def values_from_json(values: dict[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters that `values_to_json` was given."""
    return {name: tuple(x) if isinstance(x, list) else x for name, x in values.items()}


def _score_to_json(score: np.floating) -> float | str | None:
    if math.isnan(score):
        return None
    return float(score) if math.isfinite(score) else "-inf"


# --- sweep.json ----------------------------------------------------------------------------------

NAME = "sweep.json"
SAME = ("algorithm", "env", "num_envs", "env_options", "config", "seed", "scheduler", "sampler",
        "lanes", "phase", "space")  # fmt: skip
"""What a resumed sweep must have in common with the one before it."""


def read(directory: Path) -> dict[str, Any]:
    """Return what `sweep.json` holds.

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


def write(directory: Path, summary: dict[str, Any]) -> None:
    """Write `sweep.json`, as a whole or not at all."""
    temporary = directory / f".{NAME}"
    temporary.write_text(json.dumps(summary, indent=1) + "\n")
    temporary.replace(directory / NAME)
