"""`--autotune`: the settings that are tried, and those that a resumed run keeps."""

import functools
import json
import re

import pytest

import jaxrl
from jaxrl.cli import train
from jaxrl.cli.flags import autotune as autotune_flags
from jaxrl.cli.flags.train import parse
from jaxrl.training.autotune import AutotuneResult
from jaxrl.training.run_dir import manifest as manifests

ALSO = ("num_envs", "num_minibatches")


def test_each_backend_has_its_own_settings():
    asked = {
        id: autotune_flags.list_settings(jaxrl.make(id, 8), jaxrl.PPOConfig(), ("num_envs",))
        for id in ("gymnax/CartPole-v1", "envpool/Pong-v5", "gymnasium/Acrobot-v1")
    }
    assert [list(knobs) for knobs, _ in asked.values()] == [
        ["devices", "num_envs"],
        ["num_threads", "num_pools", "asynchronous", "num_envs"],
        ["num_pools", "asynchronous", "num_envs"],
    ]
    for knobs, starts in asked.values():
        assert knobs["num_envs"] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
        for start in starts:
            assert all(value in knobs[name] for name, value in start.items())
    with pytest.raises(ValueError, match="DQNConfig has no such field"):
        autotune_flags.list_settings(jaxrl.make("CartPole-v1"), jaxrl.DQNConfig(), ALSO)


def test_a_resumed_run_keeps_its_settings(tmp_path):
    assert autotune_flags.read_chosen(tmp_path, ()) == {}
    options = {"num_threads": 2, "num_pools": 1, "reward_clip": True}
    manifest = {
        "algorithm": "ppo",
        "env": {"id": "envpool/Pong-v5", "num_envs": 4, "options": options},
        "config": {"num_minibatches": 8},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    kept = {"num_threads": 2, "num_pools": 1}
    assert autotune_flags.read_chosen(tmp_path, ()) == kept
    everything = kept | {"num_envs": 4, "num_minibatches": 8}
    assert autotune_flags.read_chosen(tmp_path, ALSO) == everything


def test_trials_build_the_settings_that_they_name(monkeypatch):
    settings = {"devices": 2, "num_envs": 4, "num_minibatches": 8}
    asked = []

    def autotune(build, knobs, starts, report):
        asked.append(list(knobs))
        return AutotuneResult(settings, ())

    monkeypatch.setattr(autotune_flags, "autotune", autotune)
    monkeypatch.setattr(train, "split_cpu", lambda *_: None)  # JAX runs already
    flags = ["--autotune", "--autotune-also", *ALSO, "--env-options", "max_steps_in_episode=7"]
    algo, config, _ = train.prepare(jaxrl.ppo, parse("ppo", flags))
    assert asked == [["devices", *ALSO]]
    assert (algo.env.num_envs, config.num_minibatches) == (4, 8)
    assert algo.lane_axis is not None  # as of agents that are spread over devices
    assert algo.env.options == {"max_steps_in_episode": 7}
    assert algo.name == "ppo"


def test_a_resumed_run_looks_only_for_what_its_manifest_lacks(monkeypatch, tmp_path):
    asked = []

    def autotune(build, knobs, starts, report):
        asked.append((knobs, starts, build(devices=2)[0].env.num_envs))
        return AutotuneResult({"devices": 2}, ())

    monkeypatch.setattr(autotune_flags, "autotune", autotune)
    monkeypatch.setattr(train, "split_cpu", lambda *_: None)
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", 4))
    manifests.write(tmp_path, manifests.describe(algo, jaxrl.PPOConfig(num_minibatches=2), {}))
    flags = ["--autotune", "--autotune-also", *ALSO, "--resume", "--run-dir", str(tmp_path)]
    algo, config, _ = train.prepare(jaxrl.ppo, parse("ppo", flags))
    assert asked == [({"devices": [1, 2]}, [{"devices": 1}], 4)]
    assert (algo.env.num_envs, config.num_minibatches) == (4, 2)
    assert algo.lane_axis is not None  # on two devices


def test_trials_anneal_over_the_updates_that_their_environments_need(monkeypatch):
    """A final coefficient is refused without annealing."""
    configs = []

    def autotune(build, knobs, starts, report):
        configs.append(build(num_envs=4, num_minibatches=4)[1])
        return AutotuneResult({"num_envs": 8, "num_minibatches": 2}, ())

    monkeypatch.setattr(autotune_flags, "autotune", autotune)
    monkeypatch.setattr(train, "split_cpu", lambda *_: None)
    flags = ["--autotune", "--autotune-also", *ALSO, "--final-entropy-coef", "0.001"]
    flags += ["--num-steps", "5", "--total-steps", "200"]
    _, config, _ = train.prepare(jaxrl.a2c, parse("a2c", flags))
    assert [(c.num_minibatches, c.anneal_updates) for c in configs] == [(4, 10)]
    assert (config.num_minibatches, config.anneal_updates) == (2, 5)
    assert config.final_entropy_coef == 0.001


@pytest.mark.slow
def test_a_run_begins_with_short_trials(jaxrl_command, monkeypatch, tmp_path):
    cache = tmp_path / "autotune.json"
    short = functools.partial(autotune_flags.autotune, seconds=0.01, cache=cache)
    monkeypatch.setattr(autotune_flags, "autotune", short)
    monkeypatch.setattr(autotune_flags, "powers_of_two", lambda _: [1])
    finished = jaxrl_command(
        "train", "a2c", "--autotune", "--total-steps", 1, "--num-evaluations", 0, "--num-envs", 2,
        "--hidden-sizes", 4,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert "steps/s with devices 1" in finished.stderr
    chosen = re.search(r"fastest of \d+: devices (\d)", finished.stderr)
    assert chosen is not None
    (kept,) = json.loads(cache.read_text()).values()
    assert kept["best"] == {"devices": int(chosen[1])}
