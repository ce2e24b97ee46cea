"""Calls of host simulators from inside a compiled program.

On a CPU JAX's `buffer_callback` hands over the program's own memory, in which results are written;
on other devices `io_callback` copies arrays to the host and back.

The state of host environments is a token: the number of a `PoolGroup`, the agent's place in the
population, and how often the group was called. The state is linear, and the host checks that: a
state that is used twice, or whose pools are closed, raises an error. The program gets the number as
data and holds no address of a pool, which has four advantages: environments are seeded from the key
of `init`; one compiled program serves any pool; every device of a `pmap` or `shard_map` gets its
own pools; and a copied state is noticed. From jax 0.11 on, the persistent compilation cache also
keeps programs with callbacks.

Under `jax.vmap` the members of a population share one group: a `custom_vmap` rule reshapes seeds
and actions from `[P, N]` to `[P * N]`, calls the group once, and reshapes the answer back. Each
member's environments are seeded from its own key, so a member sees what it would see alone.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from jaxrl.envs.host.errors import SimulatorError
from jaxrl.envs.host.pools import HostTime, PoolGroup, RawStep
from jaxrl.types import Array, PyTree


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for a simulator's error: JAX logs its traceback and raises it as well."""
    return not (record.exc_info and isinstance(record.exc_info[1], SimulatorError))


logging.getLogger("jax._src.callback").addFilter(_is_news)


class HostState(NamedTuple):
    """A linear token for N environments on the host; leaves int32 `[1]`."""

    pool: Array  # the number of their pool group
    member: Array  # of its population, 0 without one
    calls: Array  # so far, modulo 2^31


# --- in the compiled program ---------------------------------------------------------------------


def init(make_group: Callable[..., PoolGroup], obs: PyTree, seeds: Array) -> tuple[Any, RawStep]:
    """Make and start a pool group.

    Args:
      make_group: `make_group(seeds, members) -> PoolGroup`, on the host.
      obs: shapes and dtypes of one environment's raw observation.
      seeds: int32 `[N]`.

    Returns:
      The `HostState`, and the first step of all environments.
    """

    def on_host(members: Any, seeds: Any) -> tuple[np.ndarray, np.ndarray, RawStep]:
        number, first = _add(make_group(np.asarray(seeds), len(members)))
        return np.full(len(members), number, np.int32), _numbered(members), first

    def callback(members: Array, seeds: Array) -> tuple[Array, Array, RawStep]:
        numbers = jax.ShapeDtypeStruct(members.shape, np.dtype(np.int32))
        shapes = (numbers, numbers, step_shapes(obs, len(seeds)))
        return _call_host(on_host, shapes, members, seeds)

    number, member, first = _fold(callback)(jnp.zeros(1, jnp.int32), seeds)
    return HostState(number, member, jnp.zeros(1, jnp.int32)), first


def call(
    method: Callable[..., Any],
    shapes: PyTree,
    state: HostState,
    *args: Array,
    task: Hashable = None,
) -> tuple[HostState, Any]:
    """Return the next state and `method(group, *args)`, computed on the host.

    Args:
      shapes: shapes and dtypes of the method's answer for one member of a population.
      task: what the environments that are stepped are; a state of others is an error.
    """

    def on_host(
        numbers: Any, member: Any, calls: Any, *args: Any
    ) -> tuple[np.ndarray, np.ndarray, Any]:
        numbers, member, places = np.asarray(numbers), np.asarray(member), _numbered(member)
        group = _find(numbers, np.asarray(calls))
        if task != group.task:
            raise ValueError(
                f"a host environment state of {group.task!r:.200} cannot be stepped by "
                f"{task!r:.200}: simulators keep their options; begin anew with init"
            )
        try:
            if len(numbers) != group.members:
                group.copy_for_members(member)
            elif (member != places).any():
                raise ValueError(
                    "the states of the host environments of a population were copied or reordered: "
                    f"their members are {member.tolist()}. A simulator stays with its agent"
                )
            answer = method(group, *(np.asarray(x) for x in args))
        except (SimulatorError, KeyboardInterrupt):  # a step is missing, so none can follow
            with _lock:
                _groups.pop(int(numbers[0]), None)
            group.close()
            raise
        group.calls = (group.calls + 1) & np.iinfo(np.int32).max
        return places, np.full(len(numbers), group.calls, np.int32), answer

    def callback(numbers: Array, member: Array, calls: Array, *args: Array) -> Any:
        def of_members(of_one: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            shape = (len(numbers) * of_one.shape[0], *of_one.shape[1:])
            return jax.ShapeDtypeStruct(shape, of_one.dtype)

        counts = jax.ShapeDtypeStruct(calls.shape, np.dtype(np.int32))
        answer = jax.tree.map(of_members, shapes)
        return _call_host(on_host, (counts, counts, answer), numbers, member, calls, *args)

    member, calls, answer = _fold(callback)(*state, *args)
    return HostState(state.pool, member, calls), answer


def _numbered(members: Any) -> np.ndarray:
    """Return the numbers of so many members of a population, from 0."""
    return np.arange(len(members), dtype=np.int32)


def step_shapes(obs: PyTree, num_envs: int) -> RawStep:
    """Return shapes and dtypes of a `RawStep`, given those of one environment's observation."""
    flag = jax.ShapeDtypeStruct((num_envs,), np.dtype(bool))
    number = jax.ShapeDtypeStruct((num_envs,), np.dtype(np.float32))
    many = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_envs, *x.shape), x.dtype), obs)
    return RawStep(many, number, flag, flag, flag, number, flag)


def _call_host(function: Callable[..., PyTree], shapes: PyTree, *args: Array) -> PyTree:
    """Return `function(*args)`, called once on the host with arrays of NumPy.

    Args:
      shapes: shapes and dtypes of the answer.
    """

    def write(_: object, results: PyTree, *args: Any) -> None:
        # XLA uses the memory of arguments and results again as soon as this call ends.
        answer = function(*(np.asarray(x).copy() for x in args))
        jax.tree.map(_copy, answer, results)

    def with_buffers(*args: Array) -> PyTree:
        return buffer_callback(write, shapes, has_side_effect=True)(*args)

    def with_copies(*args: Array) -> PyTree:
        return io_callback(function, shapes, *args)

    return jax.lax.platform_dependent(*args, cpu=with_buffers, default=with_copies)


def _copy(array: np.ndarray, buffer: Any) -> None:
    """Copy a result to XLA's buffer for it, which must have the same shape and dtype."""
    result = np.asarray(buffer)
    if (array.shape, array.dtype) != (result.shape, result.dtype):
        raise ValueError(
            f"a pool must return {result.dtype}{list(result.shape)}, got "
            f"{array.dtype}{list(array.shape)}"
        )
    result[...] = array


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


# --- the pool groups of this process; outside `jit` only -----------------------------------------

_groups: OrderedDict[int, PoolGroup] = OrderedDict()
_numbers = itertools.count(1)
_lock = threading.Lock()
_least_kept = 8


def max_groups() -> int:
    """Return how many pool groups are kept; beyond that the least recently used one is closed."""
    return max(_least_kept, 2 * jax.local_device_count())


def keep_at_least(number: int) -> None:
    """Keep at least `number` pool groups from now on."""
    global _least_kept
    _least_kept = max(_least_kept, number)


def group_of(state: HostState) -> PoolGroup:
    """Return the pool group of a current state."""
    return _find(np.asarray(state.pool).reshape(-1), np.asarray(state.calls).reshape(-1))


def pools_of(tree: PyTree) -> set[int]:
    """Return the numbers of this process's pool groups, of all host environments in a tree."""
    nodes = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, HostState))
    pools = [node.pool for node in nodes if isinstance(node, HostState)]
    shards = [np.ravel(shard.data) for pool in pools for shard in pool.addressable_shards]
    return {int(number) for shard in shards for number in shard}


@contextlib.contextmanager
def closing(tree: PyTree) -> Iterator[None]:
    """Close the pools of all host environments in a tree when the block ends, also by an error."""
    numbers = pools_of(tree)  # now, since the block's programs may take the arrays
    del tree  # whose memory the block may need
    try:
        yield
    finally:
        _close(numbers)


@contextlib.contextmanager
def closing_on_error(tree: PyTree) -> Iterator[None]:
    """Close the pools of all host environments in a tree if an error ends the block."""
    numbers = pools_of(tree)
    del tree
    try:
        yield
    except BaseException:
        _close(numbers)
        raise


def _close(numbers: Iterable[int]) -> None:
    with _lock:
        removed = [_groups.pop(number, None) for number in numbers]
    for group in filter(None, removed):
        group.close()


def release(tree: PyTree) -> None:
    """Close the pools of all host environments in a tree, which are no longer needed."""
    _close(pools_of(tree))


def host_times(numbers: set[int]) -> list[HostTime]:
    """Return the times of those pool groups that are still kept."""
    with _lock:
        groups = [_groups[number] for number in numbers if number in _groups]
    return [group.host_time() for group in groups]


def _add(group: PoolGroup) -> tuple[int, RawStep]:
    """Start a group; return its number and its first step."""
    first = group.start()
    with _lock:
        number = next(_numbers)
        _groups[number] = group
        removed = [_groups.popitem(last=False)[1] for _ in range(len(_groups) - max_groups())]
    for displaced in removed:
        displaced.close()
    return number, first


def _find(numbers: np.ndarray, calls: np.ndarray) -> PoolGroup:
    """Return the group of a state.

    Args:
      numbers: `HostState.pool` of each member.
      calls: `HostState.calls` of each member.

    Raises:
      ValueError: if the state is not the latest one of its group, or the group is closed.
    """
    number = int(numbers[0])
    if (numbers != number).any():
        raise ValueError(
            "host environment states of different pools were stacked: initialize the members of a "
            "population under the same vmap that steps them"
        )
    with _lock:
        group = _groups.get(number)
        if group is not None:
            _groups.move_to_end(number)
    if group is None:
        raise ValueError(
            f"pool {number} of this host environment state no longer exists: it belongs to another "
            f"process, or environments were initialized more than {max_groups()} times since; "
            "initialize again"
        )
    if (calls != group.calls).any():
        raise ValueError(
            "a host environment state was used twice (or copied): it had been stepped "
            f"{int(calls.min())} times, its pool {group.calls} times. Host environments cannot go "
            "back; always continue from the state that the last step returned"
        )
    return group
