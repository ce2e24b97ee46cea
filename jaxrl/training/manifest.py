"""The manifest of a run, `manifest.json`: everything to repeat the run and to trace its results."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
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
from jaxrl.distributed.spread import num_cores
from jaxrl.envs import make
from jaxrl.types import Algorithm, Env

NAME = "manifest.json"
UNFINISHED = f".{NAME}"
"""The manifest while it is written; a kill or a full disk may leave it behind."""
_PACKAGES = (
    "jaxrl", "jax", "jaxlib", "flax", "optax", "chex", "gymnax", "envpool", "gymnasium",
    "orbax-checkpoint", "numpy",
)  # fmt: skip
ARGUMENTS = ("seed", "total_steps", "log_every", "num_evaluations", "eval_episodes")
"""The arguments of `jaxrl.run` on which its results depend."""


def describe(algo: Algorithm, config: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a run that begins here and now.

    Args:
      arguments: further entries, such as `ARGUMENTS`.

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
    """Raise `ValueError` unless JSON can hold the options of an environment."""
    for name, value in env.options.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise ValueError(
                f"the option {name}={value!r} of {env.id} cannot be saved in {NAME}, which takes "
                "numbers, strings and tuples of them; put it into a function that makes the "
                "environment, and give that to jaxrl.make"
            ) from error


def provenance() -> dict[str, Any]:
    """Return the origin of results: command, time, versions, commit and machine."""
    return {
        "command": without_passwords(shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]])),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version()} | _versions(),
        "git_commit": _git_commit(),
        "hardware": _hardware(),
    }


def without_passwords(text: str) -> str:
    """Remove passwords from the URLs in a text, because manifests are shown to others."""
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
    """Return the commit of the working directory, `+` if it has changes, None outside git."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _hardware() -> dict[str, Any]:
    """Return the processor, the devices and the system."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return {
        "cpu": model,
        "cpu_cores": num_cores(),
        "platform": jax.default_backend(),
        "devices": [device.device_kind for device in jax.devices()],
        "system": platform.platform(),
    }


def write(run_dir: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest, whole or not at all."""
    unfinished = run_dir / UNFINISHED
    unfinished.write_text(json.dumps(manifest, indent=2) + "\n")
    unfinished.replace(run_dir / NAME)


def read(run_dir: str | Path) -> dict[str, Any]:
    """Return the manifest of a run.

    Raises:
      FileNotFoundError: if the directory has none.
      ValueError: if it is damaged.
    """
    path = Path(run_dir) / NAME
    if not path.exists():
        raise FileNotFoundError(f"{run_dir} is not a run directory: it has no {NAME}")
    try:
        return fields.with_current_names(json.loads(path.read_text()))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return what keeps a run from being resumed: one line for each setting that changed."""
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
    """Return the manifest of a resumed run: its beginning, its new length, every resumption."""
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
    """Make the algorithm and config of a run again.

    Args:
      network, make_algorithm, env: as for `jaxrl.load_policy`.

    Raises:
      ValueError: if jaxrl cannot make the network, environment or algorithm and none is given.
    """
    if manifest["custom_network"] and network is None:
        raise ValueError("this run was trained with a network of your own; pass it as network=...")
    made_with = manifest["env"]
    if env is None:
        try:
            options = {name: _hashable(value) for name, value in made_with["options"].items()}
            env = make(made_with["id"], num_envs=made_with["num_envs"], **options)
        except ValueError as error:
            raise ValueError(
                f"the environment of this run, {made_with['id']}, cannot be made again; if it is "
                f"your own, pass it as env=...: {error}"
            ) from error
    make_algorithm = make_algorithm or ALGORITHMS.get(manifest["algorithm"])
    if make_algorithm is None:
        raise ValueError(
            f"this run was trained by {manifest['algorithm']!r}, which jaxrl does not have; pass "
            "the function that makes it, as jaxrl.ppo makes PPO: make_algorithm=..."
        )
    algo = make_algorithm(env, network)
    return algo, fields.from_dict(algo.config_class, manifest["config"])


def _hashable(value: Any) -> Any:
    """Return an option with its tuples back, since JSON made lists of them."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
