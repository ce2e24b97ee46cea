"""Time from the start of a process to the end of its first update.

    python experiments/benchmarks/startup.py

First with an empty compilation cache, then with the cache that this start has filled. Every
measurement is a process of its own (`first_update.py`) and reports its phases.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from jaxrl import checks
from timing import RESULTS, write_results

FIRST_UPDATE = Path(__file__).with_name("first_update.py")
# A user's start sets neither: the cache lies where jaxrl puts it and keeps what takes long.
CACHE_OPTIONS = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")


@dataclass
class Args:
    """Time to the first update."""

    env_ids: tuple[str, ...] = ("CartPole-v1", "Pong-v5")
    num_envs: int = 8
    repeats: int = 3
    """Processes with a filled cache; their median counts."""
    output: Path | None = RESULTS / "startup.json"


def measure(env_id: str, num_envs: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return the seconds of each phase, with an empty cache and with a filled one."""
    with tempfile.TemporaryDirectory() as cache:
        empty = first_update(env_id, num_envs, cache)
        filled = [first_update(env_id, num_envs, cache) for _ in range(repeats)]
    filled.sort(key=lambda phases: phases["total"])
    return {"empty cache": empty, "filled cache": filled[repeats // 2]}


def first_update(env_id: str, num_envs: int, cache: str) -> dict[str, float]:
    """Measure one process whose compilation cache lies below `cache`."""
    environment = dict(os.environ, XDG_CACHE_HOME=cache)
    for option in CACHE_OPTIONS:
        environment.pop(option, None)
    command = [sys.executable, str(FIRST_UPDATE), "--env-id", env_id]
    command += ["--num-envs", str(num_envs), "--started", str(time.time())]
    process = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(process.stdout.splitlines()[-1])


def table(results: dict[str, dict[str, dict[str, float]]]) -> Table:
    """Return a table with a row for each phase."""
    columns = {
        f"{env_id}, {cache}": phases
        for env_id, caches in results.items()
        for cache, phases in caches.items()
    }
    table = Table("phase", *columns, title="seconds to the first update")
    for phase in next(iter(columns.values())):
        digits = 0 if phase.startswith("programs") else 2
        table.add_row(phase, *(f"{phases[phase]:.{digits}f}" for phases in columns.values()))
    return table


def main(args: Args) -> dict[str, Any]:
    """Measure, print and write; return the results."""
    checks.integer("--repeats", args.repeats)
    results = {id: measure(id, args.num_envs, args.repeats) for id in args.env_ids}
    Console().print(table(results))
    return write_results(args.output, {"seconds": results})


if __name__ == "__main__":
    main(tyro.cli(Args))
