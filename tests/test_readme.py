"""The code of the README and of docs/ does what they say, at a small size."""

import functools
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from small_algorithms import same

import jaxrl
from jaxrl.algos import ALGORITHMS
from jaxrl.distributed.spread import spread
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.tuning.studies.storage import close_storage

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "README.md", *(ROOT / "docs").rglob("*.md")
TEXT = "\n".join(path.read_text() for path in PAGES)
TRAIN = "jax.jit(jaxrl.train, static_argnums=(0, 3))"
TRACED_TRAIN = "(lambda *args: jax.eval_shape(lambda: jaxrl.train(*args)))"


def read_snippet(name):
    """Return the code that follows the comment `snippet: name` in the README or a page of docs/."""
    pattern = rf"<!-- snippet: {name} -->\n```python\n(.*?)```"
    (code,) = re.findall(pattern, TEXT, re.DOTALL)
    return code


def run_snippet(name, *changes, scope=None):
    """Execute a snippet, with some texts replaced, and return its variables.

    Those of an earlier snippet of its page may be its `scope`.
    """
    source = read_snippet(name)
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    scope = {} if scope is None else dict(scope)
    exec(source, scope)
    return scope


def test_every_snippet_is_run_by_a_test():
    called = re.findall(r'\b(?:run|read)_snippet\(\s*"([^"]+)"', Path(__file__).read_text())
    of_algorithms = [f"use {name}" for name in ALGORITHMS]
    assert {*re.findall("<!-- snippet: (.+) -->", TEXT)} == {*called, *of_algorithms}


@pytest.mark.slow
def test_the_snippet_of_the_api_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shorter = ("total_steps=500_000", "total_steps=2_048, num_evaluations=0")
    traced = (  # the run compiles the same update
        ("jax.jit(algo.update)(", "jax.eval_shape(algo.update, "),
        (TRAIN, TRACED_TRAIN),
        ("jax.jit(jax.vmap(learn))(", "jax.eval_shape(jax.vmap(learn), "),
    )
    lengths = ("0), 100)", "0), 2)"), ("key, 100)", "key, 3)")
    scope = run_snippet("api", shorter, *lengths, *traced)
    assert scope["metrics"]["loss"].shape == (8, 3)
    assert scope["policy"]([0.0, 0.0, 0.0, 0.0]).shape == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("total_steps", "least"),  # a random policy has 22
    [("20_000", 60), pytest.param("500_000", 475, marks=pytest.mark.exhaustive)],
)
def test_the_snippet_of_the_front_page_learns_cartpole(tmp_path, monkeypatch, total_steps, least):
    monkeypatch.chdir(tmp_path)
    length = ("total_steps=500_000", f"total_steps={total_steps}")
    scope = run_snippet("front page", ("0), 100)", "0), 2)"), length)
    assert scope["action"].shape == ()
    assert scope["result"].summary["mean_return"] >= least
    assert scope["result"].summary["eval_return"] >= least


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_snippets_of_algorithms_run(name):
    (number,) = re.findall(r"key\(0\), ([\d_]+)\)", read_snippet(f"use {name}"))
    shorter = f"key(0), {number})", "key(0), 2)"
    scope = run_snippet(f"use {name}", shorter, (TRAIN, TRACED_TRAIN))
    assert scope["metrics"]["loss"].shape == (2,)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("optimized")
def test_the_network_for_observations_of_several_parts_learns():
    """A goal five steps away, for 0.9 and more if it is reached soon."""
    metrics = run_snippet("dict network")["metrics"]
    returns, counts = metrics["episode_return_sum"], metrics["episode_count"]
    assert returns[-5:].sum() / counts[-5:].sum() > 0.8 > returns[:3].sum() / counts[:3].sum()


@pytest.mark.slow
@pytest.mark.usefixtures("toy_for_ppo", "no_pictures")
def test_the_snippets_of_searches_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    smaller = ("num_trials=64, num_phases=8", "num_trials=4, num_phases=2"), ("16, 12)", "2, 1)")
    scope = run_snippet("search", *smaller)
    assert scope["result"].ledger.scores.shape == (4, 2)

    smaller = ("(64, 8), 4, 12,", "(12, 2), 2, 1,")
    informed = run_snippet("expected improvement", smaller, scope=scope)["search"]
    assert jax.eval_shape(informed, jax.random.key(0)).ledger.scores.shape == (12, 2)

    smaller = ("PBT(16, 8), 16, 10)", "PBT(4, 2), 4, 1)")
    explored = run_snippet("population based", smaller, scope=scope)
    assert {name: x.shape for name, x in explored["schedule"].items()} == {
        "learning_rate": (2,), "gamma": (2,),
    }  # fmt: skip

    smaller = ("HyperTrick(20, 8)", "ASHA(4, 3)"), ("Finals(3, 3,", "Finals(2, 2,")
    swept = run_snippet("sweep", *smaller, ("Phase(12,", "Phase(1,"), scope=scope)["result"]
    assert swept.best["interval"][0] <= swept.best["score"] <= swept.best["interval"][1]
    own = ("ASHA(64, 9)", "ASHA(4, 3)"), ("runs/study.db", "runs/sweep/study.db")
    replayed = run_snippet("decisions", *own, ('"pong"', '"sweep"'), scope=scope)["ledger"]
    read = run_snippet("optuna", own[1], ('"pong"', '"sweep"'), scope=scope)
    close_storage(read["study"]._storage)
    assert len(read["table"]) == len(read["scores"]) == 4
    best = max(score for trial in swept.summary["trials"] for score in trial["scores"])
    np.testing.assert_allclose(np.nanmax(replayed.scores), best, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("toy_for_ppo")
def test_the_snippet_of_several_objectives_prints_the_front(capsys):
    smaller = ("(64, 8), 4, 12)", "(4, 2), 2, 8)"), ("seeds_per_trial=4", "seeds_per_trial=2")
    scope = run_snippet("several objectives", *smaller)
    assert len(capsys.readouterr().out.splitlines()) == scope["front"].sum() > 0


@pytest.mark.slow
def test_the_snippet_of_several_devices_runs():
    # The process of the tests has two devices already.
    scope = run_snippet("spread", ("split_cpu(2)", "#"), ("key(0), 20", "key(0), 2"))
    assert len(scope["state"].simulation.timestep.obs.sharding.device_set) == 2


@pytest.mark.learning
def test_the_environment_is_learned():
    metrics = run_snippet("own env")["metrics"]
    lengths = metrics["episode_length_sum"] / metrics["episode_count"]
    assert lengths[0] > 6
    assert lengths[-1] < 4.5


@pytest.mark.slow
def test_the_wrapper_scales_rewards_and_evaluates_without():
    env = run_snippet("wrapper")["env"]
    algo, config = jaxrl.ppo(env), jaxrl.PPOConfig(num_steps=32)
    _, metrics = jaxrl.train(algo, config, jax.random.key(0), 1)
    lengths = metrics["episode_length_sum"]
    np.testing.assert_allclose(metrics["episode_return_sum"], 0.1 * lengths, rtol=1e-5)
    assert env.for_evaluation(2).id == "gymnax/CartPole-v1"


@pytest.mark.slow
def test_agents_are_trained_where_their_keys_are():
    metrics = run_snippet("agents on devices", ("key, 20", "key, 1"))["metrics"]
    assert len(metrics["loss"].sharding.device_set) == jax.device_count() == 2
    assert not metrics["loss"].sharding.is_fully_replicated


@pytest.mark.learning
def test_the_variation_of_ppo_learns_and_keeps_its_name(tmp_path):
    scope = run_snippet("own algorithm")
    counts = scope["metrics"]["episode_count"]
    lengths = scope["metrics"]["episode_length_sum"] / np.maximum(counts, 1)
    assert lengths[counts > 0][-10:].mean() > 3 * lengths[counts > 0][0]
    algo, config = scope["algo"], scope["config"]
    assert (algo.name, algo.make(algo.env, None).name) == ("spo", "spo")
    jaxrl.run(algo, config, seed=0, total_steps=512, run_dir=tmp_path / "run", num_evaluations=0)
    with pytest.raises(ValueError, match="trained by 'spo', which jaxrl does not have"):
        jaxrl.load_policy(tmp_path / "run")
    make = functools.partial(jaxrl.ppo, surrogate=scope["spo"])
    assert jaxrl.load_policy(tmp_path / "run", make_algorithm=make).algo.name == "spo"


@pytest.mark.slow
def test_a_surrogate_has_a_config_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = run_snippet("own hyperparameter", ("50_000", "512, num_evaluations=0"))
    assert scope["policy"].config == scope["SoftConfig"](penalty=2.0)
    make = functools.partial(jaxrl.ppo, surrogate=scope["soft"])  # has PPO's own config class
    with pytest.raises(ValueError, match=r"no fields \['penalty'\].*_replace\(config_class="):
        jaxrl.load_policy(tmp_path / "runs/soft", make_algorithm=make)


@pytest.mark.slow
def test_a_metric_of_ones_own_is_kept_on_several_devices():
    scope = run_snippet("own metric", ("0), 50)", "0), 3)"))
    assert (scope["metrics"]["parameter_norm"] > 0).all()
    algo, config = spread(scope["algo"], 2), jaxrl.PPOConfig()
    state = jax.eval_shape(algo.init, config, jax.random.key(0))
    assert "parameter_norm" in jax.eval_shape(algo.update, config, state)[1]


@pytest.mark.slow
@pytest.mark.usefixtures("toy_for_ppo")
def test_the_snippet_of_a_schedule_trains_each_phase_with_its_values():
    scope = run_snippet(
        "schedule", ("1e-2, 3e-3", "0.0, 3e-3"), ("// 10", "// 2"), ("key(0), 20)", "key(0), 3)")
    )
    algo, key, config = scope["algo"], jax.random.key(0), jaxrl.PPOConfig()
    before, _ = scope["train"](algo, config, key, 2)
    start = jax.jit(algo.init)(config, key)
    assert same(before.params, start.params)  # by the learning rate of the first phase
    assert not same(scope["state"].params, start.params)


@pytest.mark.slow
@pytest.mark.usefixtures("toy_for_ppo")
def test_the_sink_takes_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope = run_snippet("own sink", ("50_000", "5_000"))
    assert f"best: {scope['sink'].best:.1f}" in capsys.readouterr().out
    assert scope["sink"].best > 10


@pytest.mark.slow
@pytest.mark.usefixtures("toy_for_ppo")
def test_the_callback_stops_the_run_when_the_return_is_good(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run_snippet("own callback", ("500_000", "80_000"))["result"]
    assert not result.interrupted
    assert result.summary["eval_return"] > 0
    assert 0 < result.summary["updates"] < 10_000
    assert result.summary["mean_return"] > 50


@pytest.mark.slow
def test_the_callback_plays_its_own_games():
    settings = "6_144, chunk_updates=1, log_every=4, num_evaluations=2"  # rows of several chunks
    scope = run_snippet("own games", ("50_000, num_evaluations=5", settings))
    assert len(scope["rates"]) == 2
    assert all(0 <= rate <= 1 for rate in scope["rates"])


@pytest.mark.slow
@pytest.mark.usefixtures("toy_for_ppo")
def test_the_scheduler_stops_trials_below_the_median():
    scope = run_snippet(
        "own scheduler", ("MedianStopping(16, 4), 4, 8", "MedianStopping(12, 2), 2, 3")
    )
    ledger = scope["result"].ledger
    status, scores = np.asarray(ledger.status), np.asarray(ledger.scores)
    stopped = status == jaxrl.tuning.Status.STOPPED
    assert stopped.any()
    assert (status[~stopped] == jaxrl.tuning.Status.COMPLETED).all()
    assert scores[~stopped, 0].mean() > scores[stopped, 0].mean()


@pytest.mark.slow
@pytest.mark.usefixtures("toy_for_ppo")
def test_the_explorer_copies_the_best():
    scope = run_snippet("own explorer", ("CopyTheBest(16, 4), 16, 8", "CopyTheBest(4, 2), 4, 1"))
    scores = np.asarray(scope["result"].ledger.scores)[:, 0]
    parent = np.asarray(scope["result"].parent)[:, 0]
    worst = np.argsort(scores, kind="stable")[:2]
    assert (parent[worst] == scores.argmax()).all()
    assert scope["schedule"].shape == (4, 2)


@pytest.mark.slow
@pytest.mark.usefixtures("toy_for_ppo")
def test_later_trials_of_the_sampler_begin_near_the_best_one():
    scope = run_snippet("own sampler", ("RandomSearch(16, 4), 4, 8", "RandomSearch(6, 2), 2, 1"))
    result = scope["result"]
    place = np.log10(np.asarray(result.values["learning_rate"])) / 4
    scores = np.nan_to_num(result.ledger.scores, nan=-np.inf).max(1)
    for first in (2, 4):  # two trials at a time
        best = scores[:first].argmax()
        assert (np.abs(place[first : first + 2] - place[best]) < 0.101).all()


@pytest.mark.process
def test_the_snippet_of_gymnasium_runs(tmp_path):
    source = read_snippet("gymnasium") + "    print(metrics['valid_steps'].sum())\n"
    (tmp_path / "own.py").write_text(source)
    finished = subprocess.run(
        [sys.executable, tmp_path / "own.py"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout) > 1500


@pytest.mark.slow
def test_the_snippet_of_pools_runs():
    scope = run_snippet("pools", ('torso="ga3c_cnn"', 'torso="mlp", hidden_sizes=(8,)'))
    assert scope["metrics"]["loss"].shape == (2,)


@pytest.mark.slow
def test_the_snippet_of_atari_runs(capsys):
    small = ('"laptop"].config', '"laptop"].config.replace(torso="mlp", num_steps=16)')
    scope = run_snippet("atari", ("key(0), 20", "key(0), 2"), small)
    assert scope["env"].options["repeat_action_probability"] == 0.25
    assert scope["metrics"]["loss"].shape == (2,)


@pytest.mark.slow
@pytest.mark.usefixtures("toy_for_ppo")
def test_a_run_that_is_extended_equals_one_of_that_length(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evaluations = '"eval_episodes": 4', '"num_evaluations": 0'
    scope = run_snippet("resume", ("20_480", "16"), ("40_960", "32"), evaluations)
    assert scope["longer"].summary["updates"] == scope["once"].summary["updates"] == 4


@pytest.mark.slow
def test_a_new_run_begins_from_a_trained_agent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    algo, config = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=8)), jaxrl.PPOConfig()
    arguments = {"total_steps": 1_024, "num_evaluations": 0}
    jaxrl.run(algo, config, run_dir="runs/old", **arguments)
    scope = run_snippet("from a trained agent", ("50_000", "1_024, num_evaluations=0"))
    old, new = (jaxrl.load_policy(f"runs/{name}") for name in ("old", "new"))
    assert new.algo.env.options == {"gravity": 15.0}
    assert not same(new.state.params, old.state.params)
    manifest = manifests.read("runs/new")
    assert (manifest["init_from"]["run_dir"], manifest["init_from"]["update"]) == ("runs/old", 1)
    assert manifest["config"]["learning_rate"] == 1e-4
    assert scope["old"].origin == manifest["init_from"]


@pytest.mark.slow
@pytest.mark.usefixtures("toy_for_ppo")
def test_a_saved_state_is_trained_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = run_snippet("save a state", ("key(0), 10", "key(0), 2"), ("length=10", "length=2"))
    whole, _ = jaxrl.train(scope["algo"], scope["config"], jax.random.key(0), 4)
    assert same(scope["state"].params, whole.params)


@pytest.mark.slow
@pytest.mark.usefixtures("toy_for_ppo")
def test_the_state_may_be_donated():
    scope = run_snippet("donate", ("range(10)", "range(2)"))
    assert scope["state"].num_updates == 2


@pytest.mark.slow
def test_the_snippet_of_wandb_sends_rows(tmp_path, monkeypatch):
    calls: list[Any] = []

    class Wandb:
        @staticmethod
        def init(**arguments):
            calls.append(arguments)
            return Wandb()

        def log(self, row, step):
            calls.append(step)

        def finish(self):
            calls.append("end")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", Wandb)
    run_snippet("wandb", ("50_000", "1_024"))
    assert calls[0]["config"] == {"gamma": pytest.approx(0.99)}
    steps = calls[1:-1]
    assert 0 < steps[0] <= steps[-1] <= 1024
    assert calls[-1] == "end"


def test_the_function_of_memory_maze_asks_for_pictures(monkeypatch):
    """With stand-ins: the simulator is no dependency of the tests."""
    tasks = SimpleNamespace(memory_maze_9x9=lambda **options: options)
    wrapper = SimpleNamespace(DmControlCompatibilityV0=lambda task: ("wrapped", task))
    monkeypatch.setitem(sys.modules, "memory_maze", SimpleNamespace(tasks=tasks))
    monkeypatch.setitem(sys.modules, "shimmy.dm_control_compatibility", wrapper)
    made = run_snippet("memory maze")["memory_maze"]()
    assert made == ("wrapped", {"image_only_obs": True})
