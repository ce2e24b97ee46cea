"""The share of simulation that is hidden behind inference when environments are split over pools.

    python experiments/benchmarks/overlap.py
    python experiments/benchmarks/overlap.py --quick

The simulator is a stand-in that sleeps: each environment's step takes a fixed time on one of a
fixed number of threads, which all pools share, and uses no processor. So the benchmark measures
jaxrl's own part on any number of cores. The images have Atari's shape and pass through the Nature
CNN. The first table: the simulator alone, the program with a simulator that takes no time, and both
together with one pool and with several. The hidden share is the time that pools save, over the
smaller of the first two.

The second table has steps with log-normal times, a thread for each environment and hardly any
inference. It compares waiting for all environments at every step with pools of one environment that
are received as they get ready. Order statistics predict both: the expected sum over the rollout of
the slowest time, and the expected slowest sum of times.

The third table has A2C's updates with the Nature CNN, whose last actions are sent before the agent
learns, or after. Learning is the time of an update beyond its rollout, with a simulator that takes
no time. The hidden share is the time that sending ahead saves, over the smaller of learning and one
step of the simulator.

The last table has real Atari: A2C on Pong with GA3C's small network, 5 steps an update, and envpool
alone with as many threads.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import envpool
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import jaxrl
from jaxrl.algos import actor_critic
from jaxrl.envs.host.pools import RawStep, first_step
from jaxrl.envs.host_adapter import HostAdapter, HostSpec
from jaxrl.networks import build
from jaxrl.rollouts.agent import Agent
from jaxrl.training.loop import MAX_CHUNK, train_chunk
from jaxrl.training.progress import simulator_time, waiting_shares
from timing import RESULTS, alternate, medians, summaries, write_results

IMAGE = (84, 84, 4)


@dataclasses.dataclass
class Args:
    """Hidden simulation."""

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


class Threads:
    """Threads that are only simulated: each piece of work goes to the first free one."""

    def __init__(self, number: int):
        self._free_at = [0.0] * number

    def finish(self, seconds: np.ndarray) -> float:
        """Return the time at which pieces of work with these lengths end, if they begin now."""
        now, ends = time.perf_counter(), 0.0
        for piece in seconds:
            end = max(heapq.heappop(self._free_at), now) + piece
            heapq.heappush(self._free_at, end)
            ends = max(ends, end)
        return ends


@dataclass(frozen=True)
class SleepingEnv(HostAdapter):
    """Environments whose step sleeps; their images never change."""

    threads: int = 1
    step_seconds: float = 0.0
    sigma: float = 0.0

    @property
    def id(self) -> str:
        return self.name

    @property
    def _spec(self) -> HostSpec:
        raw_obs = jax.ShapeDtypeStruct(IMAGE, np.dtype(np.uint8))
        return HostSpec(jaxrl.Box.of(IMAGE, np.uint8, 0, 255), jaxrl.Discrete(6), raw_obs)

    def _make_pool(self, seeds: np.ndarray) -> SleepingPool:
        return SleepingPool(seeds, self.step_seconds, self.sigma, threads_of(self))


@functools.cache
def threads_of(env: SleepingEnv) -> Threads:
    """Return the threads that all pools of an environment share."""
    return Threads(env.threads)


class SleepingPool:
    """A pool of M environments whose step sleeps."""

    def __init__(self, seeds: np.ndarray, step_seconds: float, sigma: float, threads: Threads):
        self._step_seconds, self._sigma, self._threads = step_seconds, sigma, threads
        self._random, self._ends, size = np.random.default_rng(seeds), 0.0, len(seeds)
        no, zeros = np.zeros(size, bool), np.zeros(size, np.float32)
        obs = np.zeros((size, *IMAGE), np.uint8)
        self._answer = RawStep(obs, zeros, no, no, no, zeros, no)

    def reset(self) -> RawStep:
        return first_step(self._answer.obs)

    def send(self, action: np.ndarray) -> None:
        seconds = draw_times(self._random, self._step_seconds, self._sigma, len(action))
        self._ends = self._threads.finish(seconds)

    def recv(self) -> RawStep:
        time.sleep(max(0.0, self._ends - time.perf_counter()))
        return self._answer

    def restart(self, where: np.ndarray) -> RawStep:
        return self._answer

    def render(self) -> np.ndarray:
        return self._answer.obs[0, ..., :3]

    def close(self) -> None:
        pass


def draw_times(random: np.random.Generator, mean: float, sigma: float, size: Any) -> np.ndarray:
    """Draw log-normal times with a given mean."""
    return mean * np.exp(sigma * random.standard_normal(size) - sigma**2 / 2)


def rollouts(env: SleepingEnv, torso: str, num_steps: int) -> Callable[[], float]:
    """Return a measurement of rollouts: milliseconds of a step of all environments."""
    config = build.NetworkConfig(torso=torso, hidden_sizes=(8,) if torso == "mlp" else None)
    agent = Agent(env, None, build.actor_critic, build.find_actor_critic_problem)
    params, simulation, _ = agent.start(config, jax.random.key(0))
    apply = agent.apply(config)

    @jax.jit
    def collect(simulation: Any, key: jax.Array) -> Any:
        after, trajectory = actor_critic.collect(env, apply, params, simulation, key, num_steps)
        return after, trajectory.extras.value.sum()

    def measure() -> float:
        nonlocal simulation
        began = time.perf_counter()
        simulation, total = collect(simulation, jax.random.key(0))
        total.block_until_ready()
        return (time.perf_counter() - began) / num_steps * 1e3

    return measure


def simulator_alone(args: Args, step_seconds: float) -> Callable[[], float]:
    """Return a measurement of the simulator: milliseconds of a step of all environments."""
    pool = SleepingPool(np.arange(args.num_envs), step_seconds, 0.0, Threads(args.threads))

    def measure() -> float:
        began = time.perf_counter()
        for _ in range(args.num_steps):
            pool.send(np.zeros(args.num_envs, np.int32))
            pool.recv()
        return (time.perf_counter() - began) / args.num_steps * 1e3

    return measure


def measure_hidden(args: Args, step_seconds: float) -> dict[str, Any]:
    """Measure a row of the first table."""

    def with_pools(step_seconds: float, number: int) -> Callable[[], float]:
        pools = (("num_pools", number),)
        env = SleepingEnv(
            "sleeping", args.num_envs, pools, threads=args.threads, step_seconds=step_seconds
        )
        return rollouts(env, "nature_cnn", args.num_steps)

    candidates = {
        "simulator": simulator_alone(args, step_seconds),
        "program": with_pools(0.0, 1),
        "one pool": with_pools(step_seconds, 1),
    }
    names = {number: pools_text(number) for number in args.num_pools}
    candidates |= {name: with_pools(step_seconds, number) for number, name in names.items()}
    samples = alternate(candidates, args.repeats)
    median = medians(samples)
    smaller = min(median["simulator"], median["program"])
    return {
        "step_seconds": step_seconds,
        "milliseconds": summaries(samples),
        "hidden": {name: (median["one pool"] - median[name]) / smaller for name in names.values()},
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
    samples = alternate({"all": with_pools(), "ready": ready}, args.repeats)
    drawn = draw_times(np.random.default_rng(0), seconds, sigma, (1000, steps, envs))
    expected = {"all": drawn.max(2).mean() * 1e3, "ready": drawn.mean(1).max(1).mean() * 1e3}
    return {
        "sigma": sigma,
        "milliseconds": summaries(samples),
        "expected_milliseconds": expected,
        "gain": samples["all"].median / samples["ready"].median,
        "expected_gain": expected["all"] / expected["ready"],
    }


def updates(env: SleepingEnv, num_steps: int) -> Callable[[], float]:
    """Return a measurement of A2C: milliseconds of an update."""
    config = jaxrl.A2CConfig(torso="nature_cnn", num_steps=num_steps)
    algo = jaxrl.a2c(env)
    state = jax.jit(algo.init)(config, jax.random.key(0))
    update, number = jax.jit(algo.update), max(1, 10 // num_steps)

    def measure() -> float:
        nonlocal state
        began = time.perf_counter()
        for _ in range(number):
            state, _ = update(config, state)
        jax.block_until_ready(state.params)
        return (time.perf_counter() - began) / number * 1e3

    return measure


def measure_ahead(args: Args, num_steps: int, step_seconds: float) -> dict[str, Any]:
    """Measure a row of the third table."""

    def simulator(seconds: float, *options: tuple[str, Any]) -> SleepingEnv:
        return SleepingEnv(
            "sleeping", args.num_envs, options, threads=args.threads, step_seconds=seconds
        )

    samples = alternate(
        {
            "simulator": simulator_alone(args, step_seconds),
            "inference": rollouts(simulator(0.0), "nature_cnn", num_steps),
            "update": updates(simulator(0.0), num_steps),
            "one after the other": updates(simulator(step_seconds), num_steps),
            "sent ahead": updates(simulator(step_seconds, ("send_ahead", True)), num_steps),
        },
        args.repeats,
    )
    median = medians(samples)
    learning = median["update"] - num_steps * median["inference"]
    saved = median["one after the other"] - median["sent ahead"]
    return {
        "num_steps": num_steps,
        "step_seconds": step_seconds,
        "milliseconds": summaries(samples),
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
            measured = result["milliseconds"][name]["median"]
            cells.append(f"{measured:.1f} ({result['expected_milliseconds'][name]:.1f})")
        table.add_row(*cells, f"{result['gain']:.2f} ({result['expected_gain']:.2f})")
    return table


def ahead_table(args: Args, results: list[dict[str, Any]]) -> Table:
    """Return the third table."""
    title = f"milliseconds of an update of {args.num_envs} environments"
    columns = ("one after the other", "sent ahead")
    table = Table("rollout", "simulator's step", "learning", *columns, "hidden", title=title)
    for result in results:
        median = {name: sample["median"] for name, sample in result["milliseconds"].items()}
        numbers = [median["simulator"], result["learning_milliseconds"]]
        numbers += [median[column] for column in columns]
        cells = [f"{number:.1f}" for number in numbers]
        table.add_row(str(result["num_steps"]), *cells, f"{result['hidden']:.0%}")
    return table


def measure_atari(args: Args) -> dict[str, Any]:
    """Measure the last table: valid steps a second, and the waiting of both sides."""
    config = jaxrl.A2CConfig(torso="ga3c_cnn", num_steps=5)
    gauges: dict[str, dict[str, float]] = {}

    def training(number: int) -> Callable[[], float]:
        env = jaxrl.make(
            "Pong-v5", args.atari_envs, num_threads=args.atari_threads, num_pools=number
        )
        algo = jaxrl.a2c(env)
        state = jax.jit(algo.init)(config, jax.random.key(0))
        lowered = train_chunk.lower(algo, config, state, jnp.int32(1))
        program = lowered.compile(jaxrl.compiler_options(algo, config))
        state, _ = program(config, state, jnp.int32(1))
        updates = min(max(1, int(args.atari_seconds * 2000 / (args.atari_envs * 5))), MAX_CHUNK)

        def measure() -> float:
            nonlocal state
            began, before = time.perf_counter(), simulator_time(state)
            state, metrics = program(config, state, jnp.int32(updates))
            steps = float(np.asarray(metrics["valid_steps"]).sum())
            seconds = time.perf_counter() - began
            gauges[pools_text(number)] = waiting_shares(before, simulator_time(state)) | {
                "predictions_per_second": updates * 5 * args.atari_envs / seconds,
                "trainings_per_second": updates / seconds,
            }
            return steps / seconds

        return measure

    def alone() -> float:
        actions = np.random.default_rng(0).integers(0, 6, (steps, args.atari_envs))
        began = time.perf_counter()
        for action in actions:
            simulator.step(action)
        return steps * args.atari_envs / (time.perf_counter() - began)

    simulator = envpool.make(
        "Pong-v5", env_type="gymnasium", num_envs=args.atari_envs, num_threads=args.atari_threads
    )
    simulator.reset()
    steps = max(1, int(args.atari_seconds * 6000 / args.atari_envs))
    candidates = {"envpool alone": alone, "one pool": training(1)}
    candidates |= {pools_text(number): training(number) for number in args.num_pools}
    samples = alternate(candidates, args.repeats)
    raw = samples["envpool alone"].median
    return {
        "steps_per_second": summaries(samples),
        "of_envpool_alone": {name: median / raw for name, median in medians(samples).items()},
        "gauges": gauges,
    }


def pools_text(number: int) -> str:
    return "one pool" if number == 1 else f"{number} pools"


def atari_table(args: Args, result: dict[str, Any]) -> Table:
    """Return the last table."""
    columns = ("", "valid steps/s", "of envpool alone", "trainings/s", "waits", "idle")
    table = Table(*columns, title=f"A2C on Pong, {args.atari_envs} environments")
    for name, rate in result["steps_per_second"].items():
        cells = [f"{rate['median']:,.0f}", f"{result['of_envpool_alone'][name]:.2f}"]
        if name in result["gauges"]:
            seen = result["gauges"][name]
            cells += [f"{seen['trainings_per_second']:.1f}"]
            cells += [f"{seen[name]:.0%}" for name in ("simulator_wait", "simulator_idle")]
        table.add_row(name, *cells)
    return table


def main(args: Args) -> dict[str, Any]:
    """Measure, print and write all tables; return the results."""
    if args.quick:
        args = dataclasses.replace(
            args, num_envs=4, threads=2, step_seconds=(0.001,), num_pools=(2,), num_steps=4,
            slow_envs=2, slow_seconds=0.001, sigmas=(0.5,), repeats=1, output=None,
            rollout_lengths=(2,), ahead_seconds=(0.001,),
            atari_envs=4, atari_threads=1, atari_seconds=0.01,
        )  # fmt: skip
    hidden = [measure_hidden(args, seconds) for seconds in args.step_seconds]
    ready = [measure_ready(args, sigma) for sigma in args.sigmas]
    console = Console()
    console.print(hidden_table(args, hidden))
    console.print(ready_table(args, ready))
    ahead = [
        measure_ahead(args, num_steps, seconds)
        for num_steps in args.rollout_lengths
        for seconds in args.ahead_seconds
    ]
    console.print(ahead_table(args, ahead))
    atari = measure_atari(args)
    console.print(atari_table(args, atari))
    results = {"hidden": hidden, "ready": ready, "ahead": ahead, "atari": atari}
    return write_results(args.output, results)


if __name__ == "__main__":
    main(tyro.cli(Args))
