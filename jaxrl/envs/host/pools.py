"""Pools of environments on the host, by number: what the callbacks of `jaxrl.envs.host.callback` do.

An entry is one or several pools that simulate at the same time, with the same number of every
member's environments each. Member m's environments come together in seeds and actions; pool g has
the g-th part of each.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np


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
    def send(self, action: np.ndarray) -> None:
        """Begin a step; returns while the environments simulate."""
        ...

    def recv(self) -> RawStep:
        """Wait for the step that was begun."""
        ...

    def restart(self, where: np.ndarray) -> RawStep:
        """New episodes where `where` `[M]` holds; the answer's other rows mean nothing."""
        ...

    def render(self) -> np.ndarray: ...
    def close(self) -> None: ...


MakePool = Callable[[np.ndarray], Pool]
"""`make_pool(seeds)`, seeds int32 `[M]`"""


class HostTime(NamedTuple):
    """Where the time of an entry went, in seconds since it was made."""

    lived: float
    waited: float
    """The program waited for simulators."""
    simulated: float
    """At least one pool simulated, as far as the program could see: from a step's begin until it
    was asked for, and there."""


@dataclass
class PoolGroup:
    """Pools, and their place in time."""

    make_pool: MakePool
    seeds: np.ndarray
    num_pools: int = 1
    asynchronous: bool = False
    """Whether steps are received from the pool that is ready first."""
    members: int = field(default=0, init=False)
    pools: list[Pool] = field(default_factory=list, init=False)
    simulating: list[bool] = field(default_factory=list, init=False)
    waiters: ThreadPoolExecutor | None = field(default=None, init=False)
    """Threads that wait for asynchronous pools, and what has arrived."""
    held: dict[int, RawStep] = field(default_factory=dict, init=False)
    """Steps that were waited for before they were asked for, by pool."""
    ready: SimpleQueue[tuple[int, Future[RawStep]]] = field(default_factory=SimpleQueue, init=False)
    calls: int = field(default=0, init=False)
    made_at: float = field(default_factory=time.perf_counter, init=False)
    busy_since: float = field(default=0.0, init=False)
    waited: float = field(default=0.0, init=False)
    simulated: float = field(default=0.0, init=False)

    def start(self, members: int) -> RawStep:
        """Make the pools and reset them."""
        self.members = members
        parts = [self.part(self.seeds, index) for index in range(self.num_pools)]
        self.pools = [self.make_pool(seeds) for seeds in parts]
        self.simulating = [False] * self.num_pools
        if self.asynchronous:
            self.waiters = ThreadPoolExecutor(self.num_pools)
        return self.whole([pool.reset() for pool in self.pools])

    def part(self, rows: np.ndarray, index: int) -> np.ndarray:
        """A pool's share of rows of all environments."""
        if self.num_pools == 1:
            return rows
        by_pool = rows.reshape(self.members, self.num_pools, -1, *rows.shape[1:])
        return by_pool[:, index].reshape(-1, *rows.shape[1:])

    def whole(self, parts: list[RawStep]) -> RawStep:
        """Rows of all environments, of those of each pool."""
        if self.num_pools == 1:
            return parts[0]

        def merged(*rows: np.ndarray) -> np.ndarray:
            by_member = [x.reshape(self.members, -1, *x.shape[1:]) for x in rows]
            return np.concatenate(by_member, axis=1).reshape(-1, *rows[0].shape[1:])

        return jax.tree.map(merged, *parts)

    def send(self, index: int, action: np.ndarray) -> None:
        if self.simulating[index] or index in self.held:
            raise ValueError(f"pool {index} is simulating a step already; receive it first")
        if not any(self.simulating):
            self.busy_since = time.perf_counter()
        self.pools[index].send(action)
        self.simulating[index] = True
        if self.waiters is not None:
            step = self.waiters.submit(self.pools[index].recv)
            step.add_done_callback(lambda step: self.ready.put((index, step)))

    def recv(self, index: int) -> RawStep:
        if self.asynchronous:
            raise ValueError("asynchronous pools are received as they get ready, not by number")
        if index in self.held:
            return self.held.pop(index)
        if not self.simulating[index]:
            raise ValueError(f"pool {index} was sent no action, so there is no step to receive")
        return self._wait(index)[1]

    def recv_any(self) -> tuple[int, RawStep]:
        """The step of the pool that is ready first, and which one it is."""
        if not self.asynchronous:
            raise ValueError("pools that are not asynchronous are received by number")
        if self.held:
            return self.held.popitem()
        if not any(self.simulating):
            raise ValueError("no pool was sent an action, so there is no step to receive")
        return self._wait()

    def _wait(self, index: int = 0) -> tuple[int, RawStep]:
        """Wait for a pool's step; for that of the first that is ready, if asynchronous."""
        asked = time.perf_counter()
        if self.asynchronous:
            index, step = self.ready.get()
            answer = step.result()
        else:
            answer = self.pools[index].recv()
        now = time.perf_counter()
        self.waited += now - asked
        self.simulating[index] = False
        if not any(self.simulating):
            self.simulated += now - self.busy_since
        return index, answer

    def step(self, action: np.ndarray) -> RawStep:
        for index in range(self.num_pools):
            self.send(index, self.part(action, index))
        if self.asynchronous:
            arrived = dict(self.recv_any() for _ in range(self.num_pools))
            return self.whole([arrived[index] for index in range(self.num_pools)])
        return self.whole([self.recv(index) for index in range(self.num_pools)])

    def restart(self, where: np.ndarray) -> RawStep:
        """New episodes; what simulates comes to an end first, and is held until it is asked for."""
        while where.any() and any(self.simulating):
            index, step = self._wait(self.simulating.index(True))
            self.held[index] = step
        parts = [self.part(where, index) for index in range(self.num_pools)]
        fresh = [pool.restart(part) for pool, part in zip(self.pools, parts, strict=True)]
        for index, step in self.held.items():
            self.held[index] = begun_anew(step, fresh[index], parts[index])
        return self.whole(fresh)

    def host_time(self) -> HostTime:
        now = time.perf_counter()
        running = now - self.busy_since if any(self.simulating) else 0.0
        return HostTime(now - self.made_at, self.waited, self.simulated + running)

    def close(self) -> None:
        if self.waiters is not None:
            self.waiters.shutdown()
        for pool in self.pools:
            pool.close()

    def copy_for_members(self, members: int) -> None:
        """Grow pools whose first state `vmap` broadcast to a population (its key was not mapped).

        Until the first step, copies are what the same seeds give.
        """
        if self.calls != 0 or members % self.members != 0:
            raise ValueError(
                f"a state of {self.members} agents' host environments was used as one of {members} "
                "agents: a running host environment cannot be copied or split; initialize the "
                "population under the same vmap that steps it"
            )
        self.close()
        self.seeds = np.tile(self.seeds, members // self.members)
        self.start(members)


def begun_anew(step: RawStep, fresh: RawStep, where: np.ndarray) -> RawStep:
    """`step`, but `where` `[M]` holds the beginning of an episode, which was paid nothing."""

    def chosen(new: np.ndarray, old: np.ndarray) -> np.ndarray:
        return np.where(where.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(chosen, fresh._replace(first=where), step)


_entries: OrderedDict[int, PoolGroup] = OrderedDict()
_numbers = itertools.count(1)
_lock = threading.Lock()
_wanted = 8


def max_pools() -> int:
    """How many entries are kept; the least recently used one is closed first."""
    return max(_wanted, 2 * jax.local_device_count())


def keep_pools(number: int) -> None:
    """Keep at least so many entries from now on."""
    global _wanted
    _wanted = max(_wanted, number)


def add(entry: PoolGroup, members: int) -> tuple[int, RawStep]:
    """Start an entry; its number, and the first observations."""
    first = entry.start(members)
    with _lock:
        number = next(_numbers)
        _entries[number] = entry
        while len(_entries) > max_pools():
            _entries.popitem(last=False)[1].close()
    return number, first


def remove(numbers: set[int]) -> None:
    """Close entries that nobody will step again."""
    with _lock:
        entries = [_entries.pop(number, None) for number in numbers]
    for entry in entries:
        if entry is not None:
            entry.close()


def host_times(numbers: set[int]) -> list[HostTime]:
    """Of entries that are still kept."""
    with _lock:
        entries = [_entries[number] for number in numbers if number in _entries]
    return [entry.host_time() for entry in entries]


def call(
    action: Callable[..., Any], numbers: np.ndarray, calls: np.ndarray, *args: Any
) -> tuple[np.ndarray, Any]:
    """`action(entry, *args)` on the entry that a token means, and how often it was called then."""
    entry = find(numbers, calls)
    if len(numbers) != entry.members:
        entry.copy_for_members(len(numbers))
    answer = action(entry, *args)
    entry.calls = (entry.calls + 1) & np.iinfo(np.int32).max
    return np.full(len(numbers), entry.calls, np.int32), answer


def find(numbers: np.ndarray, calls: np.ndarray) -> PoolGroup:
    """The entry that a token means, if the token is the latest of its entry."""
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
    if (calls != entry.calls).any():
        raise ValueError(
            "a host environment state was used twice (or copied): it had been stepped "
            f"{int(calls.min())} times, its pool {entry.calls} times. Host environments cannot go "
            "back; always continue from the state that the last step returned"
        )
    return entry
