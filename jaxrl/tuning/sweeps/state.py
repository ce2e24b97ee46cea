"""The state of a sweep between two chunks of training.

Checkpoints hold the state as JSON (`SweepState.to_json`). Their keys are those of run directories
that exist, so they stay when a field gets another name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl import config as fields
from jaxrl.files import schema
from jaxrl.files.json_values import score_to_json, values_from_json, values_to_json
from jaxrl.training.progress.rows import COLUMNS, SUMS, check_number
from jaxrl.tuning.evolution.lineage import Change
from jaxrl.tuning.schedulers.contract import Ledger, Status
from jaxrl.tuning.timeline import Span, occupancy


@dataclass
class PhaseRun:
    """A trial on a lane, and what it has done of its current phase."""

    trial: int
    began: float
    """Seconds from the sweep's beginning to the phase's."""
    phase: int
    """The phase, from 0."""
    updates: int = 0
    sums: dict[str, list[float]] = field(default_factory=dict)
    """Each metric of each of the trial's agents, summed over the updates."""

    def count(self, metrics: dict[str, np.ndarray], updates: int) -> None:
        """Add metrics `[K, updates]`."""
        self.updates += updates
        for name, x in metrics.items():
            self.sums[name] = (self.sums.get(name, 0.0) + x.sum(-1)).tolist()

    @property
    def episodes(self) -> float:
        """The least number of episodes that an agent has ended, of those whose losses are finite.

        It is inf if all agents have diverged.
        """
        counts = np.array(self.sums.get("episode_count", [0.0]))
        losses = np.array(self.sums.get("loss", np.zeros(len(counts))))
        return float(counts[np.isfinite(losses)].min(initial=np.inf))

    def metrics(self) -> dict[str, np.ndarray]:
        """Return the phase's metrics for an objective, `[K, 1]`: sums, and means of the others."""
        divisors = {name: 1 if name in SUMS else max(self.updates, 1) for name in self.sums}
        return {
            name: (np.array(x)[:, None] / divisors[name]).astype(np.float32)
            for name, x in self.sums.items()
        }


@dataclass
class SweepState:
    """The state of a sweep between two chunks, without the agents."""

    ledger: Ledger
    runs: list[PhaseRun | None]
    """The run on each lane; None on a free lane."""
    values: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The hyperparameters of each trial that has begun, at its beginning."""
    generations: list[list[Change]] = field(default_factory=list)
    """What all trials continued with after each phase, if an explorer changes them."""
    trial_updates: dict[int, int] = field(default_factory=dict)
    """How many updates each trial has done in all its phases."""
    spans: list[Span] = field(default_factory=list)
    updates_left: list[int] = field(default_factory=list)
    """Updates that each lane group may do until one of its lanes may report."""
    num_steps: int = 0
    """Environment steps of all trials that this worker has trained, also of lost ones."""
    num_events: int = 0
    """How many events of the study the ledger follows from."""
    chunks: int = 0
    """How many chunks have been taken in."""
    seconds: float = 0.0
    """Seconds that the sweep had taken when it was last saved."""

    def trials(self, chosen: Set[int] | None = None) -> list[dict[str, Any]]:
        """Return the trials that have begun, as `sweep.json` has them; of the chosen ones only."""
        scores, reported, status = (np.asarray(x) for x in self.ledger)
        begun = self.values.keys() if chosen is None else self.values.keys() & chosen
        trials: list[dict[str, Any]] = [
            {
                "trial": trial,
                "values": values_to_json(self.values[trial]),
                "scores": [score_to_json(s) for s in scores[trial, : reported[trial]]],
                "status": Status(status[trial]).name.lower(),
            }
            for trial in sorted(begun)
        ]
        if self.generations:
            for row in trials:
                row["changes"] = [g[row["trial"]]._asdict() for g in self.generations]
        return trials

    def values_of(self, run: PhaseRun) -> dict[str, Any]:
        """Return the hyperparameters with which a run trains its phase."""
        changed = self.generations[: run.phase]
        return changed[-1][run.trial].values if changed else self.values[run.trial]

    def running(self) -> list[tuple[int, int, int]]:
        """Return lane, trial and phase of each run."""
        return [
            (lane, run.trial, run.phase) for lane, run in enumerate(self.runs) if run is not None
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
            "generations": [[change._asdict() for change in g] for g in self.generations],
            "trial_updates": list(self.trial_updates.items()),
            "spans": self.spans,
            "left": self.updates_left,
            "num_steps": self.num_steps,
            "events": self.num_events,
            "chunks": self.chunks,
            "seconds": seconds,
        }

    @classmethod
    def from_json(cls, saved: Any, number: int | None, path: Path) -> SweepState:
        """Return the state that `to_json` was called on.

        Args:
          number: the checkpoint's.
          path: its file, for errors.

        Raises:
          ValueError: if it is no state of a sweep or that of another checkpoint.
        """
        saved = fields.with_current_names(saved)
        try:
            saved = schema.check(saved, STATE)
            check_number("chunks", saved["chunks"], number)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        scores, reported, status = saved["ledger"]
        return cls(
            ledger=Ledger(
                jnp.asarray(scores, jnp.float32),
                jnp.asarray(reported, jnp.int32),
                jnp.asarray(status, jnp.int32),
            ),
            runs=[None if run is None else PhaseRun(**run) for run in saved["runs"]],
            values={trial: values_from_json(values) for trial, values in saved["values"]},
            generations=[
                [Change(change["parent"], change["values"]) for change in changes]
                for changes in saved["generations"]
            ],
            trial_updates=dict(saved["trial_updates"]),
            spans=[Span(*span) for span in saved["spans"]],
            updates_left=saved["left"],
            num_steps=saved["num_steps"],
            num_events=saved["events"],
            chunks=saved["chunks"],
            seconds=saved["seconds"],
        )


def _is_ledger(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 3:
        return False
    scores, reported, status = value
    statuses = {int(s) for s in Status}
    return (
        schema.list_of(schema.list_of(schema.NUMBER)).holds(scores)
        and schema.list_of(schema.INDEX).holds(reported)
        and schema.list_of(schema.INDEX).holds(status)
        and len(scores) == len(reported) == len(status)
        and all(n <= len(row) for row, n in zip(scores, reported, strict=True))
        and len({len(row) for row in scores}) == 1
        and statuses.issuperset(status)
    )


def _tuple_of(*kinds: schema.Kind) -> schema.Kind:
    """Return the kind of lists with one element of each kind."""

    def holds(value: Any) -> bool:
        return (
            isinstance(value, list)
            and len(value) == len(kinds)
            and all(kind.holds(x) for kind, x in zip(kinds, value, strict=True))
        )

    return schema.Kind(f"a list of {', '.join(kind.name for kind in kinds)}", holds)


_RUN: schema.Table = {
    "trial": schema.Field(schema.INDEX),
    "began": schema.Field(schema.NUMBER),
    "phase": schema.Field(schema.INDEX),
    "updates": schema.Field(schema.INDEX),
    "sums": schema.Field(COLUMNS),
}
_SPAN = (schema.INDEX, schema.INDEX, schema.INDEX, schema.NUMBER, schema.NUMBER)
_GENERATION = schema.list_of(schema.object_with(schema.CHANGE))
STATE: schema.Table = {
    "ledger": schema.Field(schema.Kind("scores, numbers of phases and statuses", _is_ledger)),
    "runs": schema.Field(schema.list_of(schema.none_or(schema.object_with(_RUN)))),
    "values": schema.Field(schema.list_of(_tuple_of(schema.INDEX, schema.OBJECT))),
    "generations": schema.Field(schema.list_of(_GENERATION)),
    "trial_updates": schema.Field(schema.list_of(_tuple_of(schema.INDEX, schema.INDEX))),
    "spans": schema.Field(schema.list_of(_tuple_of(*_SPAN))),
    "left": schema.Field(schema.list_of(schema.INDEX)),
    "num_steps": schema.Field(schema.INDEX),
    "events": schema.Field(schema.INDEX),
    "chunks": schema.Field(schema.INDEX),
    "seconds": schema.Field(schema.NUMBER),
}
"""The fields of a sweep's state in its checkpoints."""
