"""How a sweep is run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from jaxrl.training.population import Strategy
from jaxrl.tuning.sweeps.state import Run

UNITS = ("updates", "steps", "episodes")
EPISODE_CHECK = 16
"""Updates after which the episodes of a phase are counted."""


class Phase(NamedTuple):
    """How long a trial trains between two reports."""

    length: int
    unit: str = "updates"
    """"updates", environment "steps" (rounded up to whole updates), or "episodes" that ended."""

    def updates(self, steps_per_update: int) -> int:
        """Its length in updates, unless it is counted in episodes."""
        return math.ceil(self.length / steps_per_update) if self.unit == "steps" else self.length

    def updates_left(self, run: Run, steps_per_update: int) -> int:
        """Until the run may have done it."""
        if self.unit == "episodes":
            return EPISODE_CHECK
        return self.updates(steps_per_update) - run.updates

    def is_over(self, run: Run, steps_per_update: int) -> bool:
        """Whether the run has done it."""
        if self.unit == "episodes":
            return run.episodes >= self.length or run.diverged
        return run.updates >= self.updates(steps_per_update)


class SweepSettings(NamedTuple):
    """How a sweep is run; see `sweep`."""

    num_lanes: int
    phase: Phase
    run_dir: Path
    seed: int
    sampler: str
    storage: str
    study_name: str
    strategy: str | Strategy
    keep_best: int
    keep_best_per: str | None
    worker: str
    heartbeat_seconds: int
    checkpoint_seconds: float
    chunk_seconds: float
