"""Weak scaling of one agent's training over devices and processes.

    python experiments/benchmarks/scaling.py
    python experiments/benchmarks/scaling.py --task cartpole --devices 1 2 4 8

Each point is a process of its own (or several, joined on this machine) that may use as many cores
as it has devices. Weak scaling means that every device has `num_envs` environments. Efficiency is
the rate of valid steps over D times that of one device, without compilation. Points are measured in
turn, several times.

Bounds are measured apart. "crowded" means devices that train an agent each at the same time: they
lose time to shared parts of the machine (memory bandwidth, clock, simulators), not to sums of
gradients. The model takes an update on a crowded machine and adds the cost of sums over devices: a
latency that grows with log2(D), and the gradients' bytes at the bandwidth of a ring, 2 (D - 1) / D
of them a device. Both are measured here by all-reduces in a loop, and extrapolated to more machines
with the same links.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax.sharding import Mesh, PartitionSpec
from rich.console import Console
from rich.table import Table

import jaxrl
from jaxrl import checks
from jaxrl.device_axis import Axis
from jaxrl.distributed import processes
from jaxrl.distributed.spread import split_cpu, spread
from jaxrl.presets import PPO_FOR_ATARI
from jaxrl.training.compilation import compile_chunk
from timing import RESULTS, median_and_range, summarize, write_results

CONFIGS = {
    "cartpole": ("CartPole-v1", 16, jaxrl.PPOConfig(num_steps=128, num_minibatches=4)),
    "breakout": (
        "Breakout-MinAtar",
        64,
        jaxrl.PPOConfig(num_steps=128, torso="mlp", activation="relu", num_minibatches=8),
    ),
    "pong": ("Pong-v5", 8, PPO_FOR_ATARI.replace(torso="ga3c_cnn")),
}
"""Environment id, environments of a device, config."""
PREDICTED = (8, 64, 512)
"""Devices for which the model predicts the efficiency."""


@dataclasses.dataclass(frozen=True)
class Point:
    """One measurement: `processes`, each with `devices`, that train one agent.

    If `crowded`, they train an agent each.
    """

    task: str
    num_envs: int
    devices: int
    processes: int = 1
    seconds: float = 3.0
    crowded: bool = False
    address: str = ""
    process_id: int = 0

    @property
    def total(self) -> int:
        return self.devices * self.processes


@dataclasses.dataclass
class Args:
    """Scaling of PPO over devices and processes."""

    task: str = "pong"
    """cartpole, breakout or pong."""
    devices: tuple[int, ...] = (1, 2)
    processes: tuple[int, ...] = (2,)
    """Numbers of processes, with one device each, for weak scaling over processes."""
    repeats: int = 3
    seconds: float = 3.0
    """Approximate length of a measurement."""
    point: str | None = None
    """One point as JSON, to be measured by this process; the script starts such processes."""
    output: Path | None = RESULTS / "scaling.json"


# --- one point, in a process of its own ----------------------------------------------------------


def measure_point(point: Point) -> dict[str, float]:
    """Return steps a second, and the cost of sums over devices."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        first = point.process_id * point.devices
        os.sched_setaffinity(0, cores[first : first + point.devices] or cores)
    split_cpu(point.devices)
    if point.processes > 1:
        processes.connect(point.address, point.processes, point.process_id)
    env_id, _, config = CONFIGS[point.task]
    algo = jaxrl.ppo(jaxrl.make(env_id, num_envs=point.num_envs))
    together = 1 if point.crowded else point.total
    if together > 1:
        algo = spread(algo)
    state = jax.jit(algo.init).lower(config, jax.random.key(0)).compile()(config, jax.random.key(0))
    program = compile_chunk(algo, config, state)
    updates = 1
    for _ in range(2):
        began = time.perf_counter()
        state, metrics = program(config, state, jnp.int32(updates))
        jax.block_until_ready(metrics)
        elapsed = (time.perf_counter() - began) / updates
        updates = int(processes.broadcast(jnp.int32(min(max(point.seconds / elapsed, 1), 1000))))
    began = time.perf_counter()
    state, metrics = program(config, state, jnp.int32(updates))
    steps = float(jax.device_get(metrics)["valid_steps"].sum())
    elapsed = time.perf_counter() - began
    params = state.params
    return {
        "steps_per_second": steps / elapsed,
        "update_seconds": elapsed / updates,
        "gradient_seconds": all_reduce_seconds(params, together),
        "scalar_seconds": all_reduce_seconds(jnp.float32(0), together),
        "gradient_bytes": sum(x.size * 4 for x in jax.tree.leaves(params)),
    }


def all_reduce_seconds(tree: Any, num_devices: int, repeats: int = 100) -> float:
    """Return the seconds of one mean of a tree over the devices, computed as learners do."""
    if num_devices == 1:
        return 0.0
    mesh, axis = Mesh(jax.devices(), ("devices",)), Axis("devices", num_devices)
    tree = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), tree)

    def sums(tree: Any) -> Any:
        return jax.lax.fori_loop(0, repeats, lambda _, x: axis.mean(x), tree)

    same = PartitionSpec()
    run = jax.jit(jax.shard_map(sums, mesh=mesh, in_specs=same, out_specs=same, check_vma=False))
    jax.block_until_ready(run(tree))
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        jax.block_until_ready(run(tree))
        seconds.append((time.perf_counter() - began) / repeats)
    return statistics.median(seconds)


# --- all points ----------------------------------------------------------------------------------


def run_point(point: Point) -> dict[str, float]:
    """Measure a point in processes of its own.

    Returns:
      The answer of the first process; if crowded, the mean of all, with the sum of their rates.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    started = []
    for number in range(point.processes):
        own = dataclasses.replace(point, address=address, process_id=number)
        flags = ["--point", json.dumps(dataclasses.asdict(own))]
        started.append(
            subprocess.Popen([sys.executable, __file__, *flags], stdout=subprocess.PIPE, text=True)
        )
    answers = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"{point} failed")
    rows = [json.loads(answer.splitlines()[-1]) for answer in answers]
    if not point.crowded:
        return rows[0]
    mean = {name: statistics.mean(row[name] for row in rows) for name in rows[0]}
    return mean | {"steps_per_second": sum(row["steps_per_second"] for row in rows)}


def predicted_seconds(
    config: jaxrl.PPOConfig, crowded: dict[str, Any], links: dict[str, Any], num_devices: int
) -> float:
    """Return the model's seconds of an update with weak scaling.

    Args:
      crowded: the measurement of devices that train an agent each.
      links: the measurement of two devices that train one.
    """
    steps = config.num_epochs * config.num_minibatches
    latency = links["scalar_seconds"] * math.log2(num_devices)
    # Beyond its latency, a gradient on two devices costs half of its bytes each way.
    transfer = max(links["gradient_seconds"] - links["scalar_seconds"], 0.0)
    share = 2 * (num_devices - 1) / num_devices
    # The gradient, and four scalars: valid transitions, two moments of the advantages, losses.
    return crowded["update_seconds"] + steps * (5 * latency + transfer * share)


def main(args: Args) -> dict[str, Any] | None:
    """Measure all points, print and write; return the results."""
    checks.integer("--repeats", args.repeats)
    if args.point is not None:
        print(json.dumps(measure_point(Point(**json.loads(args.point)))))
        return None
    if args.task not in CONFIGS:
        raise ValueError(f"--task must be one of {list(CONFIGS)}, got {args.task!r}")
    _, num_envs, config = CONFIGS[args.task]
    points: dict[str, Point] = {}
    for n in sorted({1, 2, *args.devices}):
        points[f"weak, {n} devices"] = Point(args.task, num_envs * n, n, 1, args.seconds)
    for n in args.processes:
        points[f"weak, {n} processes"] = Point(args.task, num_envs * n, 1, n, args.seconds)
    crowd = max(2, *args.devices, *args.processes)
    crowded = f"crowded, {crowd} devices"
    points[crowded] = Point(args.task, num_envs, 1, crowd, args.seconds, crowded=True)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in points}
    for _ in range(args.repeats):
        for name, point in points.items():
            samples[name].append(run_point(point))
    measured: dict[str, dict[str, Any]] = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        | {"rates": [row["steps_per_second"] for row in rows]}
        for name, rows in samples.items()
    }
    base = measured["weak, 1 devices"]
    several = [name for name in points if points[name].total > 1]
    for name in several:
        ideal = points[name].total * base["steps_per_second"]
        measured[name]["efficiency"] = measured[name]["steps_per_second"] / ideal
    model = {
        str(n): base["update_seconds"]
        / predicted_seconds(config, measured[crowded], measured["weak, 2 devices"], n)
        for n in (crowd, *PREDICTED)
    }
    results = {
        "task": args.task,
        "sizes": f"{num_envs} x {config.num_steps} a device",
        "points": measured,
        "predicted_efficiency": model,
    }
    Console().print(table(measured, model))
    return write_results(args.output, results)


def table(measured: dict[str, Any], model: dict[str, float]) -> Table:
    """Return a table of all points and predictions."""
    shown = Table("point", "steps/s", "efficiency", "all-reduce of gradients, us")
    for name, row in measured.items():
        rates = median_and_range(summarize(row["rates"]))
        efficiency = f"{row['efficiency']:.2f}" if "efficiency" in row else ""
        shown.add_row(name, rates, efficiency, f"{1e6 * row['gradient_seconds']:.0f}")
    for n, efficiency in model.items():
        shown.add_row(f"weak, {n} devices, predicted", "", f"{efficiency:.2f}", "")
    return shown


if __name__ == "__main__":
    main(tyro.cli(Args))
