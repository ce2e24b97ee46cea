"""The base class of all adapters.

An adapter is one file with a function `ids()` and a subclass of `Adapter`, listed in
`jaxrl.envs.registry.BACKENDS`. The class defines `backend`, `observation_space`, `action_space`,
`init` and `step`, and passes `jaxrl.check_env`. `jaxrl.envs.maze` is an example; simulators on the
host subclass `jaxrl.envs.host_adapter.HostAdapter` instead.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from jaxrl import checks
from jaxrl.device_axis import SINGLE_DEVICE, Axis
from jaxrl.types import Array, PyTree, TimeStep

Keywords = tuple[tuple[str, Any], ...]
"""The options given to `jaxrl.make` as sorted pairs, so that an environment can be hashed."""


@dataclass(frozen=True)
class Adapter:
    """N environments of one id, as a hashable value."""

    name: str
    """The id without its prefix."""
    num_envs: int
    keywords: Keywords = ()
    axis: Axis = SINGLE_DEVICE
    """The devices over which the environments are spread; `num_envs` are on each."""

    backend: ClassVar[str]
    """The prefix of the id."""

    @property
    def checkpointable(self) -> bool:
        """True if the state is arrays alone, so that a checkpoint restores the episodes."""
        return True

    @property
    def id(self) -> str:
        return f"{self.backend}/{self.name}"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.keywords)

    def spread(self, axis: Axis) -> Self:
        """Return one device's part of the environments.

        Raises:
          ValueError: if they cannot be split evenly.
        """
        checks.instance("axis", axis, Axis, "a jaxrl.device_axis.Axis")
        if self.num_envs % axis.size:
            raise ValueError(f"num_envs = {self.num_envs} is not divisible by {axis.size} devices")
        return dataclasses.replace(self, num_envs=self.num_envs // axis.size, axis=axis)

    def for_evaluation(self, num_envs: int) -> Self:
        """Return the same task with `num_envs` environments on one device."""
        return dataclasses.replace(self, num_envs=num_envs, axis=SINGLE_DEVICE)

    def for_rendering(self) -> Self:
        """Return one environment whose states `render` draws."""
        return self.for_evaluation(1)

    def with_options(self, **options: Any) -> Self:
        """Return the same environments with some options changed."""
        return dataclasses.replace(self, keywords=tuple(sorted((self.options | options).items())))


def first_timestep(obs: PyTree, num_envs: int) -> TimeStep:
    """Return the time step of N episodes that begin with `obs`."""
    no = jnp.zeros(num_envs, bool)
    return TimeStep(obs, jnp.zeros(num_envs, jnp.float32), no, no, ~no)


def select_envs(where: Array, new: PyTree, old: PyTree) -> PyTree:
    """Return `new` for the environments where `where` `[N]` holds, `old` for the others.

    Leaves are `[N, ...]`; the result has the dtypes of `old`.
    """

    def select(new: Array, old: Array) -> Array:
        rows = where.reshape(-1, *[1] * (old.ndim - 1))
        return jnp.where(rows, new.astype(old.dtype), old)

    return jax.tree.map(select, new, old)
