"""Search hyperparameters: train many agents at once, stop hopeless ones early, and record all.

    jaxrl sweep --algo a2c --env-id Pong-v5 --trials 100 --lanes 16
    jaxrl sweep --algo ppo --env-id CartPole-v1 --trials 64 --lanes 16 \
        --phases 8 --phase-length 12 --phase-unit updates
    jaxrl sweep --algo ppo --env-id Breakout-MinAtar --scheduler asha \
        --sampler tpe --space 'learning_rate=LogUniform(1e-5, 1e-2)' 'num_epochs=Integer(1, 8)' \
        --set torso=mlp 'hidden_sizes=(128,)'

Ctrl-C stops a sweep with a checkpoint, --resume continues it. Several workers share one study:

    jaxrl sweep ... --storage postgresql://user@host/database --study pong \
        --run-dir runs/worker-3
"""

from __future__ import annotations

import ast
import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import tyro
from rich.console import Console
from rich.table import Table

from jaxrl import config as fields
from jaxrl import tuning
from jaxrl.algos import ALGORITHMS
from jaxrl.analysis.sweep_report import write_report
from jaxrl.analysis.video import check_video, summarize_games, write_caption
from jaxrl.cli.arguments import LargeInteger, parse_env_options, set_fields, split_pairs
from jaxrl.cli.autotune_flags import Report, powers_of_two
from jaxrl.cli.play import play_episodes, record_episode
from jaxrl.distributed.spread import split_cpu
from jaxrl.envs import make
from jaxrl.training import manifest as manifests
from jaxrl.training import population
from jaxrl.training.autotune import autotune, lanes_per_second
from jaxrl.training.policy import load_policy
from jaxrl.tuning.sweeps import state
from jaxrl.tuning.sweeps.ranking import leaderboard
from jaxrl.types import Algorithm, Env

ATARI_OPTIONS = {"episodic_life": True, "reward_clip": True}
FILMED_AGENT_EPISODES = 4
"""Whole games of each filmed agent; the numbers beside its film are their means."""
DISTRIBUTIONS = ("Uniform", "LogUniform", "Integer", "QLogUniform", "Choice")


@dataclasses.dataclass
class SweepArguments:
    """A hyperparameter sweep."""

    algo: Literal["ppo", "a2c", "impala", "dqn", "r2d2"] = "a2c"
    env_id: str = "Pong-v5"
    num_envs: int = 16
    """Environments of each agent."""
    env_options: tuple[str, ...] = ()
    """name=value for the backend; Atari learns from single lives and clipped rewards by default."""
    set: tuple[str, ...] = ()
    """name=value for config fields that are not searched."""
    space: tuple[str, ...] = ()
    """name=Distribution(...), one of Uniform, LogUniform, Integer, QLogUniform, Choice; by default
    GA3C's learning rate, t_max and gamma for a2c, learning rate and gamma for the others."""
    trials: int = 100
    """Trials of the search; hyperband's brackets decide instead."""
    lanes: int = 16
    """Agents trained at the same time; with --autotune, at most."""
    autotune: bool = False
    """Choose the number of lanes for this machine by short trials; one a device, if static fields
    are searched. The scheduler judges by earlier reports, so it may stop other trials."""
    phases: int = 10
    """Reports of a trial that is never stopped."""
    phase_length: LargeInteger = 2500
    phase_unit: Literal["updates", "steps", "episodes"] = "episodes"
    scheduler: Literal["hypertrick", "random", "halving", "hyperband", "asha"] = "hypertrick"
    eviction: float = 0.25
    """HyperTrick's r: the share of trials to stop in each phase."""
    eta: int = 3
    """For the halving schedulers: 1 in eta continues."""
    sampler: Literal["random", "tpe", "cmaes", "gp"] = "random"
    """How values are drawn; gp learns only from trials that no scheduler stopped."""
    storage: str | None = None
    """Database URL of the study; run_dir/study.db by default."""
    study: str | None = None
    """Name of the study, the same for all workers."""
    worker: str | None = None
    """This worker's name in the study, if it may be restarted on another machine."""
    strategy: str = "auto"
    """vmap, map, shard-vmap, shard-map, or auto for the fastest of them."""
    cpu_devices: int | None = None
    """Devices that the CPU is split into; one a core by default."""
    seed: int = 1
    run_dir: Path | None = None
    """Directory of all output; runs/sweep-<algorithm>-<env>-seed<seed> by default."""
    resume: bool = False
    """Continue the sweep in run_dir."""
    keep_best: int = 3
    """Best agents kept as checkpoints under run_dir/best."""
    videos_by: str | None = None
    """Keep the best agent of each value of this hyperparameter (gamma), film all that are kept, and
    show the films side by side on the page."""


def main(argv: Sequence[str], prog: str | None = None) -> int:
    """Search as the flags say; return the exit status, 130 if the sweep was interrupted."""
    args = tyro.cli(SweepArguments, args=argv, prog=prog)
    result = search(args)
    report_result(args, result)
    if result.interrupted:
        print(f"interrupted; continue with the same command, --resume --run-dir {result.run_dir}")
        return 130
    if args.videos_by is not None and result.best is not None:
        film_agents(result, args.videos_by, args.seed)
        print(f"with videos: {write_report(result.summary, result.run_dir)}")
    return 0


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
    config = set_fields(algo.config_class(), args.set)
    if both := sorted(set(split_pairs(args.set, "--set")) & set(space)):
        raise ValueError(
            f"--set: {both} are searched; leave them out of --set, or name the space by --space"
        )
    if args.videos_by is not None:
        check_video(env, run_dir / "videos" / "trial-0.mp4")
    num_lanes = args.lanes
    if args.autotune:
        num_lanes = find_fastest_lanes(algo, config, space, args, run_dir)
    return tuning.sweep(
        algo,
        config,
        space,
        make_scheduler(args),
        num_lanes=num_lanes,
        phase=tuning.Phase(args.phase_length, args.phase_unit),
        run_dir=run_dir,
        seed=args.seed,
        sampler=args.sampler,
        storage=args.storage,
        study_name=args.study,
        worker=args.worker,
        strategy=args.strategy,
        resume=args.resume,
        keep_best=args.keep_best,
        keep_best_per=args.videos_by,
    )


def make_environment(env_id: str, num_envs: int, options: Sequence[str]) -> Env:
    """Return environments with the backend's options; on Atari, `ATARI_OPTIONS` unless given."""
    given = parse_env_options(options)
    env = make(env_id, num_envs, **given)
    if getattr(env, "is_atari", False):
        env = make(env_id, num_envs, **ATARI_OPTIONS | given)
    return env


def make_space(args: SweepArguments) -> tuning.Space:
    """Return the space of `--space`; by default GA3C's, without its rollout length but for A2C."""
    given = split_pairs(args.space, "--space")
    if given:
        return {name: parse_distribution(text) for name, text in given.items()}
    if args.algo == "a2c":
        return tuning.GA3C_SPACE
    return {name: tuning.GA3C_SPACE[name] for name in ("learning_rate", "gamma")}


def parse_distribution(text: str) -> Any:
    """Return the distribution that a text such as `LogUniform(1e-5, 1e-2)` describes.

    Raises:
      ValueError: if it is not the call of a distribution with literal arguments.
    """
    try:
        call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            positional = [ast.literal_eval(x) for x in call.args]
            named = {str(x.arg): ast.literal_eval(x.value) for x in call.keywords}
            if call.func.id in DISTRIBUTIONS:
                return getattr(tuning, call.func.id)(*positional, **named)
    except (SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"--space: {text!r} is not a distribution: {error}") from error
    raise ValueError(
        f"--space: {text!r} is not a distribution; choose from {', '.join(DISTRIBUTIONS)}"
    )


def make_scheduler(args: SweepArguments) -> Any:
    """Return the scheduler that the flags name."""
    match args.scheduler:
        case "hypertrick":
            return tuning.HyperTrick(args.trials, args.phases, args.eviction)
        case "random":
            return tuning.RandomSearch(args.trials, args.phases)
        case "halving":
            return tuning.SuccessiveHalving(args.trials, args.phases, args.eta)
        case "hyperband":
            return tuning.HyperBand(args.phases, args.eta)
        case "asha":
            return tuning.ASHA(args.trials, args.phases, args.eta)


def find_fastest_lanes(
    algo: Algorithm, config: Any, space: tuning.Space, args: SweepArguments, run_dir: Path
) -> int:
    """Return the fastest number of lanes up to `args.lanes`; a resumed sweep keeps its own."""
    if args.lanes < 2:
        return args.lanes
    if args.resume and (run_dir / state.NAME).exists():
        return state.read(run_dir)["lanes"]
    if static := tuning.static_names(space, type(config)):
        devices = 1 if args.strategy in ("vmap", "map") else jax.local_device_count()
        lanes = min(args.lanes, devices)
        names = ", ".join(static)
        print(f"a lane a device ({lanes}), since each value of {names} has a program of its own")
        return lanes
    report = Report()
    found = autotune(
        lambda lanes: (algo, population.stack(config, lanes)),
        {"lanes": powers_of_two(args.lanes)},
        [{"lanes": args.lanes}],
        rate=lanes_per_second,
        report=report,
    )
    report.end(found)
    return found.best["lanes"]


def report_result(args: SweepArguments, result: tuning.SweepResult) -> None:
    """Print the leaderboard and the best config as a command, and write the page."""
    table = Table(title=str(result.run_dir))
    for column in ("trial", "best score", "last score", "phases", "status", "values"):
        table.add_column(column)
    for row in leaderboard(result.summary["trials"])[:10]:
        scores = (f"{row[name]:.2f}" for name in ("best_score", "last_score"))
        values = ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}"
                           for k, v in row["values"].items())  # fmt: skip
        table.add_row(str(row["trial"]), *scores, str(row["phases"]), row["status"], values)
    Console().print(table)
    if elsewhere := result.summary["elsewhere"]:
        print(f"the study has {elsewhere} more trials of other workers, which this table omits")
    if result.best is not None:
        print(f"best config: {format_command(args, result)}")
    print(f"report: {write_report(result.summary, result.run_dir)}")


def film_agents(result: tuning.SweepResult, hyperparameter: str, seed: int) -> None:
    """Film one episode of each agent that was kept, with its value and scores as a caption."""
    values = {trial["trial"]: trial["values"] for trial in result.summary["trials"]}
    for directory in sorted((result.run_dir / "best").glob("trial-*")):
        policy, trial = load_policy(directory), manifests.read(directory)["trial"]
        path = result.run_dir / "videos" / f"{directory.name}.mp4"
        _, score, length = record_episode(policy, path, seed)
        numbers = summarize_games(*play_episodes(policy, FILMED_AGENT_EPISODES, seed))
        value = values[trial][hyperparameter]
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        write_caption(path, f"{hyperparameter} {text}, trial {trial}", numbers)
        print(f"{path}: score {score:g} in {length} steps, {hyperparameter} {text}")


def format_command(args: SweepArguments, result: tuning.SweepResult) -> str:
    """Return the command that trains an agent with the best trial's config."""
    assert result.best is not None
    values = state.values_from_json(result.best["values"])
    num_envs = values.pop("num_envs", args.num_envs)
    algo = ALGORITHMS[args.algo](make(args.env_id))
    config = set_fields(algo.config_class(), args.set).replace(**values)
    preset = "minatar" if "MinAtar" in args.env_id else "cartpole"
    if algo.env.id.startswith("envpool/") and getattr(algo.env, "is_atari", False):
        preset = "atari"
    flags = [f"--preset {preset} --env-id {args.env_id} --num-envs {num_envs} --no-anneal"]
    if options := result.summary["env_options"]:
        texts = (f"{name}={value}" for name, value in options.items())
        flags.append(f"--env-options {shlex.join(texts)}")
    for name, value in fields.to_dict(config).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple | list):
            flags.append(f"--{flag} " + " ".join(str(x) for x in value))
        else:
            flags.append(f"--{flag} {shlex.quote(str(value))}")
    return f"jaxrl train {args.algo} {' '.join(flags)}"
