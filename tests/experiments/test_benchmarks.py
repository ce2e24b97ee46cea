"""The benchmarks run and report every row; no test asserts a speed."""

from __future__ import annotations

import importlib
import importlib.util
import io
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

import jaxrl

BENCHMARKS = Path(__file__).parents[2] / "experiments" / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("ppo_throughput")


@pytest.mark.usefixtures("quick_compilation")
def test_quick_run_reports_every_row(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CartPole without peers, whether or not they are installed."""
    find_spec, peers = importlib.util.find_spec, ("rejax", "stable_baselines3")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in peers else find_spec(name)
    )
    text = io.StringIO()
    args = benchmark.Args(tasks=("cartpole",), quick=True)
    results = benchmark.main(args, Console(file=text, width=150))

    task = results["tasks"]["cartpole"]
    assert set(task["steps_per_second"]) == {"jaxrl", "simulator alone"}
    assert task["compile_seconds"]["jaxrl"] > 0
    shares = task["shares"]
    parts = ("env stepping", "inference", "learning", "unaccounted")
    assert sum(shares[part] for part in parts) == pytest.approx(1)
    assert results["targets"][0]["holds"] is None
    assert results["machine"]["versions"]["jax"]
    missing = ("pip install rejax", "pip install torch stable-baselines3")
    for row in (*parts, "whole update", "shuffling", "jaxrl", *missing):
        assert row in text.getvalue()


def test_ratio_over_a_target_holds(benchmark: ModuleType) -> None:
    result = {"targets": [{"peer": "rejax", "at_least": 1.5, "ratio": 1.6}]}
    (row,) = benchmark.targets({"cartpole": result})
    assert row["holds"]


def test_unknown_task_is_an_error(benchmark: ModuleType) -> None:
    with pytest.raises(ValueError, match="unknown tasks"):
        benchmark.Args(tasks=("tetris",))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compilation")
def test_overlap_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    overlap = importlib.import_module("overlap")
    results = overlap.main(overlap.Args(quick=True))
    assert set(results["hidden"][0]["hidden"]) == {"2 pools"}
    assert results["ready"][0]["expected_gain"] > 1
    assert results["ahead"][0]["milliseconds"]["sent ahead"]["median"] > 0
    assert results["atari"]["of_envpool_alone"]["2 pools"] > 0
    assert 0 < results["atari"]["gauges"]["one pool"]["simulator_wait"] < 1


@pytest.mark.process
def test_a_second_start_finds_its_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    startup = importlib.import_module("startup")
    phases = startup.measure("CartPole-v1", num_envs=2, repeats=1)
    assert phases["empty cache"]["programs_hit"] == 0 < phases["filled cache"]["programs_hit"]
    assert startup.table({"CartPole-v1": phases}).row_count == len(phases["empty cache"])


def test_the_model_of_scaling_adds_the_sums_over_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 gradient steps an update; each adds five latencies and the bytes that a ring moves."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    scaling = importlib.import_module("scaling")
    config = jaxrl.PPOConfig(num_epochs=4, num_minibatches=4)
    crowded, links = {"update_seconds": 1.0}, {"scalar_seconds": 0.001, "gradient_seconds": 0.005}
    for devices, seconds in ((2, 1 + 16 * (0.005 + 0.004)), (8, 1 + 16 * (0.015 + 0.007))):
        predicted = scaling.predicted_seconds(config, crowded, links, devices)
        assert predicted == pytest.approx(seconds)


@pytest.mark.slow
def test_scaling_is_measured_and_predicted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    scaling = importlib.import_module("scaling")
    output = tmp_path / "scaling.json"
    results = scaling.main(scaling.Args(task="cartpole", repeats=1, seconds=0.1, output=output))
    points = results["points"]
    assert all(points[name]["efficiency"] > 0 for name in points if not name.endswith("1 devices"))
    assert points["crowded, 2 devices"]["gradient_seconds"] == 0
    assert points["weak, 2 processes"]["gradient_seconds"] > 0
    assert list(results["predicted_efficiency"]) == ["2", "8", "64", "512"]
    assert output.with_suffix(".png").stat().st_size > 1000
