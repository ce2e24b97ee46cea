"""`--autotune`: short trials before a run, for the settings that are fastest on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from jaxrl.distributed.spread import num_cores
from jaxrl.envs.host_adapter import SPEED_ONLY
from jaxrl.files import schema
from jaxrl.training.autotune import Measurement, Settings, autotune
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.types import Env


def find_fastest(*args: Any, **options: Any) -> Settings:
    """Return the fastest settings that `autotune` finds, and print a line on stderr for each trial.

    Args:
      args, options: those of `autotune`, without `report`.
    """
    console = Console(stderr=True, highlight=False)

    def show(speed: str, settings: Settings) -> None:
        values = ", ".join(f"{name} {value}" for name, value in settings.items())
        console.print(f"{speed} {values}")

    def report(trial: Measurement) -> None:
        rate = trial.steps_per_second
        speed = f"{rate:8,.0f} steps/s" if rate else "impossible"
        show(f"{speed:>16} with", trial.settings)

    console.print("looking for the fastest settings")
    found = autotune(*args, report=report, **options)
    show(f"fastest of {len(found.trials)}:", found.best)
    return dict(found.best)


def read_chosen(run_dir: Path, also: Sequence[str]) -> Settings:
    """Return the settings that a run was started with; none if there is no run.

    A resumed run keeps them, whatever is fastest on the machine where it resumes. Only the number
    of devices, which no manifest has, is looked for anew.
    """
    if not (run_dir / manifests.NAME).exists():
        return {}
    manifest = manifests.read(run_dir)
    options, config = manifest["env"]["options"], manifest["config"]
    found = {name: options[name] for name in SPEED_ONLY if name in options}
    known = {"num_envs": manifest["env"]["num_envs"]} | config
    schema.require(run_dir / manifests.NAME, known, also)
    return found | {name: known[name] for name in also}


def list_settings(
    env: Env, config: Any, also: Sequence[str] = ()
) -> tuple[dict[str, list[Any]], list[Settings]]:
    """Return the values to try of each setting, and the settings to try first.

    Raises:
      ValueError: if the config lacks a field that `also` names.
    """
    if env.checkpointable:
        knobs: dict[str, list[Any]] = {"devices": powers_of_two(jax.device_count())}
        starts: list[Settings] = [{"devices": 1}]
    else:
        knobs = {"num_pools": [1, 2, 4, 8], "asynchronous": [False, True]}
        start: Settings = {"num_pools": 1, "asynchronous": False}
        if env.id.startswith("envpool/"):
            cores = num_cores()
            knobs = {"num_threads": [*powers_of_two(cores), 2 * cores], **knobs}
            start["num_threads"] = cores
        starts = [start, start | {"num_pools": 2}]
    for name in also:
        usual = env.num_envs if name == "num_envs" else getattr(config, name, None)
        if usual is None:
            raise ValueError(f"--autotune-also {name}: {type(config).__name__} has no such field")
        knobs[name] = [value for value in (usual * 2**i // 8 for i in range(10)) if value]
        starts = [start | {name: usual} for start in starts]
    return knobs, starts


def powers_of_two(limit: int) -> list[int]:
    """Return the powers of two up to a limit, and the limit."""
    return sorted({2**i for i in range(limit.bit_length())} | {limit})
