"""Pools of Atari through ale-py."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl.envs.host import conversions
from jaxrl.envs.host.pools import RawStep, first_step
from jaxrl.envs.host.vector_pool import VectorPool
from jaxrl.types import PyTree


class AtariPool(VectorPool):
    """ale-py's batched simulator, with lost lives as episode ends and clipped rewards.

    Its threads simulate as soon as a step is sent. When a life is lost, the game goes on, as in
    envpool: a step of FIRE, or of NOOP in games without FIRE and with `use_fire_reset=False`, leads
    to the first observation of the new episode. If the game pays for this step, only the score
    counts it. A game's stack of frames begins with copies of its first frame, also as in envpool;
    ale-py's begins with black ones.
    """

    envs: Any

    def __init__(
        self, envs: Any, raw: PyTree, seeds: np.ndarray, reward_clip: bool, options: dict[str, Any]
    ):
        """Take a batched simulator.

        Args:
          options: the keywords with which it was made.
        """
        super().__init__(envs, raw, seeds)
        self._reward_clip = reward_clip
        self._most_frames = options.get("max_num_frames_per_episode", 108_000)
        self._frameskip = options.get("frameskip", 4)
        self._lives = np.zeros(len(seeds), int)
        self._picture = np.zeros(raw.shape[1:], np.uint8)
        self._age = np.zeros(len(seeds), int)
        """Steps of each game."""
        self._is_over = np.zeros(len(seeds), bool)
        actions = [action.name for action in envs.ale.get_action_set()]
        has_fire = "FIRE" in actions and options.get("use_fire_reset", True)
        self._first_action = actions.index("FIRE") if has_fire else 0

    def reset(self) -> RawStep:
        step = first_step(self._with_copies(self._gather(self.envs.reset(seed=self._seeds)[0])))
        self._picture = step.obs[0, -1]
        return step

    def restart(self, where: np.ndarray) -> RawStep:
        step = super().restart(where)
        self._age[where], self._is_over[where] = 0, False
        return step._replace(obs=self._with_copies(step.obs))

    def send(self, action: np.ndarray) -> None:
        action = np.where(self.ended, self._first_action, action)
        self.envs.send(conversions.to_simulator(self.envs.single_action_space, action))

    def recv(self) -> RawStep:
        return self._to_step(*self.envs.recv())

    def render(self) -> np.ndarray:
        """Return the latest frame that the first environment's agent sees."""
        picture = self._picture.repeat(3, 0).repeat(3, 1)
        return picture if picture.ndim == 3 else np.stack([picture] * 3, -1)

    def _to_step(
        self, obs: PyTree, reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> RawStep:
        step = super()._to_step(obs, reward, terminated, truncated, info)
        self._picture = step.obs[0, -1]
        lives, before = info["lives"], self._lives
        self._lives = lives
        is_life_lost = (lives > 0) & (lives < before)
        self._age = np.where(self._is_over, 0, self._age + 1)
        # ale-py does not say that a game reached its limit if a life was lost in the same step.
        is_at_limit = self._age * self._frameskip >= self._most_frames
        self._is_over = truncated | (terminated & (~is_life_lost | is_at_limit))
        return step._replace(
            obs=self._with_copies(step.obs),
            reward=np.sign(step.reward) if self._reward_clip else step.reward,
            raw_reward=reward.astype(np.float32),
            game_over=self._is_over,
        )

    def _with_copies(self, obs: np.ndarray) -> np.ndarray:
        """Return stacks `[M, S, ...]` with a game's first frame in place of those before it."""
        num_older = obs.shape[1] - 1
        young = np.flatnonzero(self._age < num_older)
        if len(young):
            obs = obs.copy()  # it may be the simulator's memory
        for n in young:
            first = num_older - self._age[n]
            obs[n, :first] = obs[n, first]
        return obs

    @property
    def _has_separate_envs(self) -> bool:
        return True
