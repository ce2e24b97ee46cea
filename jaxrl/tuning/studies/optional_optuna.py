"""Optuna, which is installed by the extra `tune` only."""

from __future__ import annotations

import importlib
from typing import Any


def import_optuna() -> Any:
    """Return the module optuna, or raise an ImportError that says how to install it."""
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise ImportError("sweeps need Optuna: pip install 'jaxrl[tune]'") from error
