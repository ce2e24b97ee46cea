"""The shared study: an Optuna study that holds every trial, score and decision of a sweep.

Workers on several machines may share a study. Each claims trials of its own and sees the scores
that the others reported, so HyperTrick ranks all trials together and no worker waits for another.
Each score is stored before anything is decided from it, so optuna-dashboard shows the curves while
they grow.

The queue is the study's WAITING trials: those of dead workers (`jaxrl.tuning.sweeps.heartbeat`),
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
from collections.abc import Collection, Container
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.tuning import space as spaces
from jaxrl.tuning.optional_optuna import import_optuna
from jaxrl.tuning.schedulers import Ledger, Status
from jaxrl.tuning.sweeps.heartbeat import Heartbeat, has_heartbeats, lost_trials
from jaxrl.tuning.sweeps.samplers import Draw, TrialSampler, check_sampler
from jaxrl.tuning.sweeps.storage import (
    CLAIMED_BY,
    INDEX,
    WORKER,
    change_state,
    check_search,
    close_storage,
    indexed_trials,
    open_storage,
    owner,
    trial_id,
    valid_trials,
)

STATUS = {
    "WAITING": Status.WAITING,
    "RUNNING": Status.RUNNING,
    "PRUNED": Status.STOPPED,
    "COMPLETE": Status.COMPLETED,
}
"""The status in a ledger of each state in a study."""


class SharedStudy:
    """One worker's access to the study that all workers of a sweep share.

    Args:
      url: `sqlite:///study.db`, `postgresql://...`, or `journal:///study.log`.
      draw: `draw(i)` gives trial i's values to the sampler "random"; other samplers are Optuna's,
        seeded by `seed` and i, and learn from the trials that have ended.
      worker: a name that no other worker has, and that this one has again after a restart.
      heartbeat_seconds: seconds between two heartbeats; a worker that recorded none for twice as
        long is taken for dead.
      search: what all workers must have in common, as JSON.

    Raises:
      ValueError: if the study is of another search.
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
    ):
        check_sampler(sampler)
        self._optuna = import_optuna()
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self._num_trials, self._worker = num_trials, worker
        self._storage = open_storage(url, heartbeat_seconds)
        self._study = self._optuna.create_study(
            storage=self._storage, study_name=name, direction="maximize", load_if_exists=True
        )
        if search is not None:
            try:
                check_search(self._study, search)
            except ValueError:
                close_storage(self._storage)
                raise
        self._sampler = TrialSampler(self._study, space, sampler, seed, draw)
        self._lock = threading.Lock()
        self._claimed: dict[int, Any] = {}
        """The trials that this worker runs, by index."""
        self._unclaimed, self._ended = self._trials_from_before()
        """This worker's trials from before a restart: those to run again, those that ended."""
        self._heartbeat = None
        if has_heartbeats(self._storage):
            self._heartbeat = Heartbeat(
                self._study, self._storage, num_trials, self._running_ids, heartbeat_seconds
            )

    # --- claim a trial ---------------------------------------------------------------------------

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
        while (waiting := self._take_waiting()) is not None or self._add_trial():
            if waiting is not None and (claimed := self._begin(*waiting)) is not None:
                return claimed
        return None

    def _add_trial(self) -> bool:
        """Add a new trial to the queue, for any worker; return False if there are N already."""
        if len({index for index, _ in indexed_trials(self._study)}) >= self._num_trials:
            return False
        self._study.add_trial(self._optuna.create_trial(state=self._state.WAITING))
        return True

    def _take_waiting(self) -> tuple[int, Any] | None:
        """Set the first waiting trial to RUNNING; return its index and the trial, None without one.

        This worker skips a trial that was taken from it, as if it were dead, while one of its lanes
        still trains that trial.
        """
        trials = indexed_trials(self._study)
        valid = valid_trials(trials, self._num_trials)
        for index, trial in trials:
            if trial.state != self._state.WAITING:
                continue
            is_valid = index in valid and valid[index].number == trial.number
            if is_valid and index in self._claimed:
                continue
            if has_heartbeats(self._storage):
                self._storage.record_heartbeat(trial_id(trial))
            if not self._store_claim(trial) or not change_state(self._storage, trial, "RUNNING"):
                continue
            if is_valid:
                return index, trial
            change_state(self._storage, trial, "FAIL")  # two workers added the same trial
        return None

    def _store_claim(self, trial: Any) -> bool:
        """Store that this worker is about to take a trial; return False if the trial has ended.

        Several workers may claim a trial. The owner's name is stored once it runs: stored before,
        it could replace that of a faster worker.
        """
        try:
            self._storage.set_trial_user_attr(trial_id(trial), CLAIMED_BY + self._worker, True)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            return False
        return True

    def _begin(self, index: int, trial: Any) -> tuple[int, dict[str, Any]] | None:
        """Store a trial's owner and values; return its index and values.

        Returns None if the trial was taken from this worker, as if it were dead.
        """
        state = self._stored(trial).state
        if state == self._state.FAIL:
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
        """Store a score, before anything is decided from it.

        Returns:
          The score that counts: the stored one if this phase is run again after a restart. None
          if the trial was taken from this worker, as if it were dead, or if it had ended before
          this phase when it ran before the restart (see `ended_values`).
        """
        trial = self._claimed[index]
        stored = self._stored(trial)
        try:
            if stored.state == self._state.FAIL:
                raise self._optuna.exceptions.UpdateFinishedTrialError
            if phase in stored.intermediate_values:
                return stored.intermediate_values[phase]
            self._storage.set_trial_intermediate_value(trial_id(trial), phase, score)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            self._remove(self._claimed, index)
            stored = self._stored(trial)
            if stored.state.is_finished() and stored.state != self._state.FAIL:
                self._ended[index] = stored
            return None
        return score

    def finish(self, index: int, status: Status, score: float) -> None:
        """Store that a trial has ended, with its last score."""
        trial = self._claimed[index]
        is_complete = status == Status.COMPLETED and not math.isnan(score)
        # If the trial was just taken from this worker, as if it were dead, it is left as it is.
        with contextlib.suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            if not self._stored(trial).state.is_finished():
                if is_complete:
                    self._study.tell(trial.number, score)
                else:
                    self._study.tell(trial.number, state=self._state.PRUNED)
        self._remove(self._claimed, index)

    # --- resume ----------------------------------------------------------------------------------

    def _trials_from_before(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return this worker's trials from before a restart: those to run again, those that ended.

        A worker that is alone also runs the ended ones again that its last checkpoint lacks, and
        comes to the same decisions and agents. Where others take part, what has ended stays so.
        """
        trials = indexed_trials(self._study)
        is_alone = all(owner(trial) in (None, self._worker) for _, trial in trials)
        own = {
            index: trial
            for index, trial in valid_trials(trials, self._num_trials).items()
            if owner(trial) == self._worker and trial.state != self._state.WAITING
        }
        again = {i: t for i, t in own.items() if is_alone or not t.state.is_finished()}
        return again, {i: t for i, t in own.items() if i not in again}

    def resume(self, indices: Collection[int]) -> set[int]:
        """Claim again the trials that this worker was running at its last checkpoint.

        Returns:
          Those that it cannot claim: they were taken from it, as if it were dead, or ended after
          the checkpoint (see `ended_values`).

        Raises:
          ValueError: if the study has never had one of them.
        """
        unknown = sorted(set(indices) - {index for index, _ in indexed_trials(self._study)})
        if unknown:
            raise ValueError(
                f"the study {self._study.study_name!r} lacks the checkpoint's trials {unknown}; "
                "resume with the storage and the study that the sweep began with"
            )
        gone = set(indices) - set(self._unclaimed)
        with self._lock:
            for index in set(indices) - gone:
                self._claimed[index] = self._unclaimed.pop(index)
        return gone

    def ended_values(self) -> dict[int, dict[str, Any]]:
        """Return the values, by index, of this worker's trials that it ended before a restart.

        Trials that it runs again are not among them.
        """
        return {index: self._sampler.values(t, index) for index, t in self._ended.items()}

    # --- other workers ---------------------------------------------------------------------------

    def merge(self, ledger: Ledger) -> Ledger:
        """Return the ledger with what other workers have reported."""
        scores, reported, status = (np.array(x) for x in ledger)
        for index, trial in self._valid_trials().items():
            if index in self._claimed or index in self._unclaimed:
                continue
            stored = trial.intermediate_values
            scores[index] = [stored.get(p, math.nan) for p in range(scores.shape[1])]
            reported[index], status[index] = len(stored), STATUS[trial.state.name]
            if status[index] == Status.STOPPED and len(stored) == scores.shape[1]:
                # Optuna refuses NaN as the value of a completed trial: `finish` prunes it.
                status[index] = Status.COMPLETED
        return Ledger(jnp.asarray(scores), jnp.asarray(reported), jnp.asarray(status))

    def has_unfinished_elsewhere(self) -> bool:
        """Return whether other workers' trials are unfinished and may return to the queue."""
        states = [self._state.WAITING]
        if self._heartbeat is not None:
            states.append(self._state.RUNNING)
            if lost_trials(self._study, self._num_trials):  # about to be in the queue again
                return True
        own = set(self._running_ids())
        trials = self._study.get_trials(deepcopy=False)
        return any(t.state in states and trial_id(t) not in own for t in trials)

    def count_elsewhere(self) -> int:
        """Return how many trials other workers have begun."""
        begun = [t for t in self._valid_trials().values() if t.state != self._state.WAITING]
        return sum(owner(trial) != self._worker for trial in begun)

    def close(self) -> None:
        """Stop the heartbeat and close the connection."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
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

    def _running_ids(self) -> list[int]:
        """Return the ids of the trials that this worker runs or is about to run again."""
        with self._lock:
            unclaimed = [t for t in self._unclaimed.values() if not t.state.is_finished()]
            return [trial_id(trial) for trial in (*self._claimed.values(), *unclaimed)]
