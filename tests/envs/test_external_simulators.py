"""DeepMind Lab, Habitat and House3D, with stand-ins that have the same calls."""

import random
import sys
import types
from typing import Any

import env_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_algorithms import train

import jaxrl
from jaxrl.envs import external_simulators
from jaxrl.envs.gymnasium import _spec

N = 2
LIMIT = 5  # steps of an episode


class OldSpace(types.SimpleNamespace):
    """A stand-in for a space of OpenAI's Gym."""


def box(*shape, high=255.0, dtype=np.uint8):
    low, high = np.zeros(shape), np.full(shape, high)
    return OldSpace(low=low, high=high, shape=shape, dtype=np.dtype(dtype))


class Lab:
    """A stand-in for `deepmind_lab.Lab`, with episodes of `LIMIT` steps of four frames."""

    def __init__(self, level, observations, config):
        assert level == "some_level"
        assert observations == ["RGB_INTERLACED"]
        self.shape = (int(config["height"]), int(config["width"]), 3)
        self.frames = 4 * LIMIT

    def reset(self, episode=-1, seed=None):
        assert type(seed) is int
        self.frames, self.shade = 0, seed % 200

    def is_running(self):
        return self.frames < 4 * LIMIT

    def observations(self):
        if not self.is_running():
            raise RuntimeError("Environment in wrong status for call to observations()")
        return {"RGB_INTERLACED": np.full(self.shape, self.shade + self.frames // 4, np.uint8)}

    def step(self, action, num_steps=1):
        assert (action.shape, action.dtype) == ((7,), np.intc)
        assert self.is_running()
        self.frames += num_steps
        return float(action[3])  # moving forward pays

    def close(self):
        return True


class HabitatTask:
    """A stand-in for a task of habitat-lab; its action 0 is "stop"."""

    observation_space = OldSpace(
        spaces={"rgb": box(4, 6, 3), "pointgoal": box(2, high=9.0, dtype=np.float32)}
    )
    action_space = OldSpace(n=4)

    def seed(self, seed):
        self.seeded = seed

    def reset(self):
        self.time = 0
        return self.obs()

    def obs(self):
        rgb = np.full((4, 6, 3), self.time, np.uint8)
        return {"rgb": rgb, "pointgoal": np.array([self.time, self.seeded % 9], np.float32)}

    def step(self, action):
        self.time += 1
        return self.obs(), 0.5, action == 0 or self.time == LIMIT, {"success": 0.0}

    def render(self, mode):
        return np.zeros((4, 6, 3), np.uint8)

    def close(self):
        pass


class RoomNavTask:
    """A stand-in for House3D's task; like House3D, it uses the global random generator."""

    observation_space = box(8, 6, 4, dtype=np.float32)  # width first, as it says
    action_space = OldSpace(n=13)

    def __init__(self, env, hardness, max_steps, discrete_action):
        assert env == ("houses", ["a", "b"], {"colorFile": "x"})
        assert discrete_action
        self.max_steps = max_steps

    def reset(self, target=None):
        self.time, self.house = 0, random.randrange(200)
        return np.full((6, 8, 4), self.house, np.uint8)

    def step(self, action):
        self.time += 1
        obs = np.full((6, 8, 4), self.house, np.uint8)
        return obs, 10.0 * (action == 12), action == 12 or self.time == self.max_steps, {}


def add_module(monkeypatch, name, **contents):
    module: Any = types.ModuleType(name)
    module.__dict__.update(contents)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def simulators(monkeypatch):
    add_module(monkeypatch, "deepmind_lab", Lab=Lab)
    environment = types.SimpleNamespace(max_episode_steps=LIMIT)
    chosen = types.SimpleNamespace(habitat=types.SimpleNamespace(environment=environment))

    def get_config(path, overrides):
        assert (path, overrides) == ("some.yaml", ["habitat.dataset.split=val"])
        return chosen

    add_module(monkeypatch, "habitat", get_config=get_config)
    add_module(monkeypatch, "habitat.gym", make_gym_from_config=lambda config: HabitatTask())
    add_module(
        monkeypatch,
        "House3D",
        MultiHouseEnv=lambda api, houses, config: ("houses", houses, config),
        load_config=lambda path: {"colorFile": "x"},
        objrender=types.SimpleNamespace(RenderAPI=lambda w, h, device: (w, h)),
    )
    add_module(monkeypatch, "House3D.roomnav", RoomNavTask=RoomNavTask)
    yield
    _spec.cache_clear()


OPTIONS: dict[str, dict[str, Any]] = {
    "deepmind_lab": {"level": "some_level", "width": 8, "height": 6},
    "habitat": {"config": "some.yaml", "overrides": ("habitat.dataset.split=val",)},
    "house3d": {"houses": ("a", "b"), "width": 8, "height": 6, "max_steps": LIMIT},
}


def make(name, num_envs=N):
    id = f"gymnasium/jaxrl.envs.external_simulators:{name}"
    return jaxrl.make(id, num_envs, vectorization_mode="sync", **OPTIONS[name])


def played(name, actions):
    return env_cases.played(make(name), jnp.tile(jnp.asarray(actions, jnp.int32)[:, None], (1, N)))


@pytest.mark.usefixtures("simulators")
@pytest.mark.parametrize("name", OPTIONS)
def test_simulators_keep_the_contract(name):
    jaxrl.check_env(make(name), num_steps=20)


@pytest.mark.usefixtures("simulators")
def test_an_agent_learns_from_observations_of_several_parts():
    config = jaxrl.A2CConfig(num_steps=4, torso="mlp", hidden_sizes=(8,))
    _, metrics = train(jaxrl.a2c(make("habitat")), config, jax.random.key(0), 2)
    assert np.isfinite(metrics["loss"]).all()


@pytest.mark.usefixtures("simulators")
def test_deepmind_lab_pays_and_terminates():
    assert make("deepmind_lab").observation_space == jaxrl.Box.of((6, 8, 3), np.uint8, 0, 255)
    steps = played("deepmind_lab", [0, 1, 6, 8, 2, 0, 0])
    np.testing.assert_array_equal(steps.reward[:, 0], [0, 1, -1, 1, 0, 0, 0, 1])
    np.testing.assert_array_equal(steps.terminated[:, 0], [0, 0, 0, 0, 0, 1, 0, 0])
    assert not steps.truncated.any()
    shade = steps.obs[:, 0, 0, 0, 0].astype(int)
    np.testing.assert_array_equal(shade[:6] - shade[0], [0, 1, 2, 3, 4, 4])


@pytest.mark.usefixtures("simulators")
def test_habitat_truncates_at_its_limit_and_draws():
    env = make("habitat")
    assert env.action_space == jaxrl.Discrete(4)
    steps = played("habitat", [1, 1, 1, 1, 1, 1, 2, 0, 0])
    np.testing.assert_array_equal(steps.truncated[:, 0], [0, 0, 0, 0, 0, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(steps.terminated[:, 0], [0, 0, 0, 0, 0, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(steps.obs["pointgoal"][:6, 0, 0], range(6))
    picture = env.for_rendering()
    assert picture.render(picture.init(jax.random.key(0))[0]).shape == (4, 6, 3)


@pytest.mark.usefixtures("simulators")
def test_house3d_pays_and_needs_houses():
    steps = played("house3d", [0, 12, 0, 0, 0, 0, 0, 0])
    assert steps.obs.shape == (9, N, 6, 8, 4)
    np.testing.assert_array_equal(steps.reward[:4, 0], [0, 0, 10, 0])
    np.testing.assert_array_equal(steps.terminated[:, 0], [0, 0, 1, 0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(steps.truncated[:, 0], [0, 0, 0, 0, 0, 0, 0, 0, 1])
    with pytest.raises(ValueError, match="house3d needs houses"):
        external_simulators.house3d()


@pytest.mark.parametrize(
    ("name", "module"),
    [("deepmind_lab", "deepmind_lab"), ("habitat", "habitat"), ("house3d", "House3D")],
)
def test_a_missing_simulator_is_an_import_error_with_its_name(name, module):
    with pytest.raises(
        ImportError, match=f"cannot run on this machine: No module named '{module}'"
    ):
        make(name)
