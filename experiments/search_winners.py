"""Winners of searches on new seeds, by the rule that chose them.

    python experiments/search_winners.py
    python experiments/search_winners.py --env-id Acrobot-v1 --lowest -500 --searches 5

PPO's learning rate, gamma and entropy bonus are searched. All rules spend about the same number of
phases, finals included:

- highest: HyperTrick; the winner has the highest score of any phase.
- late: the same searches; the winner has the highest mean of its last two scores.
- seeds: HyperTrick with fewer trials of four seeds each; the highest mean of the last two scores.
- finals: HyperTrick with fewer trials; the best settings train again on new seeds.
- pbt: population-based training; the winner has the highest mean of its last two scores.
- pbt-finals: the same with fewer agents; the best schedules train again on new seeds.

The winner's settings, or its schedule, train again on seeds that neither search nor finals used.
Their mean return in the last phase is the truth about it. Prints a table, and writes a JSON and a
picture under runs/results/.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import jaxrl
from jaxrl import checks
from jaxrl.analysis.records import interval_text, save_record, summarize_seeds
from jaxrl.cli.flags.arguments import exit_with_message
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.tuning import (
    PBT,
    Choice,
    Finals,
    HyperTrick,
    LogUniform,
    SearchResult,
    search,
)
from jaxrl.tuning.finals import retrain
from jaxrl.tuning.timeline import expected_phases

SPACE = {
    "learning_rate": LogUniform(1e-5, 1e-1),
    "gamma": Choice((0.8, 0.9, 0.95, 0.99, 0.999)),
    "entropy_coef": LogUniform(1e-4, 1e-1),
}
FINALS = Finals(top=4, repeats=3, share=1.0)
SEEDS_PER_TRIAL = 4
NUM_LANES = 16
"""Agents at the same time; PBT trains all of its own side by side."""


@dataclasses.dataclass(frozen=True)
class Args:
    """Winners of searches on new seeds, by the rule that chose them."""

    env_id: str = "CartPole-v1"
    lowest: float = 0.0
    """The return that counts for an agent that diverged or ended no episode in its last phase."""
    searches: int = 10
    """Searches of each rule."""
    budget: int = 256
    """Phases of all agents of a search."""
    phases: int = 8
    """Phases of an agent that is not stopped."""
    updates: int = 10
    """Updates of a phase."""
    num_envs: int = 4
    num_steps: int = 128
    new_seeds: int = 32
    """Agents that tell how good a winner is."""
    results: Path = Path("runs") / "results"
    """Directory of the JSON and the picture."""


class Rule(NamedTuple):
    """A way to search, and to choose the winner."""

    scheduler: HyperTrick | PBT
    seeds_per_trial: int = 1
    finals: Finals | None = None
    by_highest: bool = False


def rules(args: Args) -> dict[str, Rule]:
    """Return all rules, each of about the same cost."""
    agents = args.budget / args.phases  # that train for all phases
    in_finals = FINALS.top * FINALS.repeats
    if agents <= 2 * in_finals:
        raise ValueError(
            f"--budget must be more than {2 * in_finals * args.phases}, got {args.budget}"
        )

    def hypertrick(agents: float) -> HyperTrick:
        planned = agents * args.phases / expected_phases(HyperTrick(1, args.phases))
        return HyperTrick(round(planned), args.phases)

    return {
        "highest": Rule(hypertrick(agents), by_highest=True),
        "late": Rule(hypertrick(agents)),
        "seeds": Rule(hypertrick(agents / SEEDS_PER_TRIAL), SEEDS_PER_TRIAL),
        "finals": Rule(hypertrick(agents - in_finals), finals=FINALS),
        "pbt": Rule(PBT(round(agents), args.phases)),
        "pbt-finals": Rule(PBT(round(agents) - in_finals, args.phases), finals=FINALS),
    }


def choose(rule: Rule, result: SearchResult) -> tuple[int, float]:
    """Return the winner of a search, and the score that chose it."""
    if result.finals is not None:
        return int(result.best_trial), float(np.max(result.finals.score))
    if rule.by_highest:
        return int(result.best_trial), float(np.nanmax(result.ledger.scores))
    scores = np.asarray(result.late_scores)
    return int(scores.argmax()), float(scores.max())


@functools.cache  # two rules choose from the same searches
def run_searches(
    scheduler: HyperTrick | PBT, seeds_per_trial: int, finals: Finals | None, args: Args
) -> list[SearchResult]:
    """Return the outcomes of all searches of a rule, without agents."""
    algo, config = jaxrl.ppo(jaxrl.make(args.env_id, args.num_envs)), config_of(args)
    is_pbt = isinstance(scheduler, PBT)
    num_lanes = scheduler.num_trials if is_pbt else NUM_LANES // seeds_per_trial
    run = functools.partial(
        search, algo, config, SPACE, scheduler, num_lanes, args.updates,
        seeds_per_trial=seeds_per_trial, finals=finals,
    )  # fmt: skip
    compiled = jax.jit(run, compiler_options=jaxrl.compiler_options(algo, config))
    keys = map(jax.random.key, range(args.searches))
    return [jax.device_get(compiled(key)._replace(best_state=None)) for key in keys]


@functools.cache
def compiled_retraining(args: Args) -> Any:
    """Return the program that trains new agents with a winner's schedule."""
    algo, config = jaxrl.ppo(jaxrl.make(args.env_id, args.num_envs)), config_of(args)
    options = jaxrl.compiler_options(algo, config)

    def last_returns(schedule: dict[str, Any], keys: jax.Array) -> jax.Array:
        one = functools.partial(retrain, algo, config, args.updates, schedule)
        return jax.vmap(one)(keys)[:, -1]

    return jax.jit(last_returns, compiler_options=options)


def measure(rule: Rule, args: Args) -> dict[str, Any]:
    """Return what the searches of a rule found, and how good it is on new seeds."""
    results = run_searches(rule.scheduler, rule.seeds_per_trial, rule.finals, args)
    winners, scores, returns, phases = [], [], [], []
    for number, result in enumerate(results):
        winner, score = choose(rule, result)
        schedule = {name: x[winner] for name, x in result.schedule.items()}
        key = jax.random.fold_in(jax.random.key(number), 1_000_000)
        keys = jax.random.split(key, args.new_seeds)
        retrained = np.asarray(compiled_retraining(args)(schedule, keys))
        returns.append(np.where(np.isfinite(retrained), retrained, args.lowest).mean())
        in_finals = 0 if rule.finals is None else rule.finals.top * rule.finals.repeats
        spent = int(result.ledger.reported.sum()) * rule.seeds_per_trial
        phases.append(spent + in_finals * args.phases)
        winners.append({name: x.tolist() for name, x in schedule.items()})
        scores.append(score if np.isfinite(score) else args.lowest)
    return {
        "scheduler": type(rule.scheduler).__name__,
        "num_trials": rule.scheduler.num_trials,
        "seeds_per_trial": rule.seeds_per_trial,
        "finals": rule.finals and dataclasses.asdict(rule.finals),
        "phases": phases,
        "claimed": summarize_seeds(np.array(scores)),
        "true": summarize_seeds(np.array(returns)),
        "winners": winners,
    }


def config_of(args: Args) -> jaxrl.PPOConfig:
    """Return the settings that are not searched."""
    return jaxrl.PPOConfig(num_steps=args.num_steps, num_minibatches=4)


def print_table(measured: dict[str, dict[str, Any]]) -> None:
    """Print what the rules found."""
    table = Table("rule", "trials", "phases", "score that chose the winner", "on new seeds")
    for name, row in measured.items():
        scores = (interval_text(row[of], 1) for of in ("claimed", "true"))
        table.add_row(name, str(row["num_trials"]), f"{np.mean(row['phases']):.0f}", *scores)
    Console().print(table)


def draw(args: Args, measured: dict[str, dict[str, Any]]) -> Figure:
    """Return the scores that chose the winners, and those of the winners on new seeds."""
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for offset, name, label in ((-0.12, "claimed", "in the search"), (0.12, "true", "new seeds")):
        place = np.arange(len(measured)) + offset
        rows = [row[name] for row in measured.values()]
        middle = np.array([row["value"] for row in rows])
        # A single search has no interval: its ends are None, here NaN.
        low, high = (np.array([row[end] for row in rows], float) for end in ("low", "high"))
        line = axes.errorbar(
            place, middle, [middle - low, high - middle], fmt="o", label=label, capsize=3
        )
        for x, row in zip(place, rows, strict=True):
            axes.plot(
                [x] * len(row["by_seed"]), row["by_seed"], ".", color=line[0].get_color(), alpha=0.3
            )
    axes.set_xticks(range(len(measured)), list(measured))
    axes.set(ylabel="return of the winner", title=f"{args.searches} searches on {args.env_id}")
    axes.grid(alpha=0.3, axis="y")
    axes.legend(frameon=False)
    return figure


def main(args: Args) -> None:
    """Run all searches; print, record and draw how good their winners are."""
    for name in ("searches", "phases", "updates", "new_seeds"):
        checks.integer(f"--{name.replace('_', '-')}", getattr(args, name))
    algo = jaxrl.ppo(jaxrl.make(args.env_id, args.num_envs))
    arguments = dataclasses.asdict(args) | {"results": str(args.results)}
    manifest = manifests.describe(algo, config_of(args), arguments)
    measured = {}
    for name, rule in rules(args).items():
        print(f"{args.searches} searches by the rule {name}", flush=True)
        measured[name] = measure(rule, args)
    print_table(measured)
    record = {
        "manifest": manifest,
        "space": {name: str(part) for name, part in SPACE.items()},
        "rules": measured,
    }
    name = f"search-winners-{args.env_id.rpartition('/')[2].lower().split('-')[0]}"
    draw(args, measured).savefig(save_record(args.results, name, record))


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Args))
