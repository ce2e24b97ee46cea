"""What the experiment scripts share: the common flags, presets of them, one call of `jaxrl.run`, a
printed table."""

from __future__ import annotations

import ast
import dataclasses
import functools
import logging
import sys
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

import jaxrl
from balance import begun_with, fastest_settings
from errors import exit_with_message
from flags import Whole
from jaxrl.analysis.video import check_video
from jaxrl.distributed import processes
from jaxrl.distributed.spread import split_cpu, spread
from jaxrl.training import manifest as manifests
from play import record


@dataclasses.dataclass
class RunArgs:
    """Flags of every training script."""

    env_id: str
    """Id of the environment; a prefix such as envpool/ or gymnax/ forces the backend."""
    total_steps: Whole
    """Environment steps over all environments."""
    num_envs: int
    """Environments stepped together."""
    env_options: tuple[str, ...] = ()
    """name=value for the backend, as for jaxrl.make."""
    devices: int = 1
    """Devices that train the agent together, each with a part of the environments; without
    accelerators, the cores of the CPU. Of several processes, the devices of each."""
    cluster: bool = False
    """Train on all processes that Slurm, Open MPI or Kubernetes started with this command."""
    coordinator: str | None = None
    """Or on so many processes, started by hand: address:port of the first one."""
    num_hosts: int | None = None
    host_id: int | None = None
    """From 0."""
    seed: int = 1
    run_dir: Path | None = None
    """Where everything goes; runs/<algorithm>-<env>-seed<seed> by default."""
    resume: bool = False
    """Continue the run in run_dir."""
    video: bool = False
    """Record one evaluation episode at the end, into run_dir/video/."""
    anneal: bool = True
    """Let the learning rate fall linearly to 0 over the run."""
    num_evaluations: int = 1
    """Evaluations on separate environments, evenly spaced, the last one at the end."""
    eval_episodes: int = 16
    log_every: int | None = None
    """Updates a row of metrics.jsonl; about 1000 rows by default."""
    autotune: bool = False
    """Choose for this machine, by short trials, what learning does not depend on: threads and
    pools of simulators, or over how many devices the environments of JAX are spread."""
    autotune_also: tuple[Literal["num_envs", "num_minibatches"], ...] = ()
    """With --autotune, choose these too, on which learning depends."""


PPO_FOR_MUJOCO = jaxrl.PPOConfig(
    learning_rate=3e-4,
    num_steps=256,
    num_epochs=10,
    num_minibatches=32,
    entropy_coef=0.0,
    clip_value=True,
    normalize_observations=True,
    normalize_rewards=True,
)
"""The settings of Huang et al. 2022 for continuous control, on 8 environments instead of one."""


@functools.cache
def _args_with(config_class: type[Any]) -> type[Any]:
    """The flags of every script and those of a config, without a prefix."""
    field = ("config", tyro.conf.OmitArgPrefixes[config_class], dataclasses.field(kw_only=True))
    return dataclasses.make_dataclass("Args", [field], bases=(RunArgs,))


def preset(
    description: str,
    env_id: str,
    total_steps: int,
    num_envs: int,
    config: Any,
    env_options: tuple[str, ...] = (),
) -> tuple[str, Any]:
    """What `launch_preset` offers: a line of help, and the flags' defaults."""
    args = _args_with(type(config))
    return description, args(env_id, total_steps, num_envs, env_options, config=config)


def launch_preset(make_algorithm: Any, presets: dict[str, tuple[str, Any]]) -> jaxrl.RunResult:
    """Train as the preset named on the command line says, with the flags after it."""
    args = tyro.extras.overridable_config_cli(presets)
    return launch(make_algorithm, args, args.config, {})


def split(texts: tuple[str, ...]) -> list[tuple[str, str]]:
    """`name=value` in two."""
    for text in texts:
        if "=" not in text:
            raise ValueError(f"expected name=value, got {text!r}")
    return [(name, value) for name, _, value in (text.partition("=") for text in texts)]


def pairs(texts: tuple[str, ...]) -> dict[str, Any]:
    """`name=value` with Python literals; what is none is a string."""

    def literal(text: str) -> Any:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text

    return {name: literal(value) for name, value in split(texts)}


def backend_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """`--env-options`."""
    options = pairs(texts)
    if "num_envs" in options:
        raise ValueError("num_envs is no option of the backend; use --num-envs")
    return options


def with_fields(config: Any, texts: tuple[str, ...]) -> Any:
    """A config with other values, given as `name=value`."""
    fields = {field.name for field in dataclasses.fields(config)}
    changes = pairs(texts)
    if unknown := sorted(set(changes) - fields):
        raise ValueError(
            f"{type(config).__name__} has no fields {unknown}; it has {sorted(fields)}"
        )
    return config.replace(**changes)


def launch(
    make_algorithm: Any,
    args: RunArgs,
    config: Any,
    env_options: dict[str, Any],
) -> jaxrl.RunResult:
    """Train as the flags say, then print where things are.

    Bad values end the program with one line, a simulator's failure with what it had to say.
    """
    logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)  # which would say it as well
    with exit_with_message():
        algo, config, run_dir = prepare(make_algorithm, args, config, env_options)
        video = run_dir / "video" / f"seed{args.seed}.mp4"
        if args.resume and args.anneal:
            check_annealing(run_dir, config)
        if args.video:
            processes.call_on_first(lambda: check_video(algo.env, video))
        result = jaxrl.run(
            algo,
            config,
            seed=args.seed,
            total_steps=args.total_steps,
            run_dir=run_dir,
            resume=args.resume,
            num_evaluations=args.num_evaluations,
            eval_episodes=args.eval_episodes,
            log_every=args.log_every,
        )
    if processes.is_first():
        print_summary(result)
    if result.interrupted:
        print(f"interrupted; continue with the same command and --resume --run-dir {run_dir}")
        sys.exit(130)
    if args.video and processes.is_first():
        try:
            _, score, length = record(jaxrl.load_policy(run_dir), video, args.seed, False, 5_000)
        except (ValueError, ImportError, OSError) as error:
            sys.exit(f"error: trained, but there is no video: {error}")
        print(f"video: {video}, {length} steps, score {score:g}")
    return result


def prepare(
    make_algorithm: Any, args: RunArgs, config: Any, env_options: dict[str, Any]
) -> tuple[jaxrl.Algorithm, Any, Path]:
    """The algorithm, on all devices and processes that the flags say, its config and run_dir.

    Raises:
      ValueError: if flags contradict each other.
    """
    together = args.cluster or args.coordinator is not None
    if not together and (args.num_hosts, args.host_id) != (None, None):
        raise ValueError("--num-hosts and --host-id need --coordinator address:port")
    if args.devices < 1:
        raise ValueError(f"--devices must be >= 1, got {args.devices}")
    if args.autotune_also and not args.autotune:
        raise ValueError("--autotune-also needs --autotune")
    if args.autotune and (together or args.devices > 1):
        raise ValueError("--autotune chooses for one process; leave it or --devices out")
    num_envs, devices = args.num_envs, args.devices
    env_options = env_options | backend_options(args.env_options)
    if together:
        processes.connect(args.coordinator, args.num_hosts, args.host_id)
    if devices > 1 or args.autotune:
        split_cpu(None if args.autotune else devices)
    algo = make_algorithm(jaxrl.make(args.env_id, num_envs=num_envs, **env_options))
    name = algo.env.id.partition("/")[2].replace("/", "-")
    run_dir = args.run_dir or Path("runs") / f"{algo.name}-{name}-seed{args.seed}"
    if args.autotune:
        found = begun_with(run_dir, args.autotune_also) if args.resume else {}
        found = found or fastest_settings(
            make_algorithm, config, args.env_id, num_envs, env_options, args.autotune_also
        )
        num_envs, devices = found.pop("num_envs", num_envs), found.pop("devices", 1)
        if "num_minibatches" in found:
            config = config.replace(num_minibatches=found.pop("num_minibatches"))
        algo = make_algorithm(jaxrl.make(args.env_id, num_envs=num_envs, **env_options | found))
    if together or devices > 1:
        algo = spread(algo, None if together else devices)
    if args.anneal and config.anneal_updates == 0:
        num_updates = -(-args.total_steps // (num_envs * algo.num_steps(config)))
        config = config.replace(anneal_updates=num_updates)
    return algo, config, run_dir


def check_annealing(run_dir: Path, config: Any) -> None:
    """Raise if a run whose learning rate falls to 0 at its end is to have another end."""
    if not (run_dir / manifests.NAME).exists():
        return
    before = manifests.read(run_dir)["config"].get("anneal_updates")
    if before and before != config.anneal_updates:
        raise ValueError(
            f"the learning rate of the run in {run_dir} falls to 0 over its {before:g} updates, so "
            f"it cannot go on to {config.anneal_updates}; begin a run of that length in another "
            "directory, or one with --no-anneal, which can be made longer"
        )


def print_summary(result: jaxrl.RunResult) -> None:
    """The summary as a table."""
    table = Table(title=str(result.run_dir))
    table.add_column("summary")
    table.add_column(justify="right")
    for name, value in result.summary.items():
        table.add_row(name, f"{value:,.2f}" if isinstance(value, float) else str(value))
    Console().print(table)
