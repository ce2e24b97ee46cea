"""The benchmarks run and report every row; no test asserts a speed."""

import importlib
import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import fast_compile
import numpy as np
import pytest
from rich.console import Console

import jaxrl

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "experiments" / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    """`benchmark(name)`: a benchmark, as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def one_device(monkeypatch):
    """Let processes have one device."""
    monkeypatch.setenv("XLA_FLAGS", fast_compile.FLAG)


def test_a_benchmark_overwrites_no_record(benchmark):
    results = benchmark("timing").RESULTS
    assert results == Path("runs/results")
    sources = {path.stem: path.read_text() for path in BENCHMARKS.glob("*.py")}
    with_output = {name: text for name, text in sources.items() if "    output: " in text}
    assert len(with_output) == 8
    for name, text in with_output.items():  # some start JAX when they are imported
        assert f'    output: Path | None = RESULTS / "{name}.json"' in text


def test_an_exported_cache_does_not_shorten_compilation(tmp_path):
    sources = [path.read_text() for path in BENCHMARKS.glob("*.py")]
    timed = [text for text in sources if '"compile_seconds"' in text and "__main__" in text]
    assert len(timed) == 4
    for text in timed:
        assert 'if __name__ == "__main__":\n    compile_anew()\n' in text
    program = "import jax, timing; timing.compile_anew(); jax.jit(lambda x: x + 1)(1.0)"
    own = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "PYTHONPATH": f"{BENCHMARKS}:{ROOT}"}
    own |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_ENABLE_COMPILATION_CACHE": "1"}
    cached = program.replace("timing.compile_anew()", "...")
    for text, is_cached in ((program, False), (cached, True)):
        subprocess.run([sys.executable, "-c", text], env=dict(os.environ, **own), check=True)
        assert any(tmp_path.iterdir()) == is_cached


@pytest.mark.exhaustive
def test_quick_run_reports_every_row(benchmark, monkeypatch):
    """CartPole without peers, whether or not they are installed."""
    throughput, peers = benchmark("ppo_throughput"), ("rejax", "stable_baselines3")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in peers else find_spec(name)
    )
    text = io.StringIO()
    args = throughput.Args(tasks=("cartpole",), quick=True)
    results = throughput.main(args, Console(file=text, width=150))
    task = results["tasks"]["cartpole"]
    assert task["steps_per_second"]["jaxrl"]["median"] > 0
    assert task["compile_seconds"]["jaxrl"] > 0
    assert task["ratio_to_peers"] == {}
    assert results["machine"]["versions"]["jax"]
    for row in ("jaxrl", "pip install rejax", "pip install torch stable-baselines3"):
        assert row in text.getvalue()
    with pytest.raises(ValueError, match="unknown tasks"):
        throughput.Args(tasks=("tetris",))


@pytest.mark.exhaustive
def test_overlap_is_measured(benchmark):
    overlap = benchmark("overlap")
    results = overlap.main(overlap.Args(quick=True))
    assert set(results["hidden"][0]["hidden"]) == {"2 pools"}
    assert results["ready"][0]["expected_gain"] > 1
    assert results["ahead"][0]["milliseconds"]["sent ahead"]["median"] > 0
    assert results["atari"]["of_envpool_alone"]["2 pools"] > 0


@pytest.mark.exhaustive
def test_populations_of_two_sizes_are_measured(benchmark):
    lanes = benchmark("lanes")
    one, two = lanes.main(lanes.Args(quick=True))["tasks"]["cartpole"]
    assert (one["agents"], two["agents"]) == (1, 2)
    for name in ("jaxrl", "search"):
        assert min(one["steps_per_second"][name].values()) > 0
        assert two["megabytes"][name] > one["megabytes"][name] > 0


FAKE_ARLBENCH = """
import os
class AutoRLEnv:
    def __init__(self, config):
        self.config, self.config_space = config, self
    def get_default_configuration(self):
        return {"gamma": 0.99, "n_steps": 7}
    def reset(self):
        print("ready")
    def step(self, action):
        assert os.environ["JAX_ENABLE_COMPILATION_CACHE"] == "0"
        assert (action["gamma"], action["n_steps"]) == (0.99, 128), action
        return {}, {"reward_mean": action["learning_rate"] + self.config["seed"]}, False, {}
"""


@pytest.mark.exhaustive
def test_searches_train_the_same_settings_as_their_peer(benchmark, tmp_path, monkeypatch):
    (tmp_path / "arlbench.py").write_text(FAKE_ARLBENCH)
    for name in ("arlbench", "jax", "gymnax"):  # as in an environment of its own
        (tmp_path / f"{name}-1.5.dist-info").mkdir()
        (tmp_path / f"{name}-1.5.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1.5")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    searches = benchmark("searches")
    args = searches.Args(Path(sys.executable), strategy="map", quick=True)
    results = searches.main(args)
    peer, own = results["searches"]["ARLBench"], results["searches"]["jaxrl"]
    assert peer["versions"] == {"arlbench": "1.5", "jax": "1.5", "gymnax": "1.5"}
    rates = [setting["learning_rate"] for setting in searches.Search(args).settings()[:2]]
    assert peer["mean_score"] == pytest.approx(np.mean(rates) + 0.5)
    assert own["best_score"] >= own["mean_score"] > 0
    assert own["seconds"]["median"] > own["compile_seconds"] > 0
    (tmp_path / "arlbench.py").unlink()
    for python in (sys.executable, tmp_path / "missing"):
        with pytest.raises(ValueError, match="--peer needs a Python that imports arlbench"):
            searches.main(searches.Args(Path(python), quick=True))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("one_device")
def test_a_second_start_finds_its_programs(benchmark):
    startup = benchmark("startup")
    phases = startup.measure("CartPole-v1", num_envs=2, repeats=1)
    assert phases["empty cache"]["programs_hit"] == 0 < phases["filled cache"]["programs_hit"]
    assert startup.table({"CartPole-v1": phases}).row_count == len(phases["empty cache"])


def test_the_model_of_scaling_adds_sums_over_devices(benchmark):
    """16 gradient steps an update; each adds five latencies and the bytes that a ring moves."""
    config = jaxrl.PPOConfig(num_epochs=4, num_minibatches=4)
    crowded, links = {"update_seconds": 1.0}, {"scalar_seconds": 0.001, "gradient_seconds": 0.005}
    for devices, seconds in ((2, 1 + 16 * (0.005 + 0.004)), (8, 1 + 16 * (0.015 + 0.007))):
        predicted = benchmark("scaling").predicted_seconds(config, crowded, links, devices)
        assert predicted == pytest.approx(seconds)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("one_device")
def test_scaling_is_measured_and_predicted(benchmark, tmp_path):
    scaling = benchmark("scaling")
    output = tmp_path / "scaling.json"
    results = scaling.main(scaling.Args(task="cartpole", repeats=1, seconds=0.1, output=output))
    points = results["points"]
    assert all(points[name]["efficiency"] > 0 for name in points if not name.endswith("1 devices"))
    assert points["crowded, 2 devices"]["gradient_seconds"] == 0
    assert points["weak, 2 processes"]["gradient_seconds"] > 0
    assert list(results["predicted_efficiency"]) == ["2", "8", "64", "512"]
    assert json.loads(output.read_text())["points"] == points
