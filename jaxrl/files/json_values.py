"""Hyperparameters and scores as JSON holds them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def values_to_json(values: dict[str, Any]) -> dict[str, Any]:
    """Return hyperparameters with lists in place of tuples."""
    return {name: list(x) if isinstance(x, tuple) else x for name, x in values.items()}


def values_from_json(values: dict[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters that `values_to_json` was given."""
    return {name: tuple(x) if isinstance(x, list) else x for name, x in values.items()}


def score_to_json(score: np.floating) -> float | str | None:
    """Return a score as `sweep.json` has it: null for NaN, "-inf" for minus infinity."""
    if math.isnan(score):
        return None
    return float(score) if math.isfinite(score) else "-inf"
