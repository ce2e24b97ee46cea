"""What the benchmarks share: alternating measurements, their spread, and what they were run on."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

RESULTS = Path(__file__).resolve().parent.parent / "results"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "gymnax", "envpool", "rejax", "torch", "numpy")


@dataclass(frozen=True)
class Samples:
    """Repeated measurements of one quantity."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def map(self, function: Callable[[float], float]) -> Samples:
        return Samples(tuple(function(value) for value in self.values))

    def summary(self) -> dict[str, Any]:
        """As JSON."""
        return {"median": self.median, "min": min(self.values), "max": max(self.values)}

    def text(self, digits: int = 0) -> str:
        """Median and spread."""
        low, high = min(self.values), max(self.values)
        return f"{self.median:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def seconds_of(function: Callable[[], Any]) -> float:
    """Wall time of one call, all its arrays computed."""
    began = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - began


def alternate(candidates: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Samples]:
    """Measure all candidates in turn, `repeats` times, so that drift of the machine hits each.

    A candidate measures itself; one unrecorded round comes first.
    """
    values: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(repeats + 1):
        for name, measure in candidates.items():
            value = measure()
            if round_number:
                values[name].append(value)
    return {name: Samples(tuple(measured)) for name, measured in values.items()}


def calls_for(seconds: float, one_call: Callable[[], Any]) -> int:
    """How many calls take about so long."""
    jax.block_until_ready(one_call())
    return max(1, round(seconds / seconds_of(one_call)))


def machine() -> dict[str, Any]:
    """Hardware, versions and the command of this measurement."""
    return {
        "command": shlex.join(["python", _relative(sys.argv[0]), *sys.argv[1:]]),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Write results for people and programs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


def _relative(path: str) -> str:
    root = RESULTS.parent.parent
    absolute = Path(path).resolve()
    return str(absolute.relative_to(root)) if absolute.is_relative_to(root) else absolute.name


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
