"""The study of training and unseen levels, at a small size."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.analysis.records import summarize_seeds
from jaxrl.envs.host import callback

SMALL = {"num_steps": 32, "num_epochs": 1, "hidden_sizes": (8,)}


@pytest.fixture
def study(experiment):
    return experiment("generalization")


@pytest.fixture
def small(study, tmp_path):
    """Return flags of every study."""
    config = study.IN_MAZES.replace(core_size=8, **SMALL)
    return {
        "seeds": 2, "total_steps": 2048, "num_envs": 16, "episodes": 4, "results": tmp_path,
        "config": config,
    }  # fmt: skip


def read(tmp_path, name):
    assert (tmp_path / f"{name}.png").stat().st_size > 1000
    return json.loads((tmp_path / f"{name}.json").read_text())


@pytest.mark.exhaustive
def test_mazes_are_studied_as_one_population(study, small, tmp_path, capsys):
    study.main(study.Maze(levels=(1, 3), size=5, **small))
    assert "unseen levels" in capsys.readouterr().out
    result = read(tmp_path, "generalization-maze")
    assert result["manifest"]["levels"] == [1, 3]
    assert result["manifest"]["env"]["options"] == {"size": 5}
    assert [row["num_levels"] for row in result["settings"]] == [1, 3]
    for row in result["settings"]:
        training, unseen, gap = (
            np.array(row[name]["by_seed"]) for name in ("training levels", "unseen levels", "gap")
        )
        np.testing.assert_allclose(gap, training - unseen, atol=2e-4)
        assert row["gap"]["low"] <= row["gap"]["value"] <= row["gap"]["high"]
        assert ((training >= 0) & (training <= 2)).all()


@pytest.mark.slow
def test_agents_are_tested_on_the_levels_asked_for(study, small):
    algo = jaxrl.ppo(jaxrl.make("maze/FindAndReturn-v0", 16, size=5))
    config = small["config"]
    states = jax.jit(jax.vmap(algo.init, (None, 0)))(config, jax.random.split(jax.random.key(0), 2))
    levels = jnp.array([[[0, 1], [7, 1]], [[3, 1], [4, 1]]])
    scores = study.mean_returns(algo, config, states, levels, 5)
    key = jax.random.split(jax.random.key(0))[0]
    for agent, which in ((0, 1), (1, 0)):
        first = int(levels[agent, which, 0])
        env = jaxrl.make("maze/FindAndReturn-v0", 5, size=5, first_level=first, num_levels=1)
        state = jax.tree.map(lambda x, agent=agent: x[agent], states)
        expected = jax.jit(jaxrl.evaluate, static_argnums=(0, 3))(algo, config, state, env, key)
        assert scores[agent, which] == expected.episode_return.mean()


@pytest.mark.exhaustive
def test_procgen_is_studied_one_agent_after_another(study, small, tmp_path):
    try:
        jaxrl.make("envpool/CoinrunEasy-v0")
    except ImportError:
        pytest.skip("envpool's Procgen needs Qt 5")
    config = study.IN_PROCGEN.replace(torso="mlp", num_minibatches=2, **SMALL)
    flags = small | {"seeds": 1, "total_steps": 64, "num_envs": 2, "episodes": 2}
    flags |= {"config": config, "runs": tmp_path / "runs"}
    study.main(study.Procgen(levels=(1,), **flags))
    trained = tmp_path / "runs" / "coinruneasy-v0-levels1-seed0" / "metrics.jsonl"
    before = trained.read_text()
    study.main(study.Procgen(levels=(1, 2), resume=True, **flags))
    assert trained.read_text() == before
    result = read(tmp_path, "generalization-coinruneasy-v0")
    assert result["manifest"]["env"]["id"] == "envpool/CoinrunEasy-v0"
    assert [row["num_levels"] for row in result["settings"]] == [1, 2]
    resumed = [len(agent.get("resumptions", [])) for agent in result["agents"]]
    assert resumed == [1, 0]


@pytest.mark.slow
@pytest.mark.usefixtures("miniworld")
@pytest.mark.parametrize(
    ("algorithm", "memory", "levels", "suffix"),
    [
        pytest.param("ppo", True, (1, 2), "", marks=pytest.mark.exhaustive),
        ("a2c", False, (1,), "-a2c-no-memory"),
    ],
)
def test_miniworld_is_studied_by_its_layouts(
    study, tmp_path, monkeypatch, algorithm, memory, levels, suffix
):
    config = study.IN_MINIWORLD[algorithm].replace(num_steps=32, core_size=8, num_minibatches=2)
    monkeypatch.setitem(study.IN_MINIWORLD, algorithm, config)
    flags = {"seeds": 1, "total_steps": 64, "num_envs": 2, "episodes": 2, "results": tmp_path}
    flags |= {"runs": tmp_path / "runs", "env_id": "MiniWorld-OneRoomS6Fast-v0"}
    study.main(study.Miniworld(levels=levels, algorithm=algorithm, memory=memory, **flags))
    result = read(tmp_path, f"generalization-miniworld-onerooms6fast-v0{suffix}")
    assert result["manifest"]["algorithm"] == algorithm
    assert result["manifest"]["config"]["core"] == ("lstm" if memory else None)
    assert [row["num_levels"] for row in result["settings"]] == list(levels)
    assert result["manifest"]["env"]["options"]["env_id"] == "MiniWorld-OneRoomS6Fast-v0"
    trained = [(agent["num_levels"], agent["seed"]) for agent in result["agents"]]
    assert trained == [(number, 0) for number in levels]
    assert all(agent["created"] >= result["manifest"]["created"] for agent in result["agents"])


def test_the_simulators_of_an_agent_are_closed(study, monkeypatch, tmp_path):
    config = jaxrl.PPOConfig(num_minibatches=2, **SMALL)
    make = functools.partial(jaxrl.make, "envpool/CartPole-v1", 2)
    monkeypatch.setattr(study, "make_levels", lambda *_: make())
    before = set(callback._groups)
    args = study.Procgen(total_steps=64, episodes=2, runs=tmp_path, config=config)
    scores = study.scores_of_agent(args, 1, 0)
    assert len(scores) == 2
    assert set(callback._groups) <= before


@pytest.mark.parametrize("returns", [[1.0], [0.0, 2.0]])
def test_the_scores_of_all_seeds_are_in_the_picture(study, returns):
    """The intervals of two seeds, here -11.7 to 13.7, do not stretch its axis."""
    summary = summarize_seeds(np.array(returns))
    results = [{"num_levels": k} | dict.fromkeys(study.SETS, summary) for k in (1, 4)]
    figure = study.draw("Game-v0", len(returns), results)
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert low < min(returns) <= max(returns) < high < 3


def test_bad_flags_are_refused(study):
    with pytest.raises(ValueError, match=r"--levels must be a tuple of integers >= 1, got \(0,\)"):
        study.main(study.Maze(levels=(0,)))
