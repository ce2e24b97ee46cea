"""Random search: the scheduler that stops no trial."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from jaxrl import checks
from jaxrl.tuning.schedulers.contract import Ledger
from jaxrl.types import Array


@dataclass(frozen=True)
class RandomSearch:
    """Random search: every trial runs to its end."""

    num_trials: int
    num_phases: int
    pauses: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "num_trials", "num_phases")

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        return ledger.status
