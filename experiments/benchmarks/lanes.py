"""Speed, compile time and memory of populations and searches of growing size, on one device.

    python experiments/benchmarks/lanes.py
    python experiments/benchmarks/lanes.py --agents 8 64 --tasks cartpole --search

PPO on CartPole (4 environments x 128 steps) and Breakout-MinAtar (64 x 128), as in
ppo_throughput.py, with all agents under `vmap`: valid steps a second of all agents together, in the
steady state, and how many times faster that is than one agent after another. rejax's PPO, under
`vmap` too, is measured in turn with each size, and so is a whole search with as many lanes.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import jax
import tyro
from rich.console import Console
from rich.table import Table

from jaxrl import checks
from peers import Rejax
from tasks import TASKS, Task, small
from timing import RESULTS, alternate, compile_anew, median_and_range, medians, write_results
from trainer import Lanes, Search


@dataclasses.dataclass
class Args:
    """Populations of growing size."""

    tasks: tuple[str, ...] = ("cartpole", "breakout")
    agents: tuple[int, ...] = (1, 8, 64, 512, 4096)
    repeats: int = 3
    updates: int = 2
    """Updates of a measurement."""
    peer: bool = True
    """Measure rejax too, if it is installed."""
    search: bool = False
    """Measure searches too; each has four phases of `updates` and twice as many trials as lanes."""
    quick: bool = False
    """Smoke test: small sizes, one round. Meaningless numbers."""
    output: Path | None = RESULTS / "lanes.json"


def measure(task: Task, agents: int, args: Args) -> dict[str, Any]:
    """Measure one task with one number of agents."""
    lanes: dict[str, Any] = {"jaxrl": Lanes(task, agents, "vmap", args.updates)}
    if args.search:
        lanes["search"] = Search(task, agents, "vmap", args.updates)
    needed = {name: one.program.memory_analysis() for name, one in lanes.items()}
    if args.peer and importlib.util.find_spec("rejax"):
        lanes["rejax"] = Rejax(task, args.updates, agents)
    return {
        "agents": agents,
        "steps_per_second": alternate(lanes, args.repeats),
        "compile_seconds": {name: one.compile_seconds for name, one in lanes.items()},
        "megabytes": {
            name: (sizes.argument_size_in_bytes + sizes.temp_size_in_bytes) / 1e6
            for name, sizes in needed.items()
        },
    }


def table(results: dict[str, list[dict[str, Any]]]) -> Table:
    """Return a table with a row for each size."""
    shown = Table(
        "task", "agents", "steps/s of all", "to one agent", "compile s", "MB", "jaxrl/rejax",
        "search: steps/s", "compile s", "MB", title="populations under vmap",
    )  # fmt: skip
    for name, rows in results.items():
        first = medians(rows[0]["steps_per_second"])["jaxrl"] if rows[0]["agents"] == 1 else None
        for row in rows:
            rates = row["steps_per_second"]
            middle = medians(rates)
            shown.add_row(
                name,
                f"{row['agents']:,}",
                median_and_range(rates["jaxrl"]),
                f"{middle['jaxrl'] / first:.1f}" if first else "",
                f"{row['compile_seconds']['jaxrl']:.1f}",
                f"{row['megabytes']['jaxrl']:,.0f}",
                f"{middle['jaxrl'] / middle['rejax']:.2f}" if "rejax" in middle else "",
                *search_cells(row),
            )
        shown.add_section()
    return shown


def search_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the rate, compile time and memory of a search as text; () if it was not measured."""
    if "search" not in row["steps_per_second"]:
        return ()
    rate = median_and_range(row["steps_per_second"]["search"])
    return rate, f"{row['compile_seconds']['search']:.1f}", f"{row['megabytes']['search']:,.0f}"


def main(args: Args) -> dict[str, Any]:
    """Measure, print and write; return the results."""
    checks.integer("--repeats", args.repeats)
    for agents in args.agents:
        checks.integer("--agents", agents)
    console = Console()
    tasks = {name: TASKS[name] for name in args.tasks}
    if args.quick:
        args = dataclasses.replace(
            args, agents=(1, 2), repeats=1, updates=1, peer=False, search=True, output=None
        )
        tasks = {"cartpole": small(TASKS["cartpole"])}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in tasks}
    for name, task in tasks.items():
        for agents in args.agents:
            console.print(f"measuring {agents} agents on {name} ...")
            results[name].append(measure(task, agents, args))
            jax.clear_caches()
    console.print(table(results))
    return write_results(args.output, {"tasks": results})


if __name__ == "__main__":
    compile_anew()
    main(tyro.cli(Args))
