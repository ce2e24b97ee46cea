"""Search hyperparameters: many agents at once, hopeless ones stopped early, all of it on record.

    python experiments/sweep.py --algo a2c --env-id Pong-v5 --trials 100 --lanes 16
    python experiments/sweep.py --algo ppo --env-id CartPole-v1 --trials 64 --lanes 16 \
        --phases 8 --phase-length 12 --phase-unit updates
    python experiments/sweep.py --algo ppo --env-id Breakout-MinAtar --scheduler asha \
        --sampler tpe --space 'learning_rate=LogUniform(1e-5, 1e-2)' 'num_epochs=Integer(1, 8)' \
        --set torso=mlp 'hidden_sizes=(128,)'

Stop it with Ctrl-C and go on with --resume. Several workers share one study:

    python experiments/sweep.py ... --storage postgresql://user@host/database --study pong \
        --run-dir runs/worker-3
"""

from __future__ import annotations

import ast
import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any, Literal

import jax
import tyro
from rich.console import Console
from rich.table import Table

import grid
import jaxrl
from balance import Report, doublings
from errors import exit_with_message
from flags import Whole
from jaxrl import config as fields
from jaxrl import tuning
from jaxrl.analysis.sweep_report import write_report
from jaxrl.analysis.sweep_scores import leaderboard
from jaxrl.analysis.video import check_video
from jaxrl.distributed.spread import split_cpu
from jaxrl.training.autotune import lanes_per_second
from jaxrl.tuning.sweeps.state import read, unplain
from launcher import backend_options, pairs, split, with_fields
from play import record

CONFIGS = {
    "ppo": jaxrl.PPOConfig,
    "a2c": jaxrl.A2CConfig,
    "impala": jaxrl.ImpalaConfig,
    "dqn": jaxrl.DQNConfig,
    "r2d2": jaxrl.R2D2Config,
}
ATARI_OPTIONS = {"episodic_life": True, "reward_clip": True}
GAMES_TOLD = 4
"""Whole games of each agent that the numbers in the videos are of."""
DISTRIBUTIONS = ("Uniform", "LogUniform", "Integer", "QLogUniform", "Choice")


@dataclasses.dataclass
class Args:
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
    """name=Distribution(...), of Uniform, LogUniform, Integer, QLogUniform, Choice; by default
    GA3C's learning rate, t_max and gamma for a2c, learning rate and gamma for the others."""
    trials: int = 100
    """Of hyperband, its brackets decide instead."""
    lanes: int = 16
    """Agents trained at the same time; with --autotune, at most."""
    autotune: bool = False
    """Choose the number of lanes for this machine by short trials; one a device, if static fields
    are searched. The scheduler judges by what was reported before, so it may stop other trials."""
    phases: int = 10
    """Reports of a trial that is never stopped."""
    phase_length: Whole = 2500
    phase_unit: Literal["updates", "steps", "episodes"] = "episodes"
    scheduler: Literal["hypertrick", "random", "halving", "hyperband", "asha"] = "hypertrick"
    eviction: float = 0.25
    """HyperTrick's r: the share of trials to stop in each phase."""
    eta: int = 3
    """Of the halving schedulers: 1 in eta goes on."""
    sampler: Literal["random", "tpe", "cmaes", "gp"] = "random"
    """Of these, gp learns only from trials that no scheduler stopped."""
    storage: str | None = None
    """Database URL of the study; run_dir/study.db by default."""
    study: str | None = None
    """Name of the study, the same for all workers."""
    worker: str | None = None
    """This worker's name in the study, if it may be restarted on another machine."""
    strategy: str = "auto"
    """vmap, map, shard-vmap, shard-map, or the fastest of them."""
    cpu_devices: int | None = None
    """Devices that the CPU is split into; one a core by default."""
    seed: int = 1
    run_dir: Path | None = None
    """runs/sweep-<algorithm>-<env>-seed<seed> by default."""
    resume: bool = False
    keep_best: int = 3
    """Best agents kept as checkpoints under run_dir/best."""
    videos_by: str | None = None
    """Keep the best agent of each value of this hyperparameter (gamma), and film all that are kept,
    alone and side by side."""


def main(args: Args) -> tuning.SweepResult:
    split_cpu(args.cpu_devices)
    env = environment(args.env_id, args.num_envs, args.env_options)
    algo = getattr(jaxrl, args.algo)(env)
    space = {name: distribution(text) for name, text in split(args.space)} or default_space(args)
    for name, part in space.items():
        if isinstance(part, tuning.QLogUniform) and part.rungs is not None:
            print(f"{name} is searched on {len(part.ladder)} rungs: {part.ladder}")
    run_dir = args.run_dir or Path("runs") / (
        f"sweep-{args.algo}-{env.id.partition('/')[2].replace('/', '-')}-seed{args.seed}"
    )
    config = with_fields(CONFIGS[args.algo](), args.set)
    if both := sorted(set(pairs(args.set)) & set(space)):
        raise ValueError(f"{both} are searched and set; leave them out of --set, or give a --space")
    if args.videos_by is not None:
        check_video(env, run_dir / "videos" / "side-by-side.mp4")
    num_lanes = args.lanes
    if args.autotune:
        num_lanes = fastest_lanes(algo, config, space, args, run_dir)
    result = tuning.sweep(
        algo,
        config,
        space,
        scheduler(args),
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
    finish(args, result)
    if args.videos_by is not None and result.best is not None:
        film(result, args.seed)
        print(f"with videos: {write_report(result.summary, result.run_dir)}")
    return result


def environment(env_id: str, num_envs: int, options: tuple[str, ...]) -> jaxrl.Env:
    """With `ATARI_OPTIONS` beneath the options where they are for it."""
    given = backend_options(options)
    env = jaxrl.make(env_id, num_envs, **given)
    if getattr(env, "is_atari", False):
        env = jaxrl.make(env_id, num_envs, **ATARI_OPTIONS | given)
    return env


def fastest_lanes(
    algo: jaxrl.Algorithm, config: Any, space: tuning.Space, args: Args, run_dir: Path
) -> int:
    """Of up to `args.lanes`; of a sweep that is resumed, those that it has."""
    if args.lanes < 2:
        return args.lanes
    if args.resume and (run_dir / "sweep.json").exists():
        return read(run_dir)["lanes"]
    if static := tuning.static_names(space, type(config)):
        devices = 1 if args.strategy in ("vmap", "map") else jax.local_device_count()
        lanes = min(args.lanes, devices)
        names = ", ".join(static)
        print(f"a lane a device ({lanes}), since each has a program of its own: {names}")
        return lanes
    report = Report()
    found = jaxrl.autotune(
        lambda lanes: (algo, jaxrl.population.stack(config, lanes)),
        {"lanes": doublings(args.lanes)},
        [{"lanes": args.lanes}],
        rate=lanes_per_second,
        report=report,
    )
    report.end(found)
    return found.best["lanes"]


def scheduler(args: Args) -> Any:
    """The scheduler that the flags name."""
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


def default_space(args: Args) -> Any:
    """What is searched unless --space says otherwise."""
    if args.algo == "a2c":
        return tuning.GA3C_SPACE
    return {name: tuning.GA3C_SPACE[name] for name in ("learning_rate", "gamma")}


def distribution(text: str) -> Any:
    """`LogUniform(1e-5, 1e-2)` and the like."""
    try:
        call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            positional = [ast.literal_eval(x) for x in call.args]
            named = {str(x.arg): ast.literal_eval(x.value) for x in call.keywords}
            if call.func.id in DISTRIBUTIONS:
                return getattr(tuning, call.func.id)(*positional, **named)
    except (SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"{text!r} is no distribution: {error}") from error
    raise ValueError(f"{text!r} is no distribution; there are {', '.join(DISTRIBUTIONS)}")


def film(result: tuning.SweepResult, seed: int) -> None:
    """One episode of each agent that was kept."""
    for directory in sorted((result.run_dir / "best").glob("trial-*")):
        policy = jaxrl.load_policy(directory)
        path = result.run_dir / "videos" / f"{directory.name}.mp4"
        _, score, length = record(policy, path, seed, False, 5_000)
        print(f"{path}: score {score:g} in {length} steps, gamma {policy.config.gamma:g}")
    together = result.run_dir / "videos" / "side-by-side.mp4"
    grid.main(grid.Args((result.run_dir,), together, episodes=GAMES_TOLD, seed=seed))


def finish(args: Args, result: tuning.SweepResult) -> None:
    """The leaderboard, the best config as a command, and the page of pictures."""
    table = Table(title=str(result.run_dir))
    for column in ("trial", "best score", "last score", "phases", "status", "values"):
        table.add_column(column)
    for row in leaderboard(result.summary)[:10]:
        shown = (f"{row[name]:.2f}" for name in ("best_score", "last_score"))
        values = ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}"
                           for k, v in row["values"].items())  # fmt: skip
        table.add_row(str(row["trial"]), *shown, str(row["phases"]), row["status"], values)
    Console().print(table)
    if elsewhere := result.summary["elsewhere"]:
        print(f"{elsewhere} more trials of the study are other workers', and not in this table")
    if result.best is not None:
        print(f"best config: {command(args, result)}")
    print(f"report: {write_report(result.summary, result.run_dir)}")
    if result.interrupted:
        print(f"interrupted; go on with the same command, --resume and --run-dir {result.run_dir}")
        sys.exit(130)


def is_envpools_atari(env_id: str) -> bool:
    """Whether the Atari scripts' flags are for it."""
    env = jaxrl.make(env_id)
    return env.id.startswith("envpool/") and getattr(env, "is_atari", False)


def command(args: Args, result: tuning.SweepResult) -> str:
    """Trains an agent with the best trial's config."""
    assert result.best is not None
    values = unplain(result.best["values"])
    num_envs = values.pop("num_envs", args.num_envs)
    config = with_fields(CONFIGS[args.algo](), args.set).replace(**values)
    script = f"experiments/{args.algo}_atari.py"
    if not is_envpools_atari(args.env_id):
        preset = "minatar" if "MinAtar" in args.env_id else "cartpole"
        script = f"experiments/{args.algo}_gymnax.py {preset}"
    flags = [f"--env-id {args.env_id} --num-envs {num_envs} --no-anneal"]
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
    return f"python {script} {' '.join(flags)}"


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Args))
