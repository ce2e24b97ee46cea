"""Environments that live on the host, stepped by a callback inside the compiled program.

The state of such environments is a token: the number of a pool, and how often it has been called.
It is linear, and the host checks it: a state used twice, or of a pool that is gone, is an error.
That the pool is *data*, and no address in the program, buys four things: environments are seeded
from the key of `init`; one compiled program serves any pool; every device of a `pmap` or
`shard_map` gets a pool of its own; and a copied state is noticed. From jax 0.11 on, programs with
callbacks are kept in the persistent compilation cache, too.

Under `jax.vmap` the members of a population share one pool: a `custom_vmap` rule folds seeds and
actions of `[P, N]` to `[P*N]`, calls the pool once, and unfolds. Each member's environments are
seeded from its own key, so a member sees what it would see alone.

The N environments may be split over several pools, each of which can be sent actions while the
others simulate (`jaxrl.rollouts.pipelined`). All share the token, which orders the calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

from jaxrl.envs.host import pools
from jaxrl.envs.host.pools import MakePool, PoolGroup, RawStep
from jaxrl.types import Array, PyTree


class HostState(NamedTuple):
    """A linear token for N environments on the host; leaves int32 `[1]`."""

    pool: Array  # its number
    calls: Array  # so far, modulo 2^31


def init(
    make_pool: MakePool,
    obs: PyTree,
    seeds: Array,
    num_pools: int = 1,
    asynchronous: bool = False,
) -> tuple[HostState, RawStep]:
    """Make pools of one environment a seed, and reset them.

    Args:
      obs: shapes and dtypes of one environment's raw observation.
      seeds: int32 `[N]`.
      num_pools: pools over which the environments are split evenly.
      asynchronous: whether `send_and_receive` will await `ANY`, instead of a given pool.
    """
    make_entry = functools.partial(
        PoolGroup, make_pool, num_pools=num_pools, asynchronous=asynchronous
    )
    call = _fold(functools.partial(_init_callback, make_entry, obs))
    number, raw = call(jnp.zeros(1, jnp.int32), seeds)
    return HostState(number, jnp.zeros(1, jnp.int32)), raw


def step(obs: PyTree, state: HostState, action: Array) -> tuple[HostState, RawStep]:
    """Step all environments once with `action` `[N, ...]`."""
    return _call(PoolGroup.step, _raw_shapes(obs, len(action)), state, action)


NONE, ANY = -1, -2
"""No pool; the pool that is ready first."""


def send_and_receive(
    obs: PyTree, size: int, state: HostState, sent: Array | int, action: Array, awaited: Array | int
) -> tuple[HostState, Array, RawStep]:
    """Begin a step of one of k pools, which goes on while the program does, and wait for another's.

    One call, since a callback costs a third of a millisecond.

    Args:
      size: N / k.
      sent: the pool to step with `action` `[N / k, ...]`, or `NONE`.
      awaited: the pool whose step is wanted, `ANY`, or `NONE` for zeros at once.

    Returns:
      The state, the pool that was received, and its step.
    """
    shapes = (jax.ShapeDtypeStruct((1,), np.dtype(np.int32)), _raw_shapes(obs, size))
    args = (jnp.full(1, sent, jnp.int32), jnp.full(1, awaited, jnp.int32), action)
    state, (pool, raw) = _call(functools.partial(_swap, shapes), shapes, state, *args)
    return state, pool[0], raw


def restart(obs: PyTree, state: HostState, where: Array) -> tuple[HostState, RawStep]:
    """Begin new episodes where `where` `[N]` holds; the answer's other rows mean nothing."""
    return _call(PoolGroup.restart, _raw_shapes(obs, len(where)), state, where)


def pool_group_of(state: HostState) -> PoolGroup:
    """The pools of a current state; outside `jit` only."""
    return pools.find(np.asarray(state.pool).reshape(-1), np.asarray(state.calls).reshape(-1))


def release(state: HostState) -> None:
    """Close the pools of a state that nobody will step again; outside `jit` only."""
    pools.remove(set(np.asarray(state.pool).reshape(-1).tolist()))


# --- in the compiled program ---------------------------------------------------------------------


def _raw_shapes(obs: PyTree, size: int) -> RawStep:
    flag = jax.ShapeDtypeStruct((size,), np.dtype(bool))
    number = jax.ShapeDtypeStruct((size,), np.dtype(np.float32))
    many = jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype), obs)
    return RawStep(many, number, flag, flag, flag, number, flag)


def _init_callback(
    make_entry: Callable[[np.ndarray], PoolGroup], obs: PyTree, members: Array, seeds: Array
) -> tuple[Array, RawStep]:
    def on_host(members: Any, seeds: Any) -> tuple[np.ndarray, RawStep]:
        number, first = pools.add(make_entry(np.asarray(seeds)), len(members))
        return np.full(len(members), number, np.int32), first

    numbers = jax.ShapeDtypeStruct(members.shape, np.dtype(np.int32))
    return io_callback(on_host, (numbers, _raw_shapes(obs, seeds.shape[0])), members, seeds)


def _call(
    action: Callable[..., Any], shapes: PyTree, state: HostState, *args: Array
) -> tuple[HostState, Any]:
    """`action(entry, *args)` on the host; `shapes` of its answer for one member."""

    def on_host(numbers: Any, calls: Any, *args: Any) -> tuple[np.ndarray, Any]:
        arrays = [np.asarray(x) for x in (numbers, calls, *args)]
        return pools.call(action, *arrays)

    def callback(numbers: Array, calls: Array, *args: Array) -> Any:
        counts = jax.ShapeDtypeStruct(calls.shape, np.dtype(np.int32))
        answer = jax.tree.map(lambda x: _of_members(x, len(numbers)), shapes)
        return io_callback(on_host, (counts, answer), numbers, calls, *args)

    calls, answer = _fold(callback)(state.pool, state.calls, *args)
    return HostState(state.pool, calls), answer


def _swap(
    shapes: PyTree, entry: PoolGroup, sent: np.ndarray, awaited: np.ndarray, action: np.ndarray
) -> tuple[np.ndarray, RawStep]:
    pool, wanted = int(sent[0]), int(awaited[0])
    if pool != NONE:
        entry.send(pool, action)
    if wanted == NONE:
        answer = jax.tree.map(lambda x: _of_members(x, entry.members), shapes)
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), answer)
    received, raw = entry.recv_any() if wanted == ANY else (wanted, entry.recv(wanted))
    return np.full(entry.members, received, np.int32), raw


def _of_members(of_one: jax.ShapeDtypeStruct, members: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((members * of_one.shape[0], *of_one.shape[1:]), of_one.dtype)


def _fold(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Let `vmap` merge its axis into the leading axis of all arguments, and split the results."""
    folded = custom_vmap(function)

    @folded.def_vmap
    def rule(axis_size: int, in_batched: list[bool], *args: Array) -> tuple[PyTree, PyTree]:
        def merge(x: Array, batched: bool) -> Array:
            x = x if batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            return x.reshape(-1, *x.shape[2:])

        merged = [merge(x, batched) for x, batched in zip(args, in_batched, strict=True)]
        results = _fold(function)(*merged)
        split = jax.tree.map(lambda x: x.reshape(axis_size, -1, *x.shape[1:]), results)
        return split, jax.tree.map(lambda _: True, split)

    return folded
