"""The flags of `jaxrl sweep`, and the environment, space and scheduler that they name."""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jaxrl import tuning
from jaxrl.cli.flags.arguments import (
    LargeInteger,
    evaluate_literal,
    find_own_modules,
    parse_env_options,
    split_pairs,
)
from jaxrl.envs import make
from jaxrl.tuning import objectives
from jaxrl.types import DrawableEnv

ATARI_OPTIONS = {"episodic_life": True, "reward_clip": True}
FLAGS_OF_ARGUMENTS = {
    "num_lanes": "--lanes", "num_trials": "--trials", "num_phases": "--phases",
    "eviction_rate": "--eviction", "length": "--phase-length", "unit": "--phase-unit",
    "top": "--final-trials", "repeats": "--final-runs", "share": "--final-share",
    "keep_best_per": "--videos-by", "study_name": "--study", "num_devices": "--cpu-devices",
}  # fmt: skip
"""Flags whose arguments in the API of sweeps have other names."""
OBJECTIVES = {
    "mean": objectives.mean_return, "median": objectives.median_return,
    "iqm": objectives.interquartile_mean_return, "lowest": objectives.lowest_return,
    "mean-std": objectives.mean_minus_deviations(1.0),
}  # fmt: skip
MOST_FINALISTS = 4
DEFAULT_TRIALS, DEFAULT_LANES = 100, 16
EXPLORERS = ("pbt", "pb2", "mfpbt")
SCHEDULERS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "hypertrick": (tuning.HyperTrick, ("trials", "phases", "eviction")),
    "random": (tuning.RandomSearch, ("trials", "phases")),
    "halving": (tuning.SuccessiveHalving, ("trials", "phases", "eta", "times")),
    "hyperband": (tuning.HyperBand, ("phases", "eta", "times")),
    "asha": (tuning.ASHA, ("trials", "phases", "eta")),
    "pbt": (tuning.PBT, ("trials", "phases", "quantile")),
    "pb2": (tuning.PB2, ("trials", "phases", "quantile")),
    "mfpbt": (tuning.MFPBT, ("trials", "phases", "periods")),
}
"""Each scheduler, and the flags that give its arguments, in their order."""
DISTRIBUTIONS = ("Uniform", "LogUniform", "Integer", "QLogUniform", "Choice", "When")


@dataclasses.dataclass
class SweepArguments:
    """Search hyperparameters: train many agents, stop bad ones early, and choose a winner.

    A trial is one setting, and the agents that train with it. --lanes of the --trials train at the
    same time. After each phase a trial reports its score, and the scheduler decides whether it goes
    on. Finals follow: the best settings train again with new seeds. The first row of their table is
    the winner, with the 95% interval of its mean score; that mean is rather too high, since it is
    the best of several. docs/how-to/search.md explains it.

    HyperTrick with four seeds a trial:

        jaxrl sweep --algo ppo --env-id CartPole-v1 --num-envs 4 --trials 20 --lanes 4 \\
            --seeds-per-trial 4 --phases 8 --phase-length 12 --phase-unit updates \\
            --final-trials 3 --final-runs 3 --final-share 1

    Population-based training:

        jaxrl sweep --algo ppo --env-id CartPole-v1 --num-envs 4 --scheduler pbt --trials 16 \\
            --phases 6 --phase-length 12 --phase-unit updates \\
            --final-trials 3 --final-runs 5 --final-share 1
    """

    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """YAML file of flags and their values; other flags change them."""
    algo: Literal["ppo", "a2c", "impala", "dqn", "pqn", "r2d2"] = "a2c"
    env_id: str = "Pong-v5"
    """Id of the environment, as `jaxrl envs` lists it."""
    num_envs: int = 16
    """Environments of each agent."""
    env_options: tuple[str, ...] = ()
    """name=value for the backend; Atari learns from single lives and clipped rewards by default."""
    preset: str | None = None
    """Preset of `jaxrl train --list` whose config gives the values that are not searched; without
    one the algorithm's defaults do. It does not set the environment, as --env-id and --num-envs do.
    A resumed sweep keeps its own."""
    set: tuple[str, ...] = ()
    """name=value for config fields that are not searched."""
    space: tuple[str, ...] = ()
    """name=Distribution(...), one of Uniform, LogUniform, Integer, QLogUniform, Choice, or When for
    a field that depends on another; by default learning_rate and gamma, and for a2c also
    num_steps (GA3C's t_max), which pbt, pb2 and mfpbt cannot change."""
    trials: int | None = None
    """Trials of the search, 100 by default, but for hyperband, whose brackets have their own. Of
    pbt, pb2 and mfpbt the agents of the population, as many as --lanes by default."""
    lanes: int | None = None
    """Trials at the same time, 16 by default; with --autotune, at most. Those of pbt, pb2 and mfpbt
    all train at the same time, so --trials is enough."""
    autotune: bool = False
    """Choose the number of lanes for this machine by short trials; one a device, if static fields
    are searched. Trials report in another order with other lanes, so others may be stopped."""
    phases: int = 10
    """Reports of a trial that is never stopped; pbt, pb2 and mfpbt change trials after each of them
    but the last."""
    phase_length: LargeInteger = 2500
    """How long each agent of a trial trains between two reports, in --phase-unit."""
    phase_unit: Literal["updates", "steps", "episodes"] = "episodes"
    """Updates, environment steps (rounded up to whole updates), or episodes that ended (counted
    after every 16 updates)."""
    seeds_per_trial: int = 1
    """Agents of each trial, which differ by their seed and train side by side."""
    objective: tuple[Literal["mean", "median", "iqm", "lowest", "mean-std"], ...] = ("mean",)
    """How the returns of a trial's agents become its score; iqm is the interquartile mean,
    mean-std the mean minus a standard deviation. The first of several compares trials, and the
    page shows the Pareto front of all."""
    evaluation_episodes: int = 0
    """Score that many episodes of each agent's greedy policy instead of its training episodes;
    for environments on the device."""
    scheduler: Literal[
        "hypertrick", "random", "halving", "hyperband", "asha", "pbt", "pb2", "mfpbt"
    ] = "hypertrick"
    """The rule that stops trials. pbt, pb2 and mfpbt stop none; bad trials go on as changed copies
    of good ones, all in one worker."""
    eviction: float = 0.25
    """For hypertrick: its r, the share of trials to stop in each phase."""
    eta: int = 3
    """For halving, hyperband and asha: 1 in eta continues."""
    times: int = 1
    """For halving and hyperband: how often they begin, each time with other trials; --trials counts
    those of all times. Lanes that would wait for a rung train the next trials meanwhile."""
    quantile: float = 0.2
    """For pbt and pb2: the share of trials that copy others after each phase."""
    periods: tuple[int, ...] = (1, 10, 25, 50)
    """For mfpbt: the phases from one evolution to the next of each sub-population, below --phases;
    --trials is a multiple of four times their number."""
    sampler: Literal["random", "sobol", "tpe", "cmaes", "gp"] = "random"
    """How values are drawn; gp learns only from trials that no scheduler stopped."""
    storage: str | None = None
    """Database URL of the study; run_dir/study.db by default. A journal (journal:///...) is for one
    worker at a time."""
    study: str | None = None
    """Name of the study, the same for all workers; by default the name of run_dir."""
    worker: str | None = None
    """This worker's name in the study, if it may be restarted on another machine."""
    agents_dir: Path | None = None
    """Folder that all workers see, for the agents of trials that halving, hyperband and asha pause;
    beside the storage by default, if it is a file."""
    strategy: str = "auto"
    """vmap, map, shard-vmap, shard-map, or auto for the fastest of them. They round differently, so
    a search with another one may choose another config."""
    cpu_devices: int | None = None
    """Devices that the CPU is split into; one a core by default."""
    seed: int = 1
    """Seed of all randomness."""
    run_dir: Path | None = None
    """Directory of all output; runs/sweep-<algorithm>-<env>-seed<seed> by default."""
    resume: bool = False
    """Continue the sweep in run_dir."""
    max_steps: LargeInteger | None = None
    """Environment steps of this worker's trials after which it stops them and begins no other.
    Finals come on top of them."""
    max_seconds: float = math.inf
    """Seconds after which it does so; finals follow, and may take longer than these."""
    final_trials: int | None = None
    """Settings that train again at the end, with new seeds; the winner is chosen by these runs. 0
    for none; by default up to 4, as many as --final-share allows, and none where workers that
    share a study are capped."""
    final_runs: int = 5
    """New runs of each of them, as long as a trial that is never stopped."""
    final_share: float = 0.2
    """The most that these runs may cost, as a share of all phases of all trials, or of the steps
    that --max-steps allows."""
    keep_best: int = 3
    """Best agents kept as checkpoints under run_dir/best."""
    videos_by: str | None = None
    """Keep the best agent of each value of this hyperparameter (gamma), film all that are kept, and
    show the films side by side on the page."""

    @property
    def num_trials(self) -> int:
        """The trials of the search; see `trials`."""
        if self.trials is not None:
            return self.trials
        return self.num_lanes if self.scheduler in EXPLORERS else DEFAULT_TRIALS

    @property
    def num_lanes(self) -> int:
        """The trials at the same time; see `lanes`."""
        if self.lanes is not None:
            return self.lanes
        is_whole = self.scheduler in EXPLORERS and self.trials is not None
        return self.num_trials if is_whole else DEFAULT_LANES


def make_environment(env_id: str, num_envs: int, options: Sequence[str]) -> DrawableEnv:
    """Return environments with the backend's options; on Atari, `ATARI_OPTIONS` unless given."""
    given = parse_env_options(options)
    if ":" in env_id:
        find_own_modules()
    env = make(env_id, num_envs, **given)
    if getattr(env, "is_atari", False):
        env = make(env_id, num_envs, **ATARI_OPTIONS | given)
    return env


def make_space(args: SweepArguments) -> tuning.Space:
    """Return the space of `--space`; by default GA3C's, its rollout length for A2C only."""
    given = split_pairs(args.space, "--space")
    if given:
        return {name: parse_distribution(text) for name, text in given.items()}
    if args.algo == "a2c" and args.scheduler not in EXPLORERS:
        return tuning.GA3C_SPACE
    return {name: tuning.GA3C_SPACE[name] for name in ("learning_rate", "gamma")}


def parse_distribution(text: str) -> Any:
    """Return the distribution that a text such as `LogUniform(1e-5, 1e-2)` describes.

    Raises:
      ValueError: if it is not the call of a distribution with literal arguments.
    """
    try:
        match ast.parse(text, mode="eval").body:
            case ast.Call(ast.Name(name), args, keywords) if name in DISTRIBUTIONS:
                named = {str(word.arg): _argument(word.value) for word in keywords}
                return getattr(tuning, name)(*map(_argument, args), **named)
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"--space: {text[:40]!r}... is nested too deep") from error
    except (SyntaxError, TypeError, ValueError) as error:
        raise ValueError(
            f"--space: {text!r} is not a distribution: {error}; write it as in Choice((1, 2)), "
            "Uniform(0.5, 1.0)"
        ) from error
    raise ValueError(
        f"--space: {text!r} is not a distribution; choose from {', '.join(DISTRIBUTIONS)}, as in "
        "Choice((1, 2)), Uniform(0.5, 1.0)"
    )


def _argument(node: ast.expr) -> Any:
    """Return an argument of a distribution: a literal value, or the distribution of `When`."""
    if isinstance(node, ast.Call):
        return parse_distribution(ast.unparse(node))
    names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and part.id != "inf"]
    if names:
        raise ValueError(f"{names[0]} is no value; a text has quotes, '{names[0]}'")
    return evaluate_literal(node)


def make_objective(args: SweepArguments) -> objectives.Objectives:
    """Return the objective that the flags name, or several by name."""
    names = args.objective
    if not names or len(set(names)) < len(names):
        raise ValueError(f"--objective takes one or more names, each once, got {' '.join(names)!r}")
    found: dict[str, objectives.Objective] = {name: OBJECTIVES[name] for name in names}
    return found if len(found) > 1 else found[names[0]]


def make_finals(
    args: SweepArguments, num_trials: int, storage: str | None, allowed: float = math.inf
) -> tuning.Finals | None:
    """Return the finals of a search of N trials that the flags name; None for none.

    Args:
      storage: of the study, which a resumed sweep remembers.
      allowed: how many whole trials --max-steps allows.
    """
    number = args.final_trials
    is_capped = args.max_steps is not None or args.max_seconds < math.inf
    if number is None and is_capped and storage is not None:
        return None  # other workers' trials may go on
    if number is None:
        most = tuning.Finals(1, args.final_runs, args.final_share).most(num_trials, allowed)
        number = min(MOST_FINALISTS, most)
    return tuning.Finals(number, args.final_runs, args.final_share) if number else None


def make_scheduler(args: SweepArguments) -> Any:
    """Return the scheduler that the flags name.

    Raises:
      ValueError: for a flag that only other schedulers read, or a bad value.
    """
    make_it, names = SCHEDULERS[args.scheduler]
    of_schedulers = {name for _, names in SCHEDULERS.values() for name in names}
    for field in dataclasses.fields(args):
        is_read = field.name in names or field.name not in of_schedulers
        if not is_read and getattr(args, field.name) != field.default:
            readers = [name for name, (_, read) in SCHEDULERS.items() if field.name in read]
            raise ValueError(
                f"--{field.name} is for --scheduler {', '.join(readers)}; leave it out with "
                f"{args.scheduler}"
            )
    values = {name: getattr(args, name) for name in names} | {"trials": args.num_trials}
    return make_it(*(values[name] for name in names))
