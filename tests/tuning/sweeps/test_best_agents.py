"""The best agents of a sweep: which are kept, and that they can be loaded."""

import shutil
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweep_runs import UPDATES, run, toy_algorithm
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.tuning import Choice, LogUniform, Phase, RandomSearch, trial_key
from jaxrl.tuning.sweeps.best_agents import BestAgents
from jaxrl.tuning.trial_start import agent_keys


@pytest.mark.exhaustive
def test_the_best_agents_are_kept_and_can_be_loaded(tmp_path):
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=2))
    config = jaxrl.PPOConfig(num_steps=64, hidden_sizes=(8,), num_minibatches=1, num_epochs=1)
    space = {"learning_rate": LogUniform(1e-4, 1e-2), "gamma": Choice((0.9, 0.99))}
    arguments = {"num_lanes": 2, "phase": Phase(2), "seed": 1}
    kept_agents = {"keep_best": 1, "keep_best_per": "gamma"}
    result = run(
        tmp_path / "x", RandomSearch(5, 2), space, algo, config, **arguments, **kept_agents
    )
    kept = sorted((tmp_path / "x" / "best").iterdir())
    assert 2 <= len(kept) <= 3
    assert result.best is not None
    directory = tmp_path / "x" / "best" / f"trial-{result.best['trial']}"
    assert directory in kept
    policy = jaxrl.load_policy(directory)
    assert policy.config.learning_rate == pytest.approx(result.best["values"]["learning_rate"])
    assert policy(np.zeros(4)).shape == ()
    assert {jaxrl.load_policy(path).config.gamma for path in kept} == {0.9, 0.99}


def test_the_first_agent_of_the_best_trial_is_kept(tmp_path):
    result = run(tmp_path / "x", RandomSearch(3, 1), seeds_per_trial=2, keep_best=1)
    assert result.best is not None
    trial = result.best["trial"]
    key = agent_keys(trial_key(jax.random.key(5), trial), 2)[0]
    config = ToyConfig(**result.best["values"])
    state, _ = jaxrl.train(toy_algorithm(), config, key, UPDATES)
    directory = tmp_path / "x" / "best" / f"trial-{trial}"
    kept = jaxrl.load_policy(directory, make_algorithm=lambda env, _: toy(env))
    np.testing.assert_array_equal(kept.state.params, state.params)


def trials(*scores):
    return [{"trial": i, "scores": [score]} for i, score in enumerate(scores)]


def test_the_best_of_the_agents_that_were_kept_stay_after_a_kill(tmp_path):
    """Trials that ended shortly before a kill have scores, but no agents."""
    best = BestAgents(tmp_path, 1, None)

    def describe(trial, score):
        return True, {"trial": trial}

    assert best.is_among_best(0, 5.0, trials(5.0))
    best.keep(0, 5.0, 1, {"x": jnp.zeros((1, 2))})
    best.write(trials(5.0), describe)
    resumed = BestAgents(tmp_path, 1, None)
    resumed.write(trials(5.0, 9.0), describe)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["trial-0"]
    assert not resumed.is_among_best(2, 4.0, trials(5.0, 9.0, 4.0))
    assert resumed.is_among_best(3, 7.0, trials(5.0, 9.0, 4.0, 7.0))
    resumed.keep(3, 7.0, 1, {"x": jnp.zeros((1, 2))})
    resumed.write(trials(5.0, 9.0, 4.0, 7.0), describe)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["trial-3"]


def test_folders_that_are_no_agents_are_left_alone(tmp_path):
    for name in ("trial-x", "trial-01", "trial-1-copy"):
        (tmp_path / "best" / name).mkdir(parents=True)
    (tmp_path / "best" / "trial-3").write_text("a file")
    best = BestAgents(tmp_path, 1, None)
    best.verify("a")
    best.write([{"trial": 3, "scores": [1.0]}], lambda trial, score: (True, {}))
    assert len(list((tmp_path / "best").iterdir())) == 4


def described(run_id, trial):
    """Return the manifest of a trial's agent."""
    arguments = {"run_id": run_id, "trial": trial, "seed": 1}
    return manifests.describe(toy_algorithm(), ToyConfig(), arguments)


def agents_of(tmp_path, run_id="a"):
    """Write the agents of three trials as those of a sweep; return what opens them again."""

    def describe(trial, score):
        return True, described(run_id, trial)

    trials = [{"trial": i, "scores": [float(i)]} for i in range(3)]
    best = BestAgents(tmp_path, 3, None)
    for trial in range(3):
        best.keep(trial, float(trial), 4, {"x": jnp.full((1, 2), float(trial))})
    best.write(trials, describe)
    return lambda: BestAgents(tmp_path, 3, None)


@pytest.mark.parametrize("name", ["checkpoints/4/state/manifest.ocdbt", "manifest.json", "none"])
def test_damaged_agents_of_a_resumed_sweep_are_moved_and_named(tmp_path, name):
    reopen = agents_of(tmp_path)
    reopen().verify("a")
    if name == "none":
        shutil.rmtree(tmp_path / "best" / "trial-1" / "checkpoints")
    else:
        (tmp_path / "best" / "trial-1" / name).write_bytes(b"{")
    with pytest.warns(UserWarning, match=r"best/trial-1 is lost: .* Moved to .*trial-1-1"):
        reopen().verify("a")
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["trial-0", "trial-2"]
    assert (tmp_path / "damaged-best" / "trial-1-1").is_dir()


def test_agents_of_other_trials_and_sweeps_are_refused(tmp_path):
    reopen = agents_of(tmp_path / "a")
    agents_of(tmp_path / "b", "b")
    shutil.rmtree(tmp_path / "a" / "best" / "trial-1")
    shutil.copytree(tmp_path / "b" / "best" / "trial-1", tmp_path / "a" / "best" / "trial-1")
    with pytest.raises(ValueError, match=r"trial-1 belongs to another sweep: run_id 'b', not 'a'"):
        reopen().verify("a")
    first, other = (tmp_path / "a" / "best" / f"trial-{i}" / "checkpoints" for i in (0, 1))
    shutil.rmtree(other.parent)
    shutil.rmtree(first)
    shutil.copytree(tmp_path / "a" / "best" / "trial-2" / "checkpoints", first)
    with pytest.raises(ValueError, match=r"/4 belongs to another run.*: trial: 0 -> 2"):
        reopen().verify("a")


def test_an_agent_that_leaves_the_best_is_deleted_and_written_ones_leave_the_memory(tmp_path):
    agents_of(tmp_path)
    best = BestAgents(tmp_path, 1, None)

    def describe(trial, score):
        return True, described("a", trial)

    best.keep(0, 5.0, 6, {"x": jnp.zeros(2)})
    kept = weakref.ref(best._agents[0].state["x"])
    best.write(trials(5.0, 9.0), describe)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["trial-1"]
    assert kept() is None
    best.keep(0, 10.0, 6, {"x": jnp.zeros(2)})
    best.write(trials(10.0, 9.0), describe)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["trial-0"]
    assert manifests.read(tmp_path / "best" / "trial-0")["trial"] == 0
