"""Gradient steps on the minibatches of a rollout, once in order or in shuffled epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.device_axis import SINGLE_DEVICE, Axis
from jaxrl.ops.optimizers import gradient_step
from jaxrl.types import Array, Metrics, PyTree

ROUNDS = 8

Objective = Callable[[PyTree, Any], tuple[Array, Metrics]]
"""`objective(params, minibatch) -> (loss, losses)`."""
Learner = tuple[PyTree, PyTree]
"""Parameters and the optimizer's state."""


def learn_in_turn(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    learner: Learner,
    batch: PyTree,
    num_minibatches: int,
    axis: Axis = SINGLE_DEVICE,
) -> tuple[Learner, Metrics]:
    """Learn from a batch once, from its minibatches one after another, in order.

    A minibatch of several devices consists of one from each device.

    Args:
      objective: `objective(params, minibatch) -> (loss, losses)`; `losses` are scalars by name.
      learner: `(params, opt_state)`.
      batch: leaves `[L, B, ...]`, split along B into neighbours.

    Returns:
      The learner, and this device's mean losses over the minibatches.

    Raises:
      ValueError: if leaves differ in B.
    """
    num_rows = _count_rows(batch)
    if num_minibatches == 1:
        params, opt_state, losses = gradient_step(
            optimizer, lambda params: objective(params, batch), *learner, axis
        )
        return (params, opt_state), losses
    rows = jnp.arange(num_rows).reshape(num_minibatches, -1)
    learner, losses = _learn_from_rows(objective, optimizer, learner, batch, rows, axis)
    return learner, jax.tree.map(jnp.mean, losses)


def learn_in_epochs(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    learner: Learner,
    batch: PyTree,
    key: Array,
    num_epochs: int,
    num_minibatches: int,
    losses: tuple[str, ...] = ("loss",),
    stop: Callable[[Metrics], Array] | None = None,
    axis: Axis = SINGLE_DEVICE,
) -> tuple[Learner, Array, Metrics]:
    """Learn from a batch several times, each time from another split into minibatches.

    A minibatch of several devices consists of one from each device.

    Args:
      objective, learner: as for `learn_in_turn`.
      batch: leaves `[L, B, ...]`, split along B.
      num_epochs: at most.
      num_minibatches: in each epoch.
      losses: names of the losses that `objective` returns.
      stop: `stop(means)`, whether to stop after an epoch with these mean losses; None never does.

    Returns:
      The learner, the number of epochs, and mean losses over them.

    Raises:
      ValueError: if leaves differ in B, or `losses` does not name the objective's.
    """
    num_rows = _count_rows(batch)

    def epoch(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        learner, count, _, sums = carry
        rows = shuffled_indices(jax.random.fold_in(key, count), num_minibatches, num_rows)
        learner, by_row = _learn_from_rows(objective, optimizer, learner, batch, rows, axis)
        if by_row.keys() != set(losses):
            raise ValueError(
                f"objective returns the losses {sorted(by_row)}, but losses={losses} names others"
            )
        means = axis.mean(jax.tree.map(jnp.mean, by_row))
        more = count + 1 < num_epochs
        if stop is not None:
            more &= ~stop(means)
        return learner, count + 1, more, jax.tree.map(jnp.add, sums, means)

    nothing = dict.fromkeys(losses, jnp.float32(0))
    carry = (learner, jnp.int32(0), jnp.bool_(True), nothing)
    if stop is None:  # a loop of known length has a gradient (meta-gradients)
        carry, _ = jax.lax.scan(lambda carry, _: (epoch(carry), None), carry, length=num_epochs)
    else:
        carry = jax.lax.while_loop(lambda carry: carry[2], epoch, carry)
    learner, count, _, sums = carry
    return learner, count, jax.tree.map(lambda x: x / count, sums)


def _count_rows(batch: PyTree) -> int:
    """Return B of leaves `[L, B, ...]`, whose L may differ.

    Raises:
      ValueError: if B differs: places beyond the end of a leaf would mean its last row.
    """
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    shapes = {f"batch{jax.tree_util.keystr(path)}": x.shape for path, x in leaves}
    sizes = {shape[1:2] for shape in shapes.values()}
    if len(sizes) != 1 or () in sizes:
        found = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ValueError(f"all leaves of batch must be [L, B, ...] with the same B, got {found}")
    return leaves[0][1].shape[1]


def _learn_from_rows(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    learner: Learner,
    batch: PyTree,
    rows: Array,
    axis: Axis,
) -> tuple[Learner, Metrics]:
    """Take a gradient step on each row of places along B; return losses `[number of rows]`."""

    def learn(learner: Learner, rows: Array) -> tuple[Learner, Metrics]:
        minibatch = jax.tree.map(lambda x: x[:, rows], batch)
        params, opt_state, losses = gradient_step(
            optimizer, lambda params: objective(params, minibatch), *learner, axis
        )
        return (params, opt_state), losses

    return jax.lax.scan(learn, learner, rows)


def shuffled_indices(key: Array, num_minibatches: int, size: int) -> Array:
    """Return a random split of `0 .. size - 1`, `[num_minibatches, size of each]`.

    A keyed bijection sends each number to its place: a Feistel network (Luby & Rackoff 1988) over
    the next power of two, applied again to numbers that fall outside, as in Mitchell et al. 2021
    (arXiv 2106.06161). So nothing is sorted, and sorting is most of the cost of other shuffles.

    Raises:
      ValueError: if `size` is not a multiple of `num_minibatches`.
    """
    if size % num_minibatches:
        raise ValueError(f"{size} rows do not split into {num_minibatches} minibatches")
    bits = (size - 1).bit_length()
    if bits < 4:
        bits = 5  # fewer give the rounds so few functions that pairs of six rows met up to 41% more
    round_keys = jax.random.bits(key, (ROUNDS,), jnp.uint32)
    places = _permute(jnp.arange(size, dtype=jnp.uint32), round_keys, bits)
    if size < 1 << bits:
        places = jax.lax.while_loop(
            lambda x: (x >= size).any(),
            lambda x: jnp.where(x >= size, _permute(x, round_keys, bits), x),
            places,
        )
    return places.astype(jnp.int32).reshape(num_minibatches, -1)


def _permute(x: Array, round_keys: Array, bits: int) -> Array:
    """Return a keyed bijection of integers of so many bits: each round xors one half of the bits
    with a hash of the other half, and swaps them."""
    left_bits, right_bits = bits - bits // 2, bits // 2
    left, right = x >> right_bits, x & ((1 << right_bits) - 1)
    for i in range(ROUNDS):
        left, right = right, left ^ (_hash(right ^ round_keys[i]) >> (32 - left_bits))
        left_bits, right_bits = right_bits, left_bits
    return left << right_bits | right


def _hash(x: Array) -> Array:
    """Map 32-bit words one to one, high bits depending on all bits (MurmurHash3's finalizer)."""
    x = (x ^ x >> 16) * jnp.uint32(0x85EBCA6B)
    x = (x ^ x >> 13) * jnp.uint32(0xC2B2AE35)
    return x ^ x >> 16
