"""Optuna, which is installed by the extra `tune` only."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Iterator
from typing import Any


def import_optuna() -> Any:
    """Return the module optuna, or raise an ImportError that says how to install it."""
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise ImportError("sweeps need Optuna: pip install 'jaxrl[tune]'") from error


@contextlib.contextmanager
def ignore_experimental_warnings() -> Iterator[None]:
    """Suppress Optuna's warnings that heartbeats and some samplers are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", import_optuna().exceptions.ExperimentalWarning)
        yield
