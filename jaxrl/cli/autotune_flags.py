"""`--autotune`: short trials before a run, for the settings that are fastest on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from jaxrl.distributed.spread import num_cores, spread
from jaxrl.envs import make
from jaxrl.envs.host_adapter import SPEED_ONLY
from jaxrl.training import manifest as manifests
from jaxrl.training.autotune import AutotuneResult, Measurement, Settings, autotune
from jaxrl.types import Algorithm, Env


def find_fastest(
    make_algorithm: Callable[[Env], Algorithm],
    config: Any,
    env_id: str,
    num_envs: int,
    env_options: Settings,
    also: Sequence[str] = (),
) -> Settings:
    """Return the fastest options of the environment, `devices`, and the settings named in `also`.

    Args:
      also: `num_envs` or `num_minibatches`, on which learning depends.
    """

    def build(
        num_envs: int = num_envs,
        num_minibatches: int | None = None,
        devices: int = 1,
        **options: Any,
    ) -> tuple[Algorithm, Any]:
        algo = make_algorithm(make(env_id, num_envs, **env_options | options))
        if devices > 1:
            algo = spread(algo, devices)
        if num_minibatches is None:
            return algo, config
        return algo, config.replace(num_minibatches=num_minibatches)

    knobs, starts = list_settings(make(env_id, num_envs, **env_options), config, also)
    report = Report()
    found = autotune(build, knobs, starts, report=report)
    report.end(found)
    return dict(found.best)


def read_chosen(run_dir: Path, also: Sequence[str]) -> Settings:
    """Return the settings that a run was started with; none if there is no run.

    A resumed run keeps them, whatever is fastest on the machine where it resumes.
    """
    if not (run_dir / manifests.NAME).exists():
        return {}
    manifest = manifests.read(run_dir)
    options, config = manifest["env"]["options"], manifest["config"]
    found = {name: options[name] for name in SPEED_ONLY if name in options}
    known = {"num_envs": manifest["env"]["num_envs"]} | config
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


class Report:
    """Lines on stderr, one for each trial."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.console.print("looking for the fastest settings")

    def __call__(self, trial: Measurement) -> None:
        rate = f"{trial.steps_per_second:8,.0f} steps/s" if trial.steps_per_second else "impossible"
        self.console.print(f"{rate:>16} with {_text(trial.settings)}")

    def end(self, found: AutotuneResult) -> None:
        self.console.print(f"fastest of {len(found.trials)}: {_text(found.best)}")


def _text(settings: Settings) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
