"""`jaxrl train`: runs of a few updates, and flags that are refused before anything is trained."""

import functools
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
from simulators import Faulty

import jaxrl
from jaxrl.cli import train
from jaxrl.training.loggers import read_jsonl

ROOT = Path(__file__).parents[2]
SMALL = (
    "--num-envs", 2, "--num-steps", 4, "--total-steps", 8, "--num-evaluations", 0, "--run-dir",
    "run",
)  # fmt: skip
TINY = {
    "ppo": ("--num-minibatches", 2, "--num-epochs", 1),
    "a2c": (),
    "impala": (),
    "dqn": ("--replay-size", 100, "--batch-size", 2),
    "r2d2": ("--replay-size", 200, "--batch-size", 2, "--core-size", 8),
}


def read(directory, name):
    return json.loads((directory / f"{name}.json").read_text())


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize(
    "algorithm",
    [
        name if name in ("ppo", "dqn") else pytest.param(name, marks=pytest.mark.slow)
        for name in TINY
    ],
)
def test_every_algorithm_is_trained(jaxrl_command, tmp_path, algorithm):
    finished = jaxrl_command("train", algorithm, *SMALL, *TINY[algorithm], "--hidden-sizes", 8)
    assert finished.returncode == 0, finished.stderr
    summary = read(tmp_path / "run", "summary")
    assert summary["algorithm"] == algorithm
    assert summary["updates"] >= 1


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compilation")
def test_ppo_is_trained_on_atari_and_filmed(jaxrl_command, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "record_episode", lambda *args: (args[1], 0.0, 1))
    finished = jaxrl_command(
        "train", "ppo", "--preset", "laptop", *SMALL, *TINY["ppo"], "--total-steps", 16, "--video",
        "--torso", "mlp", "--hidden-sizes", 4,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert "steps_per_second" in finished.stdout
    assert "video: run/video/seed1.mp4, 1 steps, score 0" in finished.stdout
    assert [row["update"] for row in read_jsonl(tmp_path / "run" / "metrics.jsonl")] == [1, 2]
    manifest = read(tmp_path / "run", "manifest")
    options = manifest["env"]["options"]
    assert options["episodic_life"] is True
    assert options["img_height"] == 42
    assert manifest["config"]["anneal_updates"] == 2


def test_presets_are_the_defaults_of_flags():
    args = train.parse("a2c", ["--gamma", "0.9", "--preset=ga3c", "--no-reward-clip"])
    assert (args.config.gamma, args.config.learning_rate) == (0.9, 3e-4)
    assert (args.reward_clip, args.episodic_life, args.anneal) == (False, True, False)
    assert train.parse("a2c", ["--preset", "baselines"]).config.learning_rate == 7e-4


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "takes an algorithm first, one of ppo, a2c, impala, dqn, r2d2, got 'nothing'"),
        (["sarsa"], "got 'sarsa'; --list shows the presets"),
        (["ppo", "--preset=other"], "'other'"),
        (["ppo", "--preset", "cartpole", "--episodic-life"], "--episodic-life"),
    ],
)
def test_unknown_names_are_refused(jaxrl_command, argv, message):
    finished = jaxrl_command("train", *argv)
    assert finished.returncode != 0
    assert message in finished.stdout + finished.stderr


def test_presets_are_listed(jaxrl_command):
    shown = jaxrl_command("train", "--list").stdout
    assert "\nimpala\n  cartpole         CartPole-v1, 500,000 steps: classic control\n" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env-id", "Pnog-v5"], "did you mean .*envpool/Pong-v5"),
        (["--num-pools", "3"], "8 environments cannot be split over 3 pools"),
        (["--env-options", "num_envs=4"], "--env-options cannot set num_envs; use --num-envs"),
        (["--env-options", "a"], "--env-options takes name=value, got 'a'"),
        (["--seed", str(10**20)], "seed must be an integer from 0"),
        (["--num-hosts", "2"], "need --coordinator address:port"),
        (["--autotune-also", "num_envs"], "--autotune-also needs --autotune"),
        (["--devices", "2", "--autotune"], "leave out --devices"),
        (["--devices", "0"], "--devices must be >= 1, got 0"),
        (["--gamma", "1.5"], r"gamma must be within \[0, 1\], got 1.5"),
        (["--num-envs", "3", "--num-minibatches", "5"], "num_minibatches = 5"),
        (["--env-id", "CartPole-v1", "--torso", "nature_cnn"], "(episodic_life|nature_cnn)"),
    ],
)
def test_bad_flags_end_in_one_line(monkeypatch, capsys, caplog, tmp_path, arguments, message):
    """With experiments/ppo_atari.py, whose flags these are."""
    caplog.set_level("ERROR", "jax._src.callback")  # training changes it
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ppo_atari.py", *arguments, "--total-steps", "10"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "experiments" / "ppo_atari.py"), run_name="__main__")
    assert re.search(message, f"{ended.value.code}{capsys.readouterr()}")
    assert not (tmp_path / "runs").exists()


def test_a_failing_simulator_is_one_message(jaxrl_command, monkeypatch, tmp_path):
    (tmp_path / "own.py").write_text(
        "import gymnasium\n"
        "class Broken(gymnasium.Wrapper):\n"
        "    def step(self, action):\n"
        "        raise ZeroDivisionError('a wheel came off')\n"
        "def make_broken():\n"
        "    return Broken(gymnasium.make('CartPole-v1'))\n"
    )
    finished = jaxrl_command(
        "train", "ppo", "--env-id", "gymnasium/own:make_broken", *SMALL, *TINY["ppo"],
        "--anneal-updates", 7,
    )  # fmt: skip
    assert finished.returncode == 1
    message = finished.stderr[finished.stderr.index("error: ") :]
    assert re.match(r"error: environment [01] failed:", message)  # in the order of their failures
    assert message.count("ZeroDivisionError: a wheel came off") == 2  # in both
    assert finished.stderr.count("Traceback") == 2
    assert read(tmp_path / "run", "manifest")["config"]["anneal_updates"] == 7


def test_a_run_that_cannot_be_filmed_is_not_trained(jaxrl_command, monkeypatch):
    env = jaxrl.make(functools.partial(Faulty, "step"), 2)  # takes no `render_mode`
    monkeypatch.setattr(train, "make", lambda *_, **__: env)
    monkeypatch.setattr(train, "run", lambda *_, **__: pytest.fail("it was trained"))
    finished = jaxrl_command("train", "ppo", *SMALL, "--video")
    assert re.search(r"refuses the options \{'render_mode'", finished.stderr)


def test_an_annealed_run_cannot_be_extended(monkeypatch, tmp_path):
    config, manifest = jaxrl.PPOConfig(anneal_updates=10), {"config": {"anneal_updates": 10}}
    monkeypatch.setattr(train.manifests, "read", lambda run_dir: manifest)
    train.check_annealing(tmp_path, config.replace(anneal_updates=20))
    (tmp_path / "manifest.json").touch()
    train.check_annealing(tmp_path, config)
    with pytest.raises(ValueError, match=r"falls to 0 over its 10 updates, .* extended to 20;"):
        train.check_annealing(tmp_path, config.replace(anneal_updates=20))
