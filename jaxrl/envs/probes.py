"""Probe environments: the smallest tasks, one mechanism each, with values known in closed form.

An agent that fails on a probe has a bug in what that probe isolates; learning curves on real
tasks only say that something is wrong. All are pure functions of integers, so exact.

| id | task | known answer |
|---|---|---|
| `Constant-v0` | one step, reward 1 | V = 1 |
| `Observed-v0` | one step, reward = the observation, +1 or -1 | V(obs) = obs |
| `Discounted-v0` | two steps, obs 0 then 1, reward 1 at the end | V(1) = 1, V(0) = gamma |
| `Bandit-v0` | one step, two actions, reward 1 for action 1, else 0 | policy: 1 |
| `Contextual-v0` | one step, reward 1 if the action equals the observed bit | policy: obs, V = 1 |
| `TimeLimit-v0` | one state, reward 1 a step, truncated after `limit` steps | V = 1 / (1 - gamma) |
| `Episode-v0` | one state, reward 1 a step, terminated after `limit` steps | finite sums by time |
| `Recall-v0` | sees a bit at first; reward 1 if the last action equals it | memory: 1, else 1/2 |
| `Target-v0` | one step, Box action, reward -(action - obs)^2 | policy: obs |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.device_axis import SINGLE_DEVICE, Axis
from jaxrl.types import Array, Box, Discrete, TimeStep


class ProbeState(NamedTuple):
    """Leaves `[N]`."""

    context: Array  # float32: what the episode drew at its start, +1 or -1
    time: Array  # int32: steps taken in the episode
    ended: Array  # bool: the next step begins a new episode


class Probe(NamedTuple):
    """One task. The functions take context, time and action of N environments."""

    observe: Callable[[Array, Array, int], Array]
    reward: Callable[[Array, Array, Array, int], Array]
    length: int | None  # None: the option `limit`
    truncates: bool
    obs_size: int
    action_space: Discrete | Box


def _nothing(context: Array, time: Array, limit: int) -> Array:
    return jnp.zeros((*context.shape, 1), jnp.float32)


def _context(context: Array, time: Array, limit: int) -> Array:
    return context[:, None]


def _time(context: Array, time: Array, limit: int) -> Array:
    return (time[:, None] / limit).astype(jnp.float32)


def _one(context: Array, time: Array, action: Array, limit: int) -> Array:
    return jnp.ones_like(context)


_TARGET = Box((1,), np.dtype(np.float32), -2.0, 2.0)
_PROBES: dict[str, Probe] = {
    "Constant-v0": Probe(_nothing, _one, 1, False, 1, Discrete(2)),
    "Observed-v0": Probe(_context, lambda c, t, a, n: c, 1, False, 1, Discrete(2)),
    "Discounted-v0": Probe(
        lambda c, t, n: t[:, None].astype(jnp.float32),
        lambda c, t, a, n: (t == 1).astype(jnp.float32),
        2,
        False,
        1,
        Discrete(2),
    ),
    "Bandit-v0": Probe(
        _nothing, lambda c, t, a, n: (a == 1).astype(jnp.float32), 1, False, 1, Discrete(2)
    ),
    "Contextual-v0": Probe(
        _context, lambda c, t, a, n: (a == (c > 0)).astype(jnp.float32), 1, False, 1, Discrete(2)
    ),
    "TimeLimit-v0": Probe(_nothing, _one, None, True, 1, Discrete(2)),
    "Episode-v0": Probe(_time, _one, None, False, 1, Discrete(2)),
    "Recall-v0": Probe(
        lambda c, t, n: (c * (t == 0))[:, None].astype(jnp.float32),
        lambda c, t, a, n: ((t == n - 1) & (a == (c > 0))).astype(jnp.float32),
        None,
        False,
        1,
        Discrete(2),
    ),
    "Target-v0": Probe(_context, lambda c, t, a, n: -((a[:, 0] - c) ** 2), 1, False, 1, _TARGET),
}


def ids() -> list[str]:
    """All probes, without prefix."""
    return list(_PROBES)


@dataclass(frozen=True)
class ProbeEnv:
    """N copies of a probe; make it with `jaxrl.make("probe/Constant-v0", num_envs)`.

    The only option is `limit`, the length of `TimeLimit-v0`'s, `Episode-v0`'s and `Recall-v0`'s
    episodes (10).
    """

    name: str
    num_envs: int
    keywords: tuple[tuple[str, Any], ...] = ()
    axis: Axis = SINGLE_DEVICE
    checkpointable: bool = dataclasses.field(default=True, init=False)

    def __post_init__(self) -> None:
        known = {"limit"} if _PROBES[self.name].length is None else set()
        if set(self.options) - known:
            raise ValueError(
                f"probe/{self.name} takes the options {sorted(known)}, got {sorted(self.options)}"
            )
        if not (isinstance(self.limit, int) and self.limit >= 1):
            raise ValueError(f"probe/{self.name}: limit must be an integer >= 1, got {self.limit}")

    @property
    def id(self) -> str:
        return f"probe/{self.name}"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.keywords)

    @property
    def observation_space(self) -> Box:
        return Box((_PROBES[self.name].obs_size,), np.dtype(np.float32))

    @property
    def action_space(self) -> Discrete | Box:
        return _PROBES[self.name].action_space

    @property
    def limit(self) -> int:
        """Steps of an episode."""
        length = _PROBES[self.name].length
        return self.options.get("limit", 10) if length is None else length

    def init(self, key: Array) -> tuple[ProbeState, TimeStep]:
        no = jnp.zeros(self.num_envs, bool)
        state = ProbeState(self._draw(key), jnp.zeros(self.num_envs, jnp.int32), no)
        reward = jnp.zeros(self.num_envs, jnp.float32)
        return state, TimeStep(self._observe(state), reward, no, no, ~no)

    def step(self, key: Array, state: ProbeState, action: Array) -> tuple[ProbeState, TimeStep]:
        probe = _PROBES[self.name]
        if isinstance(probe.action_space, Box):
            action = jnp.clip(action, *probe.action_space.bounds())
        first = state.ended
        reward = probe.reward(state.context, state.time, action, self.limit)
        time = jnp.where(first, 0, state.time + 1)
        ended = time >= self.limit
        stepped = ProbeState(jnp.where(first, self._draw(key), state.context), time, ended)
        no = jnp.zeros(self.num_envs, bool)
        terminated, truncated = (no, ended) if probe.truncates else (ended, no)
        return stepped, TimeStep(
            self._observe(stepped), jnp.where(first, 0.0, reward), terminated, truncated, first
        )

    def spread(self, axis: Axis) -> ProbeEnv:
        return dataclasses.replace(self, num_envs=self.num_envs // axis.size, axis=axis)

    def for_evaluation(self, num_envs: int) -> ProbeEnv:
        return ProbeEnv(self.name, num_envs, self.keywords)

    def for_rendering(self) -> ProbeEnv:
        return self.for_evaluation(1)

    def render(self, state: ProbeState) -> np.ndarray:
        """One gray pixel: the observation."""
        value = np.asarray(self._observe(state))[0, 0]
        return np.full((1, 1, 3), np.clip(127 + 128 * value, 0, 255), np.uint8)

    def _draw(self, key: Array) -> Array:
        num_all = self.num_envs * self.axis.size
        return self.axis.shard(jax.random.rademacher(key, (num_all,), jnp.float32))

    def _observe(self, state: ProbeState) -> Array:
        return _PROBES[self.name].observe(state.context, state.time, self.limit)
