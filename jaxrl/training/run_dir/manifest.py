"""The manifest of a run, `manifest.json`: everything to repeat the run and to trace its results."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import json
import platform
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax

from jaxrl import checks
from jaxrl import config as fields
from jaxrl.algos import ALGORITHMS
from jaxrl.distributed.spread import num_cores
from jaxrl.envs import make
from jaxrl.envs.host_adapter import learning_options
from jaxrl.envs.trust import code_named_by
from jaxrl.files import schema
from jaxrl.files.changes import changed_settings
from jaxrl.files.urls import redact_command
from jaxrl.types import Algorithm, Env, check_environments

NAME = "manifest.json"
_PACKAGES = (
    "jaxrl", "jax", "jaxlib", "flax", "optax", "chex", "gymnax", "envpool", "gymnasium",
    "orbax-checkpoint", "numpy",
)  # fmt: skip
OF_EVALUATIONS = ("num_evaluations", "eval_episodes", "eval_greedy")
ARGUMENTS = ("seed", "total_steps", "log_every", *OF_EVALUATIONS)
"""The arguments of `jaxrl.run` on which its results depend."""
TO_RESUME = ("seed", "log_every", "total_steps")
"""The fields that a resumed run needs of its manifest."""
ORIGIN = ("command", "created", "versions", "git_commit", "hardware")
"""The entries of `provenance`."""
IDENTITY = ("run_id", "algorithm", "env", "config", "custom_network", "seed", "trial")
"""The entries of a manifest that tell a run from all others."""


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
        "num_devices": algo.num_devices,
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
        "command": redact_command(_command()),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "git_commit": _git_commit(),
        "hardware": _hardware(),
    }


def _command() -> list[str]:
    """Return this process's command line, with the environment's programs by their names."""
    python, arguments = Path(sys.executable), sys.orig_argv[1:]
    if arguments and Path(arguments[0]).absolute().parent == python.parent:
        return [Path(arguments[0]).name, *arguments[1:]]
    return [python.name, *arguments]


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results may depend on."""
    found = {"python": platform.python_version()}
    return found | {name: version for name in _PACKAGES if (version := version_of(name))}


def version_of(package: str) -> str | None:
    """Return the version of an installed distribution; None if there is none of this name."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Return the commit of the working directory, `+` if it has changes, None outside git."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            # A repository's setting core.fsmonitor names a program that `git status` would run.
            ["git", "-c", "core.fsmonitor=false", *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
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
    schema.write(run_dir / NAME, manifest)


def read(run_dir: str | Path, needed: Sequence[str] = ()) -> dict[str, Any]:
    """Return the manifest of a run.

    Args:
      needed: fields that a manifest may lack, but not this one.

    Raises:
      FileNotFoundError: if the directory has none.
      ValueError: if it is damaged, or lacks a field.
    """
    path = Path(run_dir) / NAME
    if not Path(run_dir).exists():
        raise FileNotFoundError(f"{run_dir} is not a run directory: it does not exist")
    if not path.exists():
        agents = sorted(Path(run_dir).glob(f"best/*/{NAME}"))
        hint = f"; agents of a sweep are runs, such as {agents[0].parent}" if agents else ""
        raise FileNotFoundError(f"{run_dir} is not a run directory: it has no {NAME}{hint}")
    manifest = schema.read(path, schema.MANIFEST, fields.with_current_names)
    schema.require(path, manifest, needed)
    return manifest


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return what keeps a run from being resumed: one line for each setting that changed.

    Threads, pools and the timeout of a simulator do not change what is learned, so they may differ.
    """
    names = ("algorithm", "env", "config", "custom_network", "seed", "log_every")
    return changed_settings(comparable(old), comparable(new), names)


def comparable(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest without the environment's options that learning does not depend on."""
    env = manifest["env"]
    return manifest | {"env": env | {"options": learning_options(env["options"])}}


def new_run_id() -> str:
    """Return the random id of a run that begins; its checkpoints carry it."""
    return secrets.token_hex(8)


def identity(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the identity of a manifest's run, and the versions that this process saves with."""
    return {name: manifest.get(name) for name in IDENTITY} | {"versions": versions()}


def resumed(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a resumed run: its beginning, its new length, every resumption."""
    kept = {key: new[key] for key in ("total_steps", *OF_EVALUATIONS)}
    kept["label"] = new.get("label") or old.get("label")
    return old | kept | note_resume(old, new)


def origin_of(described: dict[str, Any]) -> dict[str, Any]:
    """Return where and how a run or sweep began, and the same of each resume.

    Args:
      described: the content of `manifest.json` or `sweep.json`.
    """
    return {key: described[key] for key in (*ORIGIN, "resumptions") if key in described}


def note_resume(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return where something began, with the origin of each resume; the last one is `new`."""
    origin = {key: old[key] for key in ORIGIN if key in old}
    now = {key: new[key] for key in ORIGIN}
    return origin | {"resumptions": [*old.get("resumptions", []), now]}


def rebuild(
    manifest: dict[str, Any],
    network: nn.Module | None = None,
    make_algorithm: Callable[..., Algorithm] | None = None,
    env: Env | None = None,
    trust_imports: bool = False,
    run_dir: Path | None = None,
) -> tuple[Algorithm, Any]:
    """Make the algorithm and config of a run again.

    Args:
      network, make_algorithm, env, trust_imports: as for `jaxrl.load_policy`.
      run_dir: of the run, for errors.

    Raises:
      ValueError: if jaxrl cannot make the network, environment or algorithm and none is given, or
        if the environment names code and `trust_imports` is False.
    """
    checks.optional(
        checks.instance, "network", network, nn.Module, "an instance of a flax.linen.Module"
    )
    checks.optional(checks.function, "make_algorithm", make_algorithm)
    trust_imports = checks.flag("trust_imports", trust_imports)
    run = "this run" if run_dir is None else f"the run in {run_dir}"
    if env is not None:
        check_environments(env)
    if manifest["custom_network"] and network is None:
        raise ValueError(f"{run} was trained with a network of your own; pass it as network=...")
    made_with = manifest["env"]
    if env is None:
        if not trust_imports:
            check_names_no_code(made_with["id"], made_with["options"])
        try:
            env = make(made_with["id"], num_envs=made_with["num_envs"], **made_with["options"])
        except ImportError:
            raise
        except Exception as error:  # whatever the simulator raises for options of a damaged file
            raise ValueError(
                f"the environment of {run}, {made_with['id']}, cannot be made again; if it is "
                f"your own, pass it as env=...: {error}"
            ) from error
    make_algorithm = make_algorithm or ALGORITHMS.get(manifest["algorithm"])
    if make_algorithm is None:
        raise ValueError(
            f"{run} was trained by {manifest['algorithm']!r}, which jaxrl does not have; pass "
            "jaxrl.load_policy the function that makes it, as jaxrl.ppo does: make_algorithm=..."
        )
    algo = make_algorithm(env, network)
    if algo.name != manifest["algorithm"]:
        raise ValueError(
            f"{run} was trained by {manifest['algorithm']!r}, but make_algorithm makes "
            f"{algo.name!r}; pass the function that made the run's algorithm"
        )
    try:
        return algo, fields.from_dict(algo.config_class, manifest["config"])
    except ValueError as error:
        raise ValueError(f"the config of {run}, in {NAME}, is damaged: {error}") from error


def check_names_no_code(env_id: str, options: dict[str, Any]) -> None:
    """Raise `ValueError` if making the environment of a manifest would run code that it names."""
    if found := code_named_by(env_id, options):
        raise ValueError(
            f"the environment of this run, {env_id}, {found}. A run directory may come from "
            "someone else, so jaxrl runs no code that it names: pass the environment yourself, as "
            "env=jaxrl.make(your_function, 1), or, if you trust who wrote the directory, pass "
            "trust_imports=True (--trust-imports)"
        )
