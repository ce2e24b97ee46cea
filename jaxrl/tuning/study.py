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
import importlib
import importlib.util
import math
import threading
import time
import warnings
from collections.abc import Callable, Container, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.tuning import space as spaces
from jaxrl.tuning.schedulers import HyperTrick, Ledger, Status
from jaxrl.types import Array

OPENING_ATTEMPTS = 5
"""Workers that start together all make the tables; all but one fail at first."""
SAMPLERS = ("random", "tpe", "cmaes", "gp")
INDEX, WORKER = "index", "worker"
FIRST = "failed_trial"
"""Where Optuna keeps the number of the trial that another one repeats."""


def optuna() -> Any:
    """Optuna, or an error that says how to get it."""
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise ImportError("sweeps need Optuna: pip install 'jaxrl[tune]'") from error


def suggest(trial: Any, name: str, searched: spaces.Distribution) -> Any:
    """The value that the study's sampler gives to a trial, or gave it before."""
    match searched:
        case spaces.Uniform(low, high):
            return trial.suggest_float(name, low, high)
        case spaces.LogUniform(low, high):
            return trial.suggest_float(name, low, high, log=True)
        case spaces.Integer(low, high):
            return trial.suggest_int(name, low, high)
        case spaces.QLogUniform(low, high, 1):
            return searched.value(trial.suggest_int(name, low, high, log=True))
        case spaces.QLogUniform():
            return trial.suggest_categorical(name, searched.ladder)
        case spaces.Choice(values):
            labels = [_label(value) for value in values]
            return values[labels.index(trial.suggest_categorical(name, labels))]


def _label(value: Any) -> Any:
    """What Optuna stores for one of several values."""
    plain = value is None or isinstance(value, bool | int | float | str)
    return value if plain else repr(value)


class Store:
    """One worker's view of a study.

    Args:
      url: `sqlite:///study.db`, `postgresql://...`, or `journal:///study.log`.
      draw: `draw(i)` gives trial i's values to the sampler "random"; other samplers are Optuna's,
        seeded by `seed` and i, and learn from the trials that have ended.
      worker: a name that no other worker has, and that this one has again after a restart.
      heartbeat_seconds: a worker that was not heard of for twice as long is taken for dead.
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
    ):
        if sampler not in SAMPLERS:
            raise ValueError(f"sampler must be one of {SAMPLERS}, got {sampler!r}")
        self._optuna = optuna()
        _check_sampler(sampler)
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self._space = {key: space[key] for key in sorted(space)}
        self._num_trials, self._draw = num_trials, draw
        self._sampler, self._seed, self._worker = sampler, seed, worker
        self._storage = _storage(url, heartbeat_seconds)
        self._study = self._optuna.create_study(
            storage=self._storage, study_name=name, direction="maximize", load_if_exists=True
        )
        self._mine: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._before, self._ended = self._from_before()
        self._lost: dict[int, int] = {}
        self._heart = None
        if hasattr(self._storage, "record_heartbeat"):
            self._heart = _Heart(self._beat, heartbeat_seconds)

    def claim(self, begun: Container[int]) -> tuple[int, dict[str, Any]] | None:
        """The index and values of a trial to run, None if all are taken.

        First those from before a restart that are to be run again and not in `begun`, then those
        returned to the queue, then new ones.
        """
        for index, frozen in list(self._before.items()):
            if index not in begun:
                self._drop(self._before, index)
                if (claimed := self._take(frozen, index)) is not None:
                    return claimed
        while (popped := self._pop()) is not None or self._num_begun() < self._num_trials:
            if popped is None:  # for whoever comes first
                self._study.add_trial(self._optuna.create_trial(state=self._state.WAITING))
            elif (claimed := self._take(*popped)) is not None:
                return claimed
        return None

    def _pop(self) -> tuple[Any, int] | None:
        """Take a trial from the queue.

        Its heartbeat comes first: if this worker dies now, it goes back to the queue.
        """
        trials = self._by_index()
        alive = self._alive(trials)
        for index, frozen in trials:
            if frozen.state != self._state.WAITING:
                continue
            is_first = index in alive and alive[index].number == frozen.number
            if is_first and index in self._mine:  # taken from this worker, whose lane is not free
                continue
            if self._heart is not None:
                self._storage.record_heartbeat(frozen._trial_id)
            if not self._set_state(frozen, self._state.RUNNING):  # another worker was faster
                continue
            if is_first:
                return frozen, index
            self._set_state(frozen, self._state.FAIL)  # two workers put it into the queue
        return None

    def _set_state(self, trial: Any, state: Any) -> bool:
        try:
            return self._storage.set_trial_state_values(trial._trial_id, state)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            return False

    def _take(self, frozen: Any, index: int) -> tuple[int, dict[str, Any]] | None:
        """A trial's index and values; None if it was taken from this worker, as if it were dead."""
        state = self._frozen(frozen).state
        if state == self._state.FAIL:
            return None
        self._study._thread_local.cached_all_trials = None  # as `ask` does, for the samplers
        self._study.sampler = self._sampler_of(index)
        trial = self._trial(frozen)
        with self._lock:
            self._mine[index] = trial
        try:
            if state == self._state.RUNNING:
                trial.set_user_attr(INDEX, index)
                trial.set_user_attr(WORKER, self._worker)
            return index, self._values(trial)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            self._drop(self._mine, index)
            return None

    def _trial(self, frozen: Any) -> Any:
        return self._optuna.trial.Trial(self._study, frozen._trial_id)

    def _values(self, trial: Any) -> dict[str, Any]:
        return {name: suggest(trial, name, part) for name, part in self._space.items()}

    def report(self, index: int, phase: int, score: float) -> float | None:
        """Store a score, before anything is decided from it.

        Returns:
          The score that counts: the one that is stored already, if this phase is run again after a
          restart. None if the trial was taken from this worker, as if it were dead.
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

    def resume(self, indices: Iterable[int]) -> set[int]:
        """Take up the trials that this worker was running at its last checkpoint.

        Returns:
          Those that it does not go on with: they were taken from it as if it were dead, or have
          `ended` after the checkpoint.
        """
        gone = set(indices) - set(self._before)
        for index in set(indices) - gone:
            frozen = self._before[index]
            with self._lock:
                self._mine[index] = self._trial(frozen)
            self._drop(self._before, index)
        return gone

    def ended(self) -> dict[int, dict[str, Any]]:
        """The values of the trials that this worker had ended before it was restarted, by index,
        but for those that it runs again."""
        return {index: self._values(self._trial(t)) for index, t in self._ended.items()}

    def _from_before(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """This worker's trials from before a restart: those to run again, those to leave.

        A worker that is alone runs again whatever its last checkpoint lacks, to the same decisions
        and agents. Where others take part, what has ended stays so.
        """
        trials = self._by_index()
        alone = all(t.user_attrs.get(WORKER, self._worker) == self._worker for _, t in trials)
        owned = {
            index: t
            for index, t in self._alive(trials).items()
            if t.user_attrs.get(WORKER) == self._worker
        }
        again = {i: t for i, t in owned.items() if alone or not t.state.is_finished()}
        return again, {i: t for i, t in owned.items() if i not in again}

    def merge(self, ledger: Ledger) -> Ledger:
        """The ledger with what other workers have reported since."""
        scores, reported, status = (np.array(x) for x in ledger)
        of_state = {"RUNNING": Status.RUNNING, "COMPLETE": Status.COMPLETED}
        of_state |= {"PRUNED": Status.STOPPED, "WAITING": Status.WAITING}
        for index, frozen in self._alive(self._by_index()).items():
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
        states = {self._state.WAITING}
        if self._heart is not None:
            states.add(self._state.RUNNING)
        return any(t.state in states and t._trial_id not in mine for _, t in self._by_index())

    def close(self) -> None:
        if self._heart is not None:
            self._heart.stop()
        if hasattr(self._storage, "engine"):
            self._storage.remove_session()
            self._storage.engine.dispose()

    @property
    def _state(self) -> Any:
        return self._optuna.trial.TrialState

    def _by_index(self) -> list[tuple[int, Any]]:
        """All trials with their indices: each one's place among those that repeat no other."""
        indices: dict[int, int] = {}
        trials = self._study.get_trials(deepcopy=False)
        for t in trials:
            if FIRST not in t.system_attrs:
                indices[t.number] = len(indices)
        return [(indices[t.system_attrs.get(FIRST, t.number)], t) for t in trials]

    def _num_begun(self) -> int:
        return len({index for index, _ in self._by_index()})

    def _alive(self, trials: list[tuple[int, Any]]) -> dict[int, Any]:
        """Trials by index, but for those that were lost with their worker.

        Should two workers have put a trial into the queue, its first repetition is the one.
        """
        alive: dict[int, Any] = {}
        for index, frozen in trials:
            if frozen.state != self._state.FAIL and index < self._num_trials:
                alive.setdefault(index, frozen)
        return alive

    def _drop(self, trials: dict[int, Any], index: int) -> None:
        with self._lock:
            trials.pop(index, None)

    def _frozen(self, trial: Any) -> Any:
        return self._storage.get_trial(trial._trial_id)

    def _my_ids(self) -> list[int]:
        with self._lock:
            before = [t for t in self._before.values() if not t.state.is_finished()]
            return [trial._trial_id for trial in (*self._mine.values(), *before)]

    def _beat(self) -> None:
        """Tell the storage that this worker lives, and free the trials of those that do not."""
        for trial_id in self._my_ids():
            self._storage.record_heartbeat(trial_id)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            self._optuna.storages.fail_stale_trials(self._study)
            trials = self._by_index()
            alive = self._alive(trials)
            lost = {i: t for i, t in trials if i < self._num_trials and i not in alive}
            for index, frozen in lost.items():
                # A worker that frees a trial may die before it has put it into the queue.
                if self._lost.get(index) == frozen.number:
                    _requeue(self._study, copy.deepcopy(frozen))
        self._lost = {index: frozen.number for index, frozen in lost.items()}

    def _sampler_of(self, index: int) -> Any:
        """A sampler made anew for each trial, so that a resumed sweep draws the same."""
        samplers = self._optuna.samplers
        seed = int(np.random.SeedSequence([self._seed, index]).generate_state(1)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            match self._sampler:
                case "tpe":
                    return samplers.TPESampler(seed=seed)
                case "cmaes":
                    return samplers.CmaEsSampler(seed=seed)
                case "gp":
                    return samplers.GPSampler(seed=seed)
        return _keyed_sampler(self._optuna, self._draw(index))


def _check_sampler(name: str) -> None:
    """Raise if a sampler needs what is not installed, before any work."""
    needed = {"cmaes": "cmaes", "gp": "torch"}.get(name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        raise ImportError(f"the sampler {name!r} needs {needed}: pip install {needed}")


def _keyed_sampler(optuna: Any, values: dict[str, Any]) -> Any:
    """A sampler that answers with these values."""

    class Keyed(optuna.samplers.BaseSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            return _label(values[name])

    return Keyed()


def _storage(url: str, heartbeat_seconds: int) -> Any:
    storages = optuna().storages
    if url.startswith("journal:///"):
        backend = storages.journal.JournalFileBackend(url.removeprefix("journal:///"))
        return storages.JournalStorage(backend)
    if url.startswith("postgresql://"):  # the driver that the extra installs
        url = "postgresql+psycopg" + url.removeprefix("postgresql")
    no_pool = {"poolclass": importlib.import_module("sqlalchemy.pool").NullPool}
    for attempts_left in reversed(range(OPENING_ATTEMPTS)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna().exceptions.ExperimentalWarning)
                # This makes the tables. If it fails, no connection stays open.
                storages.RDBStorage(url, engine_kwargs=no_pool)
                return storages.RDBStorage(
                    url,
                    heartbeat_interval=heartbeat_seconds,
                    grace_period=2 * heartbeat_seconds,
                    heartbeat_stale_trial_callback=_requeue,
                )
        except ImportError as error:
            raise ImportError(
                f"no driver for the study storage {url!r}: {error}; pip install 'jaxrl[tune]'"
            ) from error
        except Exception as error:
            if not attempts_left:
                raise ValueError(f"the study storage {url!r} cannot be opened: {error}") from error
            time.sleep(0.5)
    raise AssertionError


def _requeue(study: Any, lost: Any) -> None:
    """Put a lost trial into the queue again; it is nobody's now, also if its worker comes back."""
    lost.user_attrs.pop(WORKER, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna().exceptions.ExperimentalWarning)
        optuna().storages.RetryHeartbeatStaleTrialCallback()(study, lost)


class _Heart:
    """A thread that beats, since a compilation may take longer than a heartbeat."""

    def __init__(self, beat: Callable[[], None], seconds: int):
        self._beat, self._seconds = beat, seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        wait = 0.0
        while not self._stopped.wait(wait):
            began = time.monotonic()
            # A storage that does not answer once may do so at the next beat.
            with contextlib.suppress(optuna().exceptions.StorageInternalError):
                self._beat()
            wait = max(began + self._seconds - time.monotonic(), 0.0)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def hypertrick_pruner(num_trials: int, eviction_rate: float = 0.25) -> Any:
    """HyperTrick as an `optuna.pruners.BasePruner`, for any `objective(trial)` that reports a score
    for the steps 0, 1, 2, ... and asks `trial.should_prune()` after each; scores are maximized or
    minimized as the study says.

    Args:
      num_trials: N, how many trials the study will run.
      eviction_rate: r, the share of trials to stop in each phase.
    """
    pruners = optuna().pruners
    rule = HyperTrick(num_trials, num_phases=1, eviction_rate=eviction_rate)

    class HyperTrickPruner(pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            phase = trial.last_step
            if phase is None:
                return False
            sign = 1.0 if study.direction.name == "MAXIMIZE" else -1.0
            others = [
                sign * t.intermediate_values[phase]
                for t in study.get_trials(deepcopy=False)
                if phase in t.intermediate_values and t.number != trial.number
            ]
            scores = np.full(max(num_trials, len(others)), np.nan, np.float32)  # one shape for all
            scores[: len(others)] = others
            score = jnp.float32(sign * trial.intermediate_values[phase])
            num_reported = jnp.int32(len(others) + 1)
            evicts = rule.evicts(score, jnp.asarray(scores), jnp.int32(phase), num_reported)
            return bool(evicts)

    return HyperTrickPruner()


def draw_of(space: spaces.Space, trial_values: Callable[[int], dict[str, Array]]) -> Any:
    """`draw(index) -> values` as plain numbers, for `Store`."""
    compiled = jax.jit(trial_values)
    return lambda index: spaces.values(space, compiled(index))
