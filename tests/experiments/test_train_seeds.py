"""Seeds that train side by side, and their record."""

import json

import numpy as np
import pytest
from sweep_runs import toy_algorithm
from toy_algorithm import ToyConfig

import jaxrl
from jaxrl.analysis.records import read_runs
from jaxrl.cli.reproduce import runs_by_seed
from jaxrl.training.loggers import read_jsonl
from jaxrl.training.progress.rows import Progress

FLAGS = [
    "ppo", "--num-envs", "2", "--num-steps", "16", "--num-minibatches", "1", "--num-epochs", "1",
    "--hidden-sizes", "4", "--total-steps", "2048", "--no-anneal",
]  # fmt: skip


def test_a_seed_that_diverges_is_not_recorded(experiment):
    config = ToyConfig(learning_rate=0.6)
    with pytest.raises(FloatingPointError, match="seed 3 diverged: its loss is not finite"):
        experiment("train_seeds").train(toy_algorithm(), config, [3, 5], 4, print)


def test_seeds_without_an_episode_have_no_score(experiment, tmp_path, monkeypatch):
    script = experiment("train_seeds")
    monkeypatch.setattr(script, "train", lambda *_: (None, [[]], [Progress()]))
    with pytest.raises(ValueError, match="no episode of one of the seeds ended; give more --total"):
        script.main(["x", *FLAGS, "--seeds", "3", "--results", str(tmp_path)])


@pytest.mark.slow
def test_seeds_side_by_side_have_the_scores_of_single_runs(experiment, tmp_path):
    script = experiment("train_seeds")
    script.main(
        ["cartpole", *FLAGS, "--seeds", "3", "5", "--episodes", "4", "--results", str(tmp_path)]
    )
    path = tmp_path / "cartpole.json"
    record = read_runs(path)
    assert list(runs_by_seed(record, path)) == [3, 5]
    assert record["random_policy"]["episodes"] == 4
    assert all(run["evaluation"]["greedy"] for run in record["runs"])
    assert [run["summary"]["seeds_side_by_side"] for run in record["runs"]] == [2, 2]
    assert (tmp_path / "cartpole.png").exists()
    config = jaxrl.PPOConfig(num_steps=16, num_minibatches=1, num_epochs=1, hidden_sizes=(4,))
    alone = jaxrl.run(
        jaxrl.ppo(jaxrl.make("CartPole-v1", 2)), config, seed=5, total_steps=2048,
        run_dir=tmp_path / "run", num_evaluations=0, progress_bar=False,
    )  # fmt: skip
    recorded = record["runs"][1]
    assert (
        recorded["manifest"]["config"]
        == json.loads((tmp_path / "run" / "manifest.json").read_text())["config"]
    )
    for name in ("updates", "valid_steps", "episodes"):
        assert recorded["summary"][name] == alone.summary[name]
    np.testing.assert_allclose(recorded["summary"]["mean_return"], alone.summary["mean_return"])
    steps = [row["steps"] for row in read_jsonl(tmp_path / "run" / "metrics.jsonl")]
    assert set(recorded["curve"]["steps"]) <= set(steps)


def test_simulators_on_the_host_are_refused(experiment, tmp_path):
    script = experiment("train_seeds")
    flags = ["a2c", "--env-id", "envpool/CartPole-v1", "--results", str(tmp_path)]
    with pytest.raises(ValueError, match="CartPole-v1 runs on the host; train its seeds one by"):
        script.main(["x", *flags])


@pytest.mark.parametrize("flags", [("--seed", "3"), ("--resume",), ("--log-every", "5")])
def test_flags_of_one_run_are_refused(experiment, tmp_path, flags):
    script = experiment("train_seeds")
    with pytest.raises(ValueError, match=f"{flags[0]} is for one run of jaxrl train; leave it"):
        script.main(["x", "ppo", *flags, "--results", str(tmp_path)])


@pytest.mark.parametrize(
    "flags", [["--seeds", "3", "3"], ["--seeds", "-1", "0"], ["--episodes", "1"]]
)
def test_wrong_seeds_and_episodes_are_refused_before_training(experiment, tmp_path, flags):
    main, results = experiment("train_seeds").main, ["--results", str(tmp_path)]
    with pytest.raises(ValueError, match=f"{flags[0]} must"):
        main(["name", *FLAGS, *results, *flags])
