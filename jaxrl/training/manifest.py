"""What makes a run traceable and repeatable: `manifest.json`."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax

from jaxrl import config as fields
from jaxrl.algos import ALGORITHMS
from jaxrl.envs import make
from jaxrl.types import Algorithm, Env

NAME = "manifest.json"
UNFINISHED = f".{NAME}"
"""What a kill or a full disk may leave of it."""
_PACKAGES = (
    "jaxrl", "jax", "jaxlib", "flax", "optax", "chex", "gymnax", "envpool", "gymnasium",
    "orbax-checkpoint", "numpy",
)  # fmt: skip


ARGUMENTS = ("seed", "total_steps", "log_every", "num_evaluations", "eval_episodes")
"""The arguments of `jaxrl.run` that decide what a run computes."""


def describe(algo: Algorithm, config: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Everything needed to repeat a run, and where it ran.

    Raises:
      ValueError: for options of the environment that JSON cannot hold.
    """
    check_options(algo.env)
    return {
        "algorithm": algo.name,
        "env": {"id": algo.env.id, "num_envs": algo.env.num_envs, "options": algo.env.options},
        "config": fields.to_dict(config),
        "custom_network": algo.network is not None,
        **arguments,
        **provenance(),
    }


def check_options(env: Env) -> None:
    """Raise unless a manifest can hold the options of an environment."""
    for name, value in env.options.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise ValueError(
                f"the option {name}={value!r} of {env.id} cannot be kept in a file, as numbers, "
                "texts and tuples of them can; let the function that makes the environment have it"
            ) from error


def provenance() -> dict[str, Any]:
    """Where results come from: command, time, versions, commit and machine."""
    return {
        "command": without_passwords(shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]])),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version()} | _versions(),
        "git_commit": _git_commit(),
        "hardware": _hardware(),
    }


def without_passwords(text: str) -> str:
    """Without those of its URLs, since records are shown to others."""
    return re.sub(r"(://[^:/@\s]*):[^/\s]*@", r"\1@", text)


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _git_commit() -> str | None:
    """The commit of the working directory, `+` if it has changes, None outside git."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _hardware() -> dict[str, Any]:
    """Processor and accelerators."""
    model = platform.processor()
    linux = hasattr(os, "sched_getaffinity")
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return {
        "cpu": model,
        "cpu_cores": len(os.sched_getaffinity(0)) if linux else os.cpu_count(),
        "platform": jax.default_backend(),
        "devices": [device.device_kind for device in jax.devices()],
        "system": platform.platform(),
    }


def write(run_dir: Path, manifest: dict[str, Any]) -> None:
    """Write it whole or not at all."""
    unfinished = run_dir / UNFINISHED
    unfinished.write_text(json.dumps(manifest, indent=2) + "\n")
    unfinished.replace(run_dir / NAME)


def read(run_dir: str | Path) -> dict[str, Any]:
    """The manifest of a run.

    Raises:
      FileNotFoundError, ValueError: if there is none, or it cannot be read.
    """
    path = Path(run_dir) / NAME
    if not path.exists():
        raise FileNotFoundError(f"{run_dir} is not a run directory: it has no {NAME}")
    try:
        return fields.with_current_names(json.loads(path.read_text()))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What a resumed run would do differently, a line each."""
    lines = []
    for key in ("algorithm", "env", "config", "seed", "log_every"):
        a, b = (json.loads(json.dumps(manifest[key])) for manifest in (old, new))
        if isinstance(a, dict):
            lines += [
                f"{key}.{name}: {a.get(name)!r} -> {b.get(name)!r}"
                for name in sorted({*a, *b})
                if a.get(name) != b.get(name)
            ]
        elif a != b:
            lines.append(f"{key}: {a!r} -> {b!r}")
    return lines


def resumed(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a run that goes on: how it began, its new length, and each resumption."""
    where = ("command", "created", "versions", "git_commit", "hardware")
    resumptions = [*old.get("resumptions", []), {key: new[key] for key in where}]
    lengths = {key: new[key] for key in ("num_evaluations", "eval_episodes")}
    lengths["total_steps"] = max(old["total_steps"], new["total_steps"])
    return old | lengths | {"resumptions": resumptions}


def rebuild(
    manifest: dict[str, Any],
    network: nn.Module | None = None,
    make_algorithm: Callable[..., Algorithm] | None = None,
    env: Env | None = None,
) -> tuple[Algorithm, Any]:
    """The algorithm and config of a run.

    Raises:
      ValueError: if the run had an environment, a network or an algorithm of the caller's own and
        none is given.
    """
    if manifest["custom_network"] and network is None:
        raise ValueError("this run was trained with a network of its own; pass it as network=...")
    of_run = manifest["env"]
    if env is None:
        try:
            options = {name: _hashable(value) for name, value in of_run["options"].items()}
            env = make(of_run["id"], num_envs=of_run["num_envs"], **options)
        except ValueError as error:
            raise ValueError(
                f"the environment of this run, {of_run['id']}, cannot be made again; if it is your "
                f"own, pass it as env=...: {error}"
            ) from error
    make_algorithm = make_algorithm or ALGORITHMS.get(manifest["algorithm"])
    if make_algorithm is None:
        raise ValueError(
            f"this run was trained by {manifest['algorithm']!r}, which jaxrl does not have; pass "
            "what makes it, as jaxrl.ppo makes PPO: make_algorithm=..."
        )
    algo = make_algorithm(env, network)
    config_class = algo.config_class
    return algo, fields.from_dict(config_class, manifest["config"])


def _hashable(value: Any) -> Any:
    """An option as it was, before JSON made lists of its tuples."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
