"""The state with which a run goes on, a new one or a checkpoint's."""

import shutil
from typing import Any

import jax
import pytest
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl.envs.host import callback
from jaxrl.training import first_state
from jaxrl.training.run_dir.checkpoint import Checkpoints

CONFIG = ToyConfig()
QUIET: dict[str, Any] = {"num_evaluations": 0, "chunk_updates": 2, "progress_bar": False}


def test_a_resume_that_fails_closes_its_simulators(tmp_path, monkeypatch):
    def fail(checkpoints, like, whole):
        raise ValueError("the checkpoint is damaged")

    algo = toy(jaxrl.make("envpool/CartPole-v1", 2))
    jaxrl.run(algo, CONFIG, total_steps=4, run_dir=tmp_path, **QUIET)
    before = set(callback._groups)
    monkeypatch.setattr(Checkpoints, "restore", fail)
    with pytest.raises(ValueError, match="the checkpoint is damaged"):
        jaxrl.run(algo, CONFIG, total_steps=8, run_dir=tmp_path, resume=True, **QUIET)
    assert set(callback._groups) <= before


def test_a_resumed_run_has_one_replay_in_memory(tmp_path, monkeypatch):
    def large_arrays():
        return {id(x) for x in jax.live_arrays() if x.nbytes >= 1_000_000}

    def restore(checkpoints, like, whole):
        kept.append(large_arrays())
        return original(checkpoints, like, whole)

    algo = jaxrl.dqn(jaxrl.make("CartPole-v1", 2))
    config = jaxrl.DQNConfig(replay_size=100_000, hidden_sizes=(8,))
    jaxrl.run(algo, config, total_steps=16, run_dir=tmp_path, **QUIET)
    original, kept = Checkpoints.restore, [large_arrays()]
    monkeypatch.setattr(Checkpoints, "restore", restore)
    result = jaxrl.run(algo, config, total_steps=32, run_dir=tmp_path, resume=True, **QUIET)
    assert kept[1] <= kept[0]
    assert large_arrays() - kept[0]  # the replay is one
    assert result.summary["updates"] == 16


def test_a_resumed_run_without_a_checkpoint_says_that_it_begins_anew(tmp_path, capsys):
    arguments: dict[str, Any] = QUIET | {"total_steps": 16, "progress_bar": True}
    jaxrl.run(toy(), CONFIG, run_dir=tmp_path, **arguments)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "summary.json").unlink()  # as after a kill
    capsys.readouterr()
    jaxrl.run(toy(), CONFIG, run_dir=tmp_path, resume=True, **arguments)
    assert "there is no checkpoint: the run begins anew" in capsys.readouterr().err


def test_a_run_says_once_that_devices_are_unused(monkeypatch, capsys):
    monkeypatch.setattr(first_state, "describe_unused", lambda used, _: f"uses {used} of 4")
    for progress_bar in (True, False):
        arguments = QUIET | {"progress_bar": progress_bar}
        jaxrl.run(toy(), CONFIG, total_steps=40, **arguments)
        assert capsys.readouterr().err.count("uses 1 of 4") == progress_bar
