"""The trials of a sweep: how they are claimed, judged, paused and ended."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from jaxrl.tuning import schedulers
from jaxrl.tuning.best import BestAgents
from jaxrl.tuning.progress import Progress
from jaxrl.tuning.schedulers import Scheduler, Status
from jaxrl.tuning.study import Store
from jaxrl.types import PyTree


class Trials:
    """What becomes of the trials that one sweep runs; others may work on the same study.

    The store and the ledger of `progress` agree on every score, since a score is stored before
    anything is decided from it.

    Args:
      best: keeps the best agents.
    """

    def __init__(self, scheduler: Scheduler, store: Store, progress: Progress, best: BestAgents):
        self._scheduler, self._store = scheduler, store
        self._progress, self._best = progress, best
        self.paused: dict[int, PyTree] = {}
        """The agents of trials that pause."""

    def next(self) -> int | None:
        """The trial for a free lane: one that may go on after its pause, or one claimed from the
        study; None if there is none."""
        progress = self._progress
        if bool((progress.ledger.status == Status.READY).any()):
            progress.ledger, assigned = schedulers.assign(progress.ledger)
            return int(assigned)
        claimed = self._store.claim(progress.values)
        if claimed is None:
            return None
        index, progress.values[index] = claimed
        progress.ledger = schedulers.begin(progress.ledger, index)
        progress.trial_updates[index] = 0
        return index

    def report(self, trial: int, score: float, agent: Callable[[], PyTree]) -> Status | None:
        """A trial has done a phase: store its score, and judge it and whom else that decides.

        It counts as on no lane. Those that are judged while they run `leave` when their lanes rest.

        Args:
          agent: gives the trial's agent.

        Returns:
          What becomes of the trial; None if it was taken from this worker, as if it were dead.
        """
        progress = self._progress
        stored = self._store.report(trial, progress.phase(trial), score)
        if stored is None:
            self.forget(trial)
            return None
        merged = self._store.merge(progress.ledger)
        progress.ledger = schedulers.report(
            self._scheduler, merged, np.int32(trial), np.float32(stored)
        )
        if self._best.deserves(trial, stored, progress.trials()):
            self._best.keep(trial, stored, progress.trial_updates[trial], agent())
        status = Status(int(progress.ledger.status[trial]))
        if status in (Status.PAUSED, Status.READY):
            self.paused[trial] = agent()
        before, after = np.asarray(merged.status), np.asarray(progress.ledger.status)
        ended = (before != after) & (after >= Status.STOPPED)
        ended[trial] = status >= Status.STOPPED
        on_lanes = progress.on_lanes()
        for judged in np.flatnonzero(ended).tolist():
            if judged in progress.values and judged not in on_lanes:
                self._finish(judged, Status(after[judged]))
        return status

    def leave(self, trial: int, agent: Callable[[], PyTree]) -> None:
        """A trial that another's report has stopped or paused has left its lane."""
        status = Status(int(self._progress.ledger.status[trial]))
        if status >= Status.STOPPED:
            self._finish(trial, status)
        else:
            self.paused[trial] = agent()

    def resume(self) -> set[int]:
        """Take up the trials of the last checkpoint; those that are no longer this worker's."""
        alive = (Status.RUNNING, Status.PAUSED, Status.READY)
        status = np.asarray(self._progress.ledger.status)
        return self._store.resume([t for t in self._progress.values if status[t] in alive])

    def forget(self, trial: int) -> None:
        """It is another worker's now, or begins anew; or has ended already."""
        del self._progress.values[trial]
        self.paused.pop(trial, None)
        self._best.forget(trial)
        self.catch_up()

    def catch_up(self) -> None:
        """Take in what the study knows, and this sweep not yet."""
        self._progress.values |= self._store.ended()
        self._progress.ledger = self._store.merge(self._progress.ledger)

    def end(self) -> None:
        """No trial is left that may go on: those that still pause stop."""
        ledger = self._progress.ledger
        pauses = ledger.status == Status.PAUSED
        for trial in np.flatnonzero(np.asarray(pauses)).tolist():
            self._finish(trial, Status.STOPPED)
        stopped = jnp.where(pauses, Status.STOPPED, ledger.status)
        self._progress.ledger = ledger._replace(status=stopped)

    def _finish(self, trial: int, status: Status) -> None:
        self.paused.pop(trial, None)
        ledger = self._progress.ledger
        last = float(ledger.scores[trial, ledger.reported[trial] - 1])
        self._store.finish(trial, status, last)
