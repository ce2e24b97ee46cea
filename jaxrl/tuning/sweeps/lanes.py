"""The crew of a sweep: all its gangs, whose lanes are whose, and their part of a checkpoint."""

from __future__ import annotations

import functools
import itertools
import math
import random
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.envs import make
from jaxrl.envs.host import callback, pools
from jaxrl.training import population as populations
from jaxrl.training.compilation import compiler_options
from jaxrl.training.loop import MAX_CHUNK
from jaxrl.training.population import FRESH, KEEP, RESUME, Strategy
from jaxrl.tuning import space as spaces
from jaxrl.tuning.program import without_host
from jaxrl.tuning.schedulers import Status
from jaxrl.tuning.sweeps.display import Board
from jaxrl.tuning.sweeps.state import Progress
from jaxrl.types import Algorithm, Array, Metrics, PyTree

MOST_CHECKED = 64
"""Combinations of static values, unless a field alone has more values."""
MOST_VALUES = 256
"""Values of one field that are checked."""


class Group(NamedTuple):
    """Trials that one program can train."""

    algo: Algorithm
    steps_per_update: int


class Groups:
    """All groups of a sweep, each made when its first trial comes."""

    def __init__(self, algo: Algorithm, config: Any, space: spaces.Space):
        self._algo, self.config = algo, config
        self.static = spaces.static_names(space, type(config))
        """The searched fields that shape the program."""
        self.spread = algo.lane_axis is not None
        """Whether each agent is spread over devices already."""
        self._groups: dict[Any, Group] = {}

    def check(self, space: spaces.Space) -> None:
        """Raise `ValueError` if a program refuses the values of static fields that it may get,
        before any work; of very many combinations, some."""
        values = [spaces.possible(space[name]) for name in self.static]
        for combination in _combinations(values):
            config, group = self.of(dict(zip(self.static, combination, strict=True)))
            jax.eval_shape(group.algo.init, config, jax.random.key(0))

    def of(self, values: dict[str, Any]) -> tuple[Any, Group]:
        """The config of a trial with these values, and the group it belongs to."""
        values = dict(values)
        num_envs = values.pop("num_envs", self._algo.env.num_envs)
        config = self.config.replace(**values)
        static = (num_envs, *(values.get(name) for name in self.static))
        if static not in self._groups:
            algo = self._algo
            if num_envs != algo.env.num_envs:
                if algo.make is None:
                    raise ValueError(f"num_envs is searched, but {algo.name!r} has no `make`")
                env = make(algo.env.id, num_envs=num_envs, **algo.env.options)
                algo = algo.make(env, algo.network)
            elif self.static:  # a NamedTuple of its own, so that gangs see another group
                algo = algo._replace()
            self._groups[static] = Group(algo, num_envs * algo.num_steps(config))
        return config, self._groups[static]


def _combinations(values: Sequence[Sequence[Any]]) -> Iterable[tuple[Any, ...]]:
    """All combinations, or if they are too many, some that have each value at least once."""
    if math.prod(map(len, values)) <= MOST_CHECKED:
        return itertools.product(*values)
    number = min(max(MOST_CHECKED, *map(len, values)), MOST_VALUES)
    shuffled = random.Random(0)

    def column(of_field: Sequence[Any]) -> list[Any]:
        times = -(-number // len(of_field))
        return [x for _ in range(times) for x in shuffled.sample(of_field, len(of_field))][:number]

    return zip(*map(column, values), strict=True)


class Placement(NamedTuple):
    """A trial that takes a lane."""

    config: Any
    key: Array
    saved: PyTree = None
    """Its agent, if it paused; one from a lane's `learner`."""


class Programs(NamedTuple):
    """A population's functions, compiled."""

    init: Any
    update: Any
    refill: Any


def programs(algo: Algorithm, config: Any, num_lanes: int, strategy: str | Strategy) -> Programs:
    """Compiled once for all gangs of the same kind."""
    return _programs(algo, num_lanes, strategy, tuple(compiler_options(algo, config).items()))


@functools.lru_cache(maxsize=256)
def _programs(
    algo: Algorithm, num_lanes: int, strategy: str | Strategy, options: tuple[tuple[str, Any], ...]
) -> Programs:
    lanes = populations.population(algo, num_lanes, strategy)
    return Programs(
        init=jax.jit(lanes.init),
        update=jax.jit(
            lanes.update, static_argnums=3, donate_argnums=1, compiler_options=dict(options)
        ),
        refill=jax.jit(lanes.refill, donate_argnums=1),
    )


class Gang:
    """W lanes of agents whose configs differ in traced fields only, at any one time."""

    def __init__(self, num_lanes: int, strategy: str | Strategy, device: jax.Device | None = None):
        """All on `device`, unless it is None."""
        self.num_lanes, self.strategy, self._device = num_lanes, strategy, device
        self.algo: Algorithm | None = None
        self._programs: Programs
        self._configs: list[Any] = []
        self._states: PyTree = None

    def place(self, algo: Algorithm, placements: dict[int, Placement]) -> None:
        """Put trials on lanes; all others stay, unless the algorithm is another one."""
        some = next(iter(placements.values()))
        if self.algo is not algo:
            self._release()
            self._begin(algo, [some.config] * self.num_lanes)
            self._states = None
        for lane, placement in placements.items():
            self._configs[lane] = placement.config
        keys = [placements.get(lane, some).key for lane in range(self.num_lanes)]
        keys = self._put(jnp.stack(keys))
        if self._states is None:
            self._states = self._programs.init(self._stacked, keys)
            placements = {lane: p for lane, p in placements.items() if p.saved is not None}
        if not placements:
            return
        change = [KEEP] * self.num_lanes
        saved = None
        for lane, placement in placements.items():
            change[lane] = FRESH if placement.saved is None else RESUME
            if placement.saved is not None:
                saved = self._learners() if saved is None else saved
                one = self._put(placement.saved)
                saved = jax.tree.map(lambda all, one: all.at[lane].set(one), saved, one)  # noqa: B023
        self._states = self._programs.refill(
            self._stacked, self._states, keys, jnp.asarray(change), saved
        )

    def train(self, num_updates: int, active: list[bool]) -> Metrics:
        """So many updates, begun but not waited for; metrics `[W, MAX_CHUNK]`."""
        self._states, metrics = self._programs.update(
            self._stacked, self._states, jnp.int32(num_updates), MAX_CHUNK, jnp.asarray(active)
        )
        return metrics

    def learner(self, lane: int) -> PyTree:
        """A lane's agent: all of its state but host environments."""
        return jax.tree.map(lambda x: x[lane], self._learners())

    def save(self) -> PyTree:
        """What a checkpoint holds of the gang."""
        return self._learners()

    def template(self, algo: Algorithm, config: Any) -> PyTree:
        """The shapes of what `save` gives, for a gang of such configs."""
        configs = populations.stack(config, self.num_lanes)
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), self.num_lanes))
        lanes = populations.population(algo, self.num_lanes, self.strategy)
        return without_host(algo, jax.eval_shape(lanes.init, configs, keys))

    def restore(self, algo: Algorithm, configs: list[Any], saved: PyTree) -> None:
        """Go on from a checkpoint; host environments begin new episodes."""
        self._begin(algo, configs)
        if not algo.env.checkpointable:
            keys = jax.random.split(jax.random.key(0), self.num_lanes)
            states = self._programs.init(self._stacked, self._put(keys))
            saved = saved._replace(simulation=states.simulation)
        self._states = self._put(saved)

    def _begin(self, algo: Algorithm, configs: list[Any]) -> None:
        self.algo, self._configs = algo, configs
        self._programs = programs(algo, configs[0], self.num_lanes, self.strategy)

    def _release(self) -> None:
        """Host environments of another algorithm are of no more use."""
        if self._states is not None and self.algo is not None and not self.algo.env.checkpointable:
            callback.release(self._states.simulation.env_state)

    @property
    def _stacked(self) -> Any:
        configs = self._configs
        stacked = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(one) for one in x]), *configs)
        return self._put(stacked)

    def _put(self, tree: PyTree) -> PyTree:
        return tree if self._device is None else jax.device_put(tree, self._device)

    def _learners(self) -> PyTree:
        assert self.algo is not None
        return without_host(self.algo, self._states)


class Trained(NamedTuple):
    """What a gang did in a chunk."""

    updates: int
    metrics: dict[str, np.ndarray]
    """`[W, MAX_CHUNK]`, zeros past the updates."""


class Crew:
    """The lanes of a sweep, as one gang or, if static fields are searched, as a gang each.

    Gangs that share a device are a team: they train in turns, and their lanes report together, in
    their order. Teams train at the same time, each in a thread of its own, and none waits for
    another's phases or compilations.
    """

    def __init__(self, num_lanes: int, strategy: str | Strategy, groups: Groups):
        self._groups = groups
        if groups.static:
            pools.keep_pools(num_lanes + 1)  # of host environments each lane has one, or makes it
            devices = _devices(strategy, num_lanes, groups)
            count = len(devices)
            self.gangs = [Gang(1, "vmap", devices[lane % count]) for lane in range(num_lanes)]
            self.lanes_of = [[lane] for lane in range(num_lanes)]
            self.teams = [list(range(first, num_lanes, count)) for first in range(count)]
        else:
            self.gangs = [Gang(num_lanes, strategy)]
            self.lanes_of = [list(range(num_lanes))]
            self.teams = [[0]]
        self._waiting: dict[int, tuple[Algorithm, dict[int, Placement]]] = {}
        self._seconds_per_update: list[float | None] = [None] * len(self.gangs)
        self._threads = ThreadPoolExecutor(len(self.teams))
        self._training: dict[Future[dict[int, Trained]], list[int]] = {}

    def place(self, gang: int, algo: Algorithm, placements: dict[int, Placement]) -> None:
        """Put trials on lanes of a gang when it trains next."""
        self._waiting[gang] = algo, placements

    def begin(self, left: list[int], active: list[bool], seconds: float) -> None:
        """Let every team that rests train for about so many seconds.

        Args:
          left: updates that each gang may do at most.
          active: whether each lane runs a trial.
        """
        for team in self.teams:
            gangs = {gang: left[gang] for gang in team if left[gang]}
            if gangs and team not in self._training.values():
                self._training[self._threads.submit(self._work, gangs, active, seconds)] = team

    def wait(self, until: str = FIRST_COMPLETED) -> dict[int, Trained]:
        """What the gangs did whose teams have come to rest: of one team at least, or of all."""
        done, _ = wait(self._training, return_when=until)
        for future in done:
            del self._training[future]
        return {gang: trained for future in done for gang, trained in future.result().items()}

    def _work(self, left: dict[int, int], active: list[bool], seconds: float) -> dict[int, Trained]:
        share = seconds / len(left)
        return {gang: self._train(gang, updates, active, share) for gang, updates in left.items()}

    def _train(self, gang: int, left: int, active: list[bool], seconds: float) -> Trained:
        if gang in self._waiting:
            self.gangs[gang].place(*self._waiting.pop(gang))
        known = self._seconds_per_update[gang]
        wanted = 1 if known is None else int(seconds / max(known, 1e-6))
        updates = min(left, max(wanted, 1), MAX_CHUNK)
        began = time.perf_counter()
        metrics = self.gangs[gang].train(updates, [active[lane] for lane in self.lanes_of[gang]])
        metrics = jax.device_get(metrics)
        self._seconds_per_update[gang] = (time.perf_counter() - began) / updates
        return Trained(updates, metrics)

    def close(self) -> None:
        """Wait for the teams that train."""
        self._threads.shutdown()

    def learner(self, lane: int) -> PyTree:
        """A lane's agent: all of its state but host environments."""
        for gang, lanes in zip(self.gangs, self.lanes_of, strict=True):
            if lane in lanes:
                return gang.learner(lanes.index(lane))
        raise IndexError(lane)

    def save(self, progress: Progress) -> dict[str, PyTree]:
        """What a checkpoint holds of the gangs that train."""
        return {str(gang): self.gangs[gang].save() for gang in self._used(progress)}

    def template(self, progress: Progress) -> dict[str, Any]:
        """The shapes of what `save` gave, and of the agents kept of trials that pause."""
        gangs = {}
        for gang in self._used(progress):
            config, group = self._of_gang(gang, progress)
            gangs[str(gang)] = self.gangs[gang].template(group.algo, config)
        kept = {}
        status = np.asarray(progress.ledger.status)
        for trial, values in progress.values.items():
            if status[trial] in (Status.PAUSED, Status.READY):
                config, group = self._groups.of(values)
                one = Gang(1, "vmap").template(group.algo, config)
                kept[str(trial)] = jax.eval_shape(lambda x: jax.tree.map(lambda x: x[0], x), one)
        return {"gangs": gangs, "kept": kept}

    def restore(self, progress: Progress, saved: dict[str, PyTree]) -> None:
        """Go on from what `save` gave; host environments begin new episodes."""
        for gang in self._used(progress):
            some, group = self._of_gang(gang, progress)
            runs = [progress.runs[lane] for lane in self.lanes_of[gang]]
            configs = [
                some if run is None else self._groups.of(progress.values[run.trial])[0]
                for run in runs
            ]
            self.gangs[gang].restore(group.algo, configs, saved[str(gang)])

    def _used(self, progress: Progress) -> list[int]:
        """The gangs of which a lane runs a trial."""
        return [
            gang
            for gang, lanes in enumerate(self.lanes_of)
            if any(progress.runs[lane] is not None for lane in lanes)
        ]

    def _of_gang(self, gang: int, progress: Progress) -> tuple[Any, Group]:
        """The config and group of a gang's first running trial."""
        lanes = self.lanes_of[gang]
        run = next(run for lane in lanes if (run := progress.runs[lane]) is not None)
        return self._groups.of(progress.values[run.trial])


def _devices(
    strategy: str | Strategy, num_lanes: int, groups: Groups
) -> Sequence[jax.Device | None]:
    """Those that lanes in groups of their own are dealt to."""
    count = min(num_lanes, jax.local_device_count())
    if strategy != "auto":
        count = populations.as_strategy(strategy, num_lanes).num_devices
    if count == 1 or groups.spread:
        return (None,)
    return jax.local_devices()[:count]


def fastest(algo: Algorithm, config: Any, num_lanes: int, board: Board) -> Strategy:
    """The fastest strategy for so many lanes, by a short measurement."""
    if num_lanes == 1:
        return Strategy("vmap")
    board.say("measuring strategies")
    choice = populations.choose(algo, populations.stack(config, num_lanes))
    rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in choice.steps_per_second.items())
    board.announce(f"strategy {choice.strategy}; steps/s of all lanes: {rates}")
    return choice.strategy
