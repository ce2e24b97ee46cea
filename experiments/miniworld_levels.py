"""MiniWorld's rooms by level: a level is the seed from which a room is laid out.

    pip install miniworld==2.1.0
    PYTHONPATH=experiments PYGLET_HEADLESS=1 jaxrl train ppo \\
        --env-id gymnasium/miniworld_levels:miniworld --env-options env_id=MiniWorld-OneRoomS6-v0

Observations are pictures of 60x80x3 pixels, drawn by OpenGL.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Levels(gymnasium.Wrapper):
    """A wrapper whose episodes take place on levels drawn from a range.

    Args:
      first_level: the first level of the range.
      num_levels: the number of levels; 0 for all that there are.
    """

    def __init__(self, env: gymnasium.Env, first_level: int, num_levels: int):
        super().__init__(env)
        self.first_level, self.num_levels = first_level, num_levels or 2**31 - first_level
        self._rng = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        level = self.first_level + int(self._rng.integers(self.num_levels))
        return self.env.reset(seed=level, options=options)


def miniworld(
    env_id: str = "MiniWorld-OneRoomS6-v0",
    first_level: int = 0,
    num_levels: int = 0,
    render_mode: str | None = None,
) -> gymnasium.Env:
    """Return an environment of MiniWorld on some of its levels.

    Args:
      env_id: its id in Gymnasium.
      first_level: the first level.
      num_levels: the number of levels; 0 for all that there are.
      render_mode: "rgb_array" for `render`.
    """
    env = gymnasium.make(f"miniworld:{env_id}", render_mode=render_mode)
    return Levels(env, first_level, num_levels)
