"""What keeps the trials of a study alive: each worker's heart, which sees that others have stopped.

A thread tells the database that the worker lives; trials of one that was not heard of return to the
queue. A journal file has no heartbeats.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxrl.tuning.numbering import by_index, not_lost
from jaxrl.tuning.storage import free_stale, optuna, requeue


class Heart:
    """A thread that beats, since a compilation may take longer than a heartbeat.

    Args:
      study: of N trials.
      alive: the storage's numbers of the trials that this worker runs.
      seconds: between two beats.
    """

    def __init__(self, study: Any, num_trials: int, alive: Callable[[], list[int]], seconds: int):
        self._study, self._num_trials = study, num_trials
        self._alive, self._seconds = alive, seconds
        self._lost: dict[int, int] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after the beat that it is at."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        wait = 0.0
        while not self._stopped.wait(wait):
            began = time.monotonic()
            # A storage that does not answer once may do so at the next beat.
            with contextlib.suppress(optuna().exceptions.StorageInternalError):
                self._beat()
            wait = max(began + self._seconds - time.monotonic(), 0.0)

    def _beat(self) -> None:
        """Tell the storage that this worker lives, and free the trials of those that do not."""
        for trial_id in self._alive():
            self._study._storage.record_heartbeat(trial_id)
        free_stale(self._study)
        trials = by_index(self._study)
        alive = not_lost(trials, self._num_trials)
        lost = {i: t for i, t in trials if i < self._num_trials and i not in alive}
        for index, frozen in lost.items():
            # A worker that frees a trial may die before it has put it into the queue.
            if self._lost.get(index) == frozen.number:
                requeue(self._study, copy.deepcopy(frozen))
        self._lost = {index: frozen.number for index, frozen in lost.items()}
