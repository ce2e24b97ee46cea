"""How a sweep is run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from jaxrl.population import Strategy


class Phase(NamedTuple):
    """How long a trial trains between two reports."""

    length: int
    unit: str = "updates"
    """"updates", environment "steps" (rounded up to whole updates), or "episodes" that ended."""


class Settings(NamedTuple):
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
