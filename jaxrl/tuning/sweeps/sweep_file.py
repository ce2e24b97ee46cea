"""`sweep.json`, which describes a sweep and its trials, and the identity of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxrl import config as fields
from jaxrl.files import schema
from jaxrl.files.urls import JOURNAL, parse_url
from jaxrl.training import manifest as manifests

NAME = "sweep.json"
SAME = ("algorithm", "env", "num_envs", "env_options", "config", "seed", "scheduler", "objective",
        "evaluation_episodes", "seeds_per_trial", "sampler", "lanes", "phase", "space")  # fmt: skip
"""What a resumed sweep must have in common with the one before it."""


def identity(description: dict[str, Any]) -> dict[str, Any]:
    """Return the identity of a sweep, as its checkpoints carry it."""
    settings = {name: description.get(name) for name in ("run_id", *SAME)}
    return settings | {"versions": manifests.versions()}


def read(directory: Path) -> dict[str, Any]:
    """Return what `sweep.json` holds.

    Raises:
      ValueError: if it is damaged.
    """
    sweep = schema.read(directory / NAME, schema.SWEEP, fields.with_current_names)
    storage = sweep.get("storage")
    if storage is not None and not storage.startswith(JOURNAL):
        try:
            parse_url(storage)
        except ValueError as error:
            raise ValueError(f"{directory / NAME} is damaged: {error}") from error
    return sweep


def write(directory: Path, summary: dict[str, Any]) -> None:
    """Write `sweep.json`, as a whole or not at all."""
    schema.write(directory / NAME, summary)
