"""Environments of every backend, and their trajectories under random actions, for tests."""

import functools
import importlib.metadata
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from packaging.version import Version

import jaxrl
from jaxrl.envs.check import jit_play, random_actions

# ViZDoom of envpool 1.2.5 may wait forever when a pool is made in a process with many threads, and
# its MuJoCo needs OpenGL to draw.
HAS_NEW_ENVPOOL = Version(importlib.metadata.version("envpool")) >= Version("1.2.7")
needs_new_envpool = pytest.mark.skipif(not HAS_NEW_ENVPOOL, reason="needs envpool >= 1.2.7")

N = 3  # environments stepped together


class Case(NamedTuple):
    """An environment, and how its episodes end."""

    id: str
    num_steps: int
    ends: str  # "terminated", "truncated" or "both", within `num_steps`
    length: int = 0  # of its episodes, where that is fixed
    options: Mapping[str, Any] = MappingProxyType({})

    def make(self, num_envs: int = N) -> Any:
        return jaxrl.make(self.id, num_envs, **self.options)


SMALL: dict[str, Any] = {"img_height": 36, "img_width": 36}
LIFE: dict[str, Any] = SMALL | {"episodic_life": True, "reward_clip": True}
SYNC = {"vectorization_mode": "sync"}


def limited(id: str, steps: int, **options: Any) -> Case:
    """Return a case whose episodes are all truncated after `steps`."""
    name = "max_steps_in_episode" if id.startswith("gymnax") else "max_episode_steps"
    return Case(id, 2 * steps + 4, "truncated", steps, {name: steps} | options)


CASES = {
    "gymnax-cartpole": Case("gymnax/CartPole-v1", 60, "terminated"),
    "gymnax-cartpole-limit": limited("gymnax/CartPole-v1", 5),
    "gymnax-breakout": Case(
        "gymnax/Breakout-MinAtar",
        60,
        "both",
        options={"max_steps_in_episode": 12, "repeat_action_probability": 0.25},
    ),
    "gymnax-pendulum-limit": limited("gymnax/Pendulum-v1", 6),
    "envpool-cartpole": Case("envpool/CartPole-v1", 60, "terminated"),
    "envpool-cartpole-limit": limited("envpool/CartPole-v1", 5),
    "envpool-pendulum-limit": limited("envpool/Pendulum-v1", 6),
    "envpool-pong-limit": limited("envpool/Pong-v5", 7, **LIFE),
    "envpool-breakout-life": Case("envpool/Breakout-v5", 100, "terminated", options=LIFE),
    "envpool-mujoco-limit": limited("envpool/HalfCheetah-v4", 6),
    "envpool-box2d": Case("envpool/LunarLander-v2", 130, "terminated"),
    "envpool-minigrid": limited("envpool/MiniGrid-DoorKey-5x5-v0", 6),
    "envpool-vizdoom-limit": limited("envpool/D1Basic-v1", 6, **SMALL),
    "envpool-jumanji": Case("envpool/Jumanji/Minesweeper-v0", 60, "terminated"),
    "maze": Case(
        "maze/FindAndReturn-v0", 150, "both", options={"size": 5, "max_episode_steps": 30}
    ),
    "gymnasium-cartpole": Case("gymnasium/CartPole-v1", 60, "terminated"),
    "gymnasium-pendulum-limit": limited("gymnasium/Pendulum-v1", 6, **SYNC),
    "gymnasium-box2d": Case("gymnasium/LunarLander-v3", 130, "terminated", options=SYNC),
    "gymnasium-mujoco-limit": limited("gymnasium/HalfCheetah-v5", 6, **SYNC),
    "gymnasium-tuple": Case("gymnasium/Blackjack-v1", 20, "terminated", options=SYNC),
    "gymnasium-breakout-life": Case("gymnasium/ALE/Breakout-v5", 100, "terminated", options=LIFE),
    "probe-contextual": Case("probe/Contextual-v0", 8, "terminated", 1),
    "probe-time-limit": Case("probe/TimeLimit-v0", 12, "truncated", 4, {"limit": 4}),
    "probe-target": Case("probe/Target-v0", 8, "terminated", 1),
}
if not HAS_NEW_ENVPOOL:
    del CASES["envpool-vizdoom-limit"]
HOST = [name for name in CASES if name.startswith(("envpool", "gymnasium"))]
ATARI = ("envpool-pong-limit", "envpool-breakout-life", "gymnasium-breakout-life")


def actions_of(name: str) -> np.ndarray:
    """Return the random actions of a case, `[num_steps, N, ...]`."""
    return random_actions(CASES[name].make(), 1, CASES[name].num_steps)


def played(env: jaxrl.Env, actions: Any, seed: int = 0) -> Any:
    """Return the time steps of playing `actions` `[T, N, ...]`, as arrays of NumPy.

    They equal `jit_play`'s, but no program holds them all: compiled without optimization, one
    copies every frame of a game in each step.
    """
    init_key, step_key = jax.random.split(jax.random.key(seed))
    state, timestep = jax.jit(env.init)(init_key)
    step, steps = jax.jit(env.step), [timestep]
    for key, action in zip(jax.random.split(step_key, len(actions)), actions, strict=True):
        state, timestep = step(key, state, action)
        steps.append(timestep)
    return jax.tree.map(lambda *xs: np.stack(xs), *steps)


def member(tree: Any, index: int) -> Any:
    """Return a member of a tree whose leaves lead with the population."""
    return jax.tree.map(lambda x: x[index], tree)


@functools.cache
def trajectory_of(name: str) -> jaxrl.TimeStep:
    """Return the time steps of a case, `[num_steps + 1, N, ...]`."""
    return play(name, actions_of(name))


def play(name: str, actions: Any, seed: int = 0) -> Any:
    """Return the time steps of playing `actions` in a case, by the program that is cheapest."""
    if name in ATARI:
        return played(CASES[name].make(), actions, seed)
    steps = jit_play(CASES[name].make(), jax.random.key(seed), actions)
    return jax.tree.map(np.asarray, steps)


def assert_same(actual: Any, expected: Any, exact: bool = True) -> None:
    """Assert that two trees are equal, up to rounding if not `exact`."""

    def compare(x, y):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-4)

    jax.tree.map(compare, actual, expected)


def differ(a: Any, b: Any) -> bool:
    """Return True if any leaf of two trees differs."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return any(not np.array_equal(x, y) for x, y in pairs)
