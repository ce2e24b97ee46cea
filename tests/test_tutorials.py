"""The code of docs/tutorials/ runs from top to bottom."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl

PAGES = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md"))
DEFINITIONS = (0, 2)
"""The snippets of "your-own-algorithm" that define REINFORCE and PQN."""


def snippets(page):
    """Return the Python code of a page, one string for each fence."""
    (path,) = (path for path in PAGES if path.stem == page)
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def run_page(page, *changes, only=None):
    """Execute snippets of a page as one program, with some texts replaced; return its variables."""
    source = "\n".join(x for i, x in enumerate(snippets(page)) if only is None or i in only)
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    scope: dict[str, Any] = {"__name__": "tutorial"}
    exec(source, scope)
    return scope


@pytest.mark.slow
def test_a_policy_from_python_plays_in_gymnasium(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = run_page("first-training", ("total_steps=500_000", "total_steps=20_000"))
    assert 8 <= scope["score"] <= 500


@pytest.mark.process
@pytest.mark.learning
def test_the_ship_docks(tmp_path):
    """Both environments learn, and the policy thrusts towards the dock."""
    source = "\n\n".join(snippets("your-own-parts"))
    (tmp_path / "docking.py").write_text(source.replace("steps=40_000", "steps=20_000"))
    finished = subprocess.run(
        [sys.executable, "docking.py"], cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert finished.returncode == 0, finished.stderr
    lines = finished.stdout.splitlines()
    assert lines.count("5 rows") == 2
    scores = [float(line.split(": ")[1]) for line in lines if "ocking:" in line or ":make" in line]
    assert len(scores) == 2
    assert min(scores) > -8  # -32 before training
    assert lines[-1] == "left of the dock: 2 right of it: 0"


@pytest.mark.learning
def test_reinforce_learns_cartpole_and_its_policy_loads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shorter = ("key(0), 300)", "key(0), 120)"), ("=614_400", "=4_096, num_evaluations=0")
    scope = run_page("your-own-algorithm", *shorter, only=(0, 1))
    assert scope["per_episode"] > 200  # 22 before training
    assert scope["policy"].algo.name == "reinforce"
    assert scope["action"].shape == ()


@pytest.mark.exhaustive
def test_pqn_learns_cartpole_and_its_policy_loads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = run_page(
        "your-own-algorithm",
        ("total_steps=512_000", "total_steps=4_096"),
        (" train(", " jax.jit(jaxrl.train, static_argnums=(0, 3))("),
        only=(*DEFINITIONS, 3),
    )
    assert scope["per_episode"] > 250  # the lowest of 20 seeds was 322
    assert scope["policy"].algo.name == "pqn"
    assert scope["action"].shape == ()


@pytest.mark.slow
def test_the_algorithms_keep_the_contract():
    """A population of them trains, and they take over environments."""
    scope = run_page("your-own-algorithm", only=DEFINITIONS)
    keys = jax.random.split(jax.random.key(0), 2)
    for name, config in (("reinforce", "ReinforceConfig"), ("pqn", "PQNConfig")):
        algo, config = scope[name](jaxrl.make("CartPole-v1", num_envs=2)), scope[config]()
        configs = jaxrl.population.stack(config, 2, gamma=jax.numpy.array([0.9, 0.99]))
        lanes = jaxrl.population.population(algo, 2)
        states = jax.jit(lanes.init)(configs, keys)
        _, metrics = jax.jit(lanes.update, static_argnums=3)(configs, states, 2, 2)
        assert metrics["loss"].shape == (2, 2)
        assert np.isfinite(metrics["loss"]).all()
        one = jax.tree.map(lambda x: x[0], states.simulation)
        taken = jax.jit(algo.init)(config, keys[0], one).simulation
        np.testing.assert_array_equal(taken.timestep.obs, one.timestep.obs)


@pytest.mark.slow
@pytest.mark.usefixtures("toy_for_ppo")
def test_the_population_trains_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = run_page(
        "a-population",
        ("key, 100)", "key, 10)"),
        (", 50, 50)", ", 2, 2)"),
        (":, -20:", ":, -4:"),
        ("for_evaluation(16)", "for_evaluation(2)"),
        ("choose(algo, configs)", "choose(algo, configs, 0.01, 1, 1.0)"),  # measures one strategy
    )
    assert scope["last"].shape == scope["greedy"].shape == (16,)
    assert scope["curves"].shape == (16, 10)
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert np.isfinite(scope["greedy"]).all()
    assert scope["metrics"]["loss"].shape == (16, 2)
    assert scope["measured"].steps_per_second.keys() == {"vmap"}


@pytest.mark.slow
@pytest.mark.usefixtures("toy_for_ppo")
def test_the_search_finds_a_config_and_checks_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = run_page(
        "a-search",
        ("scheduler, 8, 10)", "scheduler, 8, 1)"),
        ("repeats=5", "repeats=2"),
        ("total_steps=100_000", "total_steps=64, num_evaluations=0"),
    )
    assert scope["scores"].shape == (16, 4)
    assert scope["winner"] in scope["result"].finals.trial
    assert scope["found"].score[scope["row"]] == scope["found"].score.max()
    assert scope["policy"](np.zeros(4)).shape == ()
