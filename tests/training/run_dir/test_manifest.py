"""Manifests: from its manifest, a run can be repeated."""

import json
import sys

import gymnasium
import numpy as np
import pytest

import jaxrl
from jaxrl.distributed.spread import spread
from jaxrl.training.run_dir import manifest as manifests

pytestmark = pytest.mark.smoke

CONFIG = jaxrl.PPOConfig(hidden_sizes=(8,))


def saved(algo):
    """Return the manifest of a run as it is read back from JSON."""
    return json.loads(json.dumps(manifests.describe(algo, CONFIG, {})))


def test_options_that_are_tuples_are_restored_as_tuples():
    lake = jaxrl.make("gymnasium/FrozenLake-v1", 4, desc=("SF", "FG"), vectorization_mode="sync")
    algo, config = manifests.rebuild(saved(jaxrl.ppo(lake)))
    assert algo.env == lake
    assert config == CONFIG


def test_options_that_json_cannot_hold_are_refused():
    def make(kind):
        return gymnasium.make("CartPole-v1")

    env = jaxrl.make(make, 2, kind=dict, vectorization_mode="sync")
    with pytest.raises(ValueError, match=r"the option kind=<class 'dict'> of .* cannot be saved"):
        manifests.describe(jaxrl.ppo(env), CONFIG, {})
    env = jaxrl.make("envpool/CartPole-v1", 2, max_episode_steps=np.int64(50))
    assert json.dumps(env.options) == '{"max_episode_steps": 50}'


def test_the_devices_of_the_agent_are_recorded():
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4))
    assert [saved(each)["num_devices"] for each in (algo, spread(algo, 2))] == [1, 2]


def test_what_jaxrl_cannot_make_is_asked_for():
    env = jaxrl.make("CartPole-v1", num_envs=4)
    network = jaxrl.networks.actor_critic(env.observation_space, env.action_space, CONFIG)
    manifest = saved(jaxrl.ppo(env, network))
    with pytest.raises(ValueError, match=r"a network of your own; pass it as network=\.\.\."):
        manifests.rebuild(manifest)
    assert manifests.rebuild(manifest, network)[0].network is network
    manifest["env"]["id"] = "own/Corridor"
    with pytest.raises(ValueError, match=r"own/Corridor, cannot be made again; .* as env=\.\.\."):
        manifests.rebuild(manifest, network)
    assert manifests.rebuild(manifest, network, env=env)[0].env is env
    manifest["algorithm"] = "own"
    with pytest.raises(ValueError, match=r"trained by 'own', .* make_algorithm=\.\.\."):
        manifests.rebuild(manifest, network, env=env)
    with pytest.raises(ValueError, match=r"trained by 'own', but make_algorithm makes 'ppo'"):
        manifests.rebuild(manifest, network, jaxrl.ppo, env)
    make = lambda *args: jaxrl.ppo(*args)._replace(name="own")  # noqa: E731
    assert manifests.rebuild(manifest, network, make, env)[0].name == "own"


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Return a manifest whose environment is in a module that writes a file when it is imported."""
    (tmp_path / "own_module.py").write_text(
        f"import gymnasium, pathlib\n"
        f"pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
        "def make():\n"
        "    return gymnasium.make('CartPole-v1')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    manifest = saved(jaxrl.ppo(jaxrl.make("CartPole-v1", 2)))
    env = {"id": "gymnasium/own_module:make", "num_envs": 2}
    return manifest | {"env": env | {"options": {"vectorization_mode": "sync"}}}


def test_code_that_a_manifest_names_runs_only_if_it_is_trusted(own_module, tmp_path):
    message = r"imports the module 'own_module'\. .* env=.* trust_imports=True \(--trust-imports\)"
    with pytest.raises(ValueError, match=message):
        manifests.rebuild(own_module)
    manifests.rebuild(own_module, env=jaxrl.make("CartPole-v1", 2))
    assert not (tmp_path / "ran").exists()
    assert manifests.rebuild(own_module, trust_imports=True)[0].env.num_envs == 2
    assert (tmp_path / "ran").exists()


def test_a_missing_or_damaged_manifest_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="not a run directory"):
        manifests.read(tmp_path)
    (tmp_path / "best/trial-3").mkdir(parents=True)
    (tmp_path / "best/trial-3/manifest.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"agents of a sweep are runs, such as .*trial-3"):
        manifests.read(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        manifests.read(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["{env}/bin/jaxrl", "train", "ppo"], "jaxrl train ppo"),
        (["bin/jaxrl", "train", "ppo"], "jaxrl train ppo"),
        (["experiments/record.py", "x"], "python experiments/record.py x"),
        (["-m", "jaxrl", "train"], "python -m jaxrl train"),
        ([], "python"),
    ],
)
def test_a_command_names_programs_without_their_place(monkeypatch, tmp_path, arguments, command):
    python = str(tmp_path / "bin" / "python")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", python)
    argv = [python, *(argument.format(env=tmp_path) for argument in arguments)]
    monkeypatch.setattr(sys, "orig_argv", argv)
    assert manifests.provenance()["command"] == command
