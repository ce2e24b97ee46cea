"""Search hyperparameters: train many agents at once, stop hopeless ones early, and record all.

    jaxrl sweep --algo a2c --env-id Pong-v5 --trials 100 --lanes 16
    jaxrl sweep --algo ppo --preset laptop --env-id Pong-v5 --trials 16 --lanes 2 --num-envs 8 \
        --env-options img_height=42 img_width=42
    jaxrl sweep --algo ppo --env-id CartPole-v1 --trials 64 --lanes 16 \
        --phases 8 --phase-length 12 --phase-unit updates
    jaxrl sweep --algo ppo --env-id Breakout-MinAtar --scheduler asha \
        --sampler tpe --space 'learning_rate=LogUniform(1e-5, 1e-2)' 'num_epochs=Integer(1, 8)' \
        --set torso=mlp 'hidden_sizes=(128,)'
    jaxrl sweep --algo ppo --env-id CartPole-v1 --num-envs 4 --scheduler pbt --trials 16 \
        --phases 8 --phase-length 12 --phase-unit updates --strategy vmap

Ctrl-C stops a sweep with a checkpoint, --resume continues it. Several workers share one study:

    jaxrl sweep ... --storage postgresql://user@host/database --study pong \
        --run-dir runs/worker-3
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import tyro

from jaxrl import checks, tuning
from jaxrl import config as fields
from jaxrl.algos import ALGORITHMS
from jaxrl.analysis.sweep_report import write_report
from jaxrl.analysis.video import check_video
from jaxrl.cli.flags.arguments import (
    flags_of,
    naming_flags,
    parse_env_options,
    set_fields,
    split_pairs,
)
from jaxrl.cli.flags.autotune import find_fastest, powers_of_two
from jaxrl.cli.flags.config_file import parse_with_file
from jaxrl.cli.flags.sweep import (
    EXPLORERS,
    FLAGS_OF_ARGUMENTS,
    SweepArguments,
    make_environment,
    make_finals,
    make_objective,
    make_scheduler,
    make_space,
)
from jaxrl.cli.sweep_result import film_agents, report_result
from jaxrl.distributed.spread import split_cpu
from jaxrl.presets import PRESETS
from jaxrl.training import population
from jaxrl.training.autotune import lanes_per_second
from jaxrl.tuning.sweeps import sweep_file
from jaxrl.tuning.sweeps.settings import check_phase, whole_trials
from jaxrl.types import Algorithm

EXPLORING = {
    "learning_starts": "agents learn nothing before step",
    "exploration_steps": "actions are random, less and less often, until step",
}
"""Fields of agents that explore first, and what they do in trials that are shorter."""


def main(argv: Sequence[str], prog: str | None = None) -> int:
    """Search as the flags say; return the exit status, 130 if the sweep was interrupted."""
    args = parse(argv, prog)
    with naming_flags(flags_of(SweepArguments) | FLAGS_OF_ARGUMENTS):
        result = search(args)
    report_result(args, result)
    if result.interrupted:
        where = shlex.quote(str(result.run_dir))
        print(f"interrupted; continue with the same command, --resume --run-dir {where}")
        return 130
    if args.videos_by is not None and result.best is not None:
        film_agents(result, args)
        print(f"with videos: {write_report(result.summary, result.run_dir)}")
    return 0


def parse(argv: Sequence[str], prog: str | None = None) -> SweepArguments:
    """Return the arguments of a sweep; tyro exits if a flag is unknown."""
    return parse_with_file(
        argv,
        lambda argv: tyro.cli(SweepArguments, args=argv, prog=prog),
        lambda args: parse_env_options(args.env_options),
    )


def search(args: SweepArguments) -> tuning.SweepResult:
    """Run the sweep that the flags describe.

    Raises:
      ValueError: for bad values, before any training.
    """
    split_cpu(args.cpu_devices)
    env = make_environment(args.env_id, args.num_envs, args.env_options)
    algo = ALGORITHMS[args.algo](env)
    space = make_space(args)
    for name, part in space.items():
        if isinstance(part, tuning.QLogUniform) and part.rungs is not None:
            print(f"{name} is searched on {len(part.ladder)} rungs: {part.ladder}")
    run_dir = args.run_dir or Path("runs") / (
        f"sweep-{args.algo}-{env.id.partition('/')[2].replace('/', '-')}-seed{args.seed}"
    )
    config = set_fields(base_config(args, algo, run_dir), args.set)
    if both := sorted(set(split_pairs(args.set, "--set")) & set(space)):
        raise ValueError(
            f"--set: {both} are searched; leave them out of --set, or name the space by --space"
        )
    if args.videos_by is not None:
        check_video(env, run_dir / "videos" / "trial-0.mp4")
    num_lanes = args.num_lanes
    if args.autotune:
        if args.scheduler in EXPLORERS:
            raise ValueError(
                f"--autotune chooses the number of lanes, but {args.scheduler} trains all trials "
                "at the same time; leave --autotune out"
            )
        num_lanes = find_fastest_lanes(algo, config, space, args, run_dir)
    scheduler, storage = make_scheduler(args), args.storage
    phase = check_phase(tuning.Phase(args.phase_length, args.phase_unit))
    steps_per_update = env.num_envs * algo.num_steps(config)
    if not {"num_envs", "num_steps"} & set(space):  # with which the steps of a trial vary
        note_exploring(config, space, scheduler.num_phases * phase.num_steps(steps_per_update))
    max_steps = math.inf if args.max_steps is None else args.max_steps
    allowed = whole_trials(
        max_steps, phase, args.seeds_per_trial, scheduler.num_phases, steps_per_update
    )
    if args.resume and storage is None and (run_dir / sweep_file.NAME).exists():
        storage = sweep_file.read(run_dir).get("storage")
    if args.storage is not None and args.study is None and not args.resume:
        print(
            f"note: the study is named {run_dir.resolve().name!r} after --run-dir; workers that "
            "share it name it by --study"
        )
    with naming_flags({name: f"--space {name}" for name in space}):
        return tuning.sweep(
            algo,
            config,
            space,
            scheduler,
            num_lanes=num_lanes,
            phase=phase,
            run_dir=run_dir,
            seed=args.seed,
            sampler=args.sampler,
            storage=args.storage,
            study_name=args.study,
            worker=args.worker,
            agents_dir=args.agents_dir,
            strategy=args.strategy,
            objective=make_objective(args),
            evaluation_episodes=args.evaluation_episodes,
            seeds_per_trial=args.seeds_per_trial,
            max_steps=max_steps,
            max_seconds=args.max_seconds,
            finals=make_finals(args, scheduler.num_trials, storage, allowed),
            resume=args.resume,
            keep_best=args.keep_best,
            keep_best_per=args.videos_by,
        )


def note_exploring(config: Any, space: tuning.Space, longest: float) -> None:
    """Print why trials of at most `longest` steps would learn little, if they would."""
    for name, effect in EXPLORING.items():
        if name not in space and longest < (needed := getattr(config, name, 0)):
            print(
                f"note: a trial has at most {longest:,.0f} steps, but {effect} {needed:,.0f} "
                f"({name}): lower it by --set, or lengthen the phases"
            )


def base_config(args: SweepArguments, algo: Algorithm, run_dir: Path) -> Any:
    """Return the config that `--set` changes: a resumed sweep's, the preset's or the defaults."""
    if args.resume and (run_dir / sweep_file.NAME).exists():
        held = sweep_file.read(run_dir)
        if held["algorithm"] != algo.name:
            began = f"; it began with: {held['command']}" if "command" in held else ""
            raise ValueError(
                f"--algo must be {held['algorithm']} as in {run_dir}, got {algo.name}{began}"
            )
        return fields.from_dict(algo.config_class, held["config"])
    if args.preset is None:
        return algo.config_class()
    presets = PRESETS[args.algo]
    return presets[checks.choice("--preset", args.preset, tuple(presets))].config


def find_fastest_lanes(
    algo: Algorithm, config: Any, space: tuning.Space, args: SweepArguments, run_dir: Path
) -> int:
    """Return the fastest number of lanes up to `args.num_lanes`; a resumed sweep keeps its own."""
    if args.num_lanes < 2:
        return args.num_lanes
    if args.resume and (run_dir / sweep_file.NAME).exists():
        return sweep_file.read(run_dir)["lanes"]
    if static := tuning.static_names(space, type(config)):
        devices = 1 if args.strategy in ("vmap", "map") else jax.local_device_count()
        lanes = min(args.num_lanes, devices)
        names = ", ".join(static)
        print(f"a lane a device ({lanes}), since each value of {names} has a program of its own")
        return lanes
    seeds = checks.integer("seeds_per_trial", args.seeds_per_trial)
    found = find_fastest(
        lambda lanes: (algo, population.stack(config, lanes * seeds)),
        {"lanes": powers_of_two(args.num_lanes)},
        [{"lanes": args.num_lanes}],
        rate=lanes_per_second,
    )
    return found["lanes"]
