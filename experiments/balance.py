"""`--autotune`: the settings that are fastest on the machine at hand, found by short trials before
a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
from rich.console import Console

import jaxrl
from jaxrl.distributed.spread import num_cores, spread
from jaxrl.envs.host.base import SPEED_ONLY
from jaxrl.training import manifest as manifests
from jaxrl.training.autotune import AutotuneResult, Measurement, Settings


def fastest_settings(
    make_algorithm: Any,
    config: Any,
    env_id: str,
    num_envs: int,
    env_options: Settings,
    also: tuple[str, ...] = (),
) -> Settings:
    """What the trials found: options of the environment, `devices`, and what `also` names."""

    def build(
        num_envs: int = num_envs,
        num_minibatches: int | None = None,
        devices: int = 1,
        **changes: Any,
    ) -> tuple[jaxrl.Algorithm, Any]:
        algo = make_algorithm(jaxrl.make(env_id, num_envs, **env_options | changes))
        if devices > 1:
            algo = spread(algo, devices)
        if num_minibatches is None:
            return algo, config
        return algo, config.replace(num_minibatches=num_minibatches)

    env = jaxrl.make(env_id, num_envs, **env_options)
    knobs, starts = questions(env, config, also)
    report = Report()
    found = jaxrl.autotune(build, knobs, starts, report=report)
    report.end(found)
    return dict(found.best)


def begun_with(run_dir: Path, also: tuple[str, ...]) -> Settings:
    """What was found when a run began, which goes on so whatever is fastest where it resumes."""
    if not (run_dir / manifests.NAME).exists():
        return {}
    manifest = manifests.read(run_dir)
    options, config = manifest["env"]["options"], manifest["config"]
    found = {name: options[name] for name in SPEED_ONLY if name in options}
    known = {"num_envs": manifest["env"]["num_envs"]} | config
    return found | {name: known[name] for name in also}


def questions(
    env: jaxrl.Env, config: Any, also: tuple[str, ...] = ()
) -> tuple[dict[str, list[Any]], list[Settings]]:
    """The values that are tried of each setting, and where the trials begin."""
    if env.checkpointable:
        knobs: dict[str, list[Any]] = {"devices": doublings(jax.device_count())}
        starts: list[Settings] = [{"devices": 1}]
    else:
        knobs = {"num_pools": [1, 2, 4, 8], "asynchronous": [False, True]}
        start: Settings = {"num_pools": 1, "asynchronous": False}
        if env.id.startswith("envpool/"):
            cores = num_cores()
            knobs = {"num_threads": [*doublings(cores), 2 * cores], **knobs}
            start["num_threads"] = cores
        starts = [start, start | {"num_pools": 2}]
    for name in also:
        now = env.num_envs if name == "num_envs" else getattr(config, name, None)
        if now is None:
            raise ValueError(f"--autotune-also {name}: {type(config).__name__} has no such field")
        knobs[name] = [value for value in (now * 2**i // 8 for i in range(10)) if value]
        starts = [start | {name: now} for start in starts]
    return knobs, starts


def doublings(most: int) -> list[int]:
    """1, 2, 4 and so on, and `most`."""
    return sorted({2**i for i in range(most.bit_length())} | {most})


class Report:
    """Says on stderr what was tried, as it is tried."""

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
