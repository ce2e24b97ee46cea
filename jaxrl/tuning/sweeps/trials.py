"""The trials of one worker: begin, report, judge and end them.

The ledger of the sweep's state and the shared study agree on every score, since a score is stored
in the study before anything is decided from it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxrl.tuning import schedulers
from jaxrl.tuning.schedulers import Scheduler, Status
from jaxrl.tuning.studies.study import SharedStudy
from jaxrl.tuning.sweeps.best_agents import BestAgents
from jaxrl.tuning.sweeps.state import SweepState
from jaxrl.types import PyTree


class Trials:
    """The trials that this worker runs; other workers may run others of the same study."""

    def __init__(
        self, scheduler: Scheduler, study: SharedStudy, state: SweepState, best: BestAgents
    ):
        self._scheduler, self._study = scheduler, study
        self._state, self._best = state, best
        self.paused: dict[int, PyTree] = {}
        """The agents of the trials that pause."""

    def begin_next(self) -> int | None:
        """Return the trial for a free lane; None if there is none.

        A trial that may continue after a pause comes first, then one claimed from the study.
        """
        state = self._state
        if bool((state.ledger.status == Status.READY).any()):
            state.ledger, assigned = schedulers.assign(state.ledger)
            return int(assigned)
        claimed = self._study.claim(state.values)
        if claimed is None:
            return None
        index, state.values[index] = claimed
        state.ledger = schedulers.begin(state.ledger, index)
        state.trial_updates[index] = 0
        return index

    def report(self, trial: int, score: float, agent: Callable[[], PyTree]) -> Status | None:
        """Store the score of a trial's phase, and let the scheduler judge.

        The trial must have been taken off its lane. The scheduler may judge other trials too;
        those that are on lanes leave them by `leave`, once their lanes are idle.

        Args:
          agent: returns the trial's agent.

        Returns:
          The trial's status; None if the trial was taken from this worker, as if it were dead.
        """
        state = self._state
        stored = self._study.report(trial, state.phase(trial), score)
        if stored is None:
            self.forget(trial)
            return None
        before = self._study.merge(state.ledger)
        state.ledger = schedulers.report(
            self._scheduler, before, np.int32(trial), np.float32(stored)
        )
        if self._best.is_among_best(trial, stored, state.trials()):
            self._best.keep(trial, stored, state.trial_updates[trial], agent())
        status = self._status(trial)
        if status in (Status.PAUSED, Status.READY):
            self.paused[trial] = agent()
        on_lanes = {run.trial for run in state.runs if run is not None}
        is_changed = np.asarray(before.status) != np.asarray(state.ledger.status)
        is_changed[trial] = True
        for judged in np.flatnonzero(is_changed).tolist():
            if judged in state.values and judged not in on_lanes:
                self._finish_if_ended(judged)
        return status

    def leave(self, trial: int, agent: Callable[[], PyTree]) -> None:
        """End or pause a trial that was judged by another's report and has left its lane."""
        if not self._finish_if_ended(trial):
            self.paused[trial] = agent()

    def resume(self) -> set[int]:
        """Claim the trials of the last checkpoint again; return those that cannot be claimed."""
        unfinished = (Status.RUNNING, Status.PAUSED, Status.READY)
        return self._study.resume([t for t in self._state.values if self._status(t) in unfinished])

    def forget(self, trial: int) -> None:
        """Give up a trial that another worker runs now, that begins anew, or that had ended."""
        del self._state.values[trial]
        self.paused.pop(trial, None)
        self._best.forget(trial)
        self.read_study()

    def read_study(self) -> None:
        """Take in what the study knows and this worker does not yet."""
        self._state.values |= self._study.ended_values()
        self._state.ledger = self._study.merge(self._state.ledger)

    def stop_all(self) -> None:
        """Stop this worker's trials that have not ended, which have left their lanes."""
        unfinished = (Status.RUNNING, Status.PAUSED, Status.READY)
        for trial in [t for t in self._state.values if self._status(t) in unfinished]:
            ledger = self._state.ledger
            stopped = ledger.status.at[trial].set(Status.STOPPED)
            self._state.ledger = ledger._replace(status=stopped)
            self._finish_if_ended(trial)

    def _status(self, trial: int) -> Status:
        return Status(int(self._state.ledger.status[trial]))

    def _finish_if_ended(self, trial: int) -> bool:
        status = self._status(trial)
        if status < Status.STOPPED:
            return False
        self.paused.pop(trial, None)
        ledger = self._state.ledger
        last_score = float(ledger.scores[trial, ledger.reported[trial] - 1])
        self._study.finish(trial, status, last_score)
        return True
