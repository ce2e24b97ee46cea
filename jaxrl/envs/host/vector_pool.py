"""Pools of Gymnasium's vector environments.

`Workers` runs each environment in its own process. If one raises an exception, dies or does not
answer, all processes are ended and one error says what happened and where. `VectorPool` brings any
vector environment to next-step autoreset.
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

from jaxrl.envs.host import conversions, worker
from jaxrl.envs.host.pools import RawStep, first_step
from jaxrl.types import PyTree

CLOSE_SECONDS = 5.0
"""Time that workers have to close their environments."""


class WorkerError(RuntimeError):
    """An environment in a worker process failed."""


class Workers(AsyncVectorEnv):
    """A vector environment with one process an environment and observations in shared memory.

    Args:
      timeout: seconds within which every environment must answer.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], num_envs: int, timeout: float):
        self.timeout = timeout
        # A fork of this process would copy the locks of JAX's threads without the threads. Workers
        # are forked from a server instead, which imports once what all of them need. Each worker
        # runs the main script's module again, so the server imports that, too.
        methods = multiprocessing.get_all_start_methods()
        context = "forkserver" if "forkserver" in methods else "spawn"
        if context == "forkserver":
            multiprocessing.set_forkserver_preload(["__main__", "gymnasium", "jaxrl"])
        start = functools.partial(worker.start, make, os.getpid())
        try:
            # A daemon may not start processes, and some simulators do.
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
                f"{deaths} before its environment was made; its own error is above. A script whose "
                "environments run in processes needs `if __name__ == '__main__':`"
            ) from error
        # Runs before multiprocessing's own exit handler, which waits for the workers.
        atexit.register(self.close)

    def reset_async(self, *args: Any, **kwargs: Any) -> None:
        self._call_or_close(super().reset_async, *args, **kwargs)

    def reset_wait(self, timeout: float | None = None) -> Any:
        return self._call_or_close(super().reset_wait, timeout or self.timeout)

    def step_async(self, actions: Any) -> None:
        self._call_or_close(super().step_async, actions)

    def step_wait(self, timeout: float | None = None) -> Any:
        return self._call_or_close(super().step_wait, timeout or self.timeout)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Let workers close their environments, and kill those that do not."""
        for pipe in filter(None, self.parent_pipes):
            with contextlib.suppress(OSError):
                pipe.send(("close", None))
        until = time.monotonic() + (CLOSE_SECONDS if timeout is None else timeout)
        for process in self.processes:
            process.join(max(until - time.monotonic(), 0))
            process.kill()
            process.join()
        for pipe in filter(None, self.parent_pipes):
            pipe.close()
        atexit.unregister(self.close)

    def _call_or_close(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of Gymnasium; if it fails, end all workers and raise a WorkerError."""
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
        """Describe which workers have ended, and how."""
        for process in self.processes:
            process.join(0.2)  # a worker closes its pipe shortly before it ends
        codes = {i: process.exitcode for i, process in enumerate(self.processes)}
        ended = [f"{i} ({_describe_exit(code)})" for i, code in codes.items() if code is not None]
        return f"the process of environment {', '.join(ended) or '?'} ended"

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Raise one error with all tracebacks; Gymnasium would raise the last error without any."""
        failures = [self.error_queue.get() for success in successes if not success]
        if failures:
            texts = [f"environment {index} failed:\n{trace}" for index, _, _, trace in failures]
            raise WorkerError("\n".join(texts))


def _describe_exit(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class VectorPool:
    """A `jaxrl.envs.host.pools.Pool` of a vector environment with M environments.

    With Gymnasium's autoreset modes SAME_STEP and DISABLED, a new episode begins in the step that
    ends the last one, and goes on with the next action. That step is shown as the new episode's
    first step: nothing false is learned, but the true first observation is not seen, and the
    reward of the first action is not paid.

    An environment's own batched simulator is seeded as a whole, so what a member of a population
    sees depends on the other members. It simulates when its step is received, so nothing overlaps.

    Args:
      raw: shapes and dtypes of one environment's raw observation (`jaxrl.envs.host.conversions`).
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
        return first_step(self._gather(obs))

    def restart(self, where: np.ndarray) -> RawStep:
        if not (self._has_separate_envs or where.all() or self._mode == AutoresetMode.DISABLED):
            raise ValueError(
                f"{self.envs} cannot begin some episodes and let others go on; make it with "
                "vectorization_mode='async'"
            )
        obs, _ = self.envs.reset(options={"reset_mask": where.copy()})
        self.ended = self.ended & ~where
        return first_step(self._gather(obs))

    def send(self, action: np.ndarray) -> None:
        self._send(conversions.to_simulator(self.envs.single_action_space, action))

    def recv(self) -> RawStep:
        return self._to_step(*self._recv())

    def render(self) -> np.ndarray:
        """Draw the first environment, uint8 `[H, W, 3]`."""
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
    def _has_separate_envs(self) -> bool:
        """True if each environment can be seeded and reset by itself."""
        return isinstance(self.envs, AsyncVectorEnv | SyncVectorEnv)

    def _seeds_for_reset(self) -> Any:
        if self._has_separate_envs:
            return [int(seed) for seed in self._seeds]
        return int(self._seeds[0])

    def _to_step(
        self, obs: PyTree, reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> RawStep:
        obs = self._gather(obs)
        ended = terminated | truncated
        first, self.ended = self.ended, ended
        if self._mode != AutoresetMode.NEXT_STEP and ended.any():
            obs = self._restore_last(obs, ended & ~first, ended, info)
            # An episode of a single step was not shown: the next episode begins here.
            self.ended = ended = ended & ~first
        reward = reward.astype(np.float32) * ~first
        return RawStep(obs, reward, ended, truncated & ~terminated & ended, first, reward, ended)

    def _restore_last(
        self, obs: PyTree, shown: np.ndarray, ended: np.ndarray, info: dict[str, Any]
    ) -> PyTree:
        """Return observations with the last ones of those episodes that ended and were shown."""
        if self._mode == AutoresetMode.DISABLED:
            last = jax.tree.map(lambda x: x[shown], obs)
            obs = self._gather(self.envs.reset(options={"reset_mask": ended.copy()})[0])
        elif shown.any():
            rows = [info["final_obs"][i] for i in np.flatnonzero(shown)]
            last = self._gather(jax.tree.map(lambda *x: np.stack(x), *rows))
        else:
            return obs

        def replace_rows(new: np.ndarray, rows: np.ndarray) -> np.ndarray:
            new = new.copy()
            new[shown] = rows
            return new

        return jax.tree.map(replace_rows, obs, last)

    def _gather(self, obs: PyTree) -> PyTree:
        return conversions.gather(self.envs.single_observation_space, self._raw, obs)
