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

import itertools
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import tyro
from rich.markup import escape
from rich.table import Table

from jaxrl import checks, tuning
from jaxrl import config as fields
from jaxrl.algos import ALGORITHMS
from jaxrl.analysis.sweep_report import write_report
from jaxrl.analysis.sweep_tables import (
    TextTable,
    finals_table,
    front_table,
    leaderboard_table,
    phases_text,
    schedule_table,
    value_text,
    winner_scores,
)
from jaxrl.analysis.video import check_video, film, summarize_games, write_caption
from jaxrl.cli.flags.arguments import (
    flags_of,
    naming_flags,
    parse_env_options,
    set_fields,
    split_pairs,
    table_console,
    write_pair,
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
from jaxrl.cli.play import play_command, play_episodes
from jaxrl.distributed.spread import split_cpu
from jaxrl.envs import make
from jaxrl.files.json_values import values_from_json
from jaxrl.presets import PRESETS
from jaxrl.training import manifest as manifests
from jaxrl.training import population
from jaxrl.training.autotune import lanes_per_second
from jaxrl.training.policy import load_policy
from jaxrl.tuning.sweeps import sweep_file
from jaxrl.tuning.sweeps.settings import check_phase, whole_trials
from jaxrl.types import Algorithm

SHOWN_TRIALS = 10
"""Trials of the table at the end, at most; the page has all."""
EXPLORING = {
    "learning_starts": "agents learn nothing before step",
    "exploration_steps": "actions are random, less and less often, until step",
}
"""Fields of agents that explore first, and what they do in trials that are shorter."""
FILMED_AGENT_EPISODES = 4
"""Whole games of each filmed agent; the numbers beside its film are their means."""


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
    longest = scheduler.num_phases * phase.num_steps(steps_per_update)
    for name, effect in EXPLORING.items():
        if name not in space and longest < (needed := getattr(config, name, 0)):
            print(
                f"note: a trial has at most {longest:,.0f} steps, but {effect} {needed:,.0f} "
                f"({name}): lower it by --set, or lengthen the phases"
            )
    max_steps = math.inf if args.max_steps is None else args.max_steps
    allowed = whole_trials(
        max_steps, phase, args.seeds_per_trial, scheduler.num_phases, steps_per_update
    )
    if args.resume and storage is None and (run_dir / sweep_file.NAME).exists():
        storage = sweep_file.read(run_dir).get("storage")
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


def base_config(args: SweepArguments, algo: Algorithm, run_dir: Path) -> Any:
    """Return the config that `--set` changes: a resumed sweep's, the preset's or the defaults."""
    if args.resume and (run_dir / sweep_file.NAME).exists():
        held = sweep_file.read(run_dir)
        if held["algorithm"] != algo.name:
            raise ValueError(f"--algo must be {held['algorithm']} as in {run_dir}, got {algo.name}")
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


def report_result(args: SweepArguments, result: tuning.SweepResult) -> None:
    """Print the leaderboard and the best config as a command, and write the page."""
    sweep, finals = result.summary, finals_table(result.summary)
    print_table(leaderboard_table(sweep), str(result.run_dir), SHOWN_TRIALS)
    if elsewhere := sweep["elsewhere"]:
        print(
            f"the study has {elsewhere} more trials of other workers; jaxrl report "
            f"{shlex.quote(str(result.run_dir))} shows all"
        )
    print_table(front_table(sweep), "Pareto front of the last two scores", SHOWN_TRIALS)
    what = "schedules" if result.best is not None and "schedule" in result.best else "settings"
    print_table(finals, f"finals: the same {what} with new seeds")
    print(f"phases: {phases_text(sweep)}")
    is_capped = args.max_steps is not None or args.max_seconds < math.inf
    left = sweep["scheduler"]["num_trials"] - len(sweep["trials"]) - elsewhere
    if is_capped and left > 0 and not result.interrupted:
        print(f"--max-steps or --max-seconds ended the sweep; trials that never began: {left}")
    if result.best is not None and result.interrupted:
        print(f"best so far: trial {result.best['trial']}, score {winner_scores(result.best)}")
    elif result.best is not None:
        whose = "best of this worker's trials" if elsewhere and not finals.rows else "winner"
        print(f"{whose}: trial {result.best['trial']}, score {winner_scores(result.best)}")
        if not finals.rows:
            print("this is the highest score of a phase; --final-trials chooses by new seeds")
        if "schedule" in result.best:
            print_table(schedule_table(sweep), "best schedule: the phases that led to the winner")
        else:
            print(f"best config: {format_command(args, result)}")
        agent = result.run_dir / "best" / f"trial-{result.best['trial']}"
        if agent.exists():
            in_search = ", at its highest score in the search" if finals.rows else ""
            command = play_command(agent, sweep["env"], sweep["env_options"])
            print(f"its agent{in_search}: {command}")
    elif finals.rows:
        print("no winner: in the finals each setting has a run that diverged or has no score")
    else:
        print("no winner: no trial has a finite score")
    print(f"report: {write_report(sweep, result.run_dir)}")


def print_table(table: TextTable, title: str, most: int | None = None) -> None:
    """Print a table, if it has rows.

    Args:
      most: rows to print; None for all.
    """
    if not table.rows:
        return
    rows = table.rows[:most]
    shown = f", the first {len(rows)} of {len(table.rows)}" if rows != table.rows else ""
    print(f"{title}{shown}")  # a title within the table would be as narrow as the table
    printed = Table()
    for name in table.head:
        printed.add_column(escape(name), justify="right", overflow="fold")
    for row in rows:
        printed.add_row(*map(escape, row))
    table_console().print(printed)


def film_agents(result: tuning.SweepResult, args: SweepArguments) -> None:
    """Film one episode of each agent that was kept, with its value and scores as a caption."""
    values = {trial["trial"]: trial["values"] for trial in result.summary["trials"]}
    agents = sorted((result.run_dir / "best").glob("trial-*"))
    kept = {directory.name for directory in agents}
    for old in (result.run_dir / "videos").glob("trial-*.*"):
        if old.name.partition(".")[0] not in kept:
            old.unlink()
    for directory in agents:
        manifest = manifests.read(directory, ["trial"])
        num_envs, trial = manifest["env"]["num_envs"], manifest["trial"]
        env = make_environment(args.env_id, num_envs, args.env_options)
        policy = load_policy(directory, env=env)
        path = result.run_dir / "videos" / f"{directory.name}.mp4"
        _, score, length = film(policy, path, args.seed)
        numbers = summarize_games(*play_episodes(policy, FILMED_AGENT_EPISODES, args.seed))
        text = f"{args.videos_by} {value_text(values[trial].get(args.videos_by, 'inactive'))}"
        write_caption(path, f"{text}, trial {trial}", numbers)
        print(f"{path}: score {score:g} in {length} steps, {text}")


def format_command(args: SweepArguments, result: tuning.SweepResult) -> str:
    """Return the command that trains an agent with the best trial's config."""
    assert result.best is not None
    values = values_from_json(result.best["values"])
    num_envs = values.pop("num_envs", args.num_envs)
    options = result.summary["env_options"]
    algo = ALGORITHMS[args.algo](make(args.env_id, num_envs, **options))
    config = fields.from_dict(algo.config_class, result.summary["config"]).replace(**values)
    preset = "minatar" if "MinAtar" in args.env_id else "cartpole"
    if algo.env.id.startswith("envpool/") and getattr(algo.env, "is_atari", False):
        preset = "atari"
    run_dir = shlex.quote(str(result.run_dir / "winner"))
    flags = [f"--preset {preset} --env-id {args.env_id} --num-envs {num_envs}"]
    flags.append("--anneal" if config.anneal_updates else "--no-anneal")
    flags.append(f"--run-dir {run_dir}")
    phase, phases = tuning.Phase(**result.summary["phase"]), result.summary["scheduler"]
    steps = phases["num_phases"] * phase.num_steps(num_envs * algo.num_steps(config))
    if math.isfinite(
        steps
    ):  # as long as a trial; settings for short trials may not suit longer ones
        flags.append(f"--total-steps {steps:_.0f}")
    sticky = "repeat_action_probability"
    if sticky in (PRESETS[args.algo][preset].atari_flags or {}) and sticky not in options:
        flags.append("--repeat-action-probability 0.0")
    if options:
        pairs = itertools.starmap(write_pair, options.items())
        flags.append(f"--env-options {shlex.join(pairs)}")
    preset_values = fields.to_dict(PRESETS[args.algo][preset].config)
    for name, value in fields.to_dict(config).items():
        flag = name.replace("_", "-")
        if value == preset_values[name]:
            continue
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words = value if isinstance(value, tuple | list) else [value]
            flags.append(shlex.join([f"--{flag}", *map(str, words)]))
    return f"jaxrl train {args.algo} {' '.join(flags)}"
