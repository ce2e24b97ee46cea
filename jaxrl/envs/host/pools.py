"""Pools of simulators, and groups of pools that simulate at the same time."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxrl.envs.host.errors import SimulatorError, describe, error_of_closing

NONE, ANY = -1, -2
"""Numbers of no pool, and of the pool that is ready first."""


class RawStep(NamedTuple):
    """The step of a pool with M environments, leaves `[M, ...]`; NEXT_STEP autoreset."""

    obs: Any
    reward: Any  # float32
    ended: Any  # bool
    truncated: Any  # bool
    first: Any  # bool
    raw_reward: Any  # float32
    game_over: Any  # bool


def first_step(obs: Any) -> RawStep:
    """Return the step that begins M episodes with observations `[M, ...]`."""
    no = np.zeros(len(jax.tree.leaves(obs)[0]), bool)
    zeros = np.zeros(len(no), np.float32)
    return RawStep(obs, zeros, no, no, ~no, zeros, no)


class Pool(Protocol):
    """M environments stepped together, seeded when made."""

    def reset(self) -> RawStep: ...
    def send(self, action: np.ndarray) -> None:
        """Begin a step; return while the environments simulate."""
        ...

    def recv(self) -> RawStep:
        """Wait for the step that was begun, and return it."""
        ...

    def restart(self, where: np.ndarray) -> RawStep:
        """Begin new episodes where `where` `[M]` holds, at least once.

        The rows of other environments in the result mean nothing.
        """
        ...

    def render(self) -> np.ndarray: ...
    def close(self) -> None:
        """End all environments; raise an error afterwards if some of them failed to close."""
        ...


MakePool = Callable[[np.ndarray], Pool]
"""`make_pool(seeds)`, seeds int32 `[M]`"""


class HostTime(NamedTuple):
    """The time of a pool group in seconds, since it was made."""

    elapsed: float
    waited: float
    """The program waited for simulators."""
    simulated: float
    """At least one pool simulated: from the beginning of a step until the program received it."""


class PoolGroup:
    """One or several pools that simulate at the same time, for every member of a population.

    The environments of a member are consecutive rows of seeds and actions; pool k has the k-th part
    of each member's rows.

    Args:
      make_pool: makes a pool of one environment a seed.
      seeds: int32 `[members * N]`.
      members: size of the population, 1 without one.
      num_pools: pools over which the N environments of a member are split evenly.
      asynchronous: whether steps are received from the pool that is ready first.
      id: names the environments in errors.
    """

    def __init__(
        self,
        make_pool: MakePool,
        seeds: np.ndarray,
        members: int,
        num_pools: int = 1,
        asynchronous: bool = False,
        id: str = "simulator",
        task: Hashable = None,
    ):
        self._make_pool = make_pool
        self.seeds = seeds
        self.members = members
        self.num_pools = num_pools
        self.asynchronous = asynchronous
        self._id = id
        self.task = task
        self.calls = 0  # of the program so far, modulo 2^31
        self.pools: list[Pool] = []
        self.simulating = [False] * num_pools
        self._first_steps: list[RawStep] = []
        self._received: dict[int, RawStep] = {}  # by pool: steps that no call has asked for yet
        self._threads: ThreadPoolExecutor | None = None  # that wait for asynchronous pools
        self._ready: SimpleQueue[tuple[int, Future[RawStep]]] = SimpleQueue()
        self._made_at = time.perf_counter()
        self._busy_since = self._waited = self._simulated = 0.0

    def start(self) -> RawStep:
        """Make the pools and reset them."""
        parts = [self._part(self.seeds, pool) for pool in range(self.num_pools)]
        for number, seeds in enumerate(parts):
            with self._closing_on_failure(number):
                self.pools.append(self._make_pool(seeds))
        if self.asynchronous:
            self._threads = ThreadPoolExecutor(self.num_pools)
        self._first_steps = []
        for number, pool in enumerate(self.pools):
            with self._closing_on_failure(number):
                self._first_steps.append(pool.reset())
        return self._merge(self._first_steps)

    def step(self, action: np.ndarray) -> RawStep:
        """Step all pools once with `action` `[members * N, ...]`."""
        for pool in range(self.num_pools):
            self._send(pool, self._part(action, pool))
        steps = dict(self._receive(ANY if self.asynchronous else k) for k in range(self.num_pools))
        return self._merge([steps[pool] for pool in range(self.num_pools)])

    def send_and_receive(
        self, sent: np.ndarray, awaited: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, RawStep]:
        """Begin a step of pool `sent[0]`, and wait for the step of pool `awaited[0]`.

        Returns:
          The number of the pool that was received, for each member, and its step; zeros if
          `awaited[0]` is `NONE`.
        """
        if sent[0] != NONE:
            self._send(int(sent[0]), action)
        if awaited[0] == NONE:
            pool, step = 0, jax.tree.map(np.zeros_like, self._first_steps[0])
        else:
            pool, step = self._receive(int(awaited[0]))
        return np.full(self.members, pool, np.int32), step

    def restart(self, where: np.ndarray) -> RawStep:
        """Begin new episodes where `where` `[members * N]` holds.

        Pools that simulate finish their steps first; a later call receives these steps.
        The rows of other environments in the result mean nothing.
        """
        while where.any() and any(self.simulating):
            pool, step = self._wait(self.simulating.index(True))
            self._received[pool] = step
        fresh = list(self._first_steps)
        for number, pool in enumerate(self.pools):
            part = self._part(where, number)
            if part.any():
                with self._closing_on_failure(number):
                    fresh[number] = pool.restart(part)
                if number in self._received:
                    self._received[number] = _select_rows(
                        part, fresh[number], self._received[number]
                    )
        return self._merge(fresh)

    def host_time(self) -> HostTime:
        """Return the time spent so far."""
        now = time.perf_counter()
        running = now - self._busy_since if any(self.simulating) else 0.0
        return HostTime(now - self._made_at, self._waited, self._simulated + running)

    def close(self) -> None:
        """Close all pools; errors of simulators are warnings then."""
        for error in self._close_pools():
            is_named = isinstance(error, SimulatorError)
            text = str(error) if is_named else f"{self._id} failed in close:\n{describe(error)}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _close_pools(self) -> list[BaseException]:
        """Close all pools, and return their errors."""
        if self._threads is not None:
            self._threads.shutdown()
        pools, self.pools = self.pools, []
        return [error for pool in pools if (error := error_of_closing(pool.close))]

    @contextlib.contextmanager
    def _closing_on_failure(self, pool: int) -> Iterator[None]:
        """Close all pools if a call of this one fails, with an error that names the environment."""
        try:
            yield
        except BaseException as error:  # a simulator may raise anything, such as SystemExit
            self._close_pools()  # a simulator's first error is the one to show
            if isinstance(error, KeyboardInterrupt):
                raise
            place = f"pool {pool} of {self.num_pools}: " if self.num_pools > 1 else ""
            if isinstance(error, SimulatorError):
                error.args = (f"{place}{error}",)  # its slots count within the pool
                raise
            trace = describe(error)
            raise SimulatorError(f"{place}{self._id} failed:\n{trace}") from error

    def copy_for_members(self, originals: np.ndarray) -> None:
        """Start again with copies for a population, if no step was made yet.

        `vmap` broadcasts the first state to a population if the key was not mapped. Before the
        first step, a copy equals new environments with the same seeds, if they begin alike.

        Args:
          originals: int `[members]`: the member of this group that each new one is a copy of.
        """
        advice = "initialize the population under the same vmap that steps it"
        if self.calls != 0 or len(originals) <= self.members:
            raise ValueError(
                f"a state of {self.members} agents' host environments was used as one of "
                f"{len(originals)} agents: a running host environment cannot be copied or split; "
                f"{advice}"
            )

        def copied(x: np.ndarray) -> np.ndarray:
            by_member = x.reshape(self.members, -1, *x.shape[1:])
            return by_member[originals].reshape(-1, *x.shape[1:])

        seeds, expected = copied(self.seeds), jax.tree.map(copied, self._merge(self._first_steps))
        self.close()
        self.seeds, self.members = seeds, len(originals)
        if not all(map(np.array_equal, *map(jax.tree.leaves, (self.start(), expected)))):
            raise SimulatorError(
                f"{self._id} begins otherwise in copies for {self.members} agents, with the same "
                f"seeds, than in the environments that the agents share; {advice}, each with a key "
                "of its own"
            )

    def _part(self, rows: np.ndarray, pool: int) -> np.ndarray:
        """Return one pool's rows of those of all environments."""
        if self.num_pools == 1:
            return rows
        by_pool = rows.reshape(self.members, self.num_pools, -1, *rows.shape[1:])
        return by_pool[:, pool].reshape(-1, *rows.shape[1:])

    def _merge(self, parts: list[RawStep]) -> RawStep:
        """Return the rows of all environments, given those of each pool."""
        if self.num_pools == 1:
            return parts[0]

        def merge(*rows: np.ndarray) -> np.ndarray:
            by_member = [x.reshape(self.members, -1, *x.shape[1:]) for x in rows]
            return np.concatenate(by_member, axis=1).reshape(-1, *rows[0].shape[1:])

        return jax.tree.map(merge, *parts)

    def _send(self, pool: int, action: np.ndarray) -> None:
        if self.simulating[pool] or pool in self._received:
            raise ValueError(f"pool {pool} is simulating a step already; receive it first")
        if not any(self.simulating):
            self._busy_since = time.perf_counter()
        with self._closing_on_failure(pool):
            self.pools[pool].send(action)
        self.simulating[pool] = True
        if self._threads is not None:
            step = self._threads.submit(self.pools[pool].recv)
            step.add_done_callback(lambda step: self._ready.put((pool, step)))

    def _receive(self, pool: int) -> tuple[int, RawStep]:
        """Return the number and the step of a pool, or of the one that is ready first (`ANY`)."""
        if self.asynchronous != (pool == ANY):
            raise ValueError(
                "asynchronous pools are received in the order in which they get ready (ANY), other "
                "pools by number"
            )
        if pool == ANY and self._received:
            return self._received.popitem()
        if pool in self._received:
            return pool, self._received.pop(pool)
        if not (any(self.simulating) if pool == ANY else self.simulating[pool]):
            sent = "no pool was sent an" if pool == ANY else f"pool {pool} was sent no"
            raise ValueError(f"{sent} action, so there is no step to receive")
        return self._wait(pool)

    def _wait(self, pool: int) -> tuple[int, RawStep]:
        """Wait for the step of one pool; of asynchronous pools, for the first that is ready."""
        asked = time.perf_counter()
        if self.asynchronous:
            pool, future = self._ready.get()
            receive = future.result
        else:
            receive = self.pools[pool].recv
        with self._closing_on_failure(pool):
            step = receive()
        now = time.perf_counter()
        self._waited += now - asked
        self.simulating[pool] = False
        if not any(self.simulating):
            self._simulated += now - self._busy_since
        return pool, step


def _select_rows(where: np.ndarray, new: RawStep, old: RawStep) -> RawStep:
    def select(new: np.ndarray, old: np.ndarray) -> np.ndarray:
        return np.where(where.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(select, new, old)
