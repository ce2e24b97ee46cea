"""The queue of a study: its waiting trials, of which workers take the next, and to which they add.

A worker that takes a trial stores a heartbeat and its claim before it sets the trial to RUNNING.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from jaxrl.tuning.studies.heartbeat import has_heartbeats
from jaxrl.tuning.studies.optional_optuna import import_optuna
from jaxrl.tuning.studies.storage import change_state, trial_id
from jaxrl.tuning.studies.stored_trials import (
    CLAIMED_BY,
    indexed_trials,
    paused_after,
    valid_trials,
)

IsFree = Callable[[int, int], bool]
"""`is_free(index, phases)`: whether the trial, which last paused after so many phases, may be taken
from the queue; 0 if it never paused."""
Taken = tuple[int, Any]


class TrialQueue:
    """The waiting trials of a study, as one worker takes them.

    Args:
      num_trials: how many trials the study will have.
    """

    def __init__(self, study: Any, storage: Any, num_trials: int, worker: str):
        self._study, self._storage = study, storage
        self._num_trials, self._worker = num_trials, worker

    def add(self) -> bool:
        """Add a new trial, for any worker; return False if there are N already."""
        if len({index for index, _ in indexed_trials(self._study)}) >= self._num_trials:
            return False
        optuna = import_optuna()
        self._study.add_trial(optuna.create_trial(state=optuna.trial.TrialState.WAITING))
        return True

    def take(self, own: Container[int], is_free: IsFree = lambda *_: True) -> Taken | None:
        """Set the first free trial to RUNNING; return its index and the trial, None without one.

        Args:
          own: indices of the trials that this worker's lanes train. One that was taken from it, as
            if it were dead, waits until they give it up.
        """
        trials = indexed_trials(self._study)
        valid = valid_trials(trials, self._num_trials)
        for index, trial in trials:
            if trial.state.name != "WAITING":
                continue
            is_valid = index in valid and valid[index].number == trial.number
            if is_valid and (index in own or not is_free(index, paused_after(trial))):
                continue
            if not self.take_one(trial):
                continue
            if is_valid:
                return index, trial
            change_state(self._storage, trial, "FAIL")  # two workers added the same trial
        return None

    def take_one(self, trial: Any) -> bool:
        """Set a waiting trial to RUNNING; return False if another worker was faster."""
        if has_heartbeats(self._storage):
            self._storage.record_heartbeat(trial_id(trial))
        is_claimed = store_claim(self._storage, trial, self._worker)
        return is_claimed and change_state(self._storage, trial, "RUNNING")


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
