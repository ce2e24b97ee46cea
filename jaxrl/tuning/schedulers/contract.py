"""The contract of schedulers: which trials of a search continue, and which stop.

A search trains N trials for at most P phases each. After each phase a trial reports a score; higher
is better. A score is NaN if no episode ended in the phase, and -inf if the trial diverged. A
`Ledger` holds all reports. A scheduler is a frozen dataclass with one pure function of the ledger,
`judge`, which returns the status of every trial after a report. The same function runs inside a
jitted search and on the host, where the ledger comes from a study.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, ClassVar, NamedTuple, Protocol

from jaxrl import checks
from jaxrl.types import Array

MEMBERS = ("num_trials", "num_phases", "pauses", "judge")
"""What every scheduler has."""


class Status(enum.IntEnum):
    """The status of a trial, as checkpoints store it; statuses from STOPPED on have ended."""

    WAITING = 0
    """Not yet begun."""
    RUNNING = 1
    """On a lane."""
    PAUSED = 2
    """Off its lane until others have reported."""
    READY = 3
    """Was paused and may continue."""
    STOPPED = 4
    """Ended early."""
    COMPLETED = 5
    """Reported all its phases."""

    @property
    def has_ended(self) -> bool:
        """True if the trial trains no more."""
        return self >= Status.STOPPED


class Ledger(NamedTuple):
    """All reports of a search of N trials and P phases."""

    scores: Array
    """`[N, P]` float32; NaN where there is none."""
    reported: Array
    """`[N]` int32: how many phases each trial has reported."""
    status: Array
    """`[N]` int32, of `Status`."""


class Scheduler(Protocol):
    """A rule for ending trials early: a frozen dataclass.

    `jaxrl.tuning.check_scheduler` checks schedulers against this contract.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def num_trials(self) -> int:
        """N, the trials of the search."""
        ...

    @property
    def num_phases(self) -> int:
        """P, the phases of a trial that is never stopped."""
        ...

    @property
    def pauses(self) -> bool:
        """True if trials may leave their lanes and continue later, so that agents must be kept."""
        ...

    def judge(self, ledger: Ledger, trial: Array) -> Array:
        """Return the status `[N]` of every trial after `trial` has reported a phase.

        After the last phase of `trial` its own status is ignored. A scheduler that pauses trials is
        also called when a cap ended `trial`, perhaps before its first report. `trial` is then
        STOPPED, and no other trial may wait for it.
        """
        ...


def require_scheduler(scheduler: Any) -> None:
    """Raise `ValueError` unless `scheduler` is a dataclass with the members of `Scheduler`."""
    has_members = all(hasattr(scheduler, name) for name in MEMBERS)
    if isinstance(scheduler, type) or not (has_members and dataclasses.is_dataclass(scheduler)):
        example = (
            "a scheduler, such as jaxrl.tuning.HyperTrick(64, 8), or a frozen dataclass of your "
            f"own with {', '.join(MEMBERS[:-1])} and {MEMBERS[-1]}"
        )
        raise checks.refuse("scheduler", example, scheduler)
