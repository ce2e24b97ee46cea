"""Pools of Gymnasium's vector environments, which `VectorPool` brings to next-step autoreset."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from jaxrl.envs.host import conversions, step_checks, worker
from jaxrl.envs.host.errors import (
    SimulatorError,
    cannot_draw,
    describe,
    error_of_closing,
    lacks_pictures,
)
from jaxrl.envs.host.pools import RawStep, first_step
from jaxrl.types import PyTree


class Numbered(gymnasium.Wrapper):
    """An environment of this process, whose errors name its id and its slot."""

    def __init__(self, make: Callable[[], gymnasium.Env], id: str, slot: int):
        super().__init__(step_checks.checked(make()))
        self._place = f"{id}: environment {slot}"

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        with self._named("reset"):
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        with self._named("step"):
            return self.env.step(action)

    def close(self) -> None:
        with self._named("close"):
            self.env.close()

    @contextlib.contextmanager
    def _named(self, call: str) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a simulator may raise anything, such as SystemExit
            trace = describe(error)
            raise SimulatorError(f"{self._place} failed in {call}:\n{trace}") from error


def close(envs: VectorEnv) -> None:
    """Close a vector environment, all its parts even if some fail; raise the first error."""
    if not isinstance(envs, SyncVectorEnv):
        envs.close()
        return
    # Its own method ends at the first error.
    if errors := [error for env in envs.envs if (error := error_of_closing(env.close))]:
        raise errors[0]


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
        each = [int(seed) for seed in self._seeds]
        seed: Any = each if self._has_separate_envs else each[0]
        obs, _ = self.envs.reset(seed=seed)
        step_checks.check(self.envs.single_observation_space, obs, "reset: obs", (len(self.ended),))
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
        self._action = conversions.to_simulator(self.envs.single_action_space, action)

    def recv(self) -> RawStep:
        return self._to_step(*self.envs.step(self._action))

    def render(self) -> np.ndarray:
        """Draw the first environment, uint8 `[H, W, 3]`."""
        try:
            pictures = self.envs.render()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a simulator may raise anything, such as SystemExit
            _, summary = worker.classify(error)
            raise cannot_draw(summary, summary) from error
        if pictures is None or pictures[0] is None:
            raise lacks_pictures()
        return np.asarray(pictures[0])

    def close(self) -> None:
        close(self.envs)

    @property
    def _has_separate_envs(self) -> bool:
        """True if each environment can be seeded and reset by itself."""
        return isinstance(self.envs, SyncVectorEnv)

    def _to_step(
        self, obs: PyTree, reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> RawStep:
        rows = (len(self.ended),)
        step_checks.check(self.envs.single_observation_space, obs, "step: obs", rows)
        terminated = step_checks.check_flags(terminated, "terminated", rows)
        truncated = step_checks.check_flags(truncated, "truncated", rows)
        reward = step_checks.check_rewards(reward, rows)
        obs = self._gather(obs)
        ended = terminated | truncated
        first, self.ended = self.ended, ended
        if self._mode != AutoresetMode.NEXT_STEP and ended.any():
            obs = self._restore_last(obs, ended & ~first, ended, info)
            # An episode of a single step was not shown: the next episode begins here.
            self.ended = ended = ended & ~first
        reward = np.where(first, np.float32(0), reward.astype(np.float32))
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
