"""The study store: an Optuna study that holds every trial, score and decision of a sweep.

Several sweeps, on several machines, may work on one study: each claims trials of its own, and all
see the scores that the others reported, so HyperTrick ranks them together and none waits for
another. A sweep that dies returns its trials to the queue (with a database; a journal file has no
heartbeats). optuna-dashboard shows the curves while they grow, since each score is stored before
anything is decided from it.

A trial has an index from 0 to N - 1, whatever number Optuna gives it: one that was returned to the
queue gets a new number and keeps its index.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterable
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
      key: trial i's values are `draw(i)` for the sampler "random"; other samplers are Optuna's,
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
        self._heart = _Heart(self._study, self._storage, self._my_ids, heartbeat_seconds)

    def claim(self, begun: Iterable[int]) -> tuple[int, dict[str, Any]] | None:
        """The index and values of a trial to run, None if all are taken.

        First those that this worker had claimed before it was restarted and that are not in
        `begun`, then those returned to the queue, then new ones.
        """
        for index, frozen in self._owned().items():
            if index not in begun:
                return self._take(self._optuna.trial.Trial(self._study, frozen._trial_id), index)
        if not self._has_waiting() and self._num_begun() >= self._num_trials:
            return None
        with warnings.catch_warnings():
            # Optuna expects its own loop where there are heartbeats; here `_Heart` sends them.
            warnings.filterwarnings("ignore", "Heartbeat of storage", UserWarning)
            trial = self._study.ask()
        index = self._index_of(trial.number)
        if index >= self._num_trials:  # another worker was faster
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            return None
        trial.set_user_attr(INDEX, index)
        trial.set_user_attr(WORKER, self._worker)
        return self._take(trial, index)

    def _take(self, trial: Any, index: int) -> tuple[int, dict[str, Any]]:
        with self._lock:
            self._mine[index] = trial
        self._heart.beat()
        self._study.sampler = self._sampler_of(index)
        return index, {name: suggest(trial, name, part) for name, part in self._space.items()}

    def report(self, index: int, phase: int, score: float) -> float | None:
        """Store a score, before anything is decided from it.

        Returns:
          The score that counts: the one that is stored already, if this phase is run again after a
          restart. None if the trial was taken from this worker, as if it were dead.
        """
        trial = self._mine[index]
        known = self._frozen(trial).intermediate_values
        if phase in known:
            return known[phase]
        try:
            trial.report(score, phase)
        except self._optuna.exceptions.UpdateFinishedTrialError:
            self._forget(index)
            return None
        return score

    def finish(self, index: int, status: Status, score: float) -> None:
        """Store that a trial has ended, with its last score."""
        trial = self._mine[index]
        if not self._frozen(trial).state.is_finished():
            if status == Status.COMPLETED and not math.isnan(score):
                self._study.tell(trial, score)
            else:
                self._study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)
        self._forget(index)

    def resume(self, indices: Iterable[int]) -> set[int]:
        """Take up the trials that this worker was running before a restart.

        Returns:
          Those that were taken from it meanwhile, as if it were dead.
        """
        owned = self._owned()
        for index in set(indices) & set(owned):
            self._mine[index] = self._optuna.trial.Trial(self._study, owned[index]._trial_id)
        self._heart.beat()
        return set(indices) - set(owned)

    def merge(self, ledger: Ledger) -> Ledger:
        """The ledger with what other workers have reported since."""
        scores, reported, status = (np.array(x) for x in ledger)
        of_state = {"RUNNING": Status.RUNNING, "COMPLETE": Status.COMPLETED}
        of_state |= {"PRUNED": Status.STOPPED, "WAITING": Status.WAITING}
        owned = self._owned()
        for frozen in self._trials():
            index = frozen.user_attrs.get(INDEX)
            if index is None or index in owned:
                continue
            values = frozen.intermediate_values
            scores[index] = [values.get(p, math.nan) for p in range(scores.shape[1])]
            reported[index], status[index] = len(values), of_state[frozen.state.name]
        return Ledger(jnp.asarray(scores), jnp.asarray(reported), jnp.asarray(status))

    def is_running_elsewhere(self) -> bool:
        """Whether trials of other workers are not finished, and may yet return to the queue."""
        mine = set(self._my_ids())
        return any(not t.state.is_finished() and t._trial_id not in mine for t in self._trials())

    def close(self) -> None:
        self._heart.stop()

    def _trials(self) -> list[Any]:
        """All but those that were lost with their worker."""
        failed = self._optuna.trial.TrialState.FAIL
        return [t for t in self._study.get_trials(deepcopy=False) if t.state != failed]

    def _owned(self) -> dict[int, Any]:
        """This worker's trials by index, from before a restart too."""
        waiting = self._optuna.trial.TrialState.WAITING
        return {
            t.user_attrs[INDEX]: t
            for t in self._trials()
            if t.user_attrs.get(WORKER) == self._worker and t.state != waiting
        }

    def _forget(self, index: int) -> None:
        with self._lock:
            del self._mine[index]

    def _frozen(self, trial: Any) -> Any:
        return self._storage.get_trial(trial._trial_id)

    def _my_ids(self) -> list[int]:
        with self._lock:
            return [trial._trial_id for trial in self._mine.values()]

    def _has_waiting(self) -> bool:
        return any(t.state == self._optuna.trial.TrialState.WAITING for t in self._trials())

    def _num_begun(self) -> int:
        return len(self._study.get_trials(deepcopy=False)) - self._num_requeued(math.inf)

    def _index_of(self, number: int) -> int:
        """A trial's index: its place among those that are no repetitions of others."""
        frozen = self._study.get_trials(deepcopy=False)[number]
        if "failed_trial" in frozen.system_attrs:
            return frozen.user_attrs[INDEX]
        return number - self._num_requeued(number)

    def _num_requeued(self, before: float) -> int:
        trials = self._study.get_trials(deepcopy=False)
        return sum("failed_trial" in t.system_attrs for t in trials if t.number < before)

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
    for attempts_left in reversed(range(OPENING_ATTEMPTS)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna().exceptions.ExperimentalWarning)
                return storages.RDBStorage(
                    url,
                    heartbeat_interval=heartbeat_seconds,
                    grace_period=2 * heartbeat_seconds,
                    heartbeat_stale_trial_callback=storages.RetryHeartbeatStaleTrialCallback(),
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


class _Heart:
    """Tells the storage that this worker lives, and frees the trials of those that do not.

    A thread, since a compilation may take longer than a heartbeat.
    """

    def __init__(self, study: Any, storage: Any, trial_ids: Callable[[], list[int]], seconds: int):
        self._study, self._storage, self._trial_ids = study, storage, trial_ids
        self._stopped = threading.Event()
        self._thread = None
        if hasattr(storage, "record_heartbeat"):
            self._thread = threading.Thread(target=self._run, args=(seconds,), daemon=True)
            self._thread.start()

    def beat(self) -> None:
        if self._thread is None:
            return
        for trial_id in self._trial_ids():
            self._storage.record_heartbeat(trial_id)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna().exceptions.ExperimentalWarning)
            optuna().storages.fail_stale_trials(self._study)

    def _run(self, seconds: int) -> None:
        while not self._stopped.wait(seconds):
            self.beat()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
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
                t.intermediate_values[phase]
                for t in study.get_trials(deepcopy=False)
                if phase in t.intermediate_values and t.number != trial.number
            ]
            score = jnp.float32(sign * trial.intermediate_values[phase])
            scores = sign * jnp.asarray(others, jnp.float32)
            return bool(rule.evicts(score, scores, jnp.int32(phase), jnp.int32(len(others) + 1)))

    return HyperTrickPruner()


def draw_of(space: spaces.Space, trial_values: Callable[[int], dict[str, Array]]) -> Any:
    """`draw(index) -> values` as plain numbers, for `Store`."""
    compiled = jax.jit(trial_values)
    return lambda index: spaces.values(space, compiled(index))
