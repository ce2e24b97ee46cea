"""`sweep.json`, which describes a sweep and its trials, and the directory that holds it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxrl import config as fields
from jaxrl.envs.host_adapter import learning_options
from jaxrl.files import schema
from jaxrl.files.changes import changed_settings
from jaxrl.files.paths import check_path
from jaxrl.files.urls import redact_url, storage_file
from jaxrl.files.whole import left_behind
from jaxrl.training.population import STRATEGIES
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.directory import directory_lock
from jaxrl.tuning.objectives import names_of
from jaxrl.tuning.schedulers.contract import Scheduler
from jaxrl.tuning.spaces import space as spaces
from jaxrl.tuning.sweeps.settings import SweepSettings
from jaxrl.types import Algorithm

NAME = "sweep.json"
SAME = ("algorithm", "env", "num_envs", "env_options", "config", "seed", "scheduler", "objective",
        "evaluation_episodes", "seeds_per_trial", "sampler", "lanes", "phase", "space")  # fmt: skip
"""What a resumed sweep must have in common with the one before it."""
SHARED = ("algorithm", "env", "num_envs", "config", "seed", "scheduler", "objective",
          "evaluation_episodes", "seeds_per_trial", "sampler", "phase", "space")  # fmt: skip
"""What all workers of a study must have in common, besides the environment's options."""


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
    if (storage := sweep.get("storage")) is not None:
        try:
            storage_file(storage)
        except ValueError as error:
            raise ValueError(f"{directory / NAME} is damaged: {error}") from error
    return sweep


def known_strategy(directory: Path, description: dict[str, Any]) -> str | None:
    """Return the strategy that a sweep has trained with; None if it has not, or on other hardware.

    Strategies round differently, so a resumed sweep that measured again might decide otherwise.

    Args:
      description: of the resumed sweep.
    """
    before = read(directory)
    found = before.get("strategy")
    is_same = _last_hardware(before) == json.loads(json.dumps(_last_hardware(description)))
    return found if is_same and found in STRATEGIES else None


def _last_hardware(summary: dict[str, Any]) -> Any:
    """Return the hardware of the process that trained last."""
    return [summary, *summary.get("resumptions", [])][-1].get("hardware")


def write(directory: Path, summary: dict[str, Any]) -> None:
    """Write `sweep.json`, as a whole or not at all."""
    schema.write(directory / NAME, summary)


def describe(
    algo: Algorithm, config: Any, space: spaces.Space, scheduler: Scheduler, settings: SweepSettings
) -> dict[str, Any]:
    """Return what `sweep.json` says of the sweep besides its trials."""
    manifests.check_options(algo.env)
    objective = settings.objective
    return {
        "run_id": manifests.new_run_id(),
        "algorithm": algo.name,
        "env": algo.env.id,
        "num_envs": algo.env.num_envs,
        "env_options": algo.env.options,
        "config": fields.to_dict(config),
        "seed": settings.seed,
        "scheduler": _describe_scheduler(scheduler),
        "max_steps": _finite(settings.max_steps),
        "max_seconds": _finite(settings.max_seconds),
        "objective": objective.__name__ if callable(objective) else names_of(objective),
        "evaluation_episodes": settings.evaluation_episodes,
        "seeds_per_trial": settings.seeds_per_trial,
        "sampler": settings.sampler,
        "strategy": str(settings.strategy),
        "phase": settings.phase._asdict(),
        "space": {name: _describe_part(part) for name, part in space.items()},
        **manifests.provenance(),
        "lanes": settings.num_lanes,
        "study": settings.study_name,
        "storage": settings.storage and redact_url(settings.storage),
        "worker": settings.worker,
        "agents_dir": settings.agents_dir and str(settings.agents_dir),
    }


def _finite(cap: float) -> float | None:
    """Return a cap as JSON holds it; None if there is none."""
    return cap if math.isfinite(cap) else None


def _describe_scheduler(scheduler: Scheduler) -> dict[str, Any]:
    """Return the name of a scheduler, its numbers of trials and phases, and its fields."""
    sizes = {"num_trials": scheduler.num_trials, "num_phases": scheduler.num_phases}
    return {"name": type(scheduler).__name__} | sizes | _describe_fields(scheduler)


def _describe_fields(value: Any) -> Any:
    """Return the name and the fields of a dataclass, and of dataclasses in it; else the value."""
    if not dataclasses.is_dataclass(value):
        return value
    own = [field.name for field in dataclasses.fields(value) if field.init]
    fields_of_value = {name: _describe_fields(getattr(value, name)) for name in own}
    return {"name": type(value).__name__} | fields_of_value


def _describe_part(part: spaces.Distribution) -> dict[str, Any]:
    """Return the kind and arguments of a distribution, and its condition if it has one."""
    if isinstance(part, spaces.When):
        condition = {"when": {part.name: part.value}}
        return _describe_part(part.distribution) | json.loads(json.dumps(condition))
    return {"kind": type(part).__name__} | json.loads(json.dumps(dataclasses.asdict(part)))


def shared_settings(description: dict[str, Any]) -> dict[str, Any]:
    """Return what all workers of a study must have in common: all that results depend on."""
    options = learning_options(description["env_options"])
    return {name: description[name] for name in SHARED} | {"env_options": options}


@contextlib.contextmanager
def open_directory(directory: Path, description: dict[str, Any], resume: bool) -> Iterator[bool]:
    """Make the sweep's directory, or check that the sweep in it may be resumed.

    Until the block ends, no other process may open it.

    Yields:
      Whether it is new.
    """
    check_path(directory)
    if (directory / NAME).exists():
        if not resume:
            raise ValueError(
                f"{directory} already holds a sweep; resume it (resume=True, --resume) or choose "
                "another directory"
            )
        before = read(directory)
        old, new = (
            each | {"env_options": learning_options(each["env_options"])}
            for each in (before, description)
        )
        if changes := changed_settings(old, new, SAME):
            raise ValueError(
                f"cannot resume the sweep in {directory}: these settings changed: "
                + "; ".join(changes)
                + (f". It began with: {before['command']}" if "command" in before else "")
            )
        description |= manifests.note_resume(before, description)
        description |= {name: before[name] for name in ("run_id", "env_options")}
        with directory_lock(directory):
            yield False
        return
    if directory.exists() and {*directory.iterdir()} - left_behind(directory / NAME):
        raise ValueError(f"{directory} is not empty and holds no sweep; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    with directory_lock(directory):
        nothing = {"trials": [], "spans": [], "seconds": 0.0, "occupancy": 0.0, "elsewhere": 0}
        write(directory, description | nothing)
        yield True


def clear(directory: Path) -> None:
    """Empty the directory of a sweep that could not begin."""
    # A second Ctrl-C may end this. As long as the file is there, the sweep can begin again.
    for path in sorted(directory.iterdir(), key=lambda path: path.name == NAME):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
