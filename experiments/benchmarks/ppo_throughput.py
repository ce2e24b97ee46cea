"""Training speed of PPO: its rate, the time of its parts, and the rates of its peers.

    python experiments/benchmarks/ppo_throughput.py
    python experiments/benchmarks/ppo_throughput.py --quick

For CartPole (4 environments x 128 steps), Breakout-MinAtar (64 x 128) and Pong (8 x 128, Nature
CNN): valid environment steps a second in the steady state, compile time, and the time of the
parts of an update, measured alone at the same sizes: environment stepping with random actions,
inference on stored observations, the learning epochs on a stored batch, and within these the
shuffling into minibatches. Parts and whole are separate programs, so shares need not add up to 1;
"unaccounted" is the rest, which may be negative. In the same run and in turn:

* rejax 0.1.3 on the first two, with equal sizes, networks and optimizer settings, without
  evaluation; Stable-Baselines3 on CartPole; PPO in PyTorch on Pong, with CleanRL's settings and
  with the layout of images that suits a CPU;
* the simulators alone: gymnax's own step in a scan, envpool stepped from Python;
* on Pong, stepping through a host callback and through envpool's XLA custom call.

Machines drift, so compare figures of one run only.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import jaxrl
from jaxrl.networks import build
from jaxrl.training.loop import train_chunk
from parts import Parts
from peers import PEERS, Learner, raw_envpool, raw_gymnax, xla_envpool
from tasks import TASKS, Measure, Task, small
from timing import RESULTS, Samples, alternate, calls_for, summaries, write_results


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


# --- jaxrl ---------------------------------------------------------------------------------------


class Trainer:
    """jaxrl's own training program, compiled ahead of time."""

    def __init__(self, task: Task, seconds: float):
        self.config = task.config
        algo = jaxrl.ppo(task.make())
        self.state = jax.jit(algo.init)(self.config, jax.random.key(0))
        began = time.perf_counter()
        one = jnp.int32(1)
        self.program = train_chunk.lower(algo, self.config, self.state, one).compile(
            jaxrl.compiler_options(algo, self.config)
        )
        self.compile_seconds = time.perf_counter() - began
        self.num_parameters = build.num_parameters(self.state.params)
        self.updates = calls_for(seconds, lambda: self.train(1))
        self.valid_rates: list[float] = []

    def train(self, updates: int) -> int:
        """Train and return the number of valid steps."""
        self.state, metrics = self.program(self.config, self.state, jnp.int32(updates))
        return int(np.asarray(metrics["valid_steps"])[:updates].sum())

    def __call__(self) -> float:
        """Train, record the rate of valid steps, and return the seconds per update."""
        began = time.perf_counter()
        valid = self.train(self.updates)
        seconds = time.perf_counter() - began
        self.valid_rates.append(valid / seconds)
        return seconds / self.updates


# --- tasks ---------------------------------------------------------------------------------------


def measure_task(task: Task, args: Args) -> dict[str, Any]:
    """Measure one task and return all results."""
    trainer = Trainer(task, args.seconds)
    learners: dict[str, Learner] = {"jaxrl": trainer}
    for name in task.aims:
        if PEERS[name].is_installed:
            learners[name] = PEERS[name].make(task, trainer.updates)
            assert learners[name].num_parameters == trainer.num_parameters
    candidates: dict[str, Measure] = {**learners}
    candidates |= Parts(task, task.make()).measures(args.seconds)
    if task.env_id.startswith("envpool/"):
        candidates |= {"simulator alone": raw_envpool(task), "XLA custom call": xla_envpool(task)}
    else:
        candidates["simulator alone"] = raw_gymnax(task, args.seconds)
    samples = alternate(candidates, args.repeats)
    speeds = rates(task, samples, learners)
    return {
        "env_id": task.env_id,
        "sizes": task.sizes(),
        "num_parameters": trainer.num_parameters,
        "compile_seconds": {name: one.compile_seconds for name, one in learners.items()},
        "steps_per_second": speeds,
        "seconds_per_update": summaries(samples),
        "shares": shares(samples),
        "ratio_to_peers": {
            peer: {"ratio": speeds["jaxrl"]["median"] / speeds[peer]["median"], "aim": aim}
            for peer, aim in task.aims.items()
            if peer in speeds
        },
    }


def rates(
    task: Task, samples: dict[str, Samples], learners: dict[str, Learner]
) -> dict[str, dict[str, float]]:
    """Return environment steps a second; for learners, only valid transitions count."""
    # The first rate belongs to the round that is not recorded.
    valid = summaries({name: Samples(tuple(x.valid_rates[1:])) for name, x in learners.items()})
    stepping = {"simulator alone": "simulator alone"}
    if "XLA custom call" in samples:
        stepping |= {"XLA custom call": "XLA custom call", "host callback": "env stepping"}
    return valid | {
        name: samples[part].map(lambda s: task.steps / s).summary()
        for name, part in stepping.items()
    }


def shares(samples: dict[str, Samples]) -> dict[str, float]:
    """Return the parts' shares of the whole update; "shuffling" is a part of "learning"."""
    whole = samples["jaxrl"].median
    parts = ("env stepping", "inference", "learning")
    result = {name: samples[name].median / whole for name in parts}
    result["unaccounted"] = 1 - sum(result.values())
    return result | {"shuffling": samples["shuffling"].median / whole}


# --- tables --------------------------------------------------------------------------------------


def _number(summary: dict[str, float], factor: float = 1.0, digits: int = 0) -> str:
    low, median, high = (factor * summary[key] for key in ("min", "median", "max"))
    if low == high:
        return f"{median:,.{digits}f}"
    return f"{median:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def speed_table(results: dict[str, Any]) -> Table:
    """Return a table of steps a second."""
    title = "environment steps a second: median (min-max)"
    table = Table("task", "library", "steps/s", "jaxrl / it", "aim", "compile s", title=title)
    for name, result in results.items():
        speeds = result["steps_per_second"]
        for library, summary in speeds.items():
            ratio = speeds["jaxrl"]["median"] / summary["median"]
            compiling = result["compile_seconds"].get(library)
            table.add_row(
                name if library == "jaxrl" else "",
                library,
                _number(summary),
                f"{ratio:.2f}",
                str(TASKS[name].aims.get(library, "")),
                "" if compiling is None else f"{compiling:.1f}",
            )
        for peer in TASKS[name].aims.keys() - speeds.keys():
            table.add_row("", peer, f"not installed: {PEERS[peer].install}")
        table.add_row("", result["sizes"], f"{result['num_parameters']:,} parameters")
        table.add_section()
    return table


def parts_table(results: dict[str, Any]) -> Table:
    """Return a table of the parts of an update."""
    title = "milliseconds of an update: median (min-max)"
    table = Table("task", "part, measured alone", "ms", "share", title=title)
    for name, result in results.items():
        seconds = result["seconds_per_update"]
        table.add_row(name, "whole update", _number(seconds["jaxrl"], 1e3, 2), "100%")
        for part in ("env stepping", "inference", "learning"):
            share = f"{result['shares'][part]:.0%}"
            table.add_row("", part, _number(seconds[part], 1e3, 2), share)
        unaccounted = result["shares"]["unaccounted"]
        gap = 1e3 * unaccounted * seconds["jaxrl"]["median"]
        table.add_row("", "unaccounted", f"{gap:,.2f}", f"{unaccounted:.0%}")
        share = f"{result['shares']['shuffling']:.0%}"
        table.add_row("", "shuffling (in learning)", _number(seconds["shuffling"], 1e3, 2), share)
        table.add_section()
    return table


def main(args: Args, console: Console | None = None) -> dict[str, Any]:
    """Measure, print and write; return the results."""
    console = console or Console()
    if args.quick:
        args = dataclasses.replace(args, repeats=1, seconds=0.01, output=None)
    tasks = {name: TASKS[name] for name in args.tasks}
    if args.quick:
        tasks = {name: small(task) for name, task in tasks.items()}
        if "cartpole" in tasks:
            tasks.pop("breakout", None)  # the same code again
    results = {}
    for name, task in tasks.items():
        console.print(f"measuring {name} ...")
        results[name] = measure_task(task, args)
    console.print(speed_table(results))
    console.print(parts_table(results))
    return write_results(args.output, {"tasks": results})


if __name__ == "__main__":
    main(tyro.cli(Args))
