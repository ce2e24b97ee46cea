"""Records: the JSON files that keep the results of finished runs and studies, and their curves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.analysis import statistics
from jaxrl.types import Metrics


def mean_returns_by_part(metrics: Metrics, num_parts: int = 50) -> np.ndarray:
    """Return mean returns over equal parts of training, `[P, parts]`; NaN where no episode ended.

    Args:
      metrics: of P agents and all their updates, leaves `[P, num_updates]`.
    """

    def by_part(name: str) -> np.ndarray:
        values = np.asarray(metrics[name])
        parts = np.array_split(values, min(num_parts, values.shape[1]), axis=1)
        return np.stack([part.sum(1) for part in parts], 1)

    counts = by_part("episode_count")
    return by_part("episode_return_sum") / np.where(counts, counts, np.nan)


def summarize_seeds(scores: np.ndarray) -> dict[str, Any]:
    """Return the mean over seeds `[seeds]`, with its 95% bootstrap interval and all scores."""
    estimate = statistics.estimate(statistics.mean, scores[:, None])
    rounded = {name: round(float(x), 4) for name, x in estimate._asdict().items()}
    return rounded | {"by_seed": scores.round(4).tolist()}


def save_record(directory: Path, name: str, record: dict[str, Any]) -> Path:
    """Write `name.json` and return the path of the picture that belongs beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    return directory / f"{name}.png"
