"""Memory that the trainer shares with worker processes: actions, observations, rewards, flags."""

from __future__ import annotations

import math
from multiprocessing.sharedctypes import RawArray
from typing import Any

import gymnasium
import numpy as np

from jaxrl.envs.host import worker


class Memory:
    """Memory that the trainer and the workers of N environments share."""

    def __init__(self, spaces: worker.Spaces, num_envs: int):
        self._num_envs = num_envs
        self._obs = _allocate(spaces.observation, num_envs)
        self._action = _allocate(spaces.action, num_envs)
        self._reward = RawArray("d", num_envs)
        self._flags = RawArray("B", 2 * num_envs)

    def arrays(self, spaces: worker.Spaces) -> worker.Arrays:
        obs = _view(spaces.observation, self._obs, self._num_envs)
        action = _view(spaces.action, self._action, self._num_envs)
        terminated, truncated = np.frombuffer(self._flags, bool).reshape(2, self._num_envs)
        return worker.Arrays(obs, action, np.frombuffer(self._reward), terminated, truncated)


def _allocate(space: Any, num_envs: int) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: _allocate(part, num_envs) for name, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_allocate(part, num_envs) for part in space.spaces)
    size = num_envs * math.prod(space.shape) * np.dtype(space.dtype).itemsize
    return RawArray("B", max(size, 1))


def _view(space: Any, memory: Any, num_envs: int) -> Any:
    if isinstance(memory, dict):
        return {name: _view(space.spaces[name], part, num_envs) for name, part in memory.items()}
    if isinstance(memory, tuple):
        return tuple(_view(*pair, num_envs) for pair in zip(space.spaces, memory, strict=True))
    count = num_envs * math.prod(space.shape)
    return np.frombuffer(memory, space.dtype, count).reshape(num_envs, *space.shape)
