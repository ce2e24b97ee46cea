"""The queue of a study: its waiting trials, of which workers take the next, and to which they add.

A worker that takes a trial stores a heartbeat and its claim before it sets the trial to RUNNING.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Container
from typing import Any

from jaxrl.tuning.samplers.optional_optuna import import_optuna
from jaxrl.tuning.studies.storage import change_state, has_heartbeats, trial_id, trials_since
from jaxrl.tuning.studies.stored_trials import CLAIMED_BY, Indices, paused_after, valid_trials

IsFree = Callable[[int, int], bool]
"""`is_free(index, phases)`: whether the trial, which last paused after so many phases, may be taken
from the queue; 0 if it never paused."""


def always_free(index: int, phases: int) -> bool:
    """Return True: each waiting trial may be taken."""
    return True


class TrialQueue:
    """The waiting trials of a study, as one worker takes them.

    Taking a trial costs the same however many there are. A trial is read when it is new, and enters
    the queue if it waits. It is read again before it is taken, and leaves the queue if it is found
    taken or not free. It returns when `offer` names it, or when all trials are read again.

    Args:
      num_trials: how many trials the study will have.
    """

    def __init__(self, study: Any, storage: Any, num_trials: int, worker: str):
        self._study, self._storage = study, storage
        self._num_trials, self._worker = num_trials, worker
        self.read_all()

    def read_all(self) -> list[tuple[int, Any]]:
        """Return all trials in the order of their numbers, each after its index."""
        self._indices, self._last_id = Indices(), -1
        self._ids: dict[int, list[int]] = collections.defaultdict(list)
        self._waiting: dict[int, int] = {}
        return [(self._add(trial), trial) for trial in self._study.get_trials(deepcopy=False)]

    def _add(self, trial: Any) -> int:
        index, self._last_id = self._indices.add(trial), trial_id(trial)
        self._ids[index].append(self._last_id)
        if is_waiting(trial):
            self._waiting[index] = paused_after(trial)
        return index

    def waiting(self) -> list[int]:
        """Return the indices in the queue, with those of trials that were added since."""
        for trial in trials_since(self._study, self._last_id):
            self._add(trial)
        return list(self._waiting)

    def offer(self, index: int) -> None:
        """Put a trial into the queue that may wait and be free now."""
        self._waiting.setdefault(index, 0)

    def add(self) -> bool:
        """Store a new trial, for any worker; return False if there are N already."""
        if len(self._indices) >= self._num_trials:
            return False
        optuna = import_optuna()
        self._study.add_trial(optuna.create_trial(state=optuna.trial.TrialState.WAITING))
        return True

    def take(self, index: int, own: Container[int], is_free: IsFree = always_free) -> Any | None:
        """Set a trial to RUNNING and return it; None unless it waits and is free.

        Args:
          own: indices of the trials that this worker's lanes train. One that was taken from it, as
            if it were dead, stays in the queue until they give it up.
        """
        if index in own:
            return None
        phases = self._waiting.pop(index, 0)
        if index < self._num_trials and not is_free(index, phases):
            return None  # without reading it: many trials may pause
        trials = [(index, self._storage.get_trial(i)) for i in self._ids.get(index, ())]
        valid = valid_trials(trials, self._num_trials).get(index)
        for _, trial in trials:
            # Two workers added the same trial.
            if trial is not valid and is_waiting(trial) and self.take_one(trial):
                change_state(self._storage, trial, "FAIL")
        if valid is None or not is_waiting(valid) or not is_free(index, paused_after(valid)):
            return None
        return valid if self.take_one(valid) else None

    def take_one(self, trial: Any) -> bool:
        """Set a waiting trial to RUNNING; return False if another worker was faster."""
        if has_heartbeats(self._storage):
            self._storage.record_heartbeat(trial_id(trial))
        is_claimed = store_claim(self._storage, trial, self._worker)
        return is_claimed and change_state(self._storage, trial, "RUNNING")


def is_waiting(trial: Any) -> bool:
    """Return whether a trial waits for a worker."""
    return trial.state.name == "WAITING"


def store_claim(storage: Any, trial: Any, worker: str) -> bool:
    """Store that a worker is about to take a trial; return False if the trial has ended.

    Several workers may claim a trial. The owner's name is stored once it runs: stored before, it
    could replace that of a faster worker.
    """
    try:
        storage.set_trial_user_attr(trial_id(trial), CLAIMED_BY + worker, True)
    except import_optuna().exceptions.UpdateFinishedTrialError:
        return False
    return True
