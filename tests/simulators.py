"""Gymnasium environments with known answers or known faults, for tests."""

import multiprocessing
import os
import random
import signal
import subprocess
import time
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, OneOf, Text
from gymnasium.vector import AutoresetMode, SyncVectorEnv

LENGTH = 3


class Counting(gymnasium.Env):
    """An environment that shows its time and episode, pays the action and ends after `length`."""

    observation_space = Box(0, 1000, (2,), np.float32)
    action_space = Discrete(5)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012

    def __init__(self, length=LENGTH, truncates=False, render_mode=None):
        self.length, self.truncates, self.render_mode = length, truncates, render_mode
        self.episode = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.episode = 0, self.episode + 1
        return self.obs(), {}

    def step(self, action):
        self.time += 1
        ended = self.time == self.length
        return self.obs(), float(action), ended and not self.truncates, ended, {}

    def obs(self):
        return np.array([self.time, self.episode], np.float32)

    def render(self):
        return np.full((4, 6, 3), self.time, np.uint8)


class Drawing(Counting):
    """An environment that draws from the global generators of NumPy and Python."""

    def obs(self):
        return np.array([np.random.random(), random.random()], np.float32)  # noqa: NPY002


class Undrawable(Counting):
    """A simulator that ends its process where it should draw."""

    def render(self):
        raise SystemExit("no brush")


class Unpictured(Counting):
    """A simulator that takes `render_mode`, but has Gymnasium's own `render`."""

    def render(self):
        return gymnasium.Env.render(self)


class Faulty(Counting):
    """An environment with a `fault` in the third step, or in the second reset."""

    def __init__(self, fault):
        super().__init__(length=2 if fault == "reset" else 100)
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        if self.fault == "reset" and self.episode == 1:
            raise ZeroDivisionError("no way back")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if self.time == 3:
            match self.fault:
                case "step":
                    raise ZeroDivisionError("a wheel came off")
                case "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "hang":
                    time.sleep(1000)
        return obs, reward, terminated, truncated, info


class OfVariable(Counting):
    """An environment whose length is an environment variable."""

    def __init__(self):
        super().__init__(length=int(os.environ["JAXRL_TEST_LENGTH"]))


class WithProgram(Counting):
    """An environment that ends a program of its own in each reset."""

    def reset(self, *, seed=None, options=None):
        with subprocess.Popen(["sleep", "1000"]) as program:
            program.terminate()
        fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
        fork.start()
        fork.terminate()
        fork.join()
        return super().reset(seed=seed, options=options)


class Old:
    """An environment with OpenAI Gym's interface before 0.26: `seed`, a step of four values."""

    metadata: ClassVar = {"render.modes": []}

    def __init__(self):
        from gym.spaces import Box, Discrete

        self.observation_space = Box(0, 1000, (2,), np.float32)
        self.action_space = Discrete(5)

    def seed(self, seed):
        self.seeded = seed % 100

    def reset(self):
        self.time = 0
        return np.array([0, self.seeded], np.float32)

    def step(self, action):
        self.time += 1
        info = {"TimeLimit.truncated": True} if self.time == 4 else {}
        obs = np.array([self.time, self.seeded], np.float32)
        return obs, float(action), action == 4 or self.time == 4, info

    def close(self):
        pass


def old():
    from shimmy.openai_gym_compatibility import GymV21CompatibilityV0

    return GymV21CompatibilityV0(env=Old())


def last_gym():
    from shimmy.openai_gym_compatibility import GymV26CompatibilityV0

    # Gym's own checker uses what NumPy 2 no longer has.
    return GymV26CompatibilityV0("CartPole-v1", make_kwargs={"disable_env_checker": True})


class Changing(Counting):
    """An environment whose observation space is another one when it is made again."""

    def __init__(self, marker):
        super().__init__()
        if os.path.exists(marker):
            self.observation_space = Box(0, 9, (2,), np.float32)
        open(marker, "w").close()


def batch(num_envs, mode, length=LENGTH, render_mode=None):
    """Return a batched simulator with one of Gymnasium's autoreset modes."""
    make = [lambda: Counting(length, render_mode=render_mode)] * num_envs
    return SyncVectorEnv(make, autoreset_mode=AutoresetMode[mode])


class WrongBatch(SyncVectorEnv):
    """A batched simulator whose steps have a wrong value."""

    wrong: ClassVar[dict[str, Any]] = {
        "obs": np.zeros((2, 3), np.float32),
        "reward": np.array([0.0, np.nan]),
        "terminated": np.array(["no", "no"]),
        "truncated": None,
    }

    def __init__(self, num_envs, part):
        super().__init__([Counting] * num_envs)
        self.part = part

    def step(self, actions):
        names = ("obs", "reward", "terminated", "truncated")
        *values, info = super().step(actions)
        return *(
            dict(zip(names, values, strict=True)) | {self.part: self.wrong[self.part]}
        ).values(), info


def counted(*shape):
    return np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)


class Spaced(gymnasium.Env):
    """An environment that shows a fixed element of a space and pays the action."""

    def __init__(self, kind):
        self.observation_space, self.shown = {
            "discrete": (Discrete(3, start=5), 6),
            "multi-discrete": (MultiDiscrete([2, 3]), np.array([1, 0])),
            "grid": (
                MultiDiscrete(np.array([[2, 3], [1, 2]]), start=np.array([[4, 0], [0, -1]])),
                np.array([[5, 0], [0, -1]]),
            ),
            "long": (Box(0, 4, (2,), np.int64), np.array([4, 1])),
            "longer": (Box(0, 2**40, (1,), np.int64), np.array([2**33])),
            "multi-binary": (MultiBinary(3), np.array([1, 0, 1], np.int8)),
            "double": (Box(-1, 1, (2,), np.float64), np.array([0.5, -0.5])),
            "bool": (Box(0, 1, (2,), cast(Any, bool)), np.array([True, False])),
            "image": (Box(0, 255, (5, 4, 3), np.uint8), counted(5, 4, 3)),
            "stack": (Box(0, 255, (2, 5, 4, 3), np.uint8), counted(2, 5, 4, 3)),
            "planes": (Box(0, 255, (2, 3, 5, 4), np.uint8), counted(2, 3, 5, 4)),
            "parts": (
                Dict({"none": Box(0, 1, (0,)), "some": Box(0, 1, (2,))}),
                {"none": np.zeros(0, np.float32), "some": np.array([0, 1], np.float32)},
            ),
            "numbered": (
                Dict(cast(Any, {1: Box(0, 1, (2,)), 2: Discrete(3)})),
                {1: np.array([0, 1], np.float32), 2: 2},
            ),
            "text": (Text(4), "abcd"),
            "one-of": (OneOf((Discrete(2), Box(0, 1, (2,)))), (0, 1)),
            "empty": (Box(0, 1, (0,)), np.zeros(0, np.float32)),
        }[kind]
        self.action_space = Discrete(2, start=3)

    def reset(self, *, seed=None, options=None):
        return self.shown, {}

    def step(self, action):
        return self.shown, float(action), False, False, {}
