"""Runs that begin from a trained agent."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chex
import jax
import jax.numpy as jnp
import pytest
import small_algorithms
from small_algorithms import CONFIGS

import jaxrl
from jaxrl.cli.flags.config_file import read_config_file
from jaxrl.training.fine_tuning import begin_from, learned_by
from jaxrl.training.run_dir import manifest as manifests

CONFIG = jaxrl.PPOConfig(num_steps=4, num_minibatches=1, num_epochs=1, hidden_sizes=(8,))
QUIET: dict[str, Any] = {"num_evaluations": 0, "progress_bar": False}
LACKING = "began from a trained agent, that of .*old, update 2: give it again"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ppo", {"normalize_rewards": True}), ("a2c", {}), ("impala", {}), ("impala", {"lag": 2}),
        ("dqn", {}), ("pqn", {}), ("r2d2", {}),
    ],
)  # fmt: skip
def test_a_run_begins_from_a_trained_agent(name, changes):
    algo = small_algorithms.algorithm(name)
    config = CONFIGS[name].replace(normalize_observations=True, **changes)
    start = small_algorithms.initializer(algo)
    old, new = (start(config, jax.random.key(seed)) for seed in range(2))
    learned = jax.tree.map(lambda x: x + 1 if jnp.issubdtype(x.dtype, jnp.floating) else x, old)
    begun = begin_from(new, learned_by(jaxrl.LoadedPolicy(algo, config, learned), new))
    for field in {"params", "target_params", "obs_statistics"} & {*new._fields}:
        chex.assert_trees_all_equal(getattr(begun, field), getattr(learned, field))
    if "lag" in changes:
        for past in range(2):
            earlier = jax.tree.map(lambda x, past=past: x[past], begun.past_params)
            chex.assert_trees_all_equal(earlier, learned.params)
    if name == "ppo":
        scale, old = begun.reward_scale, learned.reward_scale
        chex.assert_trees_all_equal(scale.statistics, old.statistics)
        chex.assert_trees_all_equal(scale.running, new.reward_scale.running)
    for field in {"opt_state", "simulation", "replay", "num_updates"} & {*new._fields}:
        chex.assert_trees_all_equal(getattr(begun, field), getattr(new, field))
    # A run gives the state's arrays away, and the agent may be used again.
    assert not buffers(begun.params) & buffers(learned.params)


def buffers(tree):
    return {x.unsafe_buffer_pointer() for x in jax.tree.leaves(tree)}


def untrained(algo, config=CONFIG):
    state = jax.jit(algo.init)(config, jax.random.key(0))
    return jaxrl.LoadedPolicy(algo, config, state)


def test_an_agent_that_does_not_fit_begins_no_run(tmp_path):
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", 2))
    arguments: dict[str, Any] = {
        "total_steps": 8, "init_from": untrained(algo), "run_dir": tmp_path / "x",
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"its params.* shape \(8,\), the run needs \(4,\)"):
        jaxrl.run(algo, CONFIG.replace(hidden_sizes=(4,)), **arguments)
    with pytest.raises(ValueError, match=r"its obs_statistics.count has the shape None, the run"):
        jaxrl.run(algo, CONFIG.replace(normalize_observations=True), **arguments)
    with pytest.raises(ValueError, match="init_from must be an agent of a2c, got 'ppo'"):
        jaxrl.run(jaxrl.a2c(algo.env), jaxrl.A2CConfig(), **arguments)
    with pytest.raises(ValueError, match=r"init_from must be an agent, such as jaxrl.load_policy"):
        jaxrl.run(algo, CONFIG, **arguments | {"init_from": "runs/old"})
    assert not (tmp_path / "x").exists()
    small, large = (jaxrl.ImpalaConfig(lag=2, hidden_sizes=(size,)) for size in (4, 8))
    impala = jaxrl.impala(algo.env)
    like = jax.eval_shape(impala.init, large, jax.random.key(0))
    with pytest.raises(ValueError, match=r"init_from must be an agent with the run's network"):
        learned_by(untrained(impala, small), like)
    with pytest.raises(ValueError, match="but the state of ppo has no params"):
        learned_by(untrained(algo), SimpleNamespace(weights=0))


@pytest.mark.slow
def test_a_run_that_began_from_an_agent_resumes_and_is_repeated_with_it(tmp_path):
    algo, still = jaxrl.ppo(jaxrl.make("CartPole-v1", 2)), CONFIG.replace(learning_rate=0.0)
    old = jaxrl.run(algo, CONFIG, total_steps=16, run_dir=tmp_path / "old", **QUIET)
    policy = jaxrl.load_policy(tmp_path / "old")
    new = tmp_path / "new"
    begun = jaxrl.run(algo, still, total_steps=8, run_dir=new, init_from=policy, **QUIET)
    chex.assert_trees_all_equal(begun.state.params, old.state.params)
    resumed = jaxrl.run(algo, still, total_steps=16, run_dir=new, resume=True, **QUIET)
    chex.assert_trees_all_equal(resumed.state.params, old.state.params)
    origin = {"run_dir": str(tmp_path / "old"), "update": 2}
    assert origin.items() <= manifests.read(new)["init_from"].items()
    with pytest.raises(ValueError, match=LACKING):
        jaxrl.rerun(new, tmp_path / "again", **QUIET)
    again = jaxrl.rerun(new, tmp_path / "again", init_from=policy, **QUIET)
    chex.assert_trees_all_equal(again.state.params, old.state.params)
    with pytest.raises(ValueError, match="is of a run that began from a trained agent"):
        read_config_file(new / "manifest.json", "ppo")
    assert read_config_file(new / "manifest.json", "ppo", {"init_from"})


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["seal.json", "checkpoints"])
@pytest.mark.filterwarnings("ignore:.*seal.json is missing")
def test_a_run_killed_before_its_first_checkpoint_needs_the_agent_again(tmp_path, lost):
    algo, still = jaxrl.ppo(jaxrl.make("CartPole-v1", 2)), CONFIG.replace(learning_rate=0.0)
    jaxrl.run(algo, CONFIG, total_steps=16, run_dir=tmp_path / "old", **QUIET)
    policy, new = jaxrl.load_policy(tmp_path / "old"), tmp_path / "new"
    arguments: dict[str, Any] = QUIET | {"total_steps": 8, "run_dir": new}
    jaxrl.run(algo, still, init_from=policy, **arguments)
    (found,) = new.rglob(lost)
    (shutil.rmtree if found.is_dir() else Path.unlink)(found)
    (new / "summary.json").unlink()
    with pytest.raises(ValueError, match=LACKING):
        jaxrl.run(algo, still, resume=True, **arguments)
    again = jaxrl.run(algo, still, resume=True, init_from=policy, **arguments)
    chex.assert_trees_all_equal(again.state.params, policy.state.params)
