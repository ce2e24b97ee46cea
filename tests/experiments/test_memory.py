"""The study of agents with and without a memory, at a small size."""

import json

import jax
import numpy as np
import pytest

import jaxrl


@pytest.fixture
def study(experiment):
    return experiment("memory")


@pytest.mark.exhaustive
def test_agents_with_and_without_a_memory_are_compared(study, tmp_path, capsys):
    args = study.Args("chain", ("ppo",), 2, 4096, num_envs=16, episodes=4, results=tmp_path)
    study.main(args)
    assert "return of the greedy policy" in capsys.readouterr().out
    assert (tmp_path / "memory-chain.png").stat().st_size > 1000
    record = json.loads((tmp_path / "memory-chain.json").read_text())
    assert record["manifest"]["env"]["options"] == {"memory_length": 10}
    assert [agent["algorithm"] for agent in record["agents"]] == ["ppo", "ppo"]
    assert [agent["config"]["core"] for agent in record["agents"]] == ["lstm", None]
    for agent in record["agents"]:
        assert np.shape(agent["greedy_return"]["by_seed"]) == (2,)
        assert len(agent["curve_by_seed"]) == 2


@pytest.mark.parametrize("name", ["ppo", "impala", "r2d2"])
@pytest.mark.parametrize("task", ["chain", "cartpole"])
def test_an_agent_without_a_memory_differs_by_it_alone(study, task, name):
    task = study.TASKS[task]
    other, config = study.without_memory(task, name)
    recurrent = vars(study.with_memory(task, name))
    changed = {k for k, v in vars(config).items() if k in recurrent and recurrent[k] != v}
    of_sequences = {"batch_size", "use_last_action_reward"} if other == "dqn" else set()
    assert changed == {"core", "hidden_sizes"} | of_sequences
    assert config.hidden_sizes == (128, study.RECURRENT[name].core_size)


def test_the_velocities_of_cartpole_are_hidden(study):
    del study  # it registers the environment
    seen = jaxrl.make("CartPole-v1", 3).init(jax.random.key(0))[1].obs
    env = jaxrl.make("PositionsOnly-v0", 3)
    np.testing.assert_array_equal(env.init(jax.random.key(0))[1].obs, seen[:, [0, 2]])
    jaxrl.check_env(env)


def test_bad_flags_are_refused(study):
    with pytest.raises(ValueError, match="--seeds must be an integer >= 1, got 0"):
        study.main(study.Args("chain", seeds=0))
