"""Runs that begin from a trained agent."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import pytest
import small_algorithms
from small_algorithms import CONFIGS

import jaxrl
from jaxrl.cli.flags.config_file import read_config_file
from jaxrl.training.compilation import train_chunk
from jaxrl.training.fine_tuning import begin_from
from jaxrl.training.run_dir import manifest as manifests

CONFIG = jaxrl.PPOConfig(num_steps=4, num_minibatches=1, num_epochs=1, hidden_sizes=(8,))
BEGINNING = {
    "ppo": {"normalize_rewards": True}, "a2c": {}, "impala": {"lag": 2}, "dqn": {}, "pqn": {},
    "r2d2": {},
}  # fmt: skip


@pytest.mark.parametrize("name", BEGINNING)
def test_a_run_begins_from_a_trained_agent(name):
    algo = small_algorithms.algorithm(name)
    config = CONFIGS[name].replace(normalize_observations=True, **BEGINNING[name])
    learned, _ = small_algorithms.train(algo, config, jax.random.key(0), 6)
    new = small_algorithms.initializer(algo)(config, jax.random.key(1))
    begun = begin_from(new, jaxrl.LoadedPolicy(algo, config, learned))
    for field in {"params", "target_params", "obs_statistics"} & {*new._fields}:
        chex.assert_trees_all_equal(getattr(begun, field), getattr(learned, field))
    if name == "impala":
        for past in range(2):
            earlier = jax.tree.map(lambda x, past=past: x[past], begun.past_params)
            chex.assert_trees_all_equal(earlier, learned.params)
    if name == "ppo":
        scale, old = begun.reward_scale, learned.reward_scale
        chex.assert_trees_all_equal(scale.statistics, old.statistics)
        chex.assert_trees_all_equal(scale.running, new.reward_scale.running)
    for field in {"opt_state", "simulation", "replay", "num_updates"} & {*new._fields}:
        chex.assert_trees_all_equal(getattr(begun, field), getattr(new, field))
    begun, _ = train_chunk(algo, config, begun, jnp.int32(1))  # gives the state's arrays away
    assert not any(x.is_deleted() for x in jax.tree.leaves(learned))


def test_an_agent_of_other_shapes_begins_no_run(tmp_path):
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", 2))
    policy = jaxrl.LoadedPolicy(algo, CONFIG, jax.jit(algo.init)(CONFIG, jax.random.key(0)))
    arguments: dict[str, Any] = {"total_steps": 8, "init_from": policy, "run_dir": tmp_path / "x"}
    with pytest.raises(ValueError, match=r"agent's params.* shape \(8,\), the run needs \(4,\)"):
        jaxrl.run(algo, CONFIG.replace(hidden_sizes=(4,)), **arguments)
    with pytest.raises(ValueError, match=r"the agent's obs_statistics.count has the shape None, "):
        jaxrl.run(algo, CONFIG.replace(normalize_observations=True), **arguments)
    with pytest.raises(ValueError, match="init_from must be an agent of a2c, got 'ppo'"):
        jaxrl.run(jaxrl.a2c(algo.env), jaxrl.A2CConfig(), **arguments)
    with pytest.raises(ValueError, match=r"init_from must be an agent, such as jaxrl.load_policy"):
        jaxrl.run(algo, CONFIG, **arguments | {"init_from": "runs/old"})
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_a_run_that_began_from_an_agent_resumes_and_is_repeated_with_it(tmp_path):
    algo, still = jaxrl.ppo(jaxrl.make("CartPole-v1", 2)), CONFIG.replace(learning_rate=0.0)
    quiet = {"num_evaluations": 0, "progress_bar": False}
    old = jaxrl.run(algo, CONFIG, total_steps=16, run_dir=tmp_path / "old", **quiet)
    policy = jaxrl.load_policy(tmp_path / "old")
    new = tmp_path / "new"
    begun = jaxrl.run(algo, still, total_steps=8, run_dir=new, init_from=policy, **quiet)
    chex.assert_trees_all_equal(begun.state.params, old.state.params)
    resumed = jaxrl.run(algo, still, total_steps=16, run_dir=new, resume=True, **quiet)
    chex.assert_trees_all_equal(resumed.state.params, old.state.params)
    origin = {"run_dir": str(tmp_path / "old"), "update": 2}
    assert origin.items() <= manifests.read(new)["init_from"].items()
    with pytest.raises(
        ValueError, match=r"began from the agent of .*old: repeat it by jaxrl.rerun"
    ):
        jaxrl.rerun(new, tmp_path / "again", **quiet)
    again = jaxrl.rerun(new, tmp_path / "again", init_from=policy, **quiet)
    chex.assert_trees_all_equal(again.state.params, old.state.params)
    with pytest.raises(ValueError, match="is of a run that began from a trained agent"):
        read_config_file(new / "manifest.json", "ppo")
