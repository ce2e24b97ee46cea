"""Checks of what Gymnasium's environments return, which Gymnasium would convert."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

MAX_REWARD = float(np.finfo(np.float32).max)


def checked(env: Any) -> gymnasium.Env:
    """Return an environment that checks what it returns.

    Raises:
      TypeError: for what is no environment of Gymnasium.
    """
    if not isinstance(env, gymnasium.Env):
        raise TypeError(
            f"a function must return a gymnasium.Env, got {type(env).__name__}: derive it from "
            "gymnasium.Env, or wrap one of OpenAI's Gym by shimmy; register an environment with "
            "gymnax's interface by gymnax.register(id, factory)"
        )
    return Checked(env)


class Checked(gymnasium.Wrapper):
    """An environment that raises errors for bad steps."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f"reset must return (obs, info), got {_name(result)}")
        check(self.observation_space, result[0], "reset: obs")
        return result[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            raise TypeError(
                f"step must return (obs, reward, terminated, truncated, info), got {_name(result)}"
            )
        obs, reward, terminated, truncated, _ = result
        check(self.observation_space, obs, "step: obs")
        if type(reward) is not float or not abs(reward) <= MAX_REWARD:
            reward = float(check_rewards(reward))
        if type(terminated) is not bool:
            terminated = bool(check_flags(terminated, "terminated"))
        if type(truncated) is not bool:
            truncated = bool(check_flags(truncated, "truncated"))
        return obs, reward, terminated, truncated, {}


def _name(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__


def check_rewards(rewards: Any, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Return rewards as numbers of a shape.

    Raises:
      ValueError: if they are not finite numbers of float32.
    """
    array = np.asarray(rewards)
    if array.shape != shape or array.dtype.kind not in "fiub":
        wanted = f"numbers {list(shape)}" if shape else "a number"
        raise ValueError(f"step: the reward must be {wanted}, is {rewards!r:.200}")
    if not (np.abs(array.astype(np.float64)) <= MAX_REWARD).all():
        raise ValueError(f"step: the reward is {rewards!r:.200}, not a finite number of float32")
    return array


def check_flags(flags: Any, name: str, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Return flags as bools of a shape.

    Raises:
      ValueError: if they are neither bools nor the integers 0 and 1.
    """
    array = np.asarray(flags)
    is_integer = array.dtype.kind in "iu" and bool(((array == 0) | (array == 1)).all())
    if array.shape != shape or not (array.dtype == bool or is_integer):
        wanted = f"bools {list(shape)}" if shape else "True or False"
        raise ValueError(f"step: {name} must be {wanted}, is {flags!r:.200}")
    return array.astype(bool)


def check(space: gymnasium.Space, obs: Any, name: str, lead: tuple[int, ...] = ()) -> None:
    """Check an observation against its space.

    Args:
      lead: leading axes of a batch of observations.

    Raises:
      ValueError: for other parts, another shape or dtype, numbers that are not finite in single
        precision, or integers out of range.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        if not isinstance(obs, dict) or set(obs) != set(space.spaces):
            raise ValueError(f"{name} must have the parts {sorted(space.spaces)}, is {obs!r:.200}")
        for key, part in space.spaces.items():
            check(part, obs[key], f"{name}[{key!r}]", lead)
        return
    if isinstance(space, gymnasium.spaces.Tuple):
        if not isinstance(obs, tuple) or len(obs) != len(space.spaces):
            raise ValueError(f"{name} must be a tuple of {len(space.spaces)}, is {obs!r:.200}")
        for index, part in enumerate(space.spaces):
            check(part, obs[index], f"{name}[{index}]", lead)
        return
    array, dtype = np.asarray(obs), np.dtype(space.dtype)
    shape = (*lead, *(space.shape or ()))
    if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(
            f"{name} must be {dtype}{list(shape)} as its space says, is "
            f"{array.dtype}{list(array.shape)}"
        )
    if np.issubdtype(array.dtype, np.floating):
        with np.errstate(over="ignore"):
            is_finite = np.isfinite(array.astype(np.float32, copy=False)).all()
        if not is_finite:
            raise ValueError(f"{name} has numbers that are not finite float32: {array!r:.200}")
    elif (
        array.dtype != dtype
        and np.issubdtype(dtype, np.integer)
        and (array.astype(dtype) != array).any()
    ):
        raise ValueError(f"{name} has integers that {dtype} does not hold: {array!r:.200}")
    if isinstance(space, gymnasium.spaces.MultiBinary) and not np.isin(array, (0, 1)).all():
        raise ValueError(f"{name} must be of {space}, is {array!r:.200}")
    if isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
        size = space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec
        start = np.asarray(space.start)
        if not ((array >= start) & (array < start + size)).all():
            raise ValueError(f"{name} must be of {space}, is {array!r:.200}")
