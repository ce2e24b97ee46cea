"""Probe environments: the smallest tasks, one mechanism each, with values known in closed form.

An agent that fails on a probe has a bug in the mechanism that the probe isolates; learning curves
on real tasks only say that something is wrong. All are pure functions of integers, so exact.

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

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.envs.adapter import Adapter, first_timestep
from jaxrl.spaces import Box, Discrete
from jaxrl.types import Array, TimeStep


class ProbeState(NamedTuple):
    """State of N probes, leaves `[N]`."""

    context: Array  # float32: drawn at the start of the episode, +1 or -1
    time: Array  # int32: steps taken in the episode
    ended: Array  # bool: the next step begins a new episode


class Probe(NamedTuple):
    """One task; context, time and action are those of N environments, `limit` is an integer."""

    reward: Callable[[Array, Array, Array, int], Array]
    """`reward(context, time, action, limit)`, `[N]`"""
    observe: Callable[[Array, Array, int], Array] = lambda context, time, limit: jnp.zeros_like(
        context
    )
    """`observe(context, time, limit)`, `[N]`"""
    length: int | None = 1
    """Steps of an episode; None for the option `limit`."""
    truncates: bool = False
    action_space: Discrete | Box = Discrete(2)


def _one(context: Array, time: Array, action: Array, limit: int) -> Array:
    return jnp.ones_like(context)


def _context(context: Array, time: Array, limit: int) -> Array:
    return context


PROBES: dict[str, Probe] = {
    "Constant-v0": Probe(_one),
    "Observed-v0": Probe(lambda context, *_: context, _context),
    "Discounted-v0": Probe(
        lambda context, time, action, limit: time == 1, lambda context, time, limit: time, length=2
    ),
    "Bandit-v0": Probe(lambda context, time, action, limit: action == 1),
    "Contextual-v0": Probe(lambda context, time, action, limit: action == (context > 0), _context),
    "TimeLimit-v0": Probe(_one, length=None, truncates=True),
    "Episode-v0": Probe(_one, lambda context, time, limit: time / limit, length=None),
    "Recall-v0": Probe(
        lambda context, time, action, limit: (time == limit - 1) & (action == (context > 0)),
        lambda context, time, limit: context * (time == 0),
        length=None,
    ),
    "Target-v0": Probe(
        lambda context, time, action, limit: -((action[:, 0] - context) ** 2),
        _context,
        action_space=Box((1,), np.dtype(np.float32), -2.0, 2.0),
    ),
}


def ids() -> list[str]:
    """Return all probes, without prefix."""
    return list(PROBES)


@dataclass(frozen=True)
class ProbeEnv(Adapter):
    """N copies of a probe; make it with `jaxrl.make("probe/Constant-v0", num_envs)`.

    The only option is `limit`, the length of the episodes of `TimeLimit-v0`, `Episode-v0` and
    `Recall-v0` (10).
    """

    backend: ClassVar[str] = "probe"

    def __post_init__(self) -> None:
        known = {"limit"} if self._probe.length is None else set()
        if set(self.options) - known:
            raise ValueError(
                f"{self.id} takes the options {sorted(known)}, got {sorted(self.options)}"
            )
        checks.integer(f"limit of {self.id}", self.limit)

    @property
    def observation_space(self) -> Box:
        return Box((1,), np.dtype(np.float32))

    @property
    def action_space(self) -> Discrete | Box:
        return self._probe.action_space

    @property
    def limit(self) -> int:
        """Steps of an episode."""
        return self.options.get("limit", 10) if self._probe.length is None else self._probe.length

    def init(self, key: Array) -> tuple[ProbeState, TimeStep]:
        zeros, no = jnp.zeros(self.num_envs, jnp.int32), jnp.zeros(self.num_envs, bool)
        state = ProbeState(self._draw(key), zeros, no)
        return state, first_timestep(self._observe(state), self.num_envs)

    def step(self, key: Array, state: ProbeState, action: Array) -> tuple[ProbeState, TimeStep]:
        if isinstance(self.action_space, Box):
            action = jnp.clip(action, *self.action_space.bounds())
        first = state.ended
        reward = self._probe.reward(state.context, state.time, action, self.limit)
        reward = jnp.where(first, 0.0, reward.astype(jnp.float32))
        time = jnp.where(first, 0, state.time + 1)
        ended = time >= self.limit
        stepped = ProbeState(jnp.where(first, self._draw(key), state.context), time, ended)
        no = jnp.zeros(self.num_envs, bool)
        terminated, truncated = (no, ended) if self._probe.truncates else (ended, no)
        return stepped, TimeStep(self._observe(stepped), reward, terminated, truncated, first)

    def render(self, state: ProbeState) -> np.ndarray:
        """Draw the observation as one gray pixel."""
        value = np.asarray(self._observe(state))[0, 0]
        return np.full((1, 1, 3), np.clip(127 + 128 * value, 0, 255), np.uint8)

    @property
    def _probe(self) -> Probe:
        return PROBES[self.name]

    def _draw(self, key: Array) -> Array:
        num_all = self.num_envs * self.axis.size
        return self.axis.shard(jax.random.rademacher(key, (num_all,), jnp.float32))

    def _observe(self, state: ProbeState) -> Array:
        obs = self._probe.observe(state.context, state.time, self.limit)
        return obs.astype(jnp.float32)[:, None]
