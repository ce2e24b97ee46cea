"""Damage to studies: what is read is checked, and every failure is one error that names the study.

A database or a journal may be cut, edited, or of something else. Optuna reads it with few checks:
damage shows as any exception at any call, or as values that no sweep stores. `guard` turns both
into `DamagedStudyError`, and `explain_storage_failure` says which study it is and what to do.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from jaxrl.files.urls import redact_url
from jaxrl.tuning.samplers.optional_optuna import import_optuna

LONGEST = 300
"""Characters that are shown of another package's error."""


class DamagedStudyError(ValueError):
    """A study holds what no sweep stores, or lacks what one has stored."""


@contextlib.contextmanager
def explain_storage_failure(url: str, name: str) -> Iterator[None]:
    """Raise one error that names the study, if reading or writing it fails within the block.

    Raises:
      OSError: if the database failed; says where and why.
      ValueError: if the study is damaged.
    """
    try:
        yield
    except import_optuna().exceptions.StorageInternalError as error:
        raise OSError(
            f"the study at {redact_url(url)} could not be read or written: "
            f"{error.__cause__ or error}. What it holds stays; resume once its disk has space and "
            "it can be reached, or restore a copy of it if it is damaged"
        ) from error
    except DamagedStudyError as error:
        raise ValueError(
            f"the study {name!r} at {redact_url(url)} is damaged or not this sweep's: {error}. "
            "Resume with the storage and the study that the sweep began with, restore a copy of "
            "them, or begin a new sweep in another directory, with another study (study_name, "
            "--study)"
        ) from error


@contextlib.contextmanager
def find_damage() -> Iterator[None]:
    """Raise `DamagedStudyError` if a call of Optuna fails within the block in no known way."""
    known = import_optuna().exceptions
    try:
        yield
    except (
        DamagedStudyError,
        known.StorageInternalError,
        known.UpdateFinishedTrialError,
        known.DuplicatedStudyError,
        OSError,
        MemoryError,
    ):
        raise
    except Exception as error:
        shown = f"{type(error).__name__}: {error}"
        raise DamagedStudyError(shown[:LONGEST]) from error


def guard(storage: Any, check_trial: Callable[[Any], None], trial_id: Callable[[Any], int]) -> Any:
    """Let a storage's methods raise `DamagedStudyError`, and check the trials that they return.

    Args:
      trial_id: returns the id of a trial, which no other trial of the storage has.

    Returns:
      The storage itself: Optuna asks for the class of storages.
    """
    for name, method in inspect.getmembers(storage, inspect.ismethod):
        if not name.startswith("__"):
            setattr(storage, name, _guarded(method))
    check = _once_each(check_trial, trial_id)
    storage.get_trial = _checked(storage.get_trial, check)
    storage.get_all_trials = _checked(storage.get_all_trials, check)
    return storage


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        with find_damage():
            return method(*arguments, **options)

    return call


def _checked(method: Callable[..., Any], check: Callable[[Any], None]) -> Callable[..., Any]:
    """Return a method that checks the trial, or each of the trials, which it returns."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        found = method(*arguments, **options)
        with find_damage():
            for trial in found if isinstance(found, list) else [found]:
                check(trial)
        return found

    return call


def _once_each(
    check_trial: Callable[[Any], None], trial_id: Callable[[Any], int]
) -> Callable[[Any], None]:
    """Return a function that checks each object once: storages keep trials that have ended."""
    checked: dict[int, Any] = {}

    def check(trial: Any) -> None:
        if checked.get(trial_id(trial)) is not trial:
            check_trial(trial)
            checked[trial_id(trial)] = trial

    return check
