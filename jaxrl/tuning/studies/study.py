"""The shared study: an Optuna study that holds every trial, score and decision of a sweep.

Workers on several machines may share a study. Each claims trials of its own and sees the scores
that the others reported, so HyperTrick ranks all trials together and no worker waits for another.
Each score is stored before anything is decided from it, so optuna-dashboard shows the curves while
they grow.

The queue is the study's WAITING trials: those of dead workers (`jaxrl.tuning.studies.heartbeat`),
and a new one that is added whenever none waits, until there are N. A trial has an index from 0 to
N - 1; a trial that is repeated after its worker died has a new number and the same index.

A worker may die between any two writes without losing a trial. It adds a trial to the queue before
it claims one, and it stores a heartbeat and its claim before it sets the trial to RUNNING. If it
dies before that, the trial is still in the queue. If it dies after it, the trial returns to the
queue once its heartbeat is too old, or is claimed again by the restarted worker.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Collection, Container, Sequence
from typing import Any

from jaxrl.tuning import space as spaces
from jaxrl.tuning.schedulers import Ledger, Status
from jaxrl.tuning.studies.damage import find_damage
from jaxrl.tuning.studies.heartbeat import Heartbeat, check_alone, has_heartbeats, lost_trials
from jaxrl.tuning.studies.optional_optuna import import_optuna
from jaxrl.tuning.studies.samplers import Draw, TrialSampler
from jaxrl.tuning.studies.storage import (
    change_state,
    close_storage,
    open_storage,
    open_study,
    trial_id,
)
from jaxrl.tuning.studies.stored_trials import (
    INDEX,
    WORKER,
    check_resumed,
    indexed_trials,
    owner,
    trials_to_resume,
    valid_trials,
    with_reports,
)
from jaxrl.tuning.studies.trial_queue import TrialQueue


class SharedStudy:
    """One worker's access to the study that all workers of a sweep share.

    Args:
      draw: `draw(i)` gives trial i's values to the sampler "random"; the other samplers are
        seeded by `seed` and i, and learn from the trials that have ended.
      worker: a name that no other worker has, and that this one has again after a restart.
      heartbeat_seconds: see `jaxrl.tuning.sweep`; `saved` and `listed`: see `check_resumed`.
      search: what all workers must have in common, as JSON.

    Raises:
      ValueError: if the study is of another search.
      DamagedStudyError: if it does not hold what the sweep has stored in it; so do all methods.
    """

    def __init__(
        self,
        url: str,
        name: str,
        space: spaces.Space,
        num_trials: int,
        draw: Draw,
        sampler: str = "random",
        seed: int = 0,
        worker: str = "worker",
        heartbeat_seconds: int = 60,
        search: dict[str, Any] | None = None,
        saved: Sequence[dict[str, Any]] = (),
        listed: Sequence[dict[str, Any]] = (),
    ):
        self._optuna = import_optuna()
        self._num_trials, self._worker = num_trials, worker
        self._lock = threading.Lock()
        self._claimed: dict[int, Any] = {}
        """The trials that this worker runs, by index."""
        self._reserved: tuple[int, Any] | None = None
        """The index and trial that `claim` returns first."""
        self._pausing: str | None = None
        """The scheduler that allows no other worker."""
        self._heartbeat = None
        self._storage = open_storage(url, heartbeat_seconds)
        try:
            self._study = open_study(self._storage, url, name, search, bool(saved or listed))
            self._queue = TrialQueue(self._study, self._storage, num_trials, worker)
            self._sampler = TrialSampler(self._study, space, sampler, seed, draw)
            trials = indexed_trials(self._study)
            check_resumed(trials, saved, listed, self._sampler.stored_values)
            self._unclaimed, self._ended = trials_to_resume(trials, num_trials, worker)
            """This worker's trials from before a restart: those to run again, those that ended."""
            if has_heartbeats(self._storage):
                self._heartbeat = Heartbeat(
                    self._study, self._storage, num_trials, self._running_ids, heartbeat_seconds
                )
        except BaseException:
            close_storage(self._storage)
            raise

    # --- claim a trial ---------------------------------------------------------------------------

    def begin_alone(self, scheduler: str) -> None:
        """Refuse other workers, since the scheduler of that name pauses trials.

        This worker takes its first trial, which shows others that it works. Of workers that begin
        at the same time, the one with the first trial continues.

        Raises:
          ValueError: if another worker runs trials; also raised by `claim`.
        """
        self._pausing = scheduler
        self._check_alone(None)
        if not self._running() and (taken := self._take_trial()) is not None:
            self._reserved = taken
            with self._lock:
                self._claimed[taken[0]] = taken[1]

    def _check_alone(self, oldest: int | None) -> None:
        assert self._pausing is not None
        grace_seconds = None if self._heartbeat is None else self._heartbeat.grace_seconds
        own = set(self._running_ids())
        check_alone(self._study, self._worker, own, oldest, self._pausing, grace_seconds)

    def claim(self, begun: Container[int]) -> tuple[int, dict[str, Any]] | None:
        """Return the index and values of a trial to run; None if all are taken.

        The first are this worker's trials from before a restart, except those in `begun`; then
        those that were returned to the queue; then new ones.
        """
        for index, trial in list(self._unclaimed.items()):
            if index not in begun:
                self._remove(self._unclaimed, index)
                if (claimed := self._begin(index, trial)) is not None:
                    return claimed
        while (taken := self._reserved or self._take_trial()) is not None:
            self._reserved = None
            if (claimed := self._begin(*taken)) is not None:
                return claimed
        return None

    def _take_trial(self) -> tuple[int, Any] | None:
        """Set a waiting or a new trial to RUNNING; return its index and the trial.

        Returns None if all are taken. Gives the trial back if another worker must not take part.
        """
        while (taken := self._queue.take(self._claimed)) is None:
            if not self._queue.add():
                return None
        if self._pausing is not None:
            try:
                self._check_alone(min(t.number for t in (*self._running(), taken[1])))
            except ValueError:
                change_state(self._storage, taken[1], "WAITING")
                raise
        return taken

    def _begin(self, index: int, trial: Any) -> tuple[int, dict[str, Any]] | None:
        """Store a trial's owner and values; return its index and values.

        Returns None if the trial was taken from this worker, as if it were dead.
        """
        state = self._stored(trial).state
        if state == self._state.FAIL:
            self._remove(self._claimed, index)
            return None
        with self._lock:
            self._claimed[index] = trial
        try:
            if state == self._state.RUNNING:
                self._storage.set_trial_user_attr(trial_id(trial), INDEX, index)
                self._storage.set_trial_user_attr(trial_id(trial), WORKER, self._worker)
            return index, self._sampler.values(trial, index)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            self._remove(self._claimed, index)
            return None

    # --- report and end a trial ------------------------------------------------------------------

    def report(self, index: int, phase: int, score: float) -> float | None:
        """Store a score; return the score that counts.

        It is the stored one if this phase is run again after a restart. It is None if the trial was
        taken from this worker, as if it were dead, or if it had ended before this phase when it ran
        before the restart (see `ended_values`).
        """
        if self._heartbeat is not None:
            self._heartbeat.check()
        trial = self._claimed[index]
        stored = self._stored(trial)
        if phase in stored.intermediate_values and stored.state != self._state.FAIL:
            return stored.intermediate_values[phase]
        try:
            self._storage.set_trial_intermediate_value(trial_id(trial), phase, score)
            return score
        except self._optuna.exceptions.UpdateFinishedTrialError:
            self._remove(self._claimed, index)
            if (ended := self._stored(trial)).state != self._state.FAIL:
                self._ended[index] = ended
            return None

    def finish(self, index: int, status: Status, score: float) -> None:
        """Store that a trial has ended, with its last score."""
        trial = self._claimed[index]
        is_complete = status == Status.COMPLETED and not math.isnan(score)
        # If the trial was just taken from this worker, as if it were dead, it is left as it is.
        with contextlib.suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            if not self._stored(trial).state.is_finished():
                pruned = None if is_complete else self._state.PRUNED
                with find_damage():
                    self._study.tell(trial.number, score if is_complete else None, state=pruned)
        self._remove(self._claimed, index)

    # --- resume ----------------------------------------------------------------------------------

    def resume(self, indices: Collection[int]) -> set[int]:
        """Claim again the trials that this worker was running at its last checkpoint.

        Returns:
          Those that it cannot claim: they were taken from it, as if it were dead, or ended after
          the checkpoint (see `ended_values`).
        """
        gone = set(indices) - set(self._unclaimed)
        with self._lock:
            for index in set(indices) - gone:
                self._claimed[index] = self._unclaimed.pop(index)
        return gone

    def ended_values(self) -> dict[int, dict[str, Any]]:
        """Return the values of the trials that this worker ended before a restart, by index."""
        return {index: self._sampler.values(t, index) for index, t in self._ended.items()}

    # --- other workers ---------------------------------------------------------------------------

    def merge(self, ledger: Ledger) -> Ledger:
        """Return the ledger with what other workers have reported."""
        trials = self._valid_trials().items()
        own = self._claimed.keys() | self._unclaimed.keys()
        return with_reports(ledger, {i: trial for i, trial in trials if i not in own})

    def has_unfinished_elsewhere(self) -> bool:
        """Return whether other workers' trials are unfinished and may return to the queue."""
        states = [self._state.WAITING]
        if self._heartbeat is not None:
            self._heartbeat.check()
            states.append(self._state.RUNNING)
        own = set(self._running_ids())
        # One reading: between two, a heartbeat may fail a running trial and not yet repeat it.
        trials = indexed_trials(self._study)
        if self._heartbeat is not None and lost_trials(trials, self._num_trials):
            return True  # about to be in the queue again
        return any(t.state in states and trial_id(t) not in own for _, t in trials)

    def count_elsewhere(self) -> int:
        """Return how many trials other workers have begun."""
        trials = self._valid_trials().values()
        return sum(t.state != self._state.WAITING and owner(t) != self._worker for t in trials)

    def close(self) -> None:
        """Stop the heartbeat and close the connection."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        try:
            if self._reserved is not None:  # the sweep could not begin
                change_state(self._storage, self._reserved[1], "WAITING")
        finally:
            close_storage(self._storage)

    # --- helpers ---------------------------------------------------------------------------------

    @property
    def _state(self) -> Any:
        return self._optuna.trial.TrialState

    def _valid_trials(self) -> dict[int, Any]:
        return valid_trials(indexed_trials(self._study), self._num_trials)

    def _stored(self, trial: Any) -> Any:
        """Return a trial as it is stored now."""
        return self._storage.get_trial(trial_id(trial))

    def _remove(self, trials: dict[int, Any], index: int) -> None:
        with self._lock:
            trials.pop(index, None)

    def _running(self) -> list[Any]:
        """Return the trials that this worker runs or is about to run again."""
        with self._lock:
            unclaimed = [t for t in self._unclaimed.values() if not t.state.is_finished()]
            return [*self._claimed.values(), *unclaimed]

    def _running_ids(self) -> list[int]:
        return [trial_id(trial) for trial in self._running()]
