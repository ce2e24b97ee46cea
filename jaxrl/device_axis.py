"""The axis of devices over which the environments of one agent are spread.

Each device steps its part of the environments and learns from what they show; gradients, counts
and statistics are averaged over the axis, so that all devices hold the same agent. What is random
about an environment depends on its number among all of them: the result does not depend on how many
devices share the work, but for the order of sums.

An algorithm asks its environment for the axis. `SINGLE_DEVICE` is the usual one: a single device, on which
every function here does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl.types import Array, Env, PyTree


@dataclass(frozen=True)
class Axis:
    """An axis of `jax.shard_map` or `jax.pmap`."""

    name: str | None = None
    size: int = 1

    @property
    def index(self) -> Array | int:
        """Of this device."""
        return 0 if self.name is None else jax.lax.axis_index(self.name)

    def mean(self, tree: PyTree) -> PyTree:
        """Over the devices; between processes all arrays go as one, since each message waits."""
        if self.name is None:
            return tree
        if jax.process_count() == 1:
            return jax.lax.pmean(tree, self.name)
        # Without the barrier XLA moves the reshaping into what made the arrays, and slows that.
        flat, unravel = ravel_pytree(jax.lax.optimization_barrier(tree))
        return unravel(jax.lax.pmean(flat, self.name))

    def sum(self, tree: PyTree) -> PyTree:
        """Over the devices."""
        return tree if self.name is None else jax.lax.psum(tree, self.name)

    def max(self, tree: PyTree) -> PyTree:
        """Over the devices."""
        return tree if self.name is None else jax.lax.pmax(tree, self.name)

    def count(self, valid: Array) -> Array:
        """How many are valid on all devices, at least 1, for each device.

        Sums divided by it are a device's share: averaged over the devices, they are the mean of
        all that is valid.
        """
        return jnp.maximum(self.sum(valid.sum()), 1.0) / self.size

    def shard(self, tree: PyTree, axis: int = 0) -> PyTree:
        """This device's share `[N, ...]` of what all environments have, `[N * size, ...]`."""

        def share(x: Any) -> Any:
            length = x.shape[axis] // self.size
            return jax.lax.dynamic_slice_in_dim(x, self.index * length, length, axis)

        return tree if self.name is None else jax.tree.map(share, tree)

    def split(self, key: Array, num: int) -> Array:
        """Keys for so many environments of this device, `[num]`."""
        return self.shard(jax.random.split(key, num * self.size))

    def own(self, key: Array) -> Array:
        """A key that no other device has."""
        return key if self.name is None else jax.random.fold_in(key, self.index)


SINGLE_DEVICE = Axis()


@runtime_checkable
class SpreadEnv(Protocol):
    """What environments have beside `Env` that can be spread over devices."""

    @property
    def axis(self) -> Axis:
        """`SINGLE_DEVICE`, unless this is one device's part."""
        ...

    def spread(self, axis: Axis) -> Env:
        """The part of each device, `num_envs // axis.size` environments, on an axis of that name.

        What is random about an environment must depend on its number among all of them: take its
        keys from `axis.split`, or `axis.shard` of what was drawn for all.
        """
        ...


def axis_of(env: Env) -> Axis:
    """The axis over which the environments are spread, of which `env` holds this device's part."""
    return getattr(env, "axis", SINGLE_DEVICE)
