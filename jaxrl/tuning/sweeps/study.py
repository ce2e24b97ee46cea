"""The study store: an Optuna study that holds every trial, score and decision of a sweep.

Several sweeps, on several machines, may work on one study: each claims trials of its own, and all
see the scores that the others reported, so HyperTrick ranks them together and none waits for
another. A sweep that dies returns its trials to the queue (with a database; a journal file has no
heartbeats). optuna-dashboard shows the curves while they grow, since each score is stored before
anything is decided from it.

A trial has an index from 0 to N - 1, whatever number Optuna gives it: one that was returned to the
queue gets a new number and keeps its index. The index follows from the numbers alone, and a trial
is in the queue before a worker takes it, with a heartbeat: so none is lost with a worker that dies
between two writes.
"""

from __future__ import annotations

import contextlib
import copy
import math
import threading
import time
from collections.abc import Callable, Collection, Container
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.tuning import space as spaces
from jaxrl.tuning.schedulers import Ledger, Status
from jaxrl.tuning.sweeps.samplers import check_sampler, sampler_of, seen_by_samplers, suggest
from jaxrl.tuning.sweeps.storage import (
    WANTED,
    WORKER,
    check_search,
    close_storage,
    free_stale,
    open_storage,
    optuna,
    owner,
    requeue,
)

FIRST = "failed_trial"
"""Where Optuna keeps the number of the trial that another one repeats."""


def by_index(study: Any) -> list[tuple[int, Any]]:
    """All trials with their indices: each one's place among those that repeat no other."""
    indices: dict[int, int] = {}
    trials = study.get_trials(deepcopy=False)
    for t in trials:
        if FIRST not in t.system_attrs:
            indices[t.number] = len(indices)
    return [(indices[t.system_attrs.get(FIRST, t.number)], t) for t in trials]


def not_lost(trials: list[tuple[int, Any]], num_trials: int) -> dict[int, Any]:
    """Trials by index, but for those that were lost with their worker.

    Should two workers have put a trial into the queue, its first repetition is the one.
    """
    alive: dict[int, Any] = {}
    for index, frozen in trials:
        if frozen.state.name != "FAIL" and index < num_trials:
            alive.setdefault(index, frozen)
    return alive


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


INDEX = "index"


class Store:
    """One worker's view of a study.

    Args:
      url: `sqlite:///study.db`, `postgresql://...`, or `journal:///study.log`.
      draw: `draw(i)` gives trial i's values to the sampler "random"; other samplers are Optuna's,
        seeded by `seed` and i, and learn from the trials that have ended.
      worker: a name that no other worker has, and that this one has again after a restart.
      heartbeat_seconds: a worker that was not heard of for twice as long is taken for dead.
      search: what all workers must have in common, for JSON.

    Raises:
      ValueError: if the study is of another search.
    """

    def __init__(
        self,
        url: str,
        name: str,
        space: spaces.Space,
        num_trials: int,
        draw: Callable[[int], dict[str, Any]],
        sampler: str = "random",
        seed: int = 0,
        worker: str = "worker",
        heartbeat_seconds: int = 60,
        search: dict[str, Any] | None = None,
    ):
        check_sampler(sampler)
        self._optuna = optuna()
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self._space = {key: space[key] for key in sorted(space)}
        self._num_trials, self._draw = num_trials, draw
        self._sampler, self._seed, self._worker = sampler, seed, worker
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
        self._queue = Queue(self._study, num_trials, worker)
        self._seen = seen_by_samplers(self._study)
        self._mine: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._before, self._ended = self._from_before()
        self._heart = None
        if hasattr(self._storage, "record_heartbeat"):
            self._heart = Heart(self._study, num_trials, self._my_ids, heartbeat_seconds)

    def claim(self, begun: Container[int]) -> tuple[int, dict[str, Any]] | None:
        """The index and values of a trial to run, None if all are taken.

        First those from before a restart that are to be run again and not in `begun`, then those
        returned to the queue, then new ones.
        """
        for index, frozen in list(self._before.items()):
            if index not in begun:
                self._drop(self._before, index)
                if (claimed := self._take(index, frozen)) is not None:
                    return claimed
        while (waiting := self._queue.take(self._mine)) is not None or self._queue.extend():
            if waiting is not None and (claimed := self._take(*waiting)) is not None:
                return claimed
        return None

    def _take(self, index: int, frozen: Any) -> tuple[int, dict[str, Any]] | None:
        """A trial's index and values; None if it was taken from this worker, as if it were dead."""
        state = self._frozen(frozen).state
        if state == self._state.FAIL:
            return None
        self._seen._thread_local.cached_all_trials = None  # as `ask` does, for the samplers
        self._seen.sampler = sampler_of(self._sampler, self._seed, index, "", self._draw)
        trial = self._trial(frozen)
        with self._lock:
            self._mine[index] = trial
        try:
            if state == self._state.RUNNING:
                trial.set_user_attr(INDEX, index)
                trial.set_user_attr(WORKER, self._worker)
            return index, self._values(trial, index)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            self._drop(self._mine, index)
            return None

    def _trial(self, frozen: Any) -> Any:
        return self._optuna.trial.Trial(self._seen, frozen._trial_id)

    def _values(self, trial: Any, index: int) -> dict[str, Any]:
        values = {}
        for name, part in self._space.items():
            self._seen.sampler = sampler_of(self._sampler, self._seed, index, name, self._draw)
            values[name] = suggest(trial, name, part)
        return values

    def report(self, index: int, phase: int, score: float) -> float | None:
        """Store a score, before anything is decided from it.

        Returns:
          The score that counts: the one that is stored already, if this phase is run again after a
          restart. None if the trial was taken from this worker, as if it were dead, or had `ended`
          before this phase when it ran before the restart.
        """
        trial = self._mine[index]
        frozen = self._frozen(trial)
        known = frozen.intermediate_values
        try:
            if frozen.state == self._state.FAIL:
                raise self._optuna.exceptions.UpdateFinishedTrialError
            if phase not in known:
                trial.report(score, phase)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            self._drop(self._mine, index)
            frozen = self._frozen(trial)
            if frozen.state.is_finished() and frozen.state != self._state.FAIL:
                self._ended[index] = frozen
            return None
        return known.get(phase, score)

    def finish(self, index: int, status: Status, score: float) -> None:
        """Store that a trial has ended, with its last score."""
        trial = self._mine[index]
        # Taken from this worker at the last moment, another one runs it.
        with contextlib.suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            if not self._frozen(trial).state.is_finished():
                if status == Status.COMPLETED and not math.isnan(score):
                    self._study.tell(trial, score)
                else:
                    self._study.tell(trial, state=self._state.PRUNED)
        self._drop(self._mine, index)

    def resume(self, indices: Collection[int]) -> set[int]:
        """Take up the trials that this worker was running at its last checkpoint.

        Returns:
          Those that it does not go on with: they were taken from it as if it were dead, or have
          `ended` after the checkpoint.

        Raises:
          ValueError: if the study has never had one of them.
        """
        if unknown := sorted(set(indices) - {index for index, _ in by_index(self._study)}):
            raise ValueError(
                f"the study {self._study.study_name!r} lacks the checkpoint's trials {unknown}; "
                "resume with the storage and the study that the sweep began with"
            )
        gone = set(indices) - set(self._before)
        for index in set(indices) - gone:
            frozen = self._before[index]
            with self._lock:
                self._mine[index] = self._trial(frozen)
            self._drop(self._before, index)
        return gone

    def ended(self) -> dict[int, dict[str, Any]]:
        """The values of the trials that had ended before this worker was restarted, by index, but
        for those that it runs again."""
        return {index: self._values(self._trial(t), index) for index, t in self._ended.items()}

    def _from_before(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """This worker's trials from before a restart: those to run again, those to leave.

        A worker that is alone runs again whatever its last checkpoint lacks, to the same decisions
        and agents. Where others take part, what has ended stays so.
        """
        trials = by_index(self._study)
        alone = all(owner(t) in (None, self._worker) for _, t in trials)
        owned = {
            index: t
            for index, t in not_lost(trials, self._num_trials).items()
            if owner(t) == self._worker and t.state != self._state.WAITING
        }
        again = {i: t for i, t in owned.items() if alone or not t.state.is_finished()}
        return again, {i: t for i, t in owned.items() if i not in again}

    def merge(self, ledger: Ledger) -> Ledger:
        """The ledger with what other workers have reported since."""
        scores, reported, status = (np.array(x) for x in ledger)
        of_state = {"RUNNING": Status.RUNNING, "COMPLETE": Status.COMPLETED}
        of_state |= {"PRUNED": Status.STOPPED, "WAITING": Status.WAITING}
        for index, frozen in not_lost(by_index(self._study), self._num_trials).items():
            if index in self._mine or index in self._before:
                continue
            values = frozen.intermediate_values
            scores[index] = [values.get(p, math.nan) for p in range(scores.shape[1])]
            reported[index], status[index] = len(values), of_state[frozen.state.name]
            if status[index] == Status.STOPPED and len(values) == scores.shape[1]:
                status[index] = Status.COMPLETED  # with NaN, which Optuna's complete trials refuse
        return Ledger(jnp.asarray(scores), jnp.asarray(reported), jnp.asarray(status))

    def is_running_elsewhere(self) -> bool:
        """Whether trials of other workers are not finished, and may yet return to the queue."""
        mine = set(self._my_ids())
        trials = by_index(self._study)
        states = {self._state.WAITING}
        if self._heart is not None:
            states.add(self._state.RUNNING)
            # One that was taken from its worker is about to be in the queue again.
            begun = {index for index, _ in trials if index < self._num_trials}
            if begun - set(not_lost(trials, self._num_trials)):
                return True
        return any(t.state in states and t._trial_id not in mine for _, t in trials)

    def close(self) -> None:
        if self._heart is not None:
            self._heart.stop()
        close_storage(self._storage)

    def num_elsewhere(self) -> int:
        """How many trials are other workers'."""
        trials = not_lost(by_index(self._study), self._num_trials).values()
        begun = [t for t in trials if t.state != self._state.WAITING]
        return sum(owner(t) != self._worker for t in begun)

    @property
    def _state(self) -> Any:
        return self._optuna.trial.TrialState

    def _drop(self, trials: dict[int, Any], index: int) -> None:
        with self._lock:
            trials.pop(index, None)

    def _frozen(self, trial: Any) -> Any:
        return self._storage.get_trial(trial._trial_id)

    def _my_ids(self) -> list[int]:
        with self._lock:
            before = [t for t in self._before.values() if not t.state.is_finished()]
            return [trial._trial_id for trial in (*self._mine.values(), *before)]
