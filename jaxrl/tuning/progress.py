"""Where a sweep stands: its ledger, what runs on each lane, and what was done when."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.tuning import record
from jaxrl.tuning.schedulers import Ledger
from jaxrl.tuning.timeline import Span, occupancy


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
        return record.trials(self.ledger, self.values)

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
            "values": [[trial, record.plain(v)] for trial, v in self.values.items()],
            "trial_updates": list(self.trial_updates.items()),
            "spans": self.spans,
            "left": self.left,
            "chunks": self.chunks,
            "seconds": seconds,
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Progress:
        scores, reported, status = saved["ledger"]
        return cls(
            ledger=Ledger(
                jnp.asarray(scores, jnp.float32),
                jnp.asarray(reported, jnp.int32),
                jnp.asarray(status, jnp.int32),
            ),
            runs=[None if run is None else Run(**run) for run in saved["runs"]],
            values={trial: record.unplain(values) for trial, values in saved["values"]},
            trial_updates=dict(saved["trial_updates"]),
            spans=[Span(*span) for span in saved["spans"]],
            left=saved["left"],
            chunks=saved["chunks"],
            seconds=saved["seconds"],
        )
