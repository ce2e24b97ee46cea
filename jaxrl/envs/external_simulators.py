"""Simulators that must be built from source, as functions for `jaxrl.make`.

DeepMind Lab (Beattie et al. 2016; build its pip package with bazel as
https://github.com/google-deepmind/lab/tree/master/python/pip_package says), with the settings of
IMPALA and R2D2:

    jaxrl.make(
        "gymnasium/jaxrl.envs.external_simulators:deepmind_lab", 32,
        level="explore_goal_locations_small",
    )

Habitat (Savva et al. 2019; `conda install habitat-sim headless -c conda-forge -c aihabitat`, then
habitat-lab from https://github.com/facebookresearch/habitat-lab, and its scenes):

    jaxrl.make(
        "gymnasium/jaxrl.envs.external_simulators:habitat", 16,
        config="benchmark/nav/pointnav/pointnav_gibson.yaml",
    )

House3D (Wu et al. 2018; build https://github.com/facebookresearch/House3D, and get SUNCG's houses):

    jaxrl.make(
        "gymnasium/jaxrl.envs.external_simulators:house3d", 16,
        config="config.json", houses=("id",),
    )

The adapters follow the interfaces of these repositories. Their tests use stand-ins with the same
calls and spaces, not the simulators themselves.
"""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LAB_ACTIONS = (
    (0, 0, 0, 1, 0, 0, 0),  # forward
    (0, 0, 0, -1, 0, 0, 0),  # backward
    (0, 0, -1, 0, 0, 0, 0),  # strafe left
    (0, 0, 1, 0, 0, 0, 0),  # strafe right
    (-20, 0, 0, 0, 0, 0, 0),  # look left
    (20, 0, 0, 0, 0, 0, 0),  # look right
    (-20, 0, 0, 1, 0, 0, 0),  # forward and look left
    (20, 0, 0, 1, 0, 0, 0),  # forward and look right
    (0, 0, 0, 0, 1, 0, 0),  # fire
)
"""Buttons of each action: look, look up, strafe, move, fire, jump, crouch (Espeholt et al. 2018,
table D.2)."""


class DeepmindLab(gymnasium.Env):
    """A level of DeepMind Lab with IMPALA's settings: 72x96 pixels, nine actions.

    Every end of an episode is a termination: Lab does not report whether success or the time limit
    caused it.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(
        self,
        level: str = "explore_goal_locations_small",
        width: int = 96,
        height: int = 72,
        frame_skip: int = 4,
        render_mode: str | None = None,
    ):
        import deepmind_lab

        self._lab = deepmind_lab.Lab(
            level, ["RGB_INTERLACED"], config={"width": str(width), "height": str(height)}
        )
        self._frame_skip = frame_skip
        self._picture = np.zeros((height, width, 3), np.uint8)
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, 255, self._picture.shape, np.uint8)
        self.action_space = spaces.Discrete(len(LAB_ACTIONS))

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._lab.reset(seed=int(self.np_random.integers(2**31)))
        self._observe()
        return self._picture, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        buttons = np.array(LAB_ACTIONS[int(action)], np.intc)
        reward = self._lab.step(buttons, num_steps=self._frame_skip)
        ended = not self._lab.is_running()
        if not ended:  # Lab gives no observations after an end
            self._observe()
        return self._picture, float(reward), ended, False, {}

    def _observe(self) -> None:
        self._picture = self._lab.observations()["RGB_INTERLACED"]

    def render(self) -> np.ndarray:
        return self._picture

    def close(self) -> None:
        self._lab.close()


deepmind_lab = DeepmindLab


class GymTask(gymnasium.Env):
    """A task with OpenAI Gym's interface, whose `done` is a truncation at step `limit`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, task: Any, limit: int, observation_space: spaces.Space, render_mode: Any):
        self._task, self._limit, self._time = task, limit, 0
        self.render_mode = render_mode
        self.observation_space = observation_space
        self.action_space = convert_space(task.action_space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            # Habitat and House3D also draw from the global generators.
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            if hasattr(self._task, "seed"):
                self._task.seed(seed)
        self._time = 0
        return self._task.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, done, info = self._task.step(action)
        self._time += 1
        truncated = done and self._time >= self._limit
        return obs, reward, done and not truncated, truncated, info

    def render(self) -> np.ndarray:
        return self._task.render(mode="rgb_array")

    def close(self) -> None:
        if hasattr(self._task, "close"):
            self._task.close()


def habitat(
    config: str = "benchmark/nav/pointnav/pointnav_habitat_test.yaml",
    overrides: tuple[str, ...] = (),
    render_mode: str | None = None,
) -> gymnasium.Env:
    """Make a task of habitat-lab (0.2.3 or newer).

    Args:
      config: path of a configuration file of habitat-lab.
      overrides: changes of the configuration, such as `"habitat.dataset.split=val"`.
    """
    from habitat import get_config
    from habitat.gym import make_gym_from_config

    chosen = get_config(config, overrides=list(overrides))
    task = make_gym_from_config(chosen)
    limit = int(chosen.habitat.environment.max_episode_steps)
    return GymTask(task, limit, convert_space(task.observation_space), render_mode)


def house3d(
    config: str = "config.json",
    houses: tuple[str, ...] = (),
    width: int = 120,
    height: int = 90,
    max_steps: int = 500,
    hardness: float | None = None,
    render_mode: str | None = None,
) -> gymnasium.Env:
    """Make House3D's RoomNav: find a room of a given kind, with 13 actions.

    Args:
      config: path of a configuration file of House3D.
      houses: SUNCG's ids of the houses; each episode is in one of them.
      max_steps: time limit of an episode.
      hardness: in (0, 1], how far from the target episodes begin; None for anywhere.
    """
    from House3D import MultiHouseEnv, load_config, objrender
    from House3D.roomnav import RoomNavTask

    if not houses:
        raise ValueError("house3d needs houses=(id, ...), with the ids of SUNCG")
    api = objrender.RenderAPI(w=width, h=height, device=0)
    env = MultiHouseEnv(api, list(houses), load_config(config))
    task = RoomNavTask(env, hardness=hardness, max_steps=max_steps, discrete_action=True)
    # The declared space has floats, and width before height. The pictures have neither.
    channels = task.observation_space.shape[-1]
    space = spaces.Box(0, 255, (height, width, channels), np.uint8)
    return GymTask(task, max_steps, space, render_mode)


def convert_space(space: Any) -> spaces.Space:
    """Convert a space of OpenAI's Gym to one of Gymnasium."""
    if hasattr(space, "spaces"):
        return spaces.Dict({name: convert_space(part) for name, part in space.spaces.items()})
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n))
    return spaces.Box(space.low, space.high, space.shape, space.dtype)
