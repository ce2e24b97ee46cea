"""Check whether this machine can train, and say what to repair.

    jaxrl doctor

The checks: versions, devices, optional packages, known limits, and short runs of PPO and Atari.
"""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import importlib.util
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from packaging.requirements import Requirement
from packaging.version import Version
from rich.console import Console
from rich.markup import escape

from jaxrl.algos.ppo import PPOConfig, ppo
from jaxrl.cli.flags.arguments import explain_missing_devices, is_terminal
from jaxrl.envs import make
from jaxrl.training import compilation
from jaxrl.training.run_dir.manifest import version_of

OPTIONAL = {
    "optuna": ("hyperparameter sweeps", "pip install 'jaxrl[tune]'"),
    "cmaes": ("the sampler CMA-ES", "pip install 'jaxrl[tune]'"),
    "psycopg": ("sweeps of several machines, on PostgreSQL", "pip install 'jaxrl[tune]'"),
    "ale_py": ("Atari in Gymnasium", "pip install 'jaxrl[gymnasium]'"),
    "Box2D": ("LunarLander and others in Gymnasium", "pip install 'jaxrl[gymnasium]'"),
    "mujoco": ("HalfCheetah and others in Gymnasium", "pip install 'jaxrl[gymnasium]'"),
    "shimmy": ("environments of OpenAI's Gym", "pip install 'jaxrl[gymnasium]' gym"),
    "wandb": ("Weights & Biases, for WandbSink", "pip install wandb"),
    "rejax": ("the peer of the benchmarks", "pip install 'jaxrl[bench]'"),
}
"""Optional packages: their purpose, and the command that installs them."""


class Finding(NamedTuple):
    """The result of one check."""

    subject: str
    found: str
    mark: Literal["ok", "absent", "limited", "broken"] = "ok"
    """absent: an optional part is missing; limited: a part works, but not all of it."""
    advice: str = ""
    """How to repair it, if it is not ok."""


def main(argv: Sequence[str], prog: str | None = None) -> int:
    """Print all findings; return the exit status, 1 if something is broken."""
    return tyro.cli(check_machine, args=argv, prog=prog)


def check_machine() -> int:
    """Check whether this machine can train: versions, devices, optional parts, self-tests."""
    console, broken = Console(highlight=False, soft_wrap=not is_terminal()), 0
    for finding in examine():
        broken += finding.mark == "broken"
        console.print(format_finding(finding))
    console.print(f"{broken} to repair" if broken else "everything works")
    return 1 if broken else 0


def format_finding(finding: Finding) -> str:
    """Return a finding as a line in rich's markup."""
    color = {"ok": "green", "broken": "red"}.get(finding.mark, "yellow")
    text = escape(finding.found + (f" -> {finding.advice}" if finding.advice else ""))
    return f"[{color}]{finding.mark:>7}[/] [bold]{finding.subject}[/] {text}"


def examine() -> Iterator[Finding]:
    """Yield all findings, those of the slow self-tests last."""
    yield Finding("Python", ".".join(map(str, sys.version_info[:3])))
    yield from packages()
    for check in (devices, accelerator, compilation_cache, ffmpeg):
        yield guarded(check)
    yield from optional_parts()
    yield from known_limits()
    for test in (training, simulators):
        yield guarded(test)


def guarded(check: Callable[[], Finding]) -> Finding:
    """Return a check's finding; if it raises an error, a finding that says so."""
    try:
        return check()
    except Exception as error:  # a check may fail in any way
        problem = explain_missing_devices()
        text = problem or f"{type(error).__name__}: {error}".splitlines()[0]
        name = check.__name__.replace("_", " ")
        return Finding(name, text, "broken", "compare the versions above, or reinstall")


def packages() -> Iterator[Finding]:
    """Compare the installed versions of required packages with the tested ones."""
    try:
        requirements = importlib.metadata.requires("jaxrl") or []
    except importlib.metadata.PackageNotFoundError:
        where = Path(__file__).parents[2]
        found = f"not installed, found in {where}"
        yield Finding("jaxrl", found, "broken", f"pip install -e {where}")
        return
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None:  # of an extra
            continue
        version = version_of(requirement.name)
        if version and requirement.specifier.contains(version, prereleases=True):
            yield Finding(requirement.name, version)
        else:
            advice = f"pip install '{requirement.name}{requirement.specifier}'"
            yield Finding(requirement.name, version or "missing", "broken", advice)


def optional_parts() -> Iterator[Finding]:
    """Look for the optional packages."""
    for name, (purpose, command) in OPTIONAL.items():
        if importlib.util.find_spec(name) is None:
            yield Finding(name, f"not installed; for {purpose}", "absent", command)
        else:
            yield Finding(name, f"{version_of(name) or 'installed'}; for {purpose}")


def known_limits() -> Iterator[Finding]:
    """Look for versions and libraries that are known not to do everything."""
    newer_python = "Python 3.12, which gets a newer one"
    if older_than("jax", "0.11"):
        text = "programs that step envpool or Gymnasium are compiled again at each start"
        yield Finding("jax", text, "limited", newer_python)
    if older_than("envpool", "1.2.7"):
        text = "ViZDoom may hang, and MuJoCo's pictures need OpenGL"
        yield Finding("envpool", text, "limited", newer_python)
        if ctypes.util.find_library("Qt5Gui") is None:
            advice = "apt-get install libqt5core5a libqt5gui5"
            yield Finding("Procgen", "needs Qt 5", "limited", advice)
    has_screen = sys.platform != "linux" or "DISPLAY" in os.environ or "MUJOCO_GL" in os.environ
    if not has_screen and importlib.util.find_spec("mujoco") is not None:
        text = "Gymnasium's MuJoCo cannot draw without a display"
        advice = "MUJOCO_GL=egl, or MUJOCO_GL=osmesa after apt-get install libosmesa6"
        yield Finding("mujoco", text, "limited", advice)


def older_than(package: str, version: str) -> bool:
    """Return whether a package is installed and older than a version."""
    installed = version_of(package)
    return installed is not None and Version(installed) < Version(version)


def devices() -> Finding:
    """Name the devices that JAX computes on."""
    kinds = [device.device_kind for device in jax.devices()]
    return Finding("devices", f"{len(kinds)} of {jax.default_backend()}: {', '.join(kinds)}")


def accelerator() -> Finding:
    """Check that JAX uses an NVIDIA GPU if there is one."""
    if not (shutil.which("nvidia-smi") or Path("/dev/nvidia0").exists()):
        return Finding("GPU", "none found")
    if jax.default_backend() == "gpu":
        return Finding("GPU", "used")
    platforms = os.environ.get("JAX_PLATFORMS")
    advice = f"unset JAX_PLATFORMS={platforms}" if platforms else "pip install 'jaxrl[cuda]'"
    return Finding("GPU", "found, but JAX does not use it", "broken", advice)


def compilation_cache() -> Finding:
    """Check that compiled programs can be written to the cache."""
    subject = "compiled programs"
    is_on = jax.config.values["jax_enable_compilation_cache"]
    if not is_on or os.environ.get("JAX_COMPILATION_CACHE_DIR") == "":
        return Finding(subject, "not cached, as the cache is off", "absent")
    try:
        return Finding(subject, str(_writable_cache()))
    except OSError as error:
        advice = "set JAX_COMPILATION_CACHE_DIR to a directory that you may write to"
        return Finding(subject, str(error), "limited", advice)


def _writable_cache() -> Path:
    """Return the directory of compiled programs; raise `OSError` if it cannot be written to."""
    if (chosen := os.environ.get("JAX_COMPILATION_CACHE_DIR")) is None:
        if (made := compilation.make_cache()) is None:
            raise FileNotFoundError("there is no home directory for the cache")
        return made
    path = Path(chosen)
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not os.access(existing, os.W_OK):
        raise PermissionError(f"{path} cannot be written")
    return path


def ffmpeg() -> Finding:
    """Find ffmpeg, which encodes videos."""
    import imageio_ffmpeg

    return Finding("ffmpeg", imageio_ffmpeg.get_ffmpeg_version())


def training() -> Finding:
    """Train PPO on CartPole for two seconds and check that its loss is finite."""
    algo = ppo(make("CartPole-v1", num_envs=8))
    config = PPOConfig()
    options = compilation.compiler_options(algo, config)
    update = jax.jit(algo.update, compiler_options=options)
    state, metrics = update(config, jax.jit(algo.init)(config, jax.random.key(0)))
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < 2.0:
        state, metrics = update(config, state)
        steps += int(np.asarray(metrics["valid_steps"]))
    rate = steps / (time.perf_counter() - began)
    if not math.isfinite(float(metrics["loss"])):
        return Finding("PPO on CartPole", "the loss is not finite", "broken", "reinstall jaxlib")
    return Finding("PPO on CartPole", f"{rate:,.0f} steps/s")


def simulators() -> Finding:
    """Step Atari through envpool."""
    env = make("Pong-v5", num_envs=4)
    key, actions, step = jax.random.key(0), jnp.zeros(4, jnp.int32), jax.jit(env.step)
    state, _ = step(key, env.init(key)[0], actions)
    began = time.perf_counter()
    for _ in range(200):
        state, timestep = step(key, state, actions)
        timestep.reward.block_until_ready()
    rate = 800 / (time.perf_counter() - began)
    return Finding("Atari through envpool", f"{rate:,.0f} steps/s")
