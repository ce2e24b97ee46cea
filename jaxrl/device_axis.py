"""The mesh axis over which one agent's environments are spread, and its sums, shards and keys.

Each device steps an equal part of the environments and learns from it. `Axis.mean` averages
gradients and statistics over the devices, so that all devices hold the same parameters. Random
numbers of an environment depend on its index among all environments: the number of devices changes
a result only by the order of sums, and by which transitions share a batch.

An environment carries its axis (`SpreadEnv`), and algorithms read it with `axis_of(env)`. On
`SINGLE_DEVICE`, the default, every method here returns its argument.
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
    """A named axis of devices, as of `jax.shard_map` or `jax.pmap`.

    Attributes:
      name: the axis' name; None for a single device.
      size: number of devices.
    """

    name: str | None = None
    size: int = 1

    @property
    def index(self) -> Array | int:
        """The index of this device on the axis.

        Raises:
          ValueError: if the axis of the program has another size.
        """
        if self.name is None:
            return 0
        if (size := jax.lax.axis_size(self.name)) != self.size:
            raise ValueError(
                f"axis must be Axis({self.name!r}, {size}), as in the program, is {self}"
            )
        return jax.lax.axis_index(self.name)

    def mean(self, tree: PyTree) -> PyTree:
        """Average each leaf over the devices."""
        if self.name is None:
            return tree
        if jax.process_count() == 1:
            return jax.lax.pmean(tree, self.name)
        # Between processes each array is a message that waits for the network: send one for all.
        # Without the barrier XLA fuses the reshaping into what computed the arrays, and slows it.
        flat, unravel = ravel_pytree(jax.lax.optimization_barrier(tree))
        return unravel(jax.lax.pmean(flat, self.name))

    def sum(self, tree: PyTree) -> PyTree:
        """Sum each leaf over the devices."""
        return tree if self.name is None else jax.lax.psum(tree, self.name)

    def max(self, tree: PyTree) -> PyTree:
        """Take the maximum of each leaf over the devices."""
        return tree if self.name is None else jax.lax.pmax(tree, self.name)

    def mean_count(self, valid: Array) -> Array:
        """Return the number of true entries of `valid` on a device, averaged over the devices.

        The total is at least 1, so that it can divide. `mean(x.sum() / mean_count(valid))` is then
        the mean of x over the valid entries of all devices.
        """
        return jnp.maximum(self.sum(valid.sum()), 1.0) / self.size

    def shard(self, tree: PyTree, axis: int = 0) -> PyTree:
        """Return this device's `[N, ...]` of leaves `[N * size, ...]` that all devices hold.

        Args:
          axis: the array axis of the environments.
        """

        def shard_leaf(x: Any) -> Any:
            length = x.shape[axis] // self.size
            return jax.lax.dynamic_slice_in_dim(x, self.index * length, length, axis)

        return tree if self.name is None else jax.tree.map(shard_leaf, tree)

    def split_key(self, key: Array, num: int) -> Array:
        """Return `[num]` keys, one for each of this device's environments."""
        return self.shard(jax.random.split(key, num * self.size))

    def device_key(self, key: Array) -> Array:
        """Return a key that differs between devices."""
        return key if self.name is None else jax.random.fold_in(key, self.index)


SINGLE_DEVICE = Axis()


@runtime_checkable
class SpreadEnv(Protocol):
    """The members that an `Env` needs to be spread over devices."""

    @property
    def axis(self) -> Axis:
        """The axis of which `self` is one device's part; `SINGLE_DEVICE` if it is not spread."""
        ...

    def spread(self, axis: Axis) -> Env:
        """Return the part of one device on `axis`: `num_envs // axis.size` environments.

        An environment's random numbers must depend on its index among all environments: take keys
        from `axis.split_key`, or `axis.shard` of what is drawn for all.
        """
        ...


def axis_of(env: Env) -> Axis:
    """Return the axis over which `env` is spread; `SINGLE_DEVICE` if it is not."""
    return getattr(env, "axis", SINGLE_DEVICE)
