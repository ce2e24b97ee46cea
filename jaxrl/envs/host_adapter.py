"""The base class of adapters for simulators on the host: from raw steps of pools to `TimeStep`."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.device_axis import SINGLE_DEVICE
from jaxrl.envs.adapter import Adapter, select_envs
from jaxrl.envs.host import callback, conversions
from jaxrl.envs.host.callback import HostState, step_shapes
from jaxrl.envs.host.pools import Pool, PoolGroup, RawStep
from jaxrl.spaces import ActionSpace, Box, ObservationSpace
from jaxrl.types import Array, PyTree, TimeStep

POOL_OPTIONS = ("num_pools", "asynchronous", "send_ahead")
"""The options that say how a backend's environments are stepped."""
SPEED_ONLY = ("num_pools", "asynchronous", "num_threads")
"""Options that change the speed and nothing else."""


def learning_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an environment that learning depends on."""
    others = (*SPEED_ONLY, "timeout")
    return {name: value for name, value in options.items() if name not in others}


@dataclass(frozen=True)
class HostSpec:
    """The spaces of a host environment, and what its pools give."""

    observation_space: ObservationSpace
    action_space: ActionSpace
    raw_obs: PyTree
    """Shapes and dtypes of one environment's raw observation (`jaxrl.envs.host.conversions`)."""
    num_frames: int | None
    """Frames in an observation; None if the simulator does not tell."""


@dataclass(frozen=True)
class HostAdapter(Adapter, abc.ABC):
    """N environments on the host; a subclass gives their spaces and makes pools of them.

    The option `num_pools` splits them over several pools: while the policy computes the actions of
    one, the others simulate. The pools take turns, or with `asynchronous` the pool that is ready
    first is next. With `send_ahead` they also simulate while the agent learns
    (`jaxrl.rollouts.pipelined`).
    """

    def __post_init__(self) -> None:
        num_pools, num_envs = self.num_pools, self.num_envs
        checks.integer("num_pools", num_pools)
        checks.flag("asynchronous", self.asynchronous)
        checks.flag("send_ahead", self.send_ahead)
        if num_envs % num_pools:
            place = "" if self.axis == SINGLE_DEVICE else f" on each of {self.axis.size} devices"
            raise ValueError(
                f"num_envs = {num_envs}{place} cannot be split over num_pools = {num_pools}"
            )
        if self.asynchronous and num_pools == 1:
            raise ValueError("asynchronous=True needs num_pools >= 2, got num_pools=1")

    @property
    @abc.abstractmethod
    def _spec(self) -> HostSpec: ...

    @abc.abstractmethod
    def _make_pool(self, seeds: np.ndarray) -> Pool:
        """Make a pool of one environment a seed, int32 `[M]`."""

    @property
    def is_atari(self) -> bool:
        """True if the score that people report may differ from the reward."""
        return False

    @property
    def observation_space(self) -> ObservationSpace:
        return self._spec.observation_space

    @property
    def action_space(self) -> ActionSpace:
        return self._spec.action_space

    @property
    def num_frames(self) -> int | None:
        """The frames in an observation; None if the simulator does not tell."""
        return self._spec.num_frames

    @property
    def checkpointable(self) -> bool:
        return False

    @property
    def _task(self) -> tuple[str, tuple[tuple[str, Any], ...]]:
        """The id, and the options that learning depends on."""
        return self.id, tuple(sorted(learning_options(self.options).items()))

    @property
    def num_pools(self) -> int:
        return self.options.get("num_pools", 1)

    @property
    def asynchronous(self) -> bool:
        return self.options.get("asynchronous", False)

    @property
    def send_ahead(self) -> bool:
        return self.options.get("send_ahead", False)

    def init(self, key: Array) -> tuple[HostState, TimeStep]:
        num_all = self.num_envs * self.axis.size
        seeds = self.axis.shard(jax.random.randint(key, (num_all,), 0, np.iinfo(np.int32).max))
        make_group = functools.partial(
            PoolGroup,
            self._make_pool,
            num_pools=self.num_pools,
            asynchronous=self.asynchronous,
            id=self.id,
            task=self._task,
        )
        state, raw = callback.init(make_group, self._spec.raw_obs, seeds)
        return state, self._timestep(raw)

    def step(self, key: Array, state: HostState, action: Array) -> tuple[HostState, TimeStep]:
        del key  # a pool's randomness is fixed by its seeds
        shapes = step_shapes(self._spec.raw_obs, self.num_envs)
        action = self._cast(action, self.num_envs)
        state, raw = callback.call(PoolGroup.step, shapes, state, action, task=self._task)
        return state, self._timestep(raw)

    def send_and_receive(
        self, state: HostState, sent: Array | int, action: Array, awaited: Array | int
    ) -> tuple[HostState, Array, TimeStep]:
        """Begin a step of one of the k pools, and wait for the step of another one.

        Both are one call of the host, since each takes about a tenth of a millisecond.

        Args:
          sent: the pool to step, or `NONE` (`jaxrl.envs.host.pools`).
          action: `[N / k, ...]`.
          awaited: the pool whose step is received; `ANY`, if `asynchronous`; or `NONE`.

        Returns:
          The state, the number of the pool that was received, and its step; zeros for `NONE`.
        """
        size = self.num_envs // self.num_pools
        number = jax.ShapeDtypeStruct((1,), np.dtype(np.int32))
        shapes = (number, step_shapes(self._spec.raw_obs, size))
        pools = (jnp.full(1, sent, jnp.int32), jnp.full(1, awaited, jnp.int32))
        action = self._cast(action, size)
        state, (pool, raw) = callback.call(
            PoolGroup.send_and_receive, shapes, state, *pools, action, task=self._task
        )
        return state, pool[0], self._timestep(raw)

    def restart(
        self, state: HostState, timestep: TimeStep, where: Array
    ) -> tuple[HostState, TimeStep]:
        """Begin new episodes where `where` `[N]` holds; simulators keep their random state."""
        shapes = step_shapes(self._spec.raw_obs, self.num_envs)
        state, raw = callback.call(PoolGroup.restart, shapes, state, where, task=self._task)
        return state, select_envs(where, self._timestep(raw), timestep)

    def for_evaluation(self, num_envs: int) -> Self:
        """Return the same task in one pool.

        On Atari lives stay episodes if they were in training: an agent that learned from single
        lives never had to press FIRE for the next ball, which simulators do at the start of an
        episode. Scores count whole games and raw rewards whatever the options.
        """
        keywords = tuple(pair for pair in self.keywords if pair[0] not in POOL_OPTIONS)
        return dataclasses.replace(self, num_envs=num_envs, keywords=keywords, axis=SINGLE_DEVICE)

    def render(self, state: HostState) -> np.ndarray:
        try:
            return callback.group_of(state).pools[0].render()
        except ValueError as error:
            raise ValueError(f"{self.id}: {error}") from error

    def _cast(self, action: Array, num_envs: int) -> Array:
        space = self.action_space
        if isinstance(space, Box):
            # NaN of a diverged agent: some simulators raise errors, which would end all agents.
            action = jnp.where(jnp.isnan(action), 0, action)
            action = jnp.clip(action, *space.bounds())
        if action.shape != (num_envs, *space.shape):
            raise ValueError(
                f"{self.id} takes actions of shape {(num_envs, *space.shape)}, got {action.shape}"
            )
        return action.astype(space.dtype)

    def _timestep(self, raw: RawStep) -> TimeStep:
        spec = self._spec
        obs = conversions.arrange(spec.observation_space, spec.raw_obs, raw.obs)
        terminated = raw.ended & ~raw.truncated
        step = TimeStep(obs, raw.reward, terminated, raw.truncated, raw.first)
        if not self.is_atari:
            return step
        return step._replace(raw_reward=raw.raw_reward, game_over=raw.game_over)
