"""What all environments on the host share under the `Env` contract; see `jaxrl.envs.host.callback`."""

from __future__ import annotations

import abc
import dataclasses
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.device_axis import SINGLE_DEVICE, Axis
from jaxrl.envs.host import callback
from jaxrl.envs.host.callback import HostState
from jaxrl.envs.host.pools import Pool, RawStep
from jaxrl.types import ActionSpace, Array, Box, ObservationSpace, PyTree, TimeStep

OVERLAPPING = ("num_pools", "asynchronous", "send_ahead")
"""The options that say how a backend's environments are stepped."""
SPEED_ONLY = ("num_pools", "asynchronous", "num_threads")
"""Options on which only speed depends."""


@dataclass(frozen=True)
class HostedEnv(abc.ABC):
    """N environments on the host; a backend says what they are and how a pool of them is made.

    The option `num_pools` splits them over so many pools: while the policy looks at one, the others
    simulate. They take turns, or if `asynchronous`, the one that is ready first is next. With
    `send_ahead` they simulate while the agent learns, too (`jaxrl.rollouts.pipelined`).
    """

    name: str
    num_envs: int
    keywords: tuple[tuple[str, Any], ...] = ()
    axis: Axis = SINGLE_DEVICE
    checkpointable: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        num_pools, num_envs = self.num_pools, self.num_envs
        if type(num_pools) is not int or num_pools < 1:
            raise ValueError(f"num_pools must be an integer >= 1, got {num_pools!r}")
        if num_envs % num_pools:
            raise ValueError(f"{num_envs} environments cannot be split over {num_pools} pools")
        if type(self.asynchronous) is not bool or (self.asynchronous and num_pools == 1):
            raise ValueError(
                f"asynchronous must be a bool, and True with num_pools >= 2 only, got "
                f"{self.asynchronous!r} with num_pools = {num_pools}"
            )
        if type(self.send_ahead) is not bool:
            raise ValueError(f"send_ahead must be a bool, got {self.send_ahead!r}")

    @property
    @abc.abstractmethod
    def id(self) -> str: ...

    @property
    @abc.abstractmethod
    def observation_space(self) -> ObservationSpace: ...

    @property
    @abc.abstractmethod
    def action_space(self) -> ActionSpace: ...

    @property
    @abc.abstractmethod
    def _raw_obs(self) -> PyTree:
        """Shapes and dtypes of what a pool gives for one environment."""

    @abc.abstractmethod
    def _make_pool(self, seeds: np.ndarray) -> Pool: ...

    @abc.abstractmethod
    def _observe(self, raw_obs: PyTree) -> PyTree:
        """Observations of the space, of what a pool gives."""

    @property
    def is_atari(self) -> bool:
        """Whether the score that people report may differ from the reward."""
        return False

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.keywords)

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
        state, raw = callback.init(
            self._make_pool, self._raw_obs, seeds, self.num_pools, self.asynchronous
        )
        # An episode's first step ends nothing: `ended` serves as False, its negation as True.
        return state, self._timestep(raw, ~raw.ended)

    def step(self, key: Array, state: HostState, action: Array) -> tuple[HostState, TimeStep]:
        del key  # a pool's randomness is fixed by its seeds
        state, raw = callback.step(self._raw_obs, state, self._cast(action, self.num_envs))
        return state, self._timestep(raw, raw.first)

    def send_and_receive(
        self, state: HostState, sent: Array | int, action: Array, awaited: Array | int
    ) -> tuple[HostState, Array, TimeStep]:
        """Begin a step of one of the k pools and wait for another's: `jaxrl.envs.host.callback.send_and_receive`."""
        size = self.num_envs // self.num_pools
        state, pool, raw = callback.send_and_receive(
            self._raw_obs, size, state, sent, self._cast(action, size), awaited
        )
        return state, pool, self._timestep(raw, raw.first)

    def restart(
        self, state: HostState, timestep: TimeStep, where: Array
    ) -> tuple[HostState, TimeStep]:
        """Begin new episodes where `where` `[N]` holds; the simulators' randomness goes on."""
        state, raw = callback.restart(self._raw_obs, state, where)
        fresh = self._timestep(raw, ~raw.ended)

        def chosen(new: Array, old: Array) -> Array:
            return jnp.where(where.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        return state, jax.tree.map(chosen, fresh, timestep)

    def spread(self, axis: Axis) -> Self:
        """Each device has pools of its own."""
        return dataclasses.replace(self, num_envs=self.num_envs // axis.size, axis=axis)

    def for_evaluation(self, num_envs: int) -> Self:
        """The same, in one pool on one device; of Atari whole games and raw rewards."""
        keywords = tuple(pair for pair in self.keywords if pair[0] not in OVERLAPPING)
        env = dataclasses.replace(self, num_envs=num_envs, keywords=keywords, axis=SINGLE_DEVICE)
        return env._with(episodic_life=False, reward_clip=False) if self.is_atari else env

    def for_rendering(self) -> Self:
        return self.for_evaluation(1)

    def render(self, state: HostState) -> np.ndarray:
        return callback.pool_group_of(state).pools[0].render()

    def _cast(self, action: Array, num_envs: int) -> Array:
        space = self.action_space
        if isinstance(space, Box):
            action = jnp.clip(action, *space.bounds())
        if action.shape != (num_envs, *space.shape):
            raise ValueError(
                f"{self.id} takes actions of shape {(num_envs, *space.shape)}, got {action.shape}"
            )
        return action.astype(space.dtype)

    def _timestep(self, raw: RawStep, first: Array) -> TimeStep:
        terminated = raw.ended & ~raw.truncated
        step = TimeStep(self._observe(raw.obs), raw.reward, terminated, raw.truncated, first)
        if not self.is_atari:
            return step
        return step._replace(raw_reward=raw.raw_reward, game_over=raw.game_over)

    def _with(self, **options: Any) -> Self:
        return dataclasses.replace(self, keywords=tuple(sorted((self.options | options).items())))
