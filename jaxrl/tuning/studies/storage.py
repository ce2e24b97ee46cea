"""Optuna's storage of a study: open it, change it, and know which search it is of.

This is the one file that uses what Optuna does not document as public; see the last section.
"""

from __future__ import annotations

import bisect
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxrl.config import with_current_names
from jaxrl.files.changes import changed_settings
from jaxrl.files.urls import JOURNAL, parse_url, redact_url, storage_file
from jaxrl.tuning.samplers.optional_optuna import ignore_experimental_warnings, import_optuna
from jaxrl.tuning.studies.damage import LONGEST, DamagedStudyError, find_damage, guard
from jaxrl.tuning.studies.journal import open_journal
from jaxrl.tuning.studies.stored_trials import check_trial


class OtherSearchError(ValueError):
    """The error for a study of other settings than this worker's."""


OPENING_ATTEMPTS = 5
"""Attempts to open a database: workers that start together all make its tables, and only one of
them succeeds at first."""

SQLITE_OPTIONS = {"connect_args": {"isolation_level": None, "timeout": 60}}
"""Options of SQLite's driver: it begins no transactions itself (see `make_sqlite_atomic`), and
waits so many seconds for other workers."""

SEARCH = "search"
"""User attribute of a study: what all its workers must have in common."""


def check_file(url: str) -> None:
    """Raise `FileNotFoundError` if the storage is a file that is not there: opening would make it.

    Raises:
      ValueError: if the URL cannot be parsed.
    """
    if is_missing(url):
        raise FileNotFoundError(f"there is no study in {storage_file(url)}: no such file")


def is_missing(url: str) -> bool:
    """Return whether the storage is a file that is not there."""
    path = storage_file(url)
    return path is not None and not Path(path).is_file()


def check_folder(url: str) -> None:
    """Raise `OSError` if the storage is a file whose folder is not there."""
    file = storage_file(url)
    if file and not file.startswith("file:") and not Path(file).parent.is_dir():
        scheme = url.partition(":")[0]
        raise OSError(
            f"the study {file} cannot be made: there is no folder {Path(file).parent} (after "
            f"{scheme}:/// a path from the root begins with a slash of its own)"
        )


def open_storage(url: str, heartbeat_seconds: int, read_only: bool = False) -> Any:
    """Open the storage at `sqlite:///study.db`, `postgresql://...` or `journal:///study.log`.

    Args:
      read_only: change nothing: make no tables, repair no journal, and let others write.

    Raises:
      ImportError: if a database's driver is not installed.
      ValueError: if the URL cannot be parsed, or the storage cannot be opened.
      OSError: if a file's folder is not there, or a journal's cannot be written to.
      DamagedStudyError: if a journal is damaged; raised by all calls of the storage too.
    """
    storages, shown = import_optuna().storages, redact_url(url)
    check_folder(url)
    if url.startswith(JOURNAL):
        with find_damage():
            journal = open_journal(Path(url.removeprefix(JOURNAL)), read_only)
            return guard(journal, check_trial, trial_id)
    parsed = parse_url(url)
    if parsed.drivername == "postgresql":  # the driver that the extra `tune` installs
        parsed = parsed.set(drivername="postgresql+psycopg")
    # Rendered, it has no braces, which Optuna would take for a template's.
    url = parsed.render_as_string(hide_password=False)
    no_pool = {"poolclass": importlib.import_module("sqlalchemy.pool").NullPool}
    for attempts_left in reversed(range(OPENING_ATTEMPTS)):
        try:
            with ignore_experimental_warnings():
                # The first one makes the tables. If it fails, it leaves no connection open.
                storages.RDBStorage(url, engine_kwargs=no_pool, skip_table_creation=read_only)
                storage = storages.RDBStorage(
                    url,
                    engine_kwargs=SQLITE_OPTIONS if parsed.drivername.startswith("sqlite") else {},
                    heartbeat_interval=heartbeat_seconds,
                    grace_period=2 * heartbeat_seconds,
                    skip_table_creation=read_only,
                )
                make_sqlite_atomic(storage.engine, "BEGIN" if read_only else "BEGIN IMMEDIATE")
                # As Optuna does with every database: the study and the sweep share its cache.
                return guard(storages.get_storage(storage), check_trial, trial_id)
        except ImportError as error:
            raise ImportError(
                f"no driver for the study storage {shown!r}: {error}; pip install 'jaxrl[tune]'"
            ) from error
        except Exception as error:
            if not attempts_left:
                # The driver's words, without SQL.
                cause = error.__cause__ or error
                reason = getattr(cause, "orig", None) or cause
                raise ValueError(
                    f"the study storage {shown!r} cannot be opened: {reason}"
                ) from error
            time.sleep(0.5)
    raise AssertionError


def make_sqlite_atomic(engine: Any, begin: str) -> None:
    """Let transactions in SQLite see no change of others; leave other databases as they are.

    Python's driver begins a transaction at the first write. So two workers could both read that a
    trial waits, and both take it: SQLite does not lock what Optuna reads in order to change it.

    Args:
      begin: the statement that begins one. `BEGIN IMMEDIATE` also keeps others from writing.
    """
    if engine.name == "sqlite":
        event = importlib.import_module("sqlalchemy.event")
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))


def open_study(
    storage: Any, url: str, name: str, search: dict[str, Any] | None, is_known: bool
) -> Any:
    """Open a study, or create it unless the sweep has trials in it.

    Args:
      url: of the storage.
      search: what all workers of the study must have in common.
      is_known: whether the sweep has trials in it.

    Raises:
      ValueError: if it is of another search.
      DamagedStudyError: if it should be there, but is not.
    """
    optuna = import_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if is_known and name not in optuna.get_all_study_names(storage):
        raise not_there()
    study = optuna.create_study(
        storage=storage, study_name=name, direction="maximize", load_if_exists=True
    )
    if search is not None:
        check_search(study, url, search)
    return study


def not_there() -> DamagedStudyError:
    """Return the error that a study is missing, in which a sweep has trials."""
    return DamagedStudyError("it is not there, but the sweep has begun trials")


def check_search(study: Any, url: str, search: dict[str, Any]) -> None:
    """Raise ValueError unless a study is of this search; store the search in a new study."""
    # Read in this order: a worker stores the search before it adds the first trial.
    has_trials = bool(study.get_trials(deepcopy=False))
    stored = with_current_names(study.user_attrs.get(SEARCH))
    shown = f"the study {study.study_name!r} at {redact_url(url)}"
    is_maximized = [direction.name for direction in study.directions] == ["MAXIMIZE"]
    if not is_maximized or (stored is None and has_trials):
        raise ValueError(
            f"{shown} was not made by a sweep of jaxrl; choose another name (study_name, --study)"
        )
    if stored is None:
        study.set_user_attr(SEARCH, search)
        return
    if not isinstance(stored, dict):
        raise DamagedStudyError(f"its search is {stored!r}"[:LONGEST])
    if changes := changed_settings(stored, search, search):
        raise OtherSearchError(
            f"{shown} is of another search; choose another name (study_name, --study), or undo "
            "these changes:\n  " + "\n  ".join(changes)
        )


def change_state(storage: Any, trial: Any, name: str) -> bool:
    """Set a trial's state, such as "RUNNING"; return False if another worker was faster."""
    optuna = import_optuna()
    try:
        return storage.set_trial_state_values(trial_id(trial), optuna.trial.TrialState[name])
    except optuna.exceptions.UpdateFinishedTrialError:
        return False


def has_heartbeats(storage: Any) -> bool:
    """Return whether a storage keeps heartbeats: databases do, journal files do not."""
    return hasattr(storage, "record_heartbeat")


# --- what Optuna does not document as public -----------------------------------------------------


def close_storage(storage: Any) -> None:
    """Close the connections to a database, which the storage with the cache has no method for."""
    database = storage._backend
    if hasattr(database, "engine"):
        database.remove_session()
        database.engine.dispose()


def trials_since(study: Any, last_id: int) -> list[Any]:
    """Return the trials that were added to a study after the one with this id, in their order.

    `Study.get_trials` takes longer the more trials a study has: it lists all of them, and reads
    anew all that have not ended. A study's ids grow with its trials' numbers: storages add its
    trials one after the other.
    """
    storage, study_id = study._storage, study._study_id
    with find_damage():
        if has_heartbeats(storage):
            # With the lock, no newer state of a trial is replaced in the cache, which must know a
            # trial before a value of it can be stored.
            with storage._lock:
                new = storage._backend._get_trials(study_id, None, set(), last_id)
                storage._add_trials_to_cache(study_id, new)
        else:
            with storage._thread_lock:
                storage._sync_with_backend()
                journal = storage._replay_result
                ids = journal._study_id_to_trial_ids[study_id]
                new = [journal._trials[i] for i in ids[bisect.bisect_right(ids, last_id) :]]
        for trial in new:
            check_trial(trial)
    return new


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
