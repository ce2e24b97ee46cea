"""Where a study is kept: how a URL becomes an Optuna storage, and what is written there."""

from __future__ import annotations

import contextlib
import importlib
import json
import time
import warnings
from collections.abc import Iterator
from typing import Any

from jaxrl.config import with_current_names
from jaxrl.training.manifest import without_passwords

OPENING_ATTEMPTS = 5
"""Workers that start together all make the tables; all but one fail at first."""
WORKER = "worker"
"""Where a trial has the name of the worker that runs it."""
WANTED = "wanted by "
"""With a worker's name after it: where a trial says that this one is about to take it."""
SEARCH = "search"
"""Where a study says what is searched."""


def owner(trial: Any) -> str | None:
    """The worker that runs a trial; if it died before it wrote so, the only one that wanted it."""
    wanted = [name.removeprefix(WANTED) for name in trial.user_attrs if name.startswith(WANTED)]
    return trial.user_attrs.get(WORKER, wanted[0] if len(wanted) == 1 else None)


def optuna() -> Any:
    """Optuna, or an error that says how to get it."""
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise ImportError("sweeps need Optuna: pip install 'jaxrl[tune]'") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's warnings that heartbeats and some samplers are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna().exceptions.ExperimentalWarning)
        yield


def open_storage(url: str, heartbeat_seconds: int) -> Any:
    """The Optuna storage at `sqlite:///study.db`, `postgresql://...` or `journal:///study.log`.

    Raises:
      ImportError: if a database's driver is not installed.
      ValueError: if the storage cannot be opened.
    """
    storages, shown = optuna().storages, without_passwords(url)
    if url.startswith("journal:///"):
        backend = storages.journal.JournalFileBackend(url.removeprefix("journal:///"))
        return storages.JournalStorage(backend)
    if url.startswith("postgresql://"):  # the driver that the extra installs
        url = "postgresql+psycopg" + url.removeprefix("postgresql")
    no_pool = {"poolclass": importlib.import_module("sqlalchemy.pool").NullPool}
    for attempts_left in reversed(range(OPENING_ATTEMPTS)):
        try:
            with quiet():
                # This makes the tables. If it fails, no connection stays open.
                storages.RDBStorage(url, engine_kwargs=no_pool)
                return storages.RDBStorage(
                    url,
                    heartbeat_interval=heartbeat_seconds,
                    grace_period=2 * heartbeat_seconds,
                    heartbeat_stale_trial_callback=requeue,
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


def check_search(study: Any, search: dict[str, Any]) -> None:
    """Raise unless a study is of this search; a new one is from now on."""
    search = json.loads(json.dumps(search))
    # In this order: whoever adds a trial has said what is searched before.
    has_trials = bool(study.get_trials(deepcopy=False))
    known = with_current_names(study.user_attrs.get(SEARCH))
    if known is None and (has_trials or study.direction.name != "MAXIMIZE"):
        raise ValueError(
            f"the study {study.study_name!r} is not of a sweep of jaxrl's; choose another name "
            "(study_name, --study)"
        )
    if known is None:
        study.set_user_attr(SEARCH, search)
        return
    changes = [
        f"{name}: {known.get(name)!r} -> {new!r}"
        for name, new in search.items()
        if known.get(name) != new
    ]
    if changes:
        raise ValueError(
            f"the study {study.study_name!r} is of another search; choose another name "
            "(study_name, --study), or undo:\n  " + "\n  ".join(changes)
        )


@contextlib.contextmanager
def explain_storage_failure(url: str) -> Iterator[None]:
    """A database that fails is an `OSError` that says where and why."""
    try:
        yield
    except optuna().exceptions.StorageInternalError as error:
        raise OSError(
            f"the study at {without_passwords(url)} could not be read or written: "
            f"{error.__cause__ or error}. What it holds stays; resume once its disk has space and "
            "it can be reached"
        ) from error


def close_storage(storage: Any) -> None:
    """Close the connections to a database."""
    if hasattr(storage, "engine"):
        storage.remove_session()
        storage.engine.dispose()


def requeue(study: Any, lost: Any) -> None:
    """Put a lost trial into the queue again; it is nobody's now, also if its worker comes back."""
    for name in [name for name in lost.user_attrs if name == WORKER or name.startswith(WANTED)]:
        del lost.user_attrs[name]
    with quiet():
        optuna().storages.RetryHeartbeatStaleTrialCallback()(study, lost)


def free_stale(study: Any) -> None:
    """Return the trials of workers that were not heard of to the queue."""
    with quiet():
        optuna().storages.fail_stale_trials(study)
