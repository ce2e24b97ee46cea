"""Heartbeats: record that a worker lives, and return the trials of dead workers to the queue.

When a worker process dies, its trials stay RUNNING in the study. Every worker has a thread that
does three things each `heartbeat_seconds`:

1. It records a heartbeat for each trial that its worker runs.
2. It sets every running trial to FAIL that had no heartbeat for twice that time.
3. It adds a WAITING trial for each index that has none but failed trials: a repetition with the
   same values, which the first free lane of any worker takes (`SharedStudy.claim`). It continues
   from the trial's last pause, or begins anew if there was none. So a worker may also die between
   2. and 3. without losing the trial.

A worker that was only slow learns of it when it reports a score (`SharedStudy.report` returns
None) and gives the trial up. A journal file has no heartbeats: the trials of a dead worker wait
until the worker is started again under its name, and resumes.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxrl.tuning.samplers.optional_optuna import ignore_experimental_warnings, import_optuna
from jaxrl.tuning.studies.damage import find_damage
from jaxrl.tuning.studies.stored_trials import (
    WORKER,
    indexed_trials,
    valid_trials,
    without_owner,
)


class Heartbeat:
    """A thread that records heartbeats and requeues lost trials.

    It is a thread since a compilation may take longer than the time between two heartbeats.

    Args:
      num_trials: how many trials the study will have.
      running_ids: returns the ids of the trials that this worker runs.
      seconds: between two heartbeats.
    """

    def __init__(
        self,
        study: Any,
        storage: Any,
        num_trials: int,
        running_ids: Callable[[], list[int]],
        seconds: int,
    ):
        self._study, self._storage, self._num_trials = study, storage, num_trials
        self._running_ids, self._seconds = running_ids, seconds
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        self._try_to_beat()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current heartbeat."""
        self._stopped.set()
        self._thread.join()

    def check(self) -> None:
        """Raise what ended the thread, if something did."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        wait = float(self._seconds)
        while not self._stopped.wait(wait):
            began = time.monotonic()
            try:
                self._try_to_beat()
            except Exception as error:  # raised where the sweep works, see `check`
                self._failure = error
                return
            wait = max(began + self._seconds - time.monotonic(), 0.0)

    def _try_to_beat(self) -> None:
        # A storage that fails to answer once may answer at the next heartbeat.
        with contextlib.suppress(import_optuna().exceptions.StorageInternalError):
            self._beat()

    def _beat(self) -> None:
        for running in self._running_ids():
            self._storage.record_heartbeat(running)
        with ignore_experimental_warnings(), find_damage():
            import_optuna().storages.fail_stale_trials(self._study)
        for lost in lost_trials(indexed_trials(self._study), self._num_trials).values():
            requeue(self._study, lost)


def lost_trials(trials: list[tuple[int, Any]], num_trials: int) -> dict[int, Any]:
    """Return the last failed trial of each index that has no other trial.

    Two heartbeats may repeat a trial at once. The repetition that no worker ran was never the last.
    """
    valid, lost = valid_trials(trials, num_trials), {}
    for index, trial in trials:
        if (
            index < num_trials
            and index not in valid
            and (WORKER in trial.user_attrs or index not in lost)
        ):
            lost[index] = trial
    return lost


def requeue(study: Any, lost: Any) -> None:
    """Add a trial that repeats a lost one, with its values, and that no worker owns."""
    lost = copy.deepcopy(lost)
    lost.user_attrs = without_owner(lost.user_attrs)
    with ignore_experimental_warnings(), find_damage():
        import_optuna().storages.RetryHeartbeatStaleTrialCallback()(study, lost)
