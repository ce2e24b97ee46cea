"""Environments that live on the host, stepped by a callback inside the compiled program.

The state of such environments is a token: the number of a pool, and how often it has been stepped.
It is linear, and the host checks it: a state used twice, or of a pool that is gone, is an error.
That the pool is *data*, and no address in the program, buys four things: environments are seeded
from the key of `init`; one compiled program serves any pool; every device of a `pmap` or
`shard_map` gets a pool of its own; and a copied state is noticed. (Neither way lets JAX keep the
program in its persistent compilation cache.)

Under `jax.vmap` the members of a population share one pool: a `custom_vmap` rule folds seeds and
actions of `[P, N]` to `[P*N]`, calls the pool once, and unfolds. Each member's environments are
seeded from its own key, so a member sees what it would see alone.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

from jaxrl.types import Array, PyTree


class HostState(NamedTuple):
    """A linear token for N environments of a pool on the host; leaves int32 `[1]`."""

    pool: Array  # number of the pool
    steps: Array  # calls so far, modulo 2^31


class RawStep(NamedTuple):
    """What a pool answers; leaves `[M, ...]`, M = all its environments. NEXT_STEP autoreset."""

    obs: Any
    reward: Any  # float32
    ended: Any  # bool
    truncated: Any  # bool
    first: Any  # bool
    raw_reward: Any  # float32
    game_over: Any  # bool


class Pool(Protocol):
    """M environments stepped together, seeded when made."""

    def reset(self) -> RawStep: ...
    def step(self, action: np.ndarray) -> RawStep: ...
    def restart(self, where: np.ndarray) -> RawStep:
        """New episodes where `where` `[M]` holds; the answer's other rows mean nothing."""
        ...

    def render(self) -> np.ndarray: ...
    def close(self) -> None: ...


MakePool = Callable[[np.ndarray], Pool]
"""`make_pool(seeds)`, seeds int32 `[M]`"""


def init(make_pool: MakePool, obs: PyTree, seeds: Array) -> tuple[HostState, RawStep]:
    """Make a pool of one environment a seed, and reset it.

    Args:
      obs: shapes and dtypes of one environment's raw observation.
      seeds: int32 `[N]`.
    """
    call = _fold(functools.partial(_init_callback, make_pool, obs))
    number, raw = call(jnp.zeros(1, jnp.int32), seeds)
    return HostState(number, jnp.zeros(1, jnp.int32)), raw


def step(obs: PyTree, state: HostState, action: Array) -> tuple[HostState, RawStep]:
    """Step the state's pool once with `action` `[N, ...]`."""
    call = _fold(functools.partial(_call, _step_on_host, obs))
    steps, raw = call(state.pool, state.steps, action)
    return HostState(state.pool, steps), raw


def restart(obs: PyTree, state: HostState, where: Array) -> tuple[HostState, RawStep]:
    """Begin new episodes where `where` `[N]` holds; the answer's other rows mean nothing."""
    call = _fold(functools.partial(_call, _restart_on_host, obs))
    steps, raw = call(state.pool, state.steps, where)
    return HostState(state.pool, steps), raw


def pool_of(state: HostState) -> Pool:
    """The pool of a current state; outside `jit` only."""
    return _find(np.asarray(state.pool), np.asarray(state.steps)).pool


# --- in the compiled program ---------------------------------------------------------------------


def _raw_shapes(obs: PyTree, size: int) -> RawStep:
    flag = jax.ShapeDtypeStruct((size,), np.dtype(bool))
    number = jax.ShapeDtypeStruct((size,), np.dtype(np.float32))
    many = jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype), obs)
    return RawStep(many, number, flag, flag, flag, number, flag)


def _init_callback(
    make_pool: MakePool, obs: PyTree, members: Array, seeds: Array
) -> tuple[Array, RawStep]:
    numbers = jax.ShapeDtypeStruct(members.shape, np.dtype(np.int32))
    shapes = (numbers, _raw_shapes(obs, seeds.shape[0]))
    return io_callback(functools.partial(_init_on_host, make_pool), shapes, members, seeds)


def _call(
    on_host: Callable[..., Any], obs: PyTree, numbers: Array, steps: Array, argument: Array
) -> tuple[Array, RawStep]:
    counts = jax.ShapeDtypeStruct(steps.shape, np.dtype(np.int32))
    shapes = (counts, _raw_shapes(obs, argument.shape[0]))
    return io_callback(on_host, shapes, numbers, steps, argument)


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


# --- on the host ---------------------------------------------------------------------------------


@dataclass
class _Entry:
    """A pool and its place in time."""

    make_pool: MakePool
    seeds: np.ndarray
    pool: Pool
    steps: int = 0


_entries: OrderedDict[int, _Entry] = OrderedDict()
_numbers = itertools.count(1)
_lock = threading.Lock()


_wanted = 8


def max_pools() -> int:
    """How many pools are kept; the least recently used one is closed first."""
    return max(_wanted, 2 * jax.local_device_count())


def keep_pools(number: int) -> None:
    """Keep at least so many pools from now on."""
    global _wanted
    _wanted = max(_wanted, number)


def release(state: HostState) -> None:
    """Close the pool of a state that nobody will step again; outside `jit` only."""
    numbers = np.asarray(state.pool).reshape(-1)
    with _lock:
        entries = [_entries.pop(int(number), None) for number in set(numbers.tolist())]
    for entry in entries:
        if entry is not None:
            entry.pool.close()


def _init_on_host(make_pool: MakePool, members: Any, seeds: Any) -> tuple[np.ndarray, RawStep]:
    seeds = np.asarray(seeds)
    entry = _Entry(make_pool, seeds, make_pool(seeds))
    first = entry.pool.reset()
    with _lock:
        number = next(_numbers)
        _entries[number] = entry
        while len(_entries) > max_pools():
            _entries.popitem(last=False)[1].pool.close()
    return np.full(len(members), number, np.int32), first


def _step_on_host(numbers: Any, steps: Any, action: Any) -> tuple[np.ndarray, RawStep]:
    numbers, steps, action = np.asarray(numbers), np.asarray(steps), np.asarray(action)
    entry = _find(numbers, steps)
    if len(action) != len(entry.seeds):
        _copy_for_members(entry, len(action))
    answer = entry.pool.step(action)
    entry.steps = (entry.steps + 1) & np.iinfo(np.int32).max
    return np.full(len(numbers), entry.steps, np.int32), answer


def _restart_on_host(numbers: Any, steps: Any, where: Any) -> tuple[np.ndarray, RawStep]:
    numbers, where = np.asarray(numbers), np.asarray(where)
    entry = _find(numbers, np.asarray(steps))
    answer = entry.pool.restart(where)
    entry.steps = (entry.steps + 1) & np.iinfo(np.int32).max
    return np.full(len(numbers), entry.steps, np.int32), answer


def _find(numbers: np.ndarray, steps: np.ndarray) -> _Entry:
    """The pool that a token means, if the token is the latest of its pool."""
    number = int(numbers[0])
    if (numbers != number).any():
        raise ValueError(
            "host environment states of different pools were stacked: initialize the members of a "
            "population under the same vmap that steps them"
        )
    with _lock:
        entry = _entries.get(number)
        if entry is not None:
            _entries.move_to_end(number)
    if entry is None:
        raise ValueError(
            f"pool {number} of this host environment state no longer exists: it belongs to another "
            f"process, or more than {max_pools()} pools were made since; initialize again"
        )
    if (steps != entry.steps).any():
        raise ValueError(
            "a host environment state was used twice (or copied): it had been stepped "
            f"{int(steps.min())} times, its pool {entry.steps} times. Host environments cannot go "
            "back; always continue from the state that the last step returned"
        )
    return entry


def _copy_for_members(entry: _Entry, size: int) -> None:
    """Grow a pool whose first state `vmap` broadcast to a population (its key was not mapped).

    Until the first step, copies are what the same seeds give.
    """
    if entry.steps != 0 or size % len(entry.seeds) != 0:
        raise ValueError(
            f"a state of {len(entry.seeds)} host environments was stepped with {size} actions: a "
            "running host environment cannot be copied or split; initialize the population under "
            "the same vmap that steps it"
        )
    entry.pool.close()
    entry.seeds = np.tile(entry.seeds, size // len(entry.seeds))
    entry.pool = entry.make_pool(entry.seeds)
    entry.pool.reset()
