"""A pool whose environments run in one worker process each."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np

from jaxrl.envs.host import conversions, worker
from jaxrl.envs.host.errors import SimulatorError, cannot_draw, lacks_pictures
from jaxrl.envs.host.pools import RawStep, first_step
from jaxrl.envs.host.shared_memory import Memory
from jaxrl.envs.host.worker_processes import Workers
from jaxrl.types import PyTree


class WorkerPool:
    """A `jaxrl.envs.host.pools.Pool` of environments in worker processes.

    Args:
      make: makes an environment.
      spaces: of one environment.
      raw: shapes and dtypes of its raw observation (`jaxrl.envs.host.conversions`).
      id: names the environments in errors.
      timeout: seconds within which every environment must answer.
    """

    def __init__(
        self,
        make: Callable[[], gymnasium.Env],
        spaces: worker.Spaces,
        raw: PyTree,
        seeds: np.ndarray,
        id: str,
        timeout: float,
    ):
        memory = Memory(spaces, len(seeds))
        self._spaces, self._raw, self._seeds = spaces, raw, seeds
        self._arrays = memory.arrays(spaces)
        self._ended = np.zeros(len(seeds), bool)
        self.workers = Workers(make, len(seeds), id, timeout, spaces, memory)

    def reset(self) -> RawStep:
        for slot, seed in enumerate(self._seeds):
            self.workers.send(slot, worker.RESET, int(seed))
        self.workers.receive(range(len(self._seeds)))
        return first_step(self._obs())

    def restart(self, where: np.ndarray) -> RawStep:
        slots = np.flatnonzero(where).tolist()
        for slot in slots:
            self.workers.send(slot, worker.RESET)
        self.workers.receive(slots)
        self._ended = self._ended & ~where
        return first_step(self._obs())

    def send(self, action: np.ndarray) -> None:
        self._arrays.action[...] = conversions.to_simulator(self._spaces.action, action)
        for slot, ended in enumerate(self._ended.tolist()):
            self.workers.send(slot, worker.RESET if ended else worker.STEP)

    def recv(self) -> RawStep:
        self.workers.receive(range(len(self._seeds)))
        terminated, truncated = self._arrays.terminated.copy(), self._arrays.truncated.copy()
        first, self._ended = self._ended, terminated | truncated
        reward = self._arrays.reward.astype(np.float32)
        return RawStep(
            self._obs(), reward, self._ended, truncated & ~terminated, first, reward, self._ended
        )

    def render(self) -> np.ndarray:
        """Draw the first environment, uint8 `[H, W, 3]`."""
        self.workers.send(0, worker.RENDER)
        try:
            (picture,) = self.workers.receive([0])
        except SimulatorError as error:
            if error.kind is None:
                raise
            raise cannot_draw(error, error.summary) from None
        if not picture:
            raise lacks_pictures()
        shape = worker.PICTURE.unpack_from(picture)
        rows = np.frombuffer(picture, np.uint8, offset=worker.PICTURE.size)
        return rows.reshape(*shape, 3)

    def close(self) -> None:
        if problems := self.workers.close():
            raise SimulatorError(problems)

    def _obs(self) -> PyTree:
        return conversions.gather(self._spaces.observation, self._raw, self._arrays.obs)
