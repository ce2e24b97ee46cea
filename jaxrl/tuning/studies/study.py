"""The shared study: an Optuna study that holds every trial, score and decision of a sweep.

Workers on several machines may share a study. Each claims trials of its own and sees the scores
that the others reported, so all trials are ranked together. Each score is stored before anything is
decided from it, so optuna-dashboard shows the curves while they grow. The decisions follow from the
order of the reports (`jaxrl.tuning.studies.events`).

The queue is the study's WAITING trials: paused ones, which any worker may continue once the
scheduler lets them; those of dead workers (`jaxrl.tuning.studies.heartbeat`); and a new one that is
added whenever no other may be taken, until there are N. A trial has an index from 0 to N - 1; a
trial that is repeated after its worker died has a new number and the same index.

A worker may die between any two writes without losing a trial. It adds a trial to the queue before
it claims one, and it stores a heartbeat and its claim before it sets the trial to RUNNING. If it
dies before that, the trial is still in the queue. If it dies after it, the trial returns to the
queue once its heartbeat is too old, or is claimed again by the restarted worker.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl.tuning.samplers.optional_optuna import import_optuna
from jaxrl.tuning.schedulers.contract import Status
from jaxrl.tuning.spaces import space as spaces
from jaxrl.tuning.studies.damage import find_damage
from jaxrl.tuning.studies.events import EventLog, log_name
from jaxrl.tuning.studies.heartbeat import Heartbeat, lost_trials
from jaxrl.tuning.studies.paused_agents import PausedAgents, open_agents
from jaxrl.tuning.studies.storage import (
    close_storage,
    has_heartbeats,
    is_missing,
    not_there,
    open_storage,
    open_study,
    trial_id,
)
from jaxrl.tuning.studies.stored_trials import (
    CHANGE,
    INDEX,
    OBJECTIVES,
    PAUSED,
    WORKER,
    check_resumed,
    indexed_trials,
    objectives,
    paused_after,
    runs_alone,
    trials_to_resume,
    valid_trials,
)
from jaxrl.tuning.studies.trial_queue import IsFree, TrialQueue, always_free, is_waiting
from jaxrl.tuning.studies.trial_sampler import Draw, TrialSampler


class SharedStudy:
    """One worker's access to the study that all workers of a sweep share.

    Args:
      draw: `draw(i)` gives trial i's values to the samplers "random" and "sobol"; the others are
        seeded by `seed` and i, and learn from the trials that have ended.
      worker: a name that no other worker has, and that this one has again after a restart.
      heartbeat_seconds: see `jaxrl.tuning.sweep`; `saved` and `listed`: see `check_resumed`.
      search: what all workers must have in common, as JSON.
      is_shared: whether other workers may take part.

    Raises:
      ValueError: if the study is of another search, has another worker and may not be shared, or
        has the events of a deleted one.
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
        is_shared: bool = True,
    ):
        self._optuna = import_optuna()
        self._url, self._num_trials, self._worker = url, num_trials, worker
        self._claimed: dict[int, Any] = {}
        """The trials that this worker runs, by index, as they were when it claimed them."""
        self._heartbeat = None
        is_known = bool(saved or listed)
        if is_known and is_missing(url):
            raise not_there()
        self._storage = open_storage(url, heartbeat_seconds)
        try:
            self._study = open_study(self._storage, url, name, search, is_known)
            self._queue = TrialQueue(self._study, self._storage, num_trials, worker)
            self._sampler = TrialSampler(self._study, space, sampler, seed, draw)
            trials = self._queue.read_all()
            check_resumed(trials, saved, listed, self._sampler.stored_values)
            self._unclaimed, self._ended = trials_to_resume(trials, num_trials, worker)
            """This worker's trials from before a restart: those to run again, those that ended."""
            self.was_alone = runs_alone(trials, worker)
            """Whether no other worker had taken part before this one started."""
            if not is_shared and not self.was_alone:  # the heartbeat would take the other's trials
                raise has_other_worker(name, worker)
            self.log = EventLog(self._storage, name)
            """What the trials of all workers did, in order."""
            # Read again: another worker may have begun meanwhile, and adds trials before events.
            if self.log.events and not self._study.get_trials(deepcopy=False):
                raise has_events_of_another(name)
            if has_heartbeats(self._storage):
                self._heartbeat = Heartbeat(
                    self._study, self._storage, num_trials, self._running_ids, heartbeat_seconds
                )
        except BaseException:
            close_storage(self._storage)
            raise

    # --- claim a trial ---------------------------------------------------------------------------

    def claim(
        self, begun: Container[int], is_free: IsFree = always_free
    ) -> tuple[int, dict[str, Any]] | None:
        """Return the index and values of a trial to run; None if none is free.

        The first are this worker's trials from before a restart, except those in `begun`; then
        those in the queue that are free; then new ones.
        """
        for index in list(self._unclaimed):
            if index not in begun and (claimed := self._claim_again(index)) is not None:
                return claimed
        while True:
            for index in self._queue.waiting():
                if (claimed := self._take(index, is_free)) is not None:
                    return claimed
            if not self._queue.add():
                return None

    def claim_paused(self, index: int) -> tuple[int, dict[str, Any]] | None:
        """Return the index and values of a trial that pauses; None if another worker has it."""
        if index in self._unclaimed:
            return self._claim_again(index)
        self._queue.waiting()  # the trial may have been repeated since
        return self._take(index)

    def claim_to_end(self, is_meant: Callable[[int], bool]) -> Iterator[int]:
        """Claim the waiting trials that `is_meant` names, only to end them; yield their indices."""
        for index in self._queue.waiting():
            if index >= self._num_trials or not is_meant(index):
                continue
            if (trial := self._queue.take(index, self._own())) is not None:
                self._claimed[index] = trial
                if WORKER not in trial.user_attrs:  # its worker died after its last report
                    self._storage.set_trial_user_attr(trial_id(trial), WORKER, self._worker)
                yield index

    def offer(self, indices: Iterable[int]) -> None:
        """Look for these trials in the queue again, at the next claim."""
        for index in indices:
            self._queue.offer(index)

    def _take(self, index: int, is_free: IsFree = always_free) -> tuple[int, dict[str, Any]] | None:
        trial = self._queue.take(index, self._own(), is_free)
        return None if trial is None else self._begin(index, trial)

    def _claim_again(self, index: int) -> tuple[int, dict[str, Any]] | None:
        """Claim a trial from before a restart; None if another worker has it."""
        trial = self._unclaimed[index]
        # The trial as it was at the start: if it waited then and runs now, another worker took it.
        is_mine = not is_waiting(trial) or self._queue.take_one(trial)
        self._unclaimed.pop(index, None)
        return self._begin(index, trial) if is_mine else None

    def _begin(self, index: int, trial: Any) -> tuple[int, dict[str, Any]] | None:
        """Store a trial's owner and values; return its index and values.

        Returns None if the trial was taken from this worker, as if it were dead.
        """
        trial = self._stored(trial)
        if trial.state == self._state.FAIL:
            self._claimed.pop(index, None)
            return None
        self._claimed[index] = trial
        try:
            if trial.state == self._state.RUNNING:
                self._storage.set_trial_user_attr(trial_id(trial), INDEX, index)
                self._storage.set_trial_user_attr(trial_id(trial), WORKER, self._worker)
            return index, self._sampler.values(trial, index)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            self._claimed.pop(index, None)
            return None

    def number(self, index: int) -> int:
        """Return the number of a claimed trial."""
        return self._claimed[index].number

    def paused_after(self, index: int) -> int:
        """Return after how many phases a claimed trial paused last; 0 if it never did."""
        return paused_after(self._claimed[index])

    def give_up(self, index: int) -> None:
        """Leave a claimed trial to the worker that has it now, or as it had ended."""
        if index in self._claimed:
            stored = self._stored(self._claimed[index])
            self._claimed.pop(index, None)
            if stored.state in (self._state.COMPLETE, self._state.PRUNED):
                self._ended[index] = stored

    def has_ended(self, index: int) -> bool:
        """Return whether a claimed trial had ended before a restart."""
        return self._claimed[index].state.is_finished()

    def claimed(self) -> list[int]:
        """Return the indices of the trials that this worker runs."""
        return list(self._claimed)

    # --- report and end a trial ------------------------------------------------------------------

    def report(
        self, index: int, phase: int, score: float, named: Mapping[str, Any] | None = None
    ) -> float | None:
        """Store a score, and those of several objectives by name; return the score that counts.

        It is the stored one if this phase is run again after a restart. It is None if the trial was
        taken from this worker, as if it were dead, or if it had ended before this phase when it ran
        before the restart (see `ended_values`).
        """
        if self._heartbeat is not None:
            self._heartbeat.check()
        trial = self._claimed[index]
        is_stored = phase in trial.intermediate_values
        if is_stored and self._stored(trial).state != self._state.FAIL:
            return trial.intermediate_values[phase]
        try:
            if named:  # before the score: whoever reads that finds these too
                self._storage.set_trial_user_attr(trial_id(trial), f"{OBJECTIVES}{phase}", named)
            self._storage.set_trial_intermediate_value(trial_id(trial), phase, score)
            return score
        except self._optuna.exceptions.UpdateFinishedTrialError:
            self._claimed.pop(index, None)
            if (ended := self._stored(trial)).state != self._state.FAIL:
                self._ended[index] = ended
            return None

    def change(self, index: int, phase: int, parent: int, values: dict[str, Any]) -> None:
        """Store as whose agent, and with which values, a claimed trial goes on before a phase."""
        change = {"parent": parent, "values": values}
        # A trial that had ended before a restart has stored it.
        with contextlib.suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            trial = trial_id(self._claimed[index])
            self._storage.set_trial_user_attr(trial, f"{CHANGE}{phase}", change)

    def pause(self, index: int, phases: int) -> bool:
        """Return a trial to the queue, from which any worker may continue it.

        Returns False if the trial was taken from this worker, as if it were dead.
        """
        trial = self._claimed[index]
        self._claimed.pop(index, None)
        if trial.state.is_finished():
            self._unclaimed[index] = trial  # it runs again after a restart
            return True
        try:
            last = max(phases, paused_after(trial))
            self._storage.set_trial_user_attr(trial_id(trial), PAUSED, last)
            self._storage.set_trial_state_values(trial_id(trial), self._state.WAITING)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            return False
        return True

    def fill(self, index: int, scores: Sequence[float]) -> None:
        """Store the scores that a claimed trial lacks, which repeats one of a dead worker."""
        trial = self._claimed[index]
        lacking = set(range(len(scores))) - set(trial.intermediate_values)
        # If the trial was just taken from this worker, as if it were dead, it is left as it is.
        with contextlib.suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            for phase in lacking:
                self._storage.set_trial_intermediate_value(trial_id(trial), phase, scores[phase])
        if lacking:
            self._claimed[index] = self._stored(trial)

    def finish(self, index: int, status: Status, scores: Sequence[float]) -> None:
        """Store that a claimed trial has ended, and those of its scores that it lacks."""
        trial = self._claimed[index] = self._stored(self._claimed[index])
        is_complete = status == Status.COMPLETED and not math.isnan(scores[-1])
        with contextlib.suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            if not trial.state.is_finished():
                self.fill(index, scores)
                value, pruned = (scores[-1], None) if is_complete else (None, self._state.PRUNED)
                with find_damage():
                    # It may have failed since it was read: taken from this worker, as if dead.
                    self._study.tell(trial.number, value, state=pruned, skip_if_finished=True)
        self._claimed.pop(index, None)

    # --- resume ----------------------------------------------------------------------------------

    def resume(self, indices: Collection[int]) -> set[int]:
        """Claim again the trials that this worker was running at its last checkpoint.

        Returns:
          Those that it cannot claim: they were taken from it, as if it were dead, or paused or
          ended after the checkpoint.
        """
        mine = [index for index in indices if index in self._unclaimed]
        return set(indices) - {index for index in mine if self._claim_again(index) is not None}

    def claim_running(self) -> dict[int, dict[str, Any]]:
        """Claim all trials that still run from before a restart; return their values by index."""
        running = [i for i, t in self._unclaimed.items() if t.state == self._state.RUNNING]
        claimed = [self._claim_again(index) for index in running]
        return dict(each for each in claimed if each is not None)

    def end_resuming(self) -> dict[int, dict[str, Any]]:
        """Leave the paused trials from before a restart to all workers, and ended ones as they are.

        Those that were running are still this worker's. Returns the values of the others by index.
        """
        stored = {index: self._stored(trial) for index, trial in self._unclaimed.items()}
        left = {i: t for i, t in stored.items() if t.state != self._state.RUNNING}
        for index in left:
            self._unclaimed.pop(index, None)
        lost = self._state.FAIL
        self._ended |= {i: t for i, t in left.items() if t.state.is_finished() and t.state != lost}
        return {i: self._sampler.values(t, i) for i, t in left.items() if t.state != lost}

    def ended_values(self) -> dict[int, dict[str, Any]]:
        """Return the values of the trials that this worker ended before a restart, by index."""
        return {index: self._sampler.values(t, index) for index, t in self._ended.items()}

    # --- other workers ---------------------------------------------------------------------------

    def unfinished_elsewhere(self) -> tuple[bool, dict[int, int]]:
        """Return whether other workers run trials, and which trials wait; offer these.

        Returns:
          Whether a trial runs elsewhere, or is about to return to the queue; and after how many
          phases each waiting trial paused last, by index.
        """
        if self._heartbeat is not None:
            self._heartbeat.check()
        # One reading: between two, a heartbeat may fail a running trial and not yet repeat it.
        trials, own = self._queue.read_all(), set(self._running_ids())
        # Workers that add trials at the same time may add one too many, which none of them runs.
        others = [(i, t) for i, t in trials if trial_id(t) not in own and i < self._num_trials]
        is_running = self._heartbeat is not None and (
            any(t.state == self._state.RUNNING for _, t in others)
            or bool(lost_trials(trials, self._num_trials))
        )
        waiting = {i: paused_after(t) for i, t in others if is_waiting(t)}
        return is_running, waiting

    def objectives(
        self, names: Sequence[str], phases: Mapping[int, int]
    ) -> dict[int, list[list[Any]]]:
        """Return the scores of several objectives in so many first phases of trials, by index.

        A trial that was just lost with its worker has none.
        """
        valid = valid_trials(indexed_trials(self._study), self._num_trials)
        return {i: objectives(valid[i], names, n) for i, n in phases.items() if i in valid}

    def open_agents(self, parent: Path) -> PausedAgents:
        """Return the agents of the study's paused trials.

        Args:
          parent: holds a folder for each study.

        Raises:
          ValueError: if other workers keep them elsewhere.
        """
        return open_agents(self._study, self._url, parent)

    def close(self) -> None:
        """Stop the heartbeat and close the connection."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        close_storage(self._storage)

    # --- helpers ---------------------------------------------------------------------------------

    @property
    def _state(self) -> Any:
        return self._optuna.trial.TrialState

    def _stored(self, trial: Any) -> Any:
        """Return a trial as it is stored now."""
        return self._storage.get_trial(trial_id(trial))

    def _own(self) -> set[int]:
        """Return the indices of the trials that this worker runs or is about to run again."""
        return {*self._claimed, *self._unclaimed}

    def _running_ids(self) -> list[int]:
        """Return the ids of the trials that this worker runs or is about to run again."""
        # The heartbeat's thread calls this, and a dictionary must not change while one iterates it.
        claimed, unclaimed = list(self._claimed.values()), list(self._unclaimed.values())
        unfinished = [trial for trial in unclaimed if not trial.state.is_finished()]
        return [trial_id(trial) for trial in claimed + unfinished]


def has_events_of_another(name: str) -> ValueError:
    """Return the error that a new study finds the events of a deleted one with the same name.

    Its trials have the numbers of the deleted ones, whose events would be taken for theirs.
    """
    return ValueError(
        f"study {name!r} has no trials, but {log_name(name)!r} has the events of a deleted study: "
        "delete both from the storage (optuna.delete_study), or choose another name (study_name, "
        "--study)"
    )


def has_other_worker(name: str, worker: str) -> ValueError:
    """Return the error that a study that may not be shared has trials of another worker."""
    return ValueError(
        f"study {name!r} has trials of another worker than {worker!r}, but this scheduler compares "
        "all trials after each phase, so one worker trains them all: choose another study "
        "(study_name, --study) or storage, or resume as that worker (worker, --worker)"
    )
