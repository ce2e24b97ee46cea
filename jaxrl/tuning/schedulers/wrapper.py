"""Schedulers around another one, such as the cap of a search's phases."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from jaxrl import checks
from jaxrl.tuning.schedulers.contract import Ledger, Scheduler, Status
from jaxrl.types import Array


@dataclass(frozen=True)
class Wrapper:
    """A scheduler that changes what another one decides."""

    search: Scheduler

    @property
    def num_trials(self) -> int:
        """The trials of the search."""
        return self.search.num_trials

    @property
    def num_phases(self) -> int:
        """The phases of the search."""
        return self.search.num_phases

    @property
    def pauses(self) -> bool:
        """True if the search pauses trials."""
        return self.search.pauses


@dataclass(frozen=True)
class Capped(Wrapper):
    """A scheduler that ends the search once its trials have reported so many phases in all.

    Those that train at this moment report once more, so the search exceeds the cap by less than one
    phase of all lanes.
    """

    max_phases: int

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "max_phases")

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        """Judge as the search does, and stop all trials once the phases are spent."""
        status = self.search.judge(ledger, trial)
        is_over = (ledger.reported.sum() >= self.max_phases) & (status < Status.STOPPED)
        return jnp.where(is_over, Status.STOPPED, status)
