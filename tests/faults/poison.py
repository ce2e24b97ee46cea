"""Environments that pay or show NaN, infinity or numbers near overflow, for `numerics.py`."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

PLACES = ("reward", "obs")


class PoisonState(NamedTuple):
    """State of poisoned environments: what is added to rewards and observations, and since when."""

    inner: Any
    reward: Any  # float32
    obs: Any  # float32
    steps: Any  # int32: until it begins


@dataclasses.dataclass(frozen=True)
class Poisoned:
    """Environments that add a number to the rewards or observations of some agents.

    Attributes:
      env: the environments.
      place: "reward" or "obs".
      value: the number.
      share: the probability that an agent's environments are poisoned; its key decides.
      steps: how long they are healthy.
    """

    env: Any
    place: str = "reward"
    value: float = 0.0
    share: float = 0.0
    steps: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def is_poisoned(self, key: Any) -> Any:
        return jax.random.uniform(jax.random.fold_in(key, 1)) < self.share

    def init(self, key: Any) -> Any:
        inner, timestep = self.env.init(key)
        value = jnp.where(self.is_poisoned(key), jnp.float32(self.value), 0.0)
        reward, obs = (jnp.where(self.place == place, value, 0.0) for place in PLACES)
        return PoisonState(inner, reward, obs, jnp.int32(self.steps)), timestep

    def step(self, key: Any, state: PoisonState, action: Any) -> Any:
        inner, timestep = self.env.step(key, state.inner, action)
        has_begun = state.steps <= 0
        timestep = timestep._replace(
            reward=timestep.reward + jnp.where(has_begun, state.reward, 0.0),
            obs=timestep.obs + jnp.where(has_begun, state.obs, 0.0),
        )
        return PoisonState(inner, state.reward, state.obs, state.steps - 1), timestep
