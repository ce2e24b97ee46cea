"""Gymnasium's vector environments as the pools that `jaxrl.envs.host.callback` steps.

`Workers` are environments in processes of their own. What goes wrong in one of them, an exception,
a death, no answer, is one error that says what and where, after which no process is left.
`VectorPool` brings any vector environment to next-step autoreset.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from jaxrl.envs import conversions
from jaxrl.envs.host import worker
from jaxrl.envs.host.pools import RawStep
from jaxrl.types import PyTree

FAREWELL_SECONDS = 5.0
"""How long workers may take to close their environments."""


class WorkerError(RuntimeError):
    """An environment in a worker process failed."""


class Workers(AsyncVectorEnv):
    """One process an environment, observations in shared memory.

    Args:
      timeout: seconds within which every environment must have answered.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], num_envs: int, timeout: float):
        self.timeout = timeout
        # A fork of this process would have JAX's threads' locks, but not the threads. Workers are
        # forked from a server instead, which has imported once what they need, and what the main
        # script imports, which each of them runs again.
        methods = multiprocessing.get_all_start_methods()
        context = "forkserver" if "forkserver" in methods else "spawn"
        if context == "forkserver":
            multiprocessing.set_forkserver_preload(["__main__", "gymnasium", "jaxrl"])
        start = functools.partial(worker.start, make, os.getpid())
        try:
            # No daemons, which may not have processes of their own, as some simulators do.
            super().__init__([start] * num_envs, context=context, daemon=False)
        except Exception as error:
            if not getattr(self, "processes", None):
                raise
            self.processes = [process for process in self.processes if process.pid is not None]
            deaths = self._deaths()
            self.close()
            if not isinstance(error, EOFError | ConnectionError):
                raise
            raise WorkerError(
                f"{deaths} before its environment was made; what it had to say is above. A script "
                "whose environments run in processes needs `if __name__ == '__main__':`"
            ) from error
        # Before multiprocessing's own farewell, which waits for them.
        atexit.register(self.close)

    def reset_async(self, *args: Any, **kwargs: Any) -> None:
        self._guarded(super().reset_async, *args, **kwargs)

    def reset_wait(self, timeout: float | None = None) -> Any:
        return self._guarded(super().reset_wait, timeout or self.timeout)

    def step_async(self, actions: Any) -> None:
        self._guarded(super().step_async, actions)

    def step_wait(self, timeout: float | None = None) -> Any:
        return self._guarded(super().step_wait, timeout or self.timeout)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Let workers close their environments, and kill those that do not."""
        for pipe in filter(None, self.parent_pipes):
            with contextlib.suppress(OSError):
                pipe.send(("close", None))
        until = time.monotonic() + (FAREWELL_SECONDS if timeout is None else timeout)
        for process in self.processes:
            process.join(max(until - time.monotonic(), 0))
            process.kill()
            process.join()
        for pipe in filter(None, self.parent_pipes):
            pipe.close()
        atexit.unregister(self.close)

    def _guarded(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except multiprocessing.TimeoutError as error:
            late = [i for i, pipe in enumerate(self.parent_pipes) if not pipe.poll()]
            problem = f"no answer from environments {late} within {self.timeout:g} s (`timeout`)"
            cause: Exception = error
        except (EOFError, ConnectionError) as error:
            problem, cause = f"{self._deaths()} in the middle of an episode", error
        except WorkerError as error:
            problem, cause = str(error), error
        self.close()
        raise WorkerError(problem) from cause

    def _deaths(self) -> str:
        """Which workers have ended, and how."""
        for process in self.processes:
            process.join(0.2)  # one that has closed its pipe is about to end
        codes = {i: process.exitcode for i, process in enumerate(self.processes)}
        ended = [f"{i} ({_how(code)})" for i, code in codes.items() if code is not None]
        return f"the process of environment {', '.join(ended) or '?'} ended"

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Gymnasium's own warns of all tracebacks, and raises the last error without its own."""
        failures = [self.error_queue.get() for success in successes if not success]
        if failures:
            texts = [f"environment {index} failed:\n{trace}" for index, _, _, trace in failures]
            raise WorkerError("\n".join(texts))


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class VectorPool:
    """A vector environment of M environments.

    One that begins a new episode in the step that ends the last (autoreset mode SAME_STEP), or
    leaves it to the caller (DISABLED), cannot wait with the others' next step: what it does in it
    is shown as the new episode's first step. So nothing false is learned, but of each episode the
    true first observation is not seen and its reward not paid.

    Batched simulators of an environment's own are seeded as one, so what a member of a population
    sees depends on the others. They simulate when a step is asked for, so nothing overlaps.

    Args:
      raw: shapes and dtypes of one environment's raw observation (`jaxrl.envs.conversions`).
    """

    def __init__(self, envs: VectorEnv, raw: PyTree, seeds: np.ndarray):
        self.envs = envs
        self.ended = np.zeros(len(seeds), bool)
        self._raw = raw
        self._seeds = seeds
        self._action: Any = None
        self._mode = AutoresetMode(envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))

    def reset(self) -> RawStep:
        obs, _ = self.envs.reset(seed=self._seeds_for_reset())
        return self._first(self._gather(obs))

    def restart(self, where: np.ndarray) -> RawStep:
        if not where.any():
            size = len(self.ended)
            return self._first(
                jax.tree.map(lambda raw: np.zeros((size, *raw.shape), raw.dtype), self._raw)
            )
        if not (self._is_of_single or where.all() or self._mode == AutoresetMode.DISABLED):
            raise ValueError(
                f"{self.envs} cannot begin some episodes and let others go on; make it with "
                "vectorization_mode='async'"
            )
        obs, _ = self.envs.reset(options={"reset_mask": where.copy()})
        self.ended = self.ended & ~where
        return self._first(self._gather(obs))

    def send(self, action: np.ndarray) -> None:
        self._send(conversions.to_simulator(self.envs.single_action_space, action))

    def recv(self) -> RawStep:
        return self._next(*self._recv())

    def render(self) -> np.ndarray:
        """The first environment, uint8 `[H, W, 3]`."""
        try:
            pictures = self.envs.render()
        except Exception as error:
            raise ValueError(
                f"the simulator cannot draw on this machine: {error} (MuJoCo needs OpenGL: without "
                "a display set MUJOCO_GL=egl, or osmesa with Debian's libosmesa6)"
            ) from error
        if pictures is None or pictures[0] is None:
            raise ValueError("this environment was made without pictures; use env.for_rendering()")
        return np.asarray(pictures[0])

    def close(self) -> None:
        self.envs.close()

    def _send(self, action: np.ndarray) -> None:
        if isinstance(self.envs, AsyncVectorEnv):
            self.envs.step_async(action)
        else:
            self._action = action

    def _recv(self) -> tuple[Any, ...]:
        if isinstance(self.envs, AsyncVectorEnv):
            return self.envs.step_wait()
        return self.envs.step(self._action)

    @property
    def _is_of_single(self) -> bool:
        """Whether each of its environments can be seeded and reset apart."""
        return isinstance(self.envs, AsyncVectorEnv | SyncVectorEnv)

    def _seeds_for_reset(self) -> Any:
        if self._is_of_single:
            return [int(seed) for seed in self._seeds]
        return int(self._seeds[0])

    def _first(self, obs: PyTree) -> RawStep:
        no = np.zeros(len(self.ended), bool)
        zeros = np.zeros(len(no), np.float32)
        return RawStep(obs, zeros, no, no, no, zeros, no)

    def _next(
        self, obs: PyTree, reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> RawStep:
        obs = self._gather(obs)
        ended = terminated | truncated
        first, self.ended = self.ended, ended
        if self._mode != AutoresetMode.NEXT_STEP and ended.any():
            obs = self._with_last(obs, ended, first, info)
            # An episode of one step, which was not shown: the next one begins here.
            self.ended = ended = ended & ~first
        reward = reward.astype(np.float32) * ~first
        return RawStep(obs, reward, ended, truncated & ~terminated & ended, first, reward, ended)

    def _with_last(
        self, obs: PyTree, ended: np.ndarray, first: np.ndarray, info: dict[str, Any]
    ) -> PyTree:
        """Observations with the last ones of the episodes that ended, of which new ones begin."""
        shown = ended & ~first
        if self._mode == AutoresetMode.DISABLED:
            last = jax.tree.map(lambda x: x[shown], obs)
            obs = self._gather(self.envs.reset(options={"reset_mask": ended.copy()})[0])
        elif shown.any():
            rows = [info["final_obs"][i] for i in np.flatnonzero(shown)]
            last = self._gather(jax.tree.map(lambda *x: np.stack(x), *rows))
        else:
            return obs

        def with_rows(new: np.ndarray, rows: np.ndarray) -> np.ndarray:
            new = new.copy()
            new[shown] = rows
            return new

        return jax.tree.map(with_rows, obs, last)

    def _gather(self, obs: PyTree) -> PyTree:
        return conversions.gather(self.envs.single_observation_space, self._raw, obs)
