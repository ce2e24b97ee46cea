"""Records of finished runs."""

import json
import types

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.analysis.records import uniformly_random
from jaxrl.spaces import ACTION_MASK


@pytest.mark.slow
def test_runs_are_recorded_with_an_evaluation(experiment, tmp_path):
    record = experiment("record")
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", 2))
    config = jaxrl.PPOConfig(num_steps=32, hidden_sizes=(4,), num_minibatches=1, num_epochs=1)
    jaxrl.run(algo, config, seed=1, total_steps=512, run_dir=tmp_path / "run", num_evaluations=0)
    record.main(record.Args("cartpole", (tmp_path / "run",), episodes=5, results=tmp_path))
    result = json.loads((tmp_path / "cartpole.json").read_text())
    assert result["mean_return_by_seed"]["1"] == result["mean_return"] > 5
    assert result["random_policy"]["episodes"] == result["runs"][0]["evaluation"]["episodes"] == 5
    assert (tmp_path / "cartpole.png").exists()
    add = record.Args("cartpole", (tmp_path / "run",), add=True, episodes=5, results=tmp_path)
    for note, joined in (("", ""), ("Alone.", "Alone."), ("At night.", "Alone. At night.")):
        add.note = note
        record.main(add)
        result["note"] = joined
        assert json.loads((tmp_path / "cartpole.json").read_text()) == result
    older = json.loads(json.dumps(result))
    older["runs"][0]["manifest"]["seed"] = 0
    del older["runs"][0]["manifest"]["config"]["initial_std"]
    (tmp_path / "cartpole.json").write_text(json.dumps(older))
    record.main(add)
    assert json.loads((tmp_path / "cartpole.json").read_text())["runs"][1:] == result["runs"]
    table = experiment("score_table")
    with pytest.raises(ValueError, match="cartpole has greedy evaluations over 5 episodes; record"):
        table.row("cartpole", result)
    result["runs"][0]["evaluation"]["episodes"] = 100
    cells = table.row("cartpole", result).split(" | ")
    assert cells[:4] == ["| CartPole-v1", "PPO", "0.000512M", "1"]
    assert cells[4].startswith(f"[{result['mean_return']:.1f}](../../experiments/results/cartpole.")
    assert cells[5] == f"{result['runs'][0]['evaluation']['mean_return']:.1f} |"
    result["runs"][0]["evaluation"]["greedy"] = False
    with pytest.raises(ValueError, match="cartpole lacks greedy evaluations"):
        table.row("cartpole", result)
    partly = {"runs": [result["runs"][0], older["runs"][0]]}
    del partly["runs"][0]["evaluation"]
    with pytest.raises(ValueError, match="cartpole lacks greedy evaluations"):
        table.row("cartpole", partly)
    record.main(
        record.Args("training", (tmp_path / "run",), episodes=5, greedy=False, results=tmp_path)
    )
    training = json.loads((tmp_path / "training.json").read_text())
    assert "evaluation" not in training["runs"][0]
    assert table.row("training", training).endswith(" | - |")
    (tmp_path / "cartpole.json").write_text(json.dumps(training))
    record.main(add)
    with pytest.raises(ValueError, match="there are no runs to record"):
        record.main(record.Args("none", (), results=tmp_path))


def test_runs_of_another_config_are_not_added_to_a_record(experiment):
    env = {"id": "CartPole-v1", "options": {"num_threads": 1}}
    manifest = {"algorithm": "ppo", "env": env, "total_steps": 100}
    first = {"manifest": manifest | {"seed": 0, "config": {"gamma": 0.9}}}
    second = {"manifest": manifest | {"seed": 1, "config": {"gamma": 0.99}}}
    add_runs = experiment("record").add_runs
    for recorded, runs in [([first], [second]), ([], [first, second])]:
        with pytest.raises(ValueError, match="differ in their config"):
            add_runs(recorded, runs)
    faster = {"env": env | {"options": {"num_threads": 2}}, "config": {"gamma": 0.9}}
    assert len(add_runs([first], [{"manifest": manifest | {"seed": 1} | faster}])) == 2
    with pytest.raises(ValueError, match=r"the seeds of the runs must differ, got \[0, 0\]"):
        add_runs([], [first, first])


def test_unfinished_runs_and_single_episodes_are_not_recorded(experiment, tmp_path):
    record = experiment("record")
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", 2))
    config = jaxrl.PPOConfig(num_steps=32, hidden_sizes=(4,), num_minibatches=1, num_epochs=1)
    jaxrl.run(algo, config, total_steps=64, run_dir=tmp_path / "run", num_evaluations=0)
    path = tmp_path / "run" / "summary.json"
    summary = json.loads(path.read_text()) | {"interrupted": True}
    del summary["digest"]
    path.write_text(json.dumps(summary))
    with pytest.raises(ValueError, match="run was interrupted; finish it with --resume"):
        record.main(record.Args("cartpole", (tmp_path / "run",), results=tmp_path))
    with pytest.raises(ValueError, match="--episodes must be an integer >= 2, got 1"):
        record.main(record.Args("cartpole", (tmp_path / "run",), episodes=1, results=tmp_path))
    assert not list(tmp_path.glob("cartpole*"))


def random_actions(space, obs, **parts):
    """Return the actions of the random policy where observations are these parts, each a Box."""
    env = types.SimpleNamespace(action_space=space, observation_space=jaxrl.Dict.of(**parts))
    algo = uniformly_random(jaxrl.ppo(jaxrl.make("CartPole-v1", 2))._replace(env=env))
    return algo.act(None, None, None, obs, jax.random.key(0), False)[1]


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (jaxrl.Discrete(5), (5,)),
        (jaxrl.MultiDiscrete((3, 3)), (2, 3)),
        (jaxrl.MultiDiscrete((2, 3)), (2, 3)),  # of combinations
    ],
)
def test_the_random_policy_takes_each_allowed_action_as_often(space, shape):
    number = 9_000
    mask = np.zeros(shape, bool)
    mask[..., 1:] = True
    obs = {ACTION_MASK: np.broadcast_to(mask, (number, *shape)), "x": np.zeros((number, 3))}
    parts = {name: jaxrl.Box(x.shape[1:], x.dtype) for name, x in obs.items()}
    actions = np.asarray(random_actions(space, obs, **parts)).reshape(number, -1)
    taken, counts = np.unique(actions, axis=0, return_counts=True)
    last = taken[:, -1] if isinstance(space, jaxrl.Discrete) or shape == space.sizes else taken
    assert (last > 0).all()
    assert len(taken) == 4
    np.testing.assert_allclose(counts / number, 1 / 4, atol=0.03)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_the_random_policy_ignores_observations(env_id):
    algo = uniformly_random(jaxrl.ppo(jaxrl.make(env_id, 2)))
    space, obs = algo.env.action_space, jax.numpy.zeros((50, 3))
    _, actions = algo.act(None, None, None, obs, jax.random.key(0), False)
    assert actions.shape == (50, *space.shape)
    low, high = space.bounds() if isinstance(space, jaxrl.Box) else (0, space.n - 1)
    assert ((actions >= low) & (actions <= high)).all()
    assert actions.std() > 0


def test_random_actions_without_bounds_are_finite():
    actions = random_actions(jaxrl.Box((2,), np.dtype(np.float32)), np.zeros((50, 3)))
    assert np.isfinite(actions).all()


def test_scores_are_summarized_by_their_number(experiment):
    summarize = experiment("score_table").summarize
    assert summarize(np.array([3.25])) == "3.2"
    assert summarize(np.array([1.0, 2.0, 6.0])) == "3.0 (1.0 to 6.0)"
    assert summarize(np.full(5, 7.0)) == "7.0 (7.0 to 7.0)"
    center = float(summarize(np.array([0.0, 1.0, 2.0, 3.0, 100.0])).split()[0])
    assert center == 2.0  # without the lowest and the highest
