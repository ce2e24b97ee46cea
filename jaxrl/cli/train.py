"""Train one agent: a preset's settings, changed by flags.

Algorithms: ppo, a2c, impala, dqn, pqn and r2d2.

    jaxrl train ppo                                        # the preset "cartpole"
    jaxrl train ppo --preset laptop --env-id Breakout-v5
    jaxrl train dqn --preset atari --double --n-step 3
    jaxrl train --list                                     # all presets
    jaxrl train ppo --help                                 # all flags

Ctrl-C stops a run with a checkpoint; `--resume` continues it.
"""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from jaxrl.algos import ALGORITHMS
from jaxrl.analysis.video import check_video, film, write_caption
from jaxrl.cli.flags.arguments import (
    find_own_modules,
    flags_of,
    naming_flags,
    table_console,
)
from jaxrl.cli.flags.autotune import find_fastest, list_settings, read_chosen
from jaxrl.cli.flags.train import (
    check_flags,
    joins_processes,
    parse_command,
    read_env_options,
)
from jaxrl.cli.play import play_command
from jaxrl.distributed import processes
from jaxrl.distributed.spread import split_cpu, spread
from jaxrl.envs import make
from jaxrl.envs.host.errors import message_in
from jaxrl.envs.trust import OWN_FUNCTIONS
from jaxrl.files import seal
from jaxrl.presets import PRESETS
from jaxrl.training.evaluate import without_training
from jaxrl.training.loggers import Sink, WandbSink
from jaxrl.training.policy import LoadedPolicy, load_policy
from jaxrl.training.run import RunResult, count_updates, run
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.directory import check_unused, has_checkpoint
from jaxrl.types import Algorithm, Env


def main(argv: Sequence[str], prog: str | None = None, presets: Sequence[str] = ()) -> int:
    """Train as the flags say.

    Args:
      argv: an algorithm and flags, or `--list`.
      presets: names to choose from, the default first; all of the algorithm's if empty.

    Returns:
      The exit status: 130 if the run was interrupted.
    """
    if argv and argv[0] in ("--list", "--help", "-h"):
        if argv[0] == "--list":
            print_presets()
        else:
            print(__doc__)
        return 0
    algorithm, args = parse_command(argv, prog, presets)
    with naming_flags(flags_of(type(args), type(args.config))):
        return train(ALGORITHMS[algorithm], args)


def print_presets() -> None:
    """Print a table of all presets, by algorithm."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("algorithm", "preset"):
        table.add_column(column, no_wrap=True)
    table.add_column("environment", overflow="fold")
    table.add_column("steps", justify="right")
    table.add_column("description")
    for algorithm, presets in PRESETS.items():
        for name, preset in presets.items():
            row = algorithm, name, preset.env_id, f"{preset.total_steps:,}", preset.description
            table.add_row(*row)
        table.add_section()
    table_console().print(table)


@processes.failing_together(Exception, KeyboardInterrupt)
def train(make_algorithm: Callable[[Env], Algorithm], args: Any) -> int:
    """Train as the arguments say, print a summary, and film an episode if `args.video`.

    Returns:
      The exit status: 130 if the run was interrupted.
    """
    algo, config, run_dir = prepare(make_algorithm, args)
    video = run_dir / "video" / f"seed{args.seed}.mp4"
    if args.resume and args.anneal:
        check_annealing(run_dir, algo, config)
    if args.video:
        processes.call_on_first(lambda: check_video(algo.env, video))
    agent = load_agent(args, algo.env, run_dir)
    sinks: list[Sink] = []

    def add_wandb() -> None:
        check_unused(run_dir, args.resume)  # or each refused start would leave a run on the server
        settings = manifests.describe(algo, config, {"seed": args.seed})
        project = os.environ.get("WANDB_PROJECT", "jaxrl")
        sinks.append(WandbSink(project=project, name=args.label or run_dir.name, config=settings))

    if args.wandb:
        processes.call_on_first(add_wandb)
    result = run(
        algo,
        config,
        seed=args.seed,
        total_steps=args.total_steps,
        run_dir=run_dir,
        resume=args.resume,
        num_evaluations=args.num_evaluations,
        eval_episodes=args.eval_episodes,
        eval_greedy=args.eval_greedy,
        log_every=args.log_every,
        sinks=sinks,
        label=args.label,
        init_from=agent,
    )
    if processes.is_first():
        print_summary(result, algo.env)
    if result.interrupted:
        if processes.is_first():
            where = shlex.quote(str(run_dir))
            print(f"interrupted; continue with the same command and --resume --run-dir {where}")
        return 130
    if args.video and processes.is_first():
        try:
            policy = load_policy(run_dir, env=algo.env)
            _, score, length = film(policy, video, args.seed)
            write_caption(video, f"{length} steps, score {score:g}")
        except (ValueError, ImportError, OSError, RuntimeError) as error:
            message = message_in(error) or error
            raise ValueError(f"the agent is trained, but --video failed: {message}") from error
        print(f"video: {video}, {length} steps, score {score:g}")
    return 0


def prepare(make_algorithm: Callable[[Env], Algorithm], args: Any) -> tuple[Algorithm, Any, Path]:
    """Return the algorithm on the devices and processes of the flags, its config and run_dir.

    Raises:
      ValueError: if flags contradict each other.
    """
    check_flags(args)
    env_options, joins = read_env_options(args), joins_processes(args)
    if ":" in args.env_id:
        find_own_modules()
    if joins:
        processes.connect(args.coordinator, args.num_hosts, args.host_id)
    if args.devices > 1 or args.autotune:
        split_cpu(None if args.autotune else args.devices)
    if joins and args.devices not in (1, jax.local_device_count()):
        raise ValueError(
            f"--devices {args.devices}, but this process sees {jax.local_devices()}, and a process "
            "that joins others uses all that it sees; ask for as many GPUs on each machine"
        )

    def build(
        num_envs: int = args.num_envs,
        devices: int = args.devices,
        num_minibatches: int | None = None,
        **options: Any,
    ) -> tuple[Algorithm, Any]:
        algo = make_algorithm(make(args.env_id, num_envs, **env_options | options))
        if joins or devices > 1:
            algo = spread(algo, None if joins else devices)
        changes: dict[str, Any] = {}
        if num_minibatches is not None:
            changes["num_minibatches"] = num_minibatches
        if args.anneal and args.config.anneal_updates == 0:
            changes["anneal_updates"] = count_updates(algo, args.config, args.total_steps)
        return algo, args.config.replace(**changes)

    algo, config = build()
    name = algo.env.id.partition("/")[2].replace("/", "-")
    run_dir = args.run_dir or Path("runs") / f"{algo.name}-{name}-seed{args.seed}"
    if args.autotune:
        settings = read_chosen(run_dir, args.autotune_also) if args.resume else {}
        knobs, starts = list_settings(algo.env, config, args.autotune_also)
        knobs = {name: values for name, values in knobs.items() if name not in settings}
        if knobs:
            starts = [{name: start[name] for name in knobs} for start in starts]
            settings |= find_fastest(functools.partial(build, **settings), knobs, starts)
        algo, config = build(**settings)
    return algo, config, run_dir


def load_agent(args: Any, env: Env, run_dir: Path) -> LoadedPolicy | None:
    """Return the agent of `--init-from`; None without it, or if a checkpoint replaces it.

    An environment that the command itself names as `module:function` may be imported again.
    """
    has_sealed = args.resume and any((run_dir / "checkpoints").glob(f"*/{seal.NAME}"))
    if args.init_from is None or has_sealed:
        return None
    made_with = manifests.read(args.init_from)["env"]
    is_same = (made_with["id"], made_with["options"]) == (env.id, env.options)
    is_named = ":" in env.id and made_with["id"] == env.id not in OWN_FUNCTIONS
    policy = load_policy(args.init_from, env=env if is_same else None, trust_imports=is_named)
    policy.state = without_training(policy.state)  # there may be no room for two replays
    return policy


def check_annealing(run_dir: Path, algo: Algorithm, config: Any) -> None:
    """Raise `ValueError` if a resumed run differs from the saved one by its end alone.

    Its learning rate falls to 0 over the updates that it was started for. `run` refuses, or names,
    other differences.
    """
    if not (run_dir / manifests.NAME).exists() or not has_checkpoint(run_dir):
        return
    saved = manifests.read(run_dir, manifests.TO_RESUME)
    before = saved["config"].get("anneal_updates")
    if not before or before == config.anneal_updates:
        return
    arguments = {"seed": saved["seed"], "log_every": saved["log_every"]}
    extended = manifests.describe(algo, config.replace(anneal_updates=before), arguments)
    if not manifests.differences(saved, extended):
        raise ValueError(
            f"--total-steps: the learning rate of the run in {run_dir} falls to 0 over its "
            f"{before:,.12g} updates, so it cannot end after {config.anneal_updates:,}; start a "
            "run of that length in another --run-dir, or one with --no-anneal, to extend later"
        )


def print_summary(result: RunResult, env: Env) -> None:
    """Print the summary of a run as a table, and how to watch the agent."""
    table = Table(title=str(result.run_dir), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in result.summary.items():
        table.add_row(name, format_number(value))
    Console().print(table)
    if not result.interrupted:
        print(f"watch the agent: {play_command(result.run_dir, env.id, env.options)}")


def format_number(value: Any) -> str:
    """Return a value of a summary as text, a number with its thousands apart."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
