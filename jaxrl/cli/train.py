"""Train one agent: a preset's settings, changed by flags.

    jaxrl train ppo                                        # the preset "cartpole"
    jaxrl train ppo --preset laptop --env-id Breakout-v5
    jaxrl train dqn --preset atari --double --n-step 3
    jaxrl train --list                                     # all presets
    jaxrl train ppo --help                                 # all flags

Ctrl-C stops a run with a checkpoint; `--resume` continues it.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from jaxrl.algos import ALGORITHMS
from jaxrl.analysis.video import check_video
from jaxrl.cli.arguments import LargeInteger, parse_env_options, with_current_flags
from jaxrl.cli.autotune_flags import find_fastest, read_chosen
from jaxrl.cli.play import record_episode
from jaxrl.cli.presets import DEFAULT_PRESET, PRESETS, Preset
from jaxrl.distributed import processes
from jaxrl.distributed.spread import split_cpu, spread
from jaxrl.envs import make
from jaxrl.envs.host_adapter import POOL_OPTIONS
from jaxrl.training import manifest as manifests
from jaxrl.training.loop import RunResult
from jaxrl.training.policy import load_policy
from jaxrl.training.run import run
from jaxrl.types import Algorithm, Env


@dataclasses.dataclass(kw_only=True)
class TrainArguments:
    """The flags that every preset has."""

    env_id: str
    """Id of the environment; a prefix such as envpool/ or gymnax/ forces the backend."""
    total_steps: LargeInteger
    """Environment steps over all environments."""
    num_envs: int
    """Environments stepped together."""
    env_options: tuple[str, ...] = ()
    """name=value for the backend, as for jaxrl.make."""
    devices: int = 1
    """Devices that train the agent together, each with a part of the environments; without
    accelerators, cores of the CPU. With several processes, the devices of each."""
    cluster: bool = False
    """Train on all processes that Slurm, Open MPI or Kubernetes started with this command."""
    coordinator: str | None = None
    """address:port of the first process, for processes that are started by hand."""
    num_hosts: int | None = None
    """The number of processes started by hand."""
    host_id: int | None = None
    """The number of this process, from 0."""
    seed: int = 1
    run_dir: Path | None = None
    """Directory of all output; runs/<algorithm>-<env>-seed<seed> by default."""
    resume: bool = False
    """Continue the run in run_dir."""
    video: bool = False
    """Record one evaluation episode at the end, into run_dir/video/."""
    anneal: bool = True
    """Let the learning rate fall linearly to 0 over the run."""
    num_evaluations: int = 1
    """Evaluations on separate environments, evenly spaced, the last one at the end."""
    eval_episodes: int = 16
    """Episodes of each evaluation."""
    log_every: int | None = None
    """Updates a row of metrics.jsonl; about 1000 rows by default."""
    autotune: bool = False
    """Choose by short trials the settings that are fastest on this machine and do not change what
    is learned: threads and pools of simulators, or the devices of environments in JAX."""
    autotune_also: tuple[Literal["num_envs", "num_minibatches"], ...] = ()
    """With --autotune, choose these too, on which learning depends."""


@dataclasses.dataclass(kw_only=True)
class AtariArguments(TrainArguments):
    """The flags of presets for envpool's Atari."""

    episodic_life: bool = True
    """Show the learner a lost life as an end."""
    reward_clip: bool = True
    """Show the learner the sign of rewards only."""
    repeat_action_probability: float = 0.0
    """Sticky actions (Machado et al. 2018)."""
    num_threads: int = 0
    """Threads of the simulators; 0 for one a core."""
    num_pools: int = 1
    """Split the environments over this many pools: while the policy acts in one, the others
    simulate. Each has num_threads threads of its own."""
    asynchronous: bool = False
    """Continue with the pool that is ready first, instead of taking turns."""
    send_ahead: bool = False
    """Send each rollout's last actions before the agent learns, so that they are simulated
    meanwhile; the policy that chose them lags by an update."""


def main(argv: Sequence[str], prog: str | None = None, presets: Sequence[str] = ()) -> int:
    """Train as the flags say.

    Args:
      argv: an algorithm and flags, or `--list`.
      presets: names to choose from, the default first; all of the algorithm's if empty.

    Returns:
      The exit status: 130 if the run was interrupted.
    """
    if argv and argv[0] in ("--list", "--help", "-h"):
        print(list_presets() if argv[0] == "--list" else __doc__)
        return 0
    if not argv or argv[0] not in PRESETS:
        raise ValueError(
            f"jaxrl train takes an algorithm first, one of {', '.join(PRESETS)}, got "
            f"{argv[0] if argv else 'nothing'!r}; --list shows the presets"
        )
    algorithm = argv[0]
    prog = None if prog is None else f"{prog} {algorithm}"
    return train(ALGORITHMS[algorithm], parse(algorithm, argv[1:], prog, presets))


def list_presets() -> str:
    """Return a line for each preset, by algorithm."""
    lines = []
    for algorithm, presets in PRESETS.items():
        lines.append(algorithm)
        for name, preset in presets.items():
            steps = f"{preset.total_steps:,} steps"
            lines.append(f"  {name:17}{preset.env_id}, {steps}: {preset.description}")
    return "\n".join(lines)


def parse(
    algorithm: str, argv: Sequence[str], prog: str | None = None, presets: Sequence[str] = ()
) -> Any:
    """Return the arguments whose defaults are those of the preset that `--preset` names."""
    known, argv = PRESETS[algorithm], with_current_flags(argv)
    names = tuple(presets or sorted(known, key=lambda name: name != DEFAULT_PRESET))
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--preset", default=names[0])
    name = finder.parse_known_args(argv)[0].preset
    # The parser below refuses an unknown preset.
    default = make_arguments(name if name in names else names[0], names, known)
    return tyro.cli(type(default), default=default, args=argv, prog=prog)


def make_arguments(name: str, names: Sequence[str], presets: dict[str, Preset]) -> Any:
    """Return a preset as arguments: `TrainArguments` or `AtariArguments`, `preset` and `config`."""
    preset = presets[name]
    base = TrainArguments if preset.atari_flags is None else AtariArguments
    choices, config_class = tyro.extras.literal_type_from_choices(names), type(preset.config)
    help = tyro.conf.arg(help="Settings to start from; other flags change them.")
    fields: list[Any] = [
        ("preset", Annotated[choices, help]),
        ("config", Annotated[config_class, tyro.conf.OmitArgPrefixes]),
    ]
    arguments = dataclasses.make_dataclass("Arguments", fields, bases=(base,), kw_only=True)
    arguments.__doc__ = f"{name}: {preset.description}."
    values = preset._asdict()
    del values["description"]
    return arguments(preset=name, **values.pop("atari_flags") or {}, **values)


def train(make_algorithm: Callable[[Env], Algorithm], args: Any) -> int:
    """Train as the arguments say, print a summary, and film an episode if `args.video`.

    Returns:
      The exit status: 130 if the run was interrupted.
    """
    # JAX would log a simulator's error, which the raised one has already.
    logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)
    algo, config, run_dir = prepare(make_algorithm, args)
    video = run_dir / "video" / f"seed{args.seed}.mp4"
    if args.resume and args.anneal:
        check_annealing(run_dir, config)
    if args.video:
        processes.call_on_first(lambda: check_video(algo.env, video))
    result = run(
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
        return 130
    if args.video and processes.is_first():
        try:
            _, score, length = record_episode(load_policy(run_dir), video, args.seed)
        except (ValueError, ImportError, OSError) as error:
            raise ValueError(f"the agent is trained, but --video failed: {error}") from error
        print(f"video: {video}, {length} steps, score {score:g}")
    return 0


def prepare(make_algorithm: Callable[[Env], Algorithm], args: Any) -> tuple[Algorithm, Any, Path]:
    """Return the algorithm on the devices and processes of the flags, its config and run_dir.

    Raises:
      ValueError: if flags contradict each other.
    """
    check_flags(args)
    config, num_envs, devices = args.config, args.num_envs, args.devices
    options = read_env_options(args)
    if joins_processes(args):
        processes.connect(args.coordinator, args.num_hosts, args.host_id)
    if devices > 1 or args.autotune:
        split_cpu(None if args.autotune else devices)
    algo = make_algorithm(make(args.env_id, num_envs, **options))
    name = algo.env.id.partition("/")[2].replace("/", "-")
    run_dir = args.run_dir or Path("runs") / f"{algo.name}-{name}-seed{args.seed}"
    if args.autotune:
        found = read_chosen(run_dir, args.autotune_also) if args.resume else {}
        found = found or find_fastest(
            make_algorithm, config, args.env_id, num_envs, options, args.autotune_also
        )
        num_envs, devices = found.pop("num_envs", num_envs), found.pop("devices", 1)
        if "num_minibatches" in found:
            config = config.replace(num_minibatches=found.pop("num_minibatches"))
        algo = make_algorithm(make(args.env_id, num_envs, **options | found))
    if joins_processes(args) or devices > 1:
        algo = spread(algo, None if joins_processes(args) else devices)
    if args.anneal and config.anneal_updates == 0:
        num_updates = -(-args.total_steps // (num_envs * algo.num_steps(config)))
        config = config.replace(anneal_updates=num_updates)
    return algo, config, run_dir


def joins_processes(args: TrainArguments) -> bool:
    """Return whether several processes train the agent."""
    return args.cluster or args.coordinator is not None


def check_flags(args: TrainArguments) -> None:
    """Raise `ValueError` if flags contradict each other."""
    if not joins_processes(args) and (args.num_hosts, args.host_id) != (None, None):
        raise ValueError("--num-hosts and --host-id need --coordinator address:port")
    if args.devices < 1:
        raise ValueError(f"--devices must be >= 1, got {args.devices}")
    if args.autotune_also and not args.autotune:
        raise ValueError("--autotune-also needs --autotune")
    if args.autotune and (joins_processes(args) or args.devices > 1):
        raise ValueError(
            "--autotune chooses the devices of one process; leave out --devices, --cluster and "
            "--coordinator, or --autotune"
        )


def read_env_options(args: TrainArguments) -> dict[str, Any]:
    """Return the backend's options: those of `AtariArguments`, and `--env-options` over them."""
    options: dict[str, Any] = {}
    if isinstance(args, AtariArguments):
        names = ["episodic_life", "reward_clip", "repeat_action_probability", "num_threads"]
        names += [n for n in POOL_OPTIONS if getattr(args, n) != getattr(AtariArguments, n)]
        options = {name: getattr(args, name) for name in names}
    return options | parse_env_options(args.env_options)


def check_annealing(run_dir: Path, config: Any) -> None:
    """Raise `ValueError` if a resumed run would have another end.

    Its learning rate falls to 0 over the updates that it was started for.
    """
    if not (run_dir / manifests.NAME).exists():
        return
    before = manifests.read(run_dir)["config"].get("anneal_updates")
    if before and before != config.anneal_updates:
        raise ValueError(
            f"--total-steps: the learning rate of the run in {run_dir} falls to 0 over its "
            f"{before:g} updates, so it cannot be extended to {config.anneal_updates}; start a run "
            "of that length in another --run-dir, or one with --no-anneal, which can be extended"
        )


def print_summary(result: RunResult) -> None:
    """Print the summary of a run as a table."""
    table = Table(title=str(result.run_dir))
    table.add_column("summary")
    table.add_column(justify="right")
    for name, value in result.summary.items():
        table.add_row(name, f"{value:,.2f}" if isinstance(value, float) else str(value))
    Console().print(table)
