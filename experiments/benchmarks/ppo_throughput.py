"""Training speed of PPO, and of its peers at the same sizes.

    python experiments/benchmarks/ppo_throughput.py
    python experiments/benchmarks/ppo_throughput.py --quick

For CartPole (4 environments x 128 steps), Breakout-MinAtar (64 x 128) and Pong (8 x 128, Nature
CNN): valid environment steps a second in the steady state, and compile time. In the same run and in
turn: rejax 0.1.3 on the first two, with equal sizes, networks and optimizer settings, without
evaluation; Stable-Baselines3 on CartPole; PPO in PyTorch on Pong, with CleanRL's settings and with
the layout of images that suits a CPU.

Machines drift, so compare figures of one run only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

import jaxrl
from jaxrl import checks
from peers import PEERS, Learner
from tasks import TASKS, Task, small
from timing import RESULTS, alternate, compile_anew, median_and_range, write_results
from trainer import Trainer


@dataclass
class Args:
    """Training speed of PPO."""

    tasks: tuple[str, ...] = tuple(TASKS)
    """Tasks: cartpole, breakout or pong."""
    repeats: int = 7
    """Rounds; all candidates are measured in each."""
    seconds: float = 0.7
    """Approximate length of a measurement; at least one update."""
    quick: bool = False
    """Smoke test: small sizes, one round, one gymnax task. Meaningless numbers."""
    output: Path | None = RESULTS / "ppo_throughput.json"

    def __post_init__(self) -> None:
        unknown = set(self.tasks) - set(TASKS)
        if unknown:
            raise ValueError(f"unknown tasks {sorted(unknown)}; there are {list(TASKS)}")


def measure_task(task: Task, args: Args) -> dict[str, Any]:
    """Measure jaxrl and the installed peers on one task."""
    trainer = Trainer(jaxrl.ppo(task.make()), task.config, args.seconds)
    installed = [name for name in task.peers if PEERS[name].is_installed]
    learners: dict[str, Learner] = {"jaxrl": trainer}
    learners |= {name: PEERS[name].make(task, trainer.updates) for name in installed}
    for name, learner in learners.items():
        assert learner.num_parameters == trainer.num_parameters, name
    speeds = alternate(learners, args.repeats)
    return {
        "env_id": task.env_id,
        "sizes": task.sizes(),
        "num_parameters": trainer.num_parameters,
        "compile_seconds": {name: one.compile_seconds for name, one in learners.items()},
        "steps_per_second": speeds,
        "ratio_to_peers": {
            name: {"ratio": speeds["jaxrl"]["median"] / speeds[name]["median"]}
            for name in installed
        },
    }


def speed_table(results: dict[str, Any]) -> Table:
    """Return a table of steps a second."""
    title = "environment steps a second: median (min-max)"
    table = Table("task", "library", "steps/s", "jaxrl / it", "compile s", title=title)
    for name, result in results.items():
        speeds = result["steps_per_second"]
        for library, summary in speeds.items():
            ratio = speeds["jaxrl"]["median"] / summary["median"]
            compiling = result["compile_seconds"][library]
            table.add_row(
                name if library == "jaxrl" else "",
                library,
                median_and_range(summary),
                f"{ratio:.2f}",
                "" if compiling is None else f"{compiling:.1f}",
            )
        for peer in TASKS[name].peers:
            if peer not in speeds:
                table.add_row("", peer, f"not installed: {PEERS[peer].install}")
        table.add_row("", result["sizes"], f"{result['num_parameters']:,} parameters")
        table.add_section()
    return table


def main(args: Args, console: Console | None = None) -> dict[str, Any]:
    """Measure, print and write; return the results."""
    checks.integer("--repeats", args.repeats)
    console = console or Console()
    tasks = {name: TASKS[name] for name in args.tasks}
    if args.quick:
        args = dataclasses.replace(args, repeats=1, seconds=0.01, output=None)
        tasks = {name: small(task) for name, task in tasks.items()}
        if "cartpole" in tasks:
            tasks.pop("breakout", None)  # the same code again
    results = {}
    for name, task in tasks.items():
        console.print(f"measuring {name} ...")
        results[name] = measure_task(task, args)
    console.print(speed_table(results))
    return write_results(args.output, {"tasks": results})


if __name__ == "__main__":
    compile_anew()
    main(tyro.cli(Args))
