"""`jaxrl play` and `jaxrl compare`: an agent that was trained for a moment."""

import json
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jaxrl
from jaxrl.cli import play
from jaxrl.envs.host import callback
from jaxrl.training.evaluate import Evaluation
from jaxrl.training.run_dir import manifest as manifests

CONFIG = jaxrl.PPOConfig(num_steps=32, hidden_sizes=(4,), num_minibatches=1, num_epochs=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    algo, run_dir = jaxrl.ppo(jaxrl.make("CartPole-v1", 2)), tmp_path_factory.mktemp("run")
    jaxrl.run(algo, CONFIG, seed=0, total_steps=256, run_dir=run_dir, num_evaluations=0)
    return run_dir


@pytest.fixture
def run_dir(trained, tmp_path):
    """The directory of a run, in which a test may write."""
    return shutil.copytree(trained, tmp_path / "run")


def test_an_agent_is_evaluated_filmed_and_compared(jaxrl_command, run_dir):
    played = jaxrl_command(
        "play", run_dir, "--episodes", 3, "--format", "gif", "--max-steps", 5
    )  # fmt: skip
    greedy = jaxrl_command(
        "play", run_dir, "--episodes", 0, "--format", "gif", "--max-steps", 5, "--greedy"
    )  # fmt: skip
    assert "seed0-greedy.gif: 5 steps, score 5, greedy" in greedy.stdout
    assert played.returncode == 0, played.stderr
    assert re.search(r"return over 3 episodes: \d+", played.stdout)
    assert (run_dir / "video" / "seed0.gif").stat().st_size > 1000
    beside = json.loads((run_dir / "video" / "seed0.gif.json").read_text())
    assert beside["numbers"]["games"] == 3
    compared = jaxrl_command("compare", run_dir)
    assert compared.returncode == 0, compared.stderr
    page = run_dir.parent / "runs" / "comparison.html"
    assert "data:image/gif" in page.read_text()


def test_episodes_that_were_cut_short_are_counted(jaxrl_command, run_dir, monkeypatch):
    scores = jnp.array([1.0, jnp.nan])
    monkeypatch.setattr(play, "play_episodes", lambda *_: Evaluation(scores, scores))
    played = jaxrl_command("play", run_dir, "--episodes", 2, "--format", "gif", "--max-steps", 5)
    assert played.returncode == 0, played.stderr
    assert "return over 1 episodes: 1.00 +- 0.00" in played.stdout
    assert "1 of 2 episodes did not end within 100,000 steps for each on average" in played.stderr


@pytest.mark.slow
def test_an_agent_whose_environment_does_not_draw_is_evaluated(jaxrl_command, tmp_path):
    (tmp_path / "plain_task.py").write_text(
        "import gymnasium\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
    )
    task = ["--env-id", "gymnasium/plain_task:make", "--num-envs", 2, "--num-steps", 32]
    task += ["--env-options", "vectorization_mode=sync", "--num-evaluations", 0]
    trained = jaxrl_command("train", "a2c", *task, "--total-steps", 64, "--run-dir", "run")
    assert trained.returncode == 0, trained.stderr
    played = jaxrl_command("play", "run", "--episodes", 2, "--trust-imports")
    assert played.returncode == 0
    assert "return over 2 episodes" in played.stdout
    assert "no video: " in played.stderr
    assert "render_mode" in played.stderr
    only_video = jaxrl_command("play", "run", "--episodes", 0, "--trust-imports")
    assert only_video.returncode == 1
    assert "render_mode" in only_video.stderr


def test_a_run_imports_a_module_of_the_working_directory_only_if_it_is_trusted(
    jaxrl_command, run_dir
):
    (run_dir.parent / "own_task.py").write_text(
        "import gymnasium\nprint('imported')\n"
        "def make(render_mode=None):\n"
        "    return gymnasium.make('CartPole-v1', render_mode=render_mode)\n"
    )
    manifest = manifests.read(run_dir)
    manifest["env"] = {"id": "gymnasium/own_task:make", "num_envs": 2, "options": {}}
    manifests.write(run_dir, manifest)
    refused = jaxrl_command("play", run_dir, "--episodes", 0)
    assert refused.returncode == 1
    assert "imported" not in refused.stdout
    assert "(--trust-imports)" in refused.stderr
    trusted = jaxrl_command("play", run_dir, "--episodes", 0, "--max-steps", 2, "--trust-imports")
    assert "imported" in trusted.stdout
    assert "checkpoint" in trusted.stderr  # the agent of another environment


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["play", "x", "--seed", 10**20], "seed must be an integer from 0"),
        (["play", "x", "--episodes", -1], "--episodes must be an integer >= 0, got -1"),
        (["play", "x"], "x is not a run directory"),
        (["compare"], "there are no runs to compare"),
        (["compare", "none", "neither"], "it does not exist\nneither is not a run directory"),
    ],
)
def test_bad_flags_end_in_one_line(jaxrl_command, command, message):
    finished = jaxrl_command(*command)
    assert finished.returncode == 1
    assert message in finished.stderr


def test_the_simulators_of_an_agent_that_played_are_closed():
    algo = jaxrl.ppo(jaxrl.make("envpool/CartPole-v1", 2))
    policy = jaxrl.LoadedPolicy(algo, CONFIG, jax.jit(algo.init)(CONFIG, jax.random.key(0)))
    before = set(callback._groups)
    returns = play.play_episodes(policy, 3, 1, greedy=True).episode_return
    assert set(callback._groups) <= before
    env, key = algo.env.for_evaluation(3), jax.random.key(1)
    evaluated = jaxrl.evaluate(algo, CONFIG, policy.state, env, key, greedy=True)
    assert returns.tolist() == evaluated.episode_return.tolist()


@pytest.mark.parametrize("episodes", [3, 20])
def test_more_episodes_than_environments_are_played(monkeypatch, episodes):
    algo, asked = jaxrl.ppo(jaxrl.make("CartPole-v1", 2)), []
    policy = jaxrl.LoadedPolicy(algo, CONFIG, jax.jit(algo.init)(CONFIG, jax.random.key(0)))
    real = type(algo.env).for_evaluation
    monkeypatch.setattr(
        type(algo.env), "for_evaluation", lambda env, num: asked.append(num) or real(env, num)
    )
    returns = play.play_episodes(policy, episodes, 0).episode_return
    assert returns.shape == (episodes,)
    assert (returns >= 1).all()
    assert asked == [min(episodes, 16)]


def test_scores_are_shown_without_a_video_where_none_can_be_written(tmp_path, monkeypatch, capsys):
    def record(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(play, "load_policy", lambda *_, **__: policy)
    monkeypatch.setattr(play, "film", record)
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", 2))
    config = jaxrl.PPOConfig(hidden_sizes=(4,))
    policy = jaxrl.LoadedPolicy(algo, config, algo.init(config, jax.random.key(0)))
    assert play.main([str(tmp_path), "--episodes", "2"]) == 0
    shown = capsys.readouterr()
    assert "return over 2 episodes" in shown.out
    assert "no video: [Errno 30] Read-only" in shown.err
    with pytest.raises(OSError, match="Read-only"):
        play.main([str(tmp_path), "--episodes", "0"])


@pytest.mark.parametrize(
    ("id", "command"),
    [
        ("gymnax/CartPole-v1", "jaxrl play 'a run'"),
        ("gymnasium/own:make", "jaxrl play 'a run' --trust-imports"),
    ],
)
def test_the_command_to_play_trusts_what_the_user_named(id, command):
    assert play.play_command(Path("a run"), id, {}) == command
