"""Optuna's storage of a study: open it, read its trials, and explain its failures.

This is the one file that uses what Optuna does not document as public; see the last section.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from jaxrl.config import with_current_names
from jaxrl.training.manifest import without_passwords
from jaxrl.tuning.optional_optuna import import_optuna

OPENING_ATTEMPTS = 5
"""Attempts to open a database: workers that start together all make its tables, and only one of
them succeeds at first."""

INDEX = "index"
"""User attribute of a trial: its index from 0 to N - 1."""
WORKER = "worker"
"""User attribute of a trial: the name of the worker that runs it."""
CLAIMED_BY = "wanted by "
"""User attribute of a trial, followed by a worker's name: that worker was about to run it."""
SEARCH = "search"
"""User attribute of a study: what all its workers must have in common."""
REPEATS = "failed_trial"
"""System attribute that Optuna gives to a repeated trial: the number of the first one."""


@contextlib.contextmanager
def ignore_experimental_warnings() -> Iterator[None]:
    """Suppress Optuna's warnings that heartbeats and some samplers are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", import_optuna().exceptions.ExperimentalWarning)
        yield


def open_storage(url: str, heartbeat_seconds: int) -> Any:
    """Open the storage at `sqlite:///study.db`, `postgresql://...` or `journal:///study.log`.

    Raises:
      ImportError: if a database's driver is not installed.
      ValueError: if the storage cannot be opened.
    """
    storages, shown = import_optuna().storages, without_passwords(url)
    if url.startswith("journal:///"):
        backend = storages.journal.JournalFileBackend(url.removeprefix("journal:///"))
        return storages.JournalStorage(backend)
    if url.startswith("postgresql://"):  # the driver that the extra `tune` installs
        url = "postgresql+psycopg" + url.removeprefix("postgresql")
    no_pool = {"poolclass": importlib.import_module("sqlalchemy.pool").NullPool}
    for attempts_left in reversed(range(OPENING_ATTEMPTS)):
        try:
            with ignore_experimental_warnings():
                # The first one makes the tables. If it fails, it leaves no connection open.
                storages.RDBStorage(url, engine_kwargs=no_pool)
                return storages.RDBStorage(
                    url,
                    heartbeat_interval=heartbeat_seconds,
                    grace_period=2 * heartbeat_seconds,
                )
        except ImportError as error:
            raise ImportError(
                f"no driver for the study storage {shown!r}: {error}; pip install 'jaxrl[tune]'"
            ) from error
        except Exception as error:
            if not attempts_left:
                raise ValueError(
                    f"the study storage {shown!r} cannot be opened: {error}"
                ) from error
            time.sleep(0.5)
    raise AssertionError


def close_storage(storage: Any) -> None:
    """Close the connections to a database."""
    if hasattr(storage, "engine"):
        storage.remove_session()
        storage.engine.dispose()


@contextlib.contextmanager
def explain_storage_failure(url: str) -> Iterator[None]:
    """Raise an OSError that says where and why, if the database fails within the block."""
    try:
        yield
    except import_optuna().exceptions.StorageInternalError as error:
        raise OSError(
            f"the study at {without_passwords(url)} could not be read or written: "
            f"{error.__cause__ or error}. What it holds stays; resume once its disk has space and "
            "it can be reached"
        ) from error


def check_search(study: Any, search: dict[str, Any]) -> None:
    """Raise ValueError unless a study is of this search; store the search in a new study."""
    search = json.loads(json.dumps(search))
    # Read in this order: a worker stores the search before it adds the first trial.
    has_trials = bool(study.get_trials(deepcopy=False))
    stored = with_current_names(study.user_attrs.get(SEARCH))
    if stored is None and (has_trials or study.direction.name != "MAXIMIZE"):
        raise ValueError(
            f"the study {study.study_name!r} was not made by a sweep of jaxrl; choose another name "
            "(study_name, --study)"
        )
    if stored is None:
        study.set_user_attr(SEARCH, search)
        return
    changes = [
        f"{name}: {stored.get(name)!r} -> {new!r}"
        for name, new in search.items()
        if stored.get(name) != new
    ]
    if changes:
        raise ValueError(
            f"the study {study.study_name!r} is of another search; choose another name "
            "(study_name, --study), or undo these changes:\n  " + "\n  ".join(changes)
        )


# --- trials of a study ---------------------------------------------------------------------------


def indexed_trials(study: Any) -> list[tuple[int, Any]]:
    """Return all trials of a study in the order of their numbers, each after its index.

    The index is the trial's position among the trials that repeat no other; a repeated trial has
    the index of the first one. So workers that add trials at the same time get different indices.
    """
    indices: dict[int, int] = {}
    trials = study.get_trials(deepcopy=False)
    for trial in trials:
        if REPEATS not in trial.system_attrs:
            indices[trial.number] = len(indices)
    return [(indices[t.system_attrs.get(REPEATS, t.number)], t) for t in trials]


def valid_trials(trials: list[tuple[int, Any]], num_trials: int) -> dict[int, Any]:
    """Return the trial that counts of each index below `num_trials`.

    Failed trials were lost with their worker and don't count. If two workers repeated the same
    trial, the repetition with the smaller number counts.
    """
    valid: dict[int, Any] = {}
    for index, trial in trials:
        if trial.state.name != "FAIL" and index < num_trials:
            valid.setdefault(index, trial)
    return valid


def owner(trial: Any) -> str | None:
    """Return the name of the worker that runs a trial, None if nobody does.

    If the worker died before it stored its name, it is the only one that claimed the trial.
    """
    claims = [name.removeprefix(CLAIMED_BY) for name in trial.user_attrs if _is_claim(name)]
    return trial.user_attrs.get(WORKER, claims[0] if len(claims) == 1 else None)


def without_owner(user_attrs: dict[str, Any]) -> dict[str, Any]:
    """Return a trial's user attributes without those that name its worker."""
    return {k: v for k, v in user_attrs.items() if k != WORKER and not _is_claim(k)}


def _is_claim(attribute: str) -> bool:
    return attribute.startswith(CLAIMED_BY)


def change_state(storage: Any, trial: Any, state: str) -> bool:
    """Set a trial's state ("RUNNING", "FAIL"); return False if another worker was faster."""
    optuna = import_optuna()
    try:
        return storage.set_trial_state_values(trial_id(trial), optuna.trial.TrialState[state])
    except optuna.exceptions.UpdateFinishedTrialError:
        return False


# --- what Optuna does not document as public -----------------------------------------------------


def trial_id(trial: Any) -> int:
    """Return a trial's id. Storages know trials by it, but trials show only their number."""
    return trial._trial_id


def trial_of(study: Any, frozen: Any) -> Any:
    """Return the trial that asks the study's sampler for values.

    `Study.ask` makes such an object only of new trials, not of one that runs already.
    """
    return import_optuna().trial.Trial(study, trial_id(frozen))


def study_view(study: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same study, but with `change` applied to every trial that samplers read.

    Samplers read trials through this one method of a study. The view shares the study's storage
    object, whose cache must know a trial before a value of it can be stored.
    """
    optuna = import_optuna()

    class StudyView(optuna.Study):
        def _get_trials(
            self, deepcopy: bool = True, states: Any = None, use_cache: bool = False
        ) -> list[Any]:
            # Without the cache of this method, which only `ask` and `optimize` renew.
            return [change(trial) for trial in super()._get_trials(deepcopy, states, False)]

    return StudyView(study.study_name, study._storage)
