"""Records: the JSON files that keep the results of finished runs and studies, and their curves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.analysis import statistics
from jaxrl.files.changes import changed_settings
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


def summarize_seeds(
    scores: np.ndarray, statistic: statistics.Statistic = statistics.mean
) -> dict[str, Any]:
    """Return a statistic over seeds `[seeds]`, with its 95% bootstrap interval and all scores."""
    estimate = statistics.estimate(statistic, scores[:, None])
    rounded = {name: round(float(x), 4) for name, x in estimate._asdict().items()}
    return rounded | {"by_seed": scores.round(4).tolist()}


def save_record(directory: Path, name: str, record: dict[str, Any]) -> Path:
    """Write `name.json`, whole or not at all, and return the path of the picture beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / f".{name}.json"
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.replace(directory / f"{name}.json")
    return directory / f"{name}.png"


def keep_record(
    directory: Path, name: str, settings: dict[str, Any], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return the record of these settings in `name.json`; make and write it if there is none.

    So a study of many parts goes on after a kill with the parts that are not finished.

    Raises:
      ValueError: if the file was made with other settings.
    """
    path = directory / f"{name}.json"
    if not path.exists():
        save_record(directory, name, {"settings": settings, **make()})
    record = json.loads(path.read_text())
    if changes := changed_settings(
        record["settings"], settings, {**record["settings"], **settings}
    ):
        raise ValueError(
            f"{path} was made with other settings; choose another directory, or undo these "
            "changes:\n  " + "\n  ".join(changes)
        )
    return record
