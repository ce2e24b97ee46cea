"""Training speed of a population: 16 agents by each strategy, one agent, and rejax.

    python experiments/benchmarks/population.py
    python experiments/benchmarks/population.py --quick

PPO on CartPole (4 environments x 128 steps) and Breakout-MinAtar (64 x 128), as in
ppo_throughput.py: valid steps a second of all agents together, in the steady state, in turn.
The CPU is split into one device a core, so that "shard" strategies use all of them; "auto" is the
choice of `jaxrl.population.choose` by its own measurement. rejax's agents are vmapped.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from jaxrl import checks
from jaxrl.distributed.spread import split_cpu

split_cpu()  # gymnax, which the next line imports, starts JAX's backend

import jaxrl  # noqa: E402
from jaxrl.training import population as populations  # noqa: E402
from peers import Rejax  # noqa: E402
from tasks import TASKS, Task, small  # noqa: E402
from timing import (  # noqa: E402
    RESULTS,
    alternate,
    compile_anew,
    median_and_range,
    medians,
    write_results,
)
from trainer import Lanes, Trainer  # noqa: E402


@dataclasses.dataclass
class Args:
    """Training speed of a population."""

    tasks: tuple[str, ...] = ("cartpole", "breakout")
    agents: int = 16
    repeats: int = 5
    seconds: float = 1.0
    """Approximate length of a measurement."""
    quick: bool = False
    """Smoke test: small sizes, one round. Meaningless numbers."""
    output: Path | None = RESULTS / "population.json"


def measure_task(task: Task, args: Args) -> dict[str, Any]:
    """Measure one task and return rates and ratios."""
    one = Trainer(jaxrl.ppo(task.make()), task.config, args.seconds)
    updates = max(1, one.updates // args.agents)
    names = populations.STRATEGIES
    if populations.num_shards(args.agents) == 1:
        names = names[:2]
    choice = populations.choose(
        jaxrl.ppo(task.make()), populations.stack(task.config, args.agents), args.seconds / 2
    )
    candidates: dict[str, Any] = {name: Lanes(task, args.agents, name, updates) for name in names}
    compile_seconds = {name: lanes.compile_seconds for name, lanes in candidates.items()}
    candidates["one agent"] = one
    if importlib.util.find_spec("rejax"):
        candidates["rejax"] = Rejax(task, updates, args.agents)
        compile_seconds["rejax"] = candidates["rejax"].compile_seconds
    rates = alternate(candidates, args.repeats)
    median = medians(rates)
    auto = str(choice.strategy)
    best = max(median[name] for name in names)
    return {
        "sizes": task.sizes(),
        "agents": args.agents,
        "steps_per_second": rates,
        "compile_seconds": compile_seconds,
        "auto": {"strategy": auto, "of_the_best": median[auto] / best},
        "auto_to_one_agent": median[auto] / median["one agent"],
        "auto_to_rejax": median[auto] / median["rejax"] if "rejax" in median else None,
    }


def table(results: dict[str, Any]) -> Table:
    """Return a table of steps a second, and their ratios to one agent's."""
    columns = ("task", "strategy", "median (range)", "to one agent")
    shown = Table(*columns, title="valid steps a second of all agents")
    for name, result in results.items():
        one = result["steps_per_second"]["one agent"]["median"]
        for strategy, rate in result["steps_per_second"].items():
            mark = " (auto)" if strategy == result["auto"]["strategy"] else ""
            shown.add_row(
                name, strategy + mark, median_and_range(rate), f"{rate['median'] / one:.2f}"
            )
    return shown


def main(args: Args) -> dict[str, Any]:
    """Measure, print and write; return the results."""
    checks.integer("--repeats", args.repeats)
    checks.integer("--agents", args.agents)
    console = Console()
    tasks = {name: TASKS[name] for name in args.tasks}
    if args.quick:
        args = dataclasses.replace(args, repeats=1, seconds=0.01, agents=4, output=None)
        tasks = {"cartpole": small(TASKS["cartpole"])}
    results = {}
    for name, task in tasks.items():
        console.print(f"measuring {name} ...")
        results[name] = measure_task(task, args)
    console.print(table(results))
    return write_results(args.output, {"tasks": results})


if __name__ == "__main__":
    compile_anew()
    main(tyro.cli(Args))
