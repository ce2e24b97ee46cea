"""The code of worker processes (`jaxrl.envs.host.vector_pool`), each of which runs one environment.

The functions are sent to the workers as code (`cloudpickle.register_pickle_by_value`), so that a
worker does not import JAX. They use no other module of jaxrl.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def start(make: Callable[[], gymnasium.Env], owner: int) -> gymnasium.Env:
    """Make an environment that checks itself.

    Args:
      make: makes the environment.
      owner: number of the process that owns the worker; it may also call this function itself.
    """
    if os.getpid() != owner:
        ignore_signals()
        threading.Thread(target=exit_with_owner, daemon=True).start()
    env = make()
    if not isinstance(env, gymnasium.Env):
        raise TypeError(
            f"a function must return a gymnasium.Env, got {type(env).__name__}; register an "
            "environment with gymnax's interface by gymnax.register(id, factory)"
        )
    return Checked(env)


def ignore_signals() -> None:
    """Ignore signals, which terminals and clusters send to all processes: the owner decides."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def exit_with_owner() -> None:
    """Exit when the owner ends in any way, even while the environment hangs."""
    owner = multiprocessing.parent_process()
    if owner is not None:
        multiprocessing.connection.wait([owner.sentinel])
        os._exit(1)


class Checked(gymnasium.Wrapper):
    """An environment that raises errors for bad steps, which Gymnasium would convert."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, _ = self.env.reset(seed=seed, options=options)
        check(self.observation_space, obs, "reset: obs")
        return obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self.env.step(action)
        check(self.observation_space, obs, "step: obs")
        reward = float(reward)
        if not np.isfinite(reward):
            raise ValueError(f"step: the reward is {reward}")
        return obs, reward, bool(terminated), bool(truncated), {}


def check(space: gymnasium.Space, obs: Any, name: str) -> None:
    """Check an observation against its space.

    Raises:
      ValueError: for other parts, another shape or dtype, NaN, or integers out of range.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        if not isinstance(obs, dict) or set(obs) != set(space.spaces):
            raise ValueError(f"{name} must have the parts {sorted(space.spaces)}, is {obs!r:.200}")
        for key, part in space.spaces.items():
            check(part, obs[key], f"{name}[{key!r}]")
        return
    if isinstance(space, gymnasium.spaces.Tuple):
        if not isinstance(obs, tuple) or len(obs) != len(space.spaces):
            raise ValueError(f"{name} must be a tuple of {len(space.spaces)}, is {obs!r:.200}")
        for index, part in enumerate(space.spaces):
            check(part, obs[index], f"{name}[{index}]")
        return
    array, dtype = np.asarray(obs), np.dtype(space.dtype)
    if array.shape != space.shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(
            f"{name} must be {dtype}{list(space.shape or ())} as its space says, is "
            f"{array.dtype}{list(array.shape)}"
        )
    if np.issubdtype(array.dtype, np.floating) and np.isnan(array).any():
        raise ValueError(f"{name} has NaN among its numbers: {array!r:.200}")
    counts = gymnasium.spaces.Discrete, gymnasium.spaces.MultiDiscrete
    if isinstance(space, counts) and not space.contains(array.astype(dtype)):
        raise ValueError(f"{name} must be of {space}, is {array!r:.200}")
