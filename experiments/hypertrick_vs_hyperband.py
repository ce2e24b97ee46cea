"""HyperTrick against HyperBand, successive halving, ASHA and random search: the comparison of
arXiv 1902.02725, on one machine.

    python experiments/hypertrick_vs_hyperband.py
    python experiments/hypertrick_vs_hyperband.py --env-id Pong-v5 --num-envs 8 --seeds 1 \
        --env-options img_height=42 img_width=42 --set torso=ga3c_cnn normalize_observations=True \
        clip_epsilon=0.1 num_minibatches=4 --lanes 4 --phases 4 --eta 2 --updates-per-phase 24
    python experiments/hypertrick_vs_hyperband.py --algorithm a2c --env-id Pong-v5 --num-envs 32 \
        --schedulers hypertrick hyperband --capped --finals 2 --lanes 2 --updates-per-phase 800

All search the same space and use the same seeds: PPO's learning rate, gamma and entropy bonus, or
the paper's own search of A2C's learning rate, t_max and gamma. Each scheduler has the number of
trials with which it would cost as many phases as HyperBand, on average, if scores were
exchangeable. A search of traced fields on a device environment is one program; others are sweeps,
which continue where they were if the script is started again. Prints a table, and writes a JSON and
a picture under runs/results/.

Scores are not exchangeable, so schedulers spend more or fewer phases than planned; the table also
gives the best score within the number of phases that all of them spent. With --capped a search ends
when it has taken as many steps as HyperBand plans: in one program after that round, in a sweep at
once, so that the phases which its lanes are training are lost. With --finals the best settings
train again with new seeds.

Time is also counted in rounds: phases that the search lasts if its lanes run side by side, as on a
cluster. Occupancy is the share of the lanes' rounds that were used. The seconds of a search in one
program are without compilation. Those of a sweep are with it, and with the measurement of
strategies: the first sweep compiles what the others find compiled, so compare sweeps by rounds.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import tyro
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import jaxrl
from jaxrl import checks, tuning
from jaxrl.analysis.records import interval_text, save_record, summarize_seeds
from jaxrl.cli.flags.arguments import exit_with_message, set_fields
from jaxrl.cli.flags.sweep import make_environment
from jaxrl.config import with_current_names
from jaxrl.distributed.spread import split_cpu
from jaxrl.files.changes import changed_settings
from jaxrl.presets import PRESETS
from jaxrl.training import population as populations
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.tuning.spaces import space as spaces
from jaxrl.tuning.timeline import expected_phases

SPACE = {
    "learning_rate": tuning.LogUniform(1e-5, 1e-2),
    "gamma": tuning.GA3C_SPACE["gamma"],
    "entropy_coef": tuning.LogUniform(1e-4, 1e-1),
}
CONFIG = jaxrl.PPOConfig(num_steps=128, num_minibatches=32, torso="mlp", activation="relu")


class Search(NamedTuple):
    """The algorithm of all searches, with the values that are not searched, and the space."""

    make: Callable[[Any], Any]
    config: Any
    """--set changes it."""
    space: tuning.Space


SEARCHES = {
    "ppo": Search(jaxrl.ppo, CONFIG, SPACE),
    "a2c": Search(jaxrl.a2c, PRESETS["a2c"]["ga3c"].config, tuning.GA3C_SPACE),
}
LATER: dict[str, Any] = {"strategy": None, "final_scores": [], "finals": None, "origin": None}
"""What the searches of older records lack."""
NO_SCORE = "no trial or run of the finals has a score; give more --updates-per-phase"

Name = Literal["hypertrick", "hyperband", "halving", "asha", "random"]


@dataclasses.dataclass
class Args:
    """HyperTrick against other schedulers."""

    algorithm: Literal["ppo", "a2c"] = "ppo"
    env_id: str = "Breakout-MinAtar"
    num_envs: int = 64
    env_options: tuple[str, ...] = ()
    """name=value for the backend; Atari learns from single lives and clipped rewards by default."""
    set: tuple[str, ...] = ()
    """name=value for config fields."""
    seeds: int = 3
    add: bool = False
    """Keep the searches of the record in --results, which must have the same settings, and search
    with the seeds after theirs. So long comparisons can be made in parts."""
    lanes: int = 6
    phases: int = 9
    """Phases of a trial that is never stopped."""
    eta: int = 3
    """For the halving schedulers: 1 in eta continues."""
    eviction: float = 0.25
    """HyperTrick's r: the share of trials to stop in each phase."""
    updates_per_phase: int = 8
    """Updates of the config without searched values; a phase has as many steps in all trials."""
    capped: bool = False
    """Stop each other search after as many steps as HyperBand plans."""
    finals: int = 0
    """Settings that train again at the end, on new seeds, for all phases."""
    final_runs: int = 3
    """New runs of each of them."""
    strategy: str = "auto"
    """vmap, map, shard-vmap, shard-map, or auto for the fastest of them. A sweep measures for
    itself, and keeps to what it measured if the script is started again."""
    schedulers: tuple[Name, ...] = ("hypertrick", "hyperband", "halving", "asha", "random")
    results: Path = Path("runs") / "results"
    """Directory of the JSON and the picture."""
    runs: Path = Path("runs") / "hypertrick-vs-hyperband"
    """Directory of the sweeps, one for each scheduler and seed."""


class Problem(NamedTuple):
    """The settings that all searches have in common."""

    algo: Any
    config: Any
    space: tuning.Space
    strategy: Any
    args: Args

    @property
    def phase_steps(self) -> int:
        """The environment steps of a phase."""
        rollout = self.algo.env.num_envs * self.algo.num_steps(self.config)
        return rollout * self.args.updates_per_phase

    def most_steps(self, name: str) -> int | None:
        """Return the most steps that a scheduler's search may take; None for no limit."""
        if not self.args.capped or name == "hyperband":  # a cap would cut off its last rung
            return None
        hyperband = tuning.HyperBand(self.args.phases, self.args.eta)
        return int(expected_phases(hyperband)) * self.phase_steps

    @property
    def finals(self) -> tuning.Finals | None:
        """The finals of each search, whatever they cost."""
        top, runs = self.args.finals, self.args.final_runs
        return tuning.Finals(top, runs, share=float(top * runs)) if top else None


class Outcome(NamedTuple):
    """The result of one search."""

    best_score: float
    """The highest score of the search."""
    best_values: dict[str, Any]
    """The values of the winner; with finals it may be another trial than that of `best_score`."""
    best_by_phase: list[float]
    """The best score so far after each phase of any trial, in the order of their ends."""
    best_by_round: list[float]
    """The best score so far after each round."""
    rounds: int
    seconds: float
    phases: int
    trials: int
    occupancy: float
    strategy: str | None
    """How the lanes ran; None in records of before 30 November 2026."""
    final_scores: list[float]
    """The scores of the winner's runs in the finals; empty without finals."""
    finals: list[dict[str, Any]] | None = None
    """The values and the runs' scores of each setting in a sweep's finals, the best first; None for
    a search in one program, and in records of before December 2026."""
    origin: dict[str, Any] | None = None
    """Where a sweep began and went on, which other processes may have done; None for a search in
    one program, and in records of before December 2026."""

    def best_within(self, budget: int) -> float:
        """Return the best score of the first `budget` phases."""
        return self.best_by_phase[min(budget, self.phases) - 1]

    @property
    def rounds_to_best(self) -> int:
        """Return the number of rounds after which the best score was known."""
        return 1 + int(np.argmax(np.array(self.best_by_round) >= self.best_score))


def make_schedulers(args: Args) -> dict[str, Any]:
    """Return the schedulers by name, each with as many trials as cost what HyperBand costs."""
    hyperband = tuning.HyperBand(args.phases, args.eta)
    budget = expected_phases(hyperband)
    makers: dict[str, Callable[[int], Any]] = {
        "hypertrick": lambda n: tuning.HyperTrick(n, args.phases, args.eviction),
        "halving": lambda n: tuning.SuccessiveHalving(n, args.phases, args.eta),
        "asha": lambda n: tuning.ASHA(n, args.phases, args.eta),
        "random": lambda n: tuning.RandomSearch(n, args.phases),
    }
    chosen = {"hyperband": hyperband}
    for name in set(args.schedulers) - {"hyperband"}:
        sizes = range(2, max(int(budget), 2) + 1)

        def cost(num_trials: int, make: Callable[[int], Any] = makers[name]) -> float:
            return expected_phases(make(num_trials))

        if name == "asha":  # its cost is simulated, which is too slow for every size
            first = bisect.bisect_left(sizes, budget, key=cost)
            sizes = sizes[max(first - 1, 0) : first + 1]
        chosen[name] = makers[name](min(sizes, key=lambda n: (abs(cost(n) - budget), -n)))
    return {name: chosen[name] for name in args.schedulers}


def search_in_one_program(problem: Problem, name: str, scheduler: Any) -> Callable[[int], Outcome]:
    """Return a function that searches on a device environment with a seed."""
    args = problem.args
    run = functools.partial(
        tuning.search, problem.algo, problem.config, problem.space, scheduler, args.lanes,
        args.updates_per_phase, strategy=problem.strategy, max_steps=problem.most_steps(name),
        finals=problem.finals,
    )  # fmt: skip
    options = jaxrl.compiler_options(problem.algo, problem.config)
    compiled = jax.jit(run).lower(jax.random.key(0)).compile(options)

    def by_seed(seed: int) -> Outcome:
        began = time.perf_counter()
        result = jax.device_get(compiled(jax.random.key(seed))._replace(best_state=None))
        seconds = time.perf_counter() - began
        rounds = {
            (trial, phase): int(result.round[trial, phase])
            for trial, phase in zip(*np.nonzero(result.round >= 0), strict=True)
        }
        if result.best_trial < 0:
            raise ValueError(NO_SCORE)
        drawn = {name: x[result.best_trial] for name, x in result.values.items()}
        finals = result.finals
        runs = [] if finals is None else finals.run_scores[finals.score.argmax()]
        return make_outcome(
            result.ledger.scores, rounds, spaces.values(problem.space, drawn), seconds, args.lanes,
            str(problem.strategy), np.asarray(runs).tolist(),
        )  # fmt: skip

    return by_seed


def search_by_sweep(problem: Problem, name: str, scheduler: Any) -> Callable[[int], Outcome]:
    """Return a function that searches from the host with a seed, or continues such a search."""
    args, most = problem.args, problem.most_steps(name)

    def by_seed(seed: int) -> Outcome:
        env_id = problem.algo.env.id.replace("/", "-")
        kind = ("-capped" if args.capped else "") + (f"-finals{args.finals}" * bool(args.finals))
        directory = args.runs / f"{args.algorithm}-{env_id}-{name}{kind}-seed{seed}"
        result = tuning.sweep(
            problem.algo, problem.config, problem.space, scheduler, num_lanes=args.lanes, seed=seed,
            strategy=problem.strategy, phase=tuning.Phase(problem.phase_steps, "steps"),
            run_dir=directory, keep_best=0, max_steps=math.inf if most is None else most,
            finals=problem.finals, resume=directory.exists(),
        )  # fmt: skip
        if result.interrupted:
            raise KeyboardInterrupt
        if result.best is None:
            raise ValueError(NO_SCORE)
        trials, spans = result.summary["trials"], result.summary["spans"]
        scores = np.full((scheduler.num_trials, args.phases), np.nan)
        for trial in trials:
            known = [np.nan if s is None else float(s) for s in trial["scores"]]
            scores[trial["trial"], : len(known)] = known
        finals = [
            {"values": row["values"], "scores": [float(score) for score in row["scores"]]}
            for row in result.summary.get("finals", [])
        ]
        outcome = make_outcome(
            scores, assign_rounds(spans), result.best["values"], result.summary["seconds"],
            args.lanes, result.summary["strategy"], finals[0]["scores"] if finals else [],
        )  # fmt: skip
        return outcome._replace(finals=finals, origin=manifests.origin_of(result.summary))

    return by_seed


def assign_rounds(spans: list[dict[str, Any]]) -> dict[tuple[int, int], int]:
    """Return the round of each (trial, phase).

    The phases of a round run side by side, so none of them begins after another has ended.
    """
    rounds, current, first_end = {}, -1, -math.inf
    for span in sorted(spans, key=lambda span: span["end"]):
        if span["begin"] >= first_end:
            current, first_end = current + 1, span["end"]
        rounds[span["trial"], span["phase"]] = current
    return rounds


def make_outcome(
    scores: np.ndarray,
    rounds: dict[tuple[int, int], int],
    values: dict[str, Any],
    seconds: float,
    lanes: int,
    strategy: str,
    final_scores: list[float],
) -> Outcome:
    """Return the result of a search from the scores and the round of each (trial, phase)."""
    ended = sorted(rounds, key=lambda phase: (rounds[phase], phase))
    found = np.array([scores[phase] for phase in ended])
    best = np.maximum.accumulate(np.where(np.isfinite(found), found, -np.inf))
    last = np.cumsum(np.bincount([rounds[phase] for phase in ended])) - 1  # phase of each round
    return Outcome(
        best_score=float(best[-1]),
        best_values=values,
        best_by_phase=best.tolist(),
        best_by_round=best[last].tolist(),
        rounds=len(last),
        seconds=seconds,
        phases=len(rounds),
        trials=len({trial for trial, _ in rounds}),
        occupancy=len(rounds) / (lanes * len(last)),
        strategy=strategy,
        final_scores=final_scores,
    )


def main(args: Args) -> None:
    """Search with all schedulers and seeds, print a table, and write a record and a picture."""
    checks.integer("--seeds", args.seeds)
    checks.integer("--lanes", args.lanes)
    checks.integer("--phases", args.phases)
    split_cpu()
    env = make_environment(args.env_id, args.num_envs, args.env_options)
    search = SEARCHES[args.algorithm]
    algo, config = search.make(env), set_fields(search.config, args.set)
    is_static = bool(tuning.static_names(search.space, type(config)))
    is_one_program = env.checkpointable and not is_static
    strategy: Any = args.strategy
    if strategy == "auto" and is_one_program:
        choice = populations.choose(algo, populations.stack(config, args.lanes))
        print(f"strategy {choice.strategy}: {choice.steps_per_second}")
        strategy = choice.strategy
    problem = Problem(algo, config, search.space, strategy, args)
    chosen = make_schedulers(args)
    manifest = describe(args, algo, config)
    found: dict[str, list[Outcome]] = {name: [] for name in chosen}
    if args.add:
        manifest, found = read_record(args, manifest, chosen)
    for name, scheduler in chosen.items():
        print(f"{name}: {scheduler.num_trials} trials", flush=True)
        if is_one_program:
            by_seed = search_in_one_program(problem, name, scheduler)
        else:
            by_seed = search_by_sweep(problem, name, scheduler)
        first = 1 + len(found[name])
        found[name] += [by_seed(seed) for seed in range(first, first + args.seeds)]
    # The phases that all of them spent, so that none is ahead because it trained more.
    budget = min(one.phases for outcomes in found.values() for one in outcomes)
    Console().print(table(found, budget))
    write(args, manifest, chosen, found)


def record_name(args: Args, manifest: dict[str, Any]) -> str:
    """Return the name of the record's files."""
    name = manifest["env"]["id"].partition("/")[2].replace("/", "-").lower()
    algorithm = "" if args.algorithm == "ppo" else f"{args.algorithm}-"
    return f"hypertrick-vs-hyperband-{algorithm}{name}"


def describe(args: Args, algo: Any, config: Any) -> dict[str, Any]:
    """Return what all searches have in common, with versions, commit and hardware."""
    arguments = {
        "lanes": args.lanes, "phases": args.phases, "eta": args.eta, "eviction": args.eviction,
        "updates_per_phase": args.updates_per_phase, "capped": args.capped,
        "finals": args.finals, "final_runs": args.final_runs, "schedulers": args.schedulers,
    }  # fmt: skip
    return manifests.describe(algo, config, arguments)


def read_record(
    args: Args, manifest: dict[str, Any], chosen: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, list[Outcome]]]:
    """Return the record's manifest, with this process as a resumption, and its searches by name.

    Older records lack settings, which are then not compared: --eta and --eviction show in the
    numbers of trials, and the others had their defaults.

    Args:
      chosen: the schedulers by name.

    Raises:
      ValueError: if it was made with other settings.
      FileNotFoundError: if there is none.
    """
    path = args.results / f"{record_name(args, manifest)}.json"
    if not path.exists():
        raise FileNotFoundError(
            f"there is no record {path} to add to; leave --add out, or name its folder by --results"
        )
    record = with_current_names(json.loads(path.read_text()))
    before = record["manifest"]
    of_record = {name: part["num_trials"] for name, part in record["schedulers"].items()}
    old = {"capped": False, "finals": 0} | before | {"trials": of_record}
    new = manifest | {"trials": {name: one.num_trials for name, one in chosen.items()}}
    searched = SEARCHES[args.algorithm].space.keys() - {"num_steps"}  # a phase has steps by it
    for each in (old, new):  # the values that a search replaces do not matter
        each["config"] = {k: x for k, x in each["config"].items() if k not in searched}
    names = old.keys() & new.keys() - {*manifests.ORIGIN, "schedulers"}
    if changes := changed_settings(old, new, sorted(names)):
        raise ValueError(
            f"{path} was made with other settings; leave --add out, or undo these changes:\n  "
            + "\n  ".join(changes)
        )
    searches = {
        name: [Outcome(**LATER | one) for one in part["searches"]]
        for name, part in record["schedulers"].items()
    }
    return before | manifests.note_resume(before, manifest), searches


def table(found: dict[str, list[Outcome]], budget: int) -> Table:
    """Return a table of means over seeds, with 95% intervals of scores."""
    shown = Table(
        "scheduler", "trials", "phases", "best score", f"of {budget} phases", "rounds",
        "rounds to best", "occupancy", "seconds", "winner in finals",
    )  # fmt: skip

    def mean(outcomes: list[Outcome], name: str, digits: int = 1) -> str:
        return f"{np.mean([getattr(one, name) for one in outcomes]):.{digits}f}"

    for name, outcomes in found.items():
        best = np.array([one.best_score for one in outcomes])
        within = f"{np.mean([one.best_within(budget) for one in outcomes]):.1f}"
        finals = np.array([np.mean(one.final_scores) for one in outcomes if one.final_scores])
        shown.add_row(
            name, mean(outcomes, "trials"), mean(outcomes, "phases"),
            interval_text(summarize_seeds(best), 1), within, mean(outcomes, "rounds"),
            mean(outcomes, "rounds_to_best"), mean(outcomes, "occupancy", 2),
            mean(outcomes, "seconds"),
            interval_text(summarize_seeds(finals), 1) if len(finals) else "",
        )  # fmt: skip
    return shown


def write(
    args: Args, manifest: dict[str, Any], chosen: dict[str, Any], found: dict[str, list[Outcome]]
) -> None:
    """Write the record of all searches, and a picture of the best score so far over rounds."""
    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for name, outcomes in found.items():
        longest = max(one.rounds for one in outcomes)
        curves = [
            np.pad(one.best_by_round, (0, longest - one.rounds), mode="edge") for one in outcomes
        ]
        mean = np.mean(curves, axis=0)
        axes.step(np.arange(1, longest + 1), mean, where="post", label=name)
    seeds = max(map(len, found.values()))
    axes.set(
        title=f"{args.algorithm} on {args.env_id}, {args.lanes} lanes, mean of {seeds} seeds",
        xlabel="rounds: phases of all lanes side by side",
        ylabel="best score so far",
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    record = {
        "manifest": manifest,
        "schedulers": {
            name: {
                "num_trials": chosen[name].num_trials,
                "searches": [one._asdict() for one in outcomes],
            }
            for name, outcomes in found.items()
        },
    }
    figure.savefig(save_record(args.results, record_name(args, manifest), record))


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Args))
