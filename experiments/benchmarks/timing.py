"""Alternating measurements, their spread, and a description of the machine, for all benchmarks."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import jax

from jaxrl.training.run_dir import manifest as manifests

RESULTS = Path("runs") / "results"  # a recorded benchmark is rewritten by --output only
PEERS = ("rejax", "torch", "stable-baselines3")


class Summary(TypedDict):
    """Repeated measurements of one quantity, as results are written."""

    median: float
    min: float
    max: float


def summarize(values: Sequence[float]) -> Summary:
    """Return the median and the range of repeated measurements."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def median_and_range(summary: Summary) -> str:
    """Return a summary as text."""
    return f"{summary['median']:,.0f} ({summary['min']:,.0f}-{summary['max']:,.0f})"


def seconds_of(function: Callable[[], Any]) -> float:
    """Return the wall time of one call, until all its arrays are computed."""
    began = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - began


def alternate(candidates: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Summary]:
    """Measure all candidates in turn, `repeats` times, so that drift of the machine affects all.

    A candidate returns its own measurement. The first round, of `repeats + 1`, is not recorded.
    """
    values: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(repeats + 1):
        for name, measure in candidates.items():
            value = measure()
            if round_number:
                values[name].append(value)
    return {name: summarize(measured) for name, measured in values.items()}


def compile_anew() -> None:
    """Use no cache of compiled programs, even if the user has exported one.

    Call it before the first compilation: JAX decides then.
    """
    jax.config.update("jax_enable_compilation_cache", False)


def calls_for(seconds: float, one_call: Callable[[], Any]) -> int:
    """Return the number of calls that takes about `seconds`."""
    jax.block_until_ready(one_call())
    return max(1, round(seconds / seconds_of(one_call)))


def machine() -> dict[str, Any]:
    """Return hardware, versions and the command of this measurement."""
    origin = manifests.provenance()
    peers = {name: manifests.version_of(name) for name in PEERS}
    flags = {"xla_flags": os.environ.get("XLA_FLAGS", "")}
    return origin | flags | {"versions": origin["versions"] | peers}


def write_results(path: Path | None, results: dict[str, Any]) -> dict[str, Any]:
    """Return results with a description of the machine, and write them unless `path` is None."""
    results = {"machine": machine()} | results
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=2) + "\n")
    return results


def medians(summaries: Mapping[str, Summary]) -> dict[str, float]:
    """Return the medians of several quantities."""
    return {name: summary["median"] for name, summary in summaries.items()}
