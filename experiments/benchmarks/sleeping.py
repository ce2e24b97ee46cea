"""A simulator that sleeps: each step takes a given time on one of a fixed number of threads.

It uses no processor, so that a benchmark measures jaxrl's own part on any number of cores.
"""

from __future__ import annotations

import functools
import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import jaxrl
from jaxrl.envs.host.pools import RawStep, first_step
from jaxrl.envs.host_adapter import HostAdapter, HostSpec

IMAGE = (84, 84, 4)


class Threads:
    """Threads that are only simulated: each piece of work goes to the first free one."""

    def __init__(self, number: int):
        self._free_at = [0.0] * number

    def finish(self, seconds: np.ndarray) -> float:
        """Return the time at which pieces of work with these lengths end, if they begin now."""
        now, ends = time.perf_counter(), 0.0
        for piece in seconds:
            end = max(heapq.heappop(self._free_at), now) + piece
            heapq.heappush(self._free_at, end)
            ends = max(ends, end)
        return ends


@dataclass(frozen=True)
class SleepingEnv(HostAdapter):
    """Environments whose step sleeps; their images never change."""

    threads: int = 1
    step_seconds: float = 0.0
    sigma: float = 0.0

    @property
    def id(self) -> str:
        return self.name

    @property
    def _spec(self) -> HostSpec:
        raw_obs = jax.ShapeDtypeStruct(IMAGE, np.dtype(np.uint8))
        return HostSpec(jaxrl.Box.of(IMAGE, np.uint8, 0, 255), jaxrl.Discrete(6), raw_obs, None)

    def _make_pool(self, seeds: np.ndarray) -> SleepingPool:
        return SleepingPool(seeds, self.step_seconds, self.sigma, threads_of(self))


@functools.cache
def threads_of(env: SleepingEnv) -> Threads:
    """Return the threads that all pools of an environment share."""
    return Threads(env.threads)


class SleepingPool:
    """A pool of M environments whose step sleeps."""

    def __init__(self, seeds: np.ndarray, step_seconds: float, sigma: float, threads: Threads):
        self._step_seconds, self._sigma, self._threads = step_seconds, sigma, threads
        self._random, self._ends, size = np.random.default_rng(seeds), 0.0, len(seeds)
        no, zeros = np.zeros(size, bool), np.zeros(size, np.float32)
        obs = np.zeros((size, *IMAGE), np.uint8)
        self._answer = RawStep(obs, zeros, no, no, no, zeros, no)

    def reset(self) -> RawStep:
        return first_step(self._answer.obs)

    def send(self, action: np.ndarray) -> None:
        seconds = draw_times(self._random, self._step_seconds, self._sigma, len(action))
        self._ends = self._threads.finish(seconds)

    def recv(self) -> RawStep:
        time.sleep(max(0.0, self._ends - time.perf_counter()))
        return self._answer

    def restart(self, where: np.ndarray) -> RawStep:
        return self._answer

    def render(self) -> np.ndarray:
        return self._answer.obs[0, ..., :3]

    def close(self) -> None:
        pass


def draw_times(random: np.random.Generator, mean: float, sigma: float, size: Any) -> np.ndarray:
    """Draw log-normal times with a given mean."""
    return mean * np.exp(sigma * random.standard_normal(size) - sigma**2 / 2)


def simulator_alone(
    num_envs: int, threads: int, num_steps: int, step_seconds: float
) -> Callable[[], float]:
    """Return a measurement of the simulator: milliseconds of a step of all environments."""
    pool = SleepingPool(np.arange(num_envs), step_seconds, 0.0, Threads(threads))

    def measure() -> float:
        began = time.perf_counter()
        for _ in range(num_steps):
            pool.send(np.zeros(num_envs, np.int32))
            pool.recv()
        return (time.perf_counter() - began) / num_steps * 1e3

    return measure
