"""The queue of a study: trials that nobody runs, each for the first worker that takes it.

Those that are new are in it, and those of workers that died (`jaxrl.tuning.heart`).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from jaxrl.tuning.numbering import by_index, not_lost
from jaxrl.tuning.storage import WANTED, optuna


class Queue:
    """One worker's way to the queue of a study of N trials."""

    def __init__(self, study: Any, num_trials: int, worker: str):
        self._study, self._storage = study, study._storage
        self._num_trials, self._worker = num_trials, worker

    def extend(self) -> bool:
        """Put a new trial into the queue, for whoever comes first; False if all N have been."""
        if len({index for index, _ in by_index(self._study)}) >= self._num_trials:
            return False
        self._study.add_trial(optuna().create_trial(state=optuna().trial.TrialState.WAITING))
        return True

    def take(self, mine: Container[int]) -> tuple[int, Any] | None:
        """The index of the first trial that waits, and the trial, which runs from now on; None if
        none waits but those in `mine`, which were taken from this worker whose lanes are not free.

        Its heartbeat and this worker's name come first: if it dies now, the trial goes back to the
        queue, or is this worker's after a restart.
        """
        state = optuna().trial.TrialState
        trials = by_index(self._study)
        alive = not_lost(trials, self._num_trials)
        for index, frozen in trials:
            if frozen.state != state.WAITING:
                continue
            is_first = index in alive and alive[index].number == frozen.number
            if is_first and index in mine:
                continue
            if hasattr(self._storage, "record_heartbeat"):
                self._storage.record_heartbeat(frozen._trial_id)
            if not self._want(frozen) or not set_state(self._storage, frozen, state.RUNNING):
                continue  # another worker was faster
            if is_first:
                return index, frozen
            set_state(self._storage, frozen, state.FAIL)  # two workers put it into the queue
        return None

    def _want(self, trial: Any) -> bool:
        """Write down that this worker is about to take a trial, unless it has ended.

        The name that counts comes after, or else it might replace that of a faster worker.
        """
        try:
            self._storage.set_trial_user_attr(trial._trial_id, WANTED + self._worker, True)
        except optuna().exceptions.UpdateFinishedTrialError:
            return False
        return True


def set_state(storage: Any, trial: Any, state: Any) -> bool:
    """Change a trial's state; False if it has ended, or another worker runs it already."""
    try:
        return storage.set_trial_state_values(trial._trial_id, state)
    except optuna().exceptions.UpdateFinishedTrialError:
        return False
