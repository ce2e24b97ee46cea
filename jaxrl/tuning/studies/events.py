"""The events of a study in one order for all workers: trials that begin, report, or are stopped.

A scheduler's decision may depend on the order of reports. So each worker appends what its trials do
to one log, and judges by applying the log's events in their order (`replay`). Two workers that
judge at the same time therefore come to the same decisions, and so does whoever replays them later.

The log is a second study in the same storage, named by `log_name`. Each event is a trial of it that
has ended: storages number trials one after the other, whatever workers add at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from jaxrl.files import schema
from jaxrl.files.urls import redact_url
from jaxrl.tuning.samplers.optional_optuna import import_optuna
from jaxrl.tuning.schedulers import ledger as ledgers
from jaxrl.tuning.schedulers.contract import Ledger, Scheduler, Status
from jaxrl.tuning.studies.damage import LONGEST, DamagedStudyError, explain_storage_failure
from jaxrl.tuning.studies.storage import (
    check_file,
    close_storage,
    open_storage,
    trial_id,
    trials_since,
)

BEGUN, REPORTED, STOPPED = "begun", "reported", "stopped"
EVENT = "event"
"""User attribute of an event: all of it but the score, which is an intermediate value."""
SUFFIX = " (events)"


class Event(NamedTuple):
    """A step in the life of a trial, as its worker stored it."""

    kind: str
    """BEGUN, on a lane, anew or after a pause; REPORTED; or STOPPED, by no scheduler."""
    trial: int
    """Its index."""
    number: int
    """Its number in the study. A trial that is repeated after its worker died has a larger one."""
    phases: int
    """The phases that it had reported before."""
    worker: str
    score: float = math.nan
    """Of a report."""

    @property
    def key(self) -> tuple[str, int, int, int]:
        """All that tells it from other events."""
        return self.kind, self.trial, self.number, self.phases


class Judged(NamedTuple):
    """The ledger that follows from the first events of a log."""

    ledger: Ledger
    numbers: tuple[int, ...]
    """The number in the study under which each trial began last; -1 before it has."""
    num_events: int = 0

    # NumPy reads a number of an array in a hundredth of the time that JAX takes.

    def status(self, trial: int) -> Status:
        """Return a trial's status."""
        return Status(np.asarray(self.ledger.status)[trial])

    def reported(self, trial: int) -> int:
        """Return how many phases a trial has reported."""
        return int(np.asarray(self.ledger.reported)[trial])

    def scores(self, trial: int) -> list[float]:
        """Return the scores that a trial has reported."""
        return np.asarray(self.ledger.scores)[trial, : self.reported(trial)].tolist()

    @property
    def has_ended(self) -> np.ndarray:
        """True for trials that train no more, `[N]`."""
        return np.asarray(self.ledger.status) >= Status.STOPPED


def apply(scheduler: Scheduler, before: Judged, event: Event) -> Judged:
    """Return the ledger after one event more.

    An event that a worker stored too late, when its trial was already repeated, or stored twice,
    changes nothing.

    Raises:
      DamagedStudyError: if the scheduler has no such trial or phase.
    """
    ledger, numbers, count = before
    kind, trial, number, phases = event.key
    if trial >= scheduler.num_trials or phases + (kind == REPORTED) > scheduler.num_phases:
        size = f"{scheduler.num_trials} trials of {scheduler.num_phases} phases"
        raise DamagedStudyError(f"event {count} is {event}, but the sweep has {size}")
    is_current, is_over = number == numbers[trial], before.status(trial).has_ended
    if kind == BEGUN and (number > numbers[trial] or (is_current and not is_over)):
        ledger = ledgers.begin(ledger, trial, phases)
        numbers = (*numbers[:trial], number, *numbers[trial + 1 :])
    elif kind == REPORTED and is_current and phases == before.reported(trial):
        score = np.float32(event.score)
        ledger = ledgers.report(scheduler, ledger, np.int32(trial), score)
    elif kind == STOPPED and is_current and not is_over:
        ledger = ledgers.stop(scheduler, ledger, np.int32(trial))
    return Judged(ledger, numbers, count + 1)


def judge(scheduler: Scheduler, events: Iterable[Event]) -> Judged:
    """Return the ledger and the numbers of trials after these events, the first ones of a log."""
    judged = Judged(ledgers.start(scheduler), (-1,) * scheduler.num_trials)
    for event in events:
        judged = apply(scheduler, judged, event)
    return judged


def replay(scheduler: Scheduler, events: Iterable[Event]) -> Ledger:
    """Return the ledger after these events, the first ones of a log: all that was decided."""
    return judge(scheduler, events).ledger


def log_name(study_name: str) -> str:
    """Return the name of the study that holds the events of a study."""
    return study_name + SUFFIX


class EventLog:
    """One worker's access to the events of a study.

    Raises:
      DamagedStudyError: if it holds something else; so do all methods.
    """

    def __init__(self, storage: Any, study_name: str):
        optuna = import_optuna()
        self._study = optuna.create_study(
            storage=storage,
            study_name=log_name(study_name),
            direction="maximize",
            load_if_exists=True,
        )
        self.events: list[Event] = []
        """All that have been read."""
        self._places: dict[tuple[str, int, int, int], int] = {}
        self._last_id = -1
        self.read()

    def read(self) -> None:
        """Read the events that were stored since."""
        for trial in trials_since(self._study, self._last_id):
            number, event = len(self.events), event_of(trial)
            if trial.number != number:
                raise DamagedStudyError(f"it lacks event {number}")
            self._places.setdefault(event.key, number)
            self.events.append(event)
            self._last_id = trial_id(trial)

    def place_of(self, event: Event) -> int | None:
        """Return the place in the log of an event with this one's key; None if there is none."""
        return self._places.get(event.key)

    def append(self, event: Event) -> int:
        """Store an event; return its place."""
        self._study.add_trial(trial_of_event(event))
        self.read()
        return self._places[event.key]


def read_events(url: str, study_name: str) -> list[Event]:
    """Return the events of a study, in their order, for `replay`.

    Args:
      url: of its storage.

    Raises:
      FileNotFoundError: if the storage is a file that is not there.
      ValueError: if the storage has no such events, or they are damaged.
      OSError: if the storage cannot be read.
    """
    optuna = import_optuna()
    check_file(url)
    storage = open_storage(url, heartbeat_seconds=60, read_only=True)
    try:
        with explain_storage_failure(url, study_name):
            found = optuna.get_all_study_names(storage)
            if log_name(study_name) not in found:
                names = sorted(name for name in found if log_name(name) in found)
                raise ValueError(
                    f"study_name must be one of {names}, the studies with events at "
                    f"{redact_url(url)}, got {study_name!r}"
                )
            log = optuna.load_study(study_name=log_name(study_name), storage=storage)
            return [event_of(trial) for trial in log.get_trials(deepcopy=False)]
    finally:
        close_storage(storage)


def trial_of_event(event: Event) -> Any:
    """Return the trial of the log that holds an event."""
    optuna = import_optuna()
    has_score = event.kind == REPORTED
    return optuna.create_trial(
        state=optuna.trial.TrialState.PRUNED,
        user_attrs={EVENT: [*event.key, event.worker]},
        intermediate_values={event.phases: event.score} if has_score else {},
    )


def event_of(trial: Any) -> Event:
    """Return the event that a trial of the log holds.

    Raises:
      DamagedStudyError: if it holds none.
    """
    stored, scores = trial.user_attrs.get(EVENT), trial.intermediate_values
    match stored:
        case [kind, int(index), int(number), int(phases), str(worker)] if all(
            schema.is_integer(x, 0) for x in (index, number, phases)
        ):
            if kind == REPORTED and list(scores) == [phases]:
                return Event(kind, index, number, phases, worker, float(scores[phases]))
            if kind in (BEGUN, STOPPED) and not scores:
                return Event(kind, index, number, phases, worker)
    raise DamagedStudyError(f"event {trial.number} is {stored!r} with {scores}"[:LONGEST])
