"""The share of simulation that is hidden behind inference when environments are split over pools.

    python experiments/benchmarks/overlap.py
    python experiments/benchmarks/overlap.py --quick

The simulator of the first three tables sleeps (sleeping.py). In the first, each environment's step
takes a fixed time on one of a fixed number of threads, which all pools share. The images have
Atari's shape and pass through the Nature CNN. The table has the simulator alone, the program
with a simulator that takes no time, and both together with one pool and with several. The hidden
share is the time that pools save, over the smaller of the first two.

The second table has steps with log-normal times, a thread for each environment and hardly any
inference. It compares waiting for all environments at every step with pools of one environment that
are received as they get ready. Order statistics predict both: the expected sum over the rollout of
the slowest time, and the expected slowest sum of times.

The third table has A2C's updates with the Nature CNN, whose last actions are sent before the agent
learns, or after. Learning is the time of an update beyond its rollout, with a simulator that takes
no time. The hidden share is the time that sending ahead saves, over the smaller of learning and one
step of the simulator.

The last table has real Atari: A2C on Pong with GA3C's small network, 5 steps an update, a program
that only steps the environments, and envpool alone with as many threads.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import envpool
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import jaxrl
from jaxrl import checks
from sleeping import SleepingEnv, draw_times, simulator_alone
from timing import RESULTS, alternate, median_and_range, medians, write_results
from trainer import Trainer, random_steps, rollouts

UPDATES_SECONDS = 0.3
"""Third table: approximate length of a measurement."""


@dataclasses.dataclass
class Args:
    """Hidden simulation."""

    tables: tuple[Literal["hidden", "ready", "ahead", "atari"], ...] = (
        "hidden", "ready", "ahead", "atari",
    )  # fmt: skip
    """The tables to measure, in the order above."""
    num_envs: int = 64
    threads: int = 8
    """Threads of the simulator."""
    step_seconds: tuple[float, ...] = (0.0005, 0.001, 0.002)
    """Times of one environment's step on one thread."""
    num_pools: tuple[int, ...] = (2, 4)
    num_steps: int = 64
    """Steps of a rollout."""
    slow_envs: int = 16
    """Second table: environments."""
    slow_seconds: float = 0.02
    """Second table: mean time of a step."""
    sigmas: tuple[float, ...] = (0.25, 0.5, 1.0)
    """Second table: standard deviations of the logarithm of the time."""
    rollout_lengths: tuple[int, ...] = (1, 5)
    """Third table: steps of an update."""
    ahead_seconds: tuple[float, ...] = (0.001, 0.004, 0.016)
    """Third table: times of one environment's step."""
    atari_envs: int = 32
    """Last table: environments."""
    atari_threads: int = 2
    """Last table: threads of each pool."""
    atari_seconds: float = 3.0
    """Last table: approximate length of a measurement."""
    repeats: int = 5
    quick: bool = False
    """Smoke test: small sizes, one round. Meaningless numbers."""
    output: Path | None = RESULTS / "overlap.json"


def make_simulator(args: Args, step_seconds: float, **options: Any) -> SleepingEnv:
    """Return the simulator of the first and third tables, with options of `jaxrl.make`."""
    return SleepingEnv(
        "sleeping", args.num_envs, tuple(options.items()),
        threads=args.threads, step_seconds=step_seconds,
    )  # fmt: skip


def measure_hidden(args: Args, step_seconds: float) -> dict[str, Any]:
    """Measure a row of the first table."""

    def with_pools(step_seconds: float, number: int) -> Callable[[], float]:
        env = make_simulator(args, step_seconds, num_pools=number)
        return rollouts(env, "nature_cnn", args.num_steps)

    candidates = {
        "simulator": simulator_alone(args.num_envs, args.threads, args.num_steps, step_seconds),
        "program": with_pools(0.0, 1),
        "one pool": with_pools(step_seconds, 1),
    }
    candidates |= {pools_text(n): with_pools(step_seconds, n) for n in args.num_pools}
    measured = alternate(candidates, args.repeats)
    median = medians(measured)
    smaller = min(median["simulator"], median["program"])
    return {
        "step_seconds": step_seconds,
        "milliseconds": measured,
        "hidden": {
            name: (median["one pool"] - median[name]) / smaller
            for name in map(pools_text, args.num_pools)
        },
    }


def measure_ready(args: Args, sigma: float) -> dict[str, Any]:
    """Measure a row of the second table."""
    envs, seconds, steps = args.slow_envs, args.slow_seconds, args.num_steps

    def with_pools(*options: tuple[str, Any]) -> Callable[[], float]:
        env = SleepingEnv(
            "sleeping", envs, options, threads=envs, step_seconds=seconds, sigma=sigma
        )
        return rollouts(env, "mlp", steps)

    ready = with_pools(("asynchronous", True), ("num_pools", envs))
    measured = alternate({"all": with_pools(), "ready": ready}, args.repeats)
    drawn = draw_times(np.random.default_rng(0), seconds, sigma, (1000, steps, envs))
    expected = {"all": drawn.max(2).mean() * 1e3, "ready": drawn.mean(1).max(1).mean() * 1e3}
    return {
        "sigma": sigma,
        "milliseconds": measured,
        "expected_milliseconds": expected,
        "gain": measured["all"]["median"] / measured["ready"]["median"],
        "expected_gain": expected["all"] / expected["ready"],
    }


def updates(env: SleepingEnv, num_steps: int) -> Callable[[], float]:
    """Return a measurement of A2C: milliseconds of an update."""
    config = jaxrl.A2CConfig(torso="nature_cnn", num_steps=num_steps)
    trainer = Trainer(jaxrl.a2c(env), config, seconds=UPDATES_SECONDS)
    return lambda: env.num_envs * num_steps / trainer() * 1e3


def measure_ahead(args: Args, num_steps: int, step_seconds: float) -> dict[str, Any]:
    """Measure a row of the third table."""

    instant, slow = make_simulator(args, 0.0), make_simulator(args, step_seconds)
    measured = alternate(
        {
            "simulator": simulator_alone(args.num_envs, args.threads, args.num_steps, step_seconds),
            "inference": rollouts(instant, "nature_cnn", num_steps),
            "update": updates(instant, num_steps),
            "one after the other": updates(slow, num_steps),
            "sent ahead": updates(make_simulator(args, step_seconds, send_ahead=True), num_steps),
        },
        args.repeats,
    )
    median = medians(measured)
    learning = median["update"] - num_steps * median["inference"]
    saved = median["one after the other"] - median["sent ahead"]
    return {
        "num_steps": num_steps,
        "step_seconds": step_seconds,
        "milliseconds": measured,
        "learning_milliseconds": learning,
        "hidden": saved / min(learning, median["simulator"]),
    }


def hidden_table(args: Args, results: list[dict[str, Any]]) -> Table:
    """Return the first table."""
    columns = ["simulator", "program", "one pool", *map(pools_text, args.num_pools)]
    title = f"milliseconds of a step of {args.num_envs} environments (hidden share)"
    table = Table(*columns, title=title)
    for result in results:
        cells = []
        for column in columns:
            hidden = result["hidden"].get(column)
            text = f"{result['milliseconds'][column]['median']:.2f}"
            cells.append(text if hidden is None else f"{text} ({hidden:.0%})")
        table.add_row(*cells)
    return table


def ready_table(args: Args, results: list[dict[str, Any]]) -> Table:
    """Return the second table."""
    title = f"milliseconds of a step of {args.slow_envs} environments (expected)"
    table = Table("sigma", "waiting for all", "first ready first", "gain", title=title)
    for result in results:
        cells = [f"{result['sigma']:g}"]
        for name in ("all", "ready"):
            median = result["milliseconds"][name]["median"]
            cells.append(f"{median:.1f} ({result['expected_milliseconds'][name]:.1f})")
        table.add_row(*cells, f"{result['gain']:.2f} ({result['expected_gain']:.2f})")
    return table


def ahead_table(args: Args, results: list[dict[str, Any]]) -> Table:
    """Return the third table."""
    title = f"milliseconds of an update of {args.num_envs} environments"
    columns = ("one after the other", "sent ahead")
    table = Table("rollout", "simulator's step", "learning", *columns, "hidden", title=title)
    for result in results:
        median = medians(result["milliseconds"])
        learning = result["learning_milliseconds"]
        numbers = (median["simulator"], learning, *(median[column] for column in columns))
        cells = [f"{number:.1f}" for number in numbers]
        table.add_row(str(result["num_steps"]), *cells, f"{result['hidden']:.0%}")
    return table


def measure_atari(args: Args) -> dict[str, Any]:
    """Measure the last table: valid steps a second."""
    config = jaxrl.A2CConfig(torso="ga3c_cnn", num_steps=5)
    sizes = {"num_envs": args.atari_envs, "num_threads": args.atari_threads}

    def training(number: int) -> Trainer:
        env = jaxrl.make("Pong-v5", num_pools=number, **sizes)
        return Trainer(jaxrl.a2c(env), config, args.atari_seconds)

    simulator = envpool.make("Pong-v5", env_type="gymnasium", **sizes)
    simulator.reset()
    steps = max(1, int(args.atari_seconds * 6000 / args.atari_envs))

    def alone() -> float:
        actions = np.random.default_rng(0).integers(0, 6, (steps, args.atari_envs))
        began = time.perf_counter()
        for action in actions:
            simulator.step(action)
        return steps * args.atari_envs / (time.perf_counter() - began)

    candidates: dict[str, Callable[[], float]] = {
        "envpool alone": alone,
        "steps alone": random_steps(jaxrl.make("Pong-v5", **sizes), steps),
    }
    candidates |= {pools_text(number): training(number) for number in (1, *args.num_pools)}
    measured = alternate(candidates, args.repeats)
    raw = measured["envpool alone"]["median"]
    return {
        "steps_per_second": measured,
        "of_envpool_alone": {name: median / raw for name, median in medians(measured).items()},
    }


def pools_text(number: int) -> str:
    return "one pool" if number == 1 else f"{number} pools"


def atari_table(args: Args, result: dict[str, Any]) -> Table:
    """Return the last table."""
    title = f"A2C on Pong, {args.atari_envs} environments"
    table = Table("", "valid steps/s", "of envpool alone", title=title)
    for name, rate in result["steps_per_second"].items():
        table.add_row(name, median_and_range(rate), f"{result['of_envpool_alone'][name]:.2f}")
    return table


def main(args: Args) -> dict[str, Any]:
    """Measure, print and write all tables; return the results."""
    checks.integer("--repeats", args.repeats)
    if args.quick:
        args = dataclasses.replace(
            args, num_envs=4, threads=2, step_seconds=(0.001,), num_pools=(2,), num_steps=4,
            slow_envs=2, slow_seconds=0.001, sigmas=(0.5,), repeats=1, output=None,
            rollout_lengths=(2,), ahead_seconds=(0.001,),
            atari_envs=4, atari_threads=1, atari_seconds=0.01,
        )  # fmt: skip
    console, results = Console(), {}
    if "hidden" in args.tables:
        results["hidden"] = [measure_hidden(args, seconds) for seconds in args.step_seconds]
        console.print(hidden_table(args, results["hidden"]))
    if "ready" in args.tables:
        results["ready"] = [measure_ready(args, sigma) for sigma in args.sigmas]
        console.print(ready_table(args, results["ready"]))
    if "ahead" in args.tables:
        results["ahead"] = [
            measure_ahead(args, num_steps, seconds)
            for num_steps in args.rollout_lengths
            for seconds in args.ahead_seconds
        ]
        console.print(ahead_table(args, results["ahead"]))
    if "atari" in args.tables:
        results["atari"] = measure_atari(args)
        console.print(atari_table(args, results["atari"]))
    return write_results(args.output, results)


if __name__ == "__main__":
    main(tyro.cli(Args))
