"""Populations: W agents of one algorithm, each with its own config and random key.

A lane is a place in the population; `configs` and `states` have leaves `[W, ...]`. An agent's
result depends on its config and key only, not on its lane, the size of the population or the
strategy (to float tolerance). On a GPU a vmapped population costs little more than one agent; on a
CPU it can be slower than its agents one after another. There a large population is vmapped in
groups, whose buffers fit in the processor's caches. `choose` measures which strategy is fastest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxrl import checks
from jaxrl.checks import BOUND, POSITIVE
from jaxrl.config import Config, is_static
from jaxrl.envs.host import callback
from jaxrl.rollouts.simulation import restart
from jaxrl.training.compilation import compiler_options, run_chunk
from jaxrl.types import Algorithm, Array, Metrics, PyTree, check_agent

STRATEGIES = ("vmap", "map", "shard-vmap", "shard-map")
GROUPS = range(8, 33)
"""Sizes of a vmapped group of lanes on a CPU. From 8 lanes on vmap gains little more there, and 32
agents with small networks fill the caches (docs/explanation/benchmark-notes.md)."""
SHORT_WORK = 10
"""Training is short if it takes less than this many times as long as compiling one strategy."""
KEEP, FRESH, RESUME = 0, 1, 2
"""Changes of a lane in `Population.refill`."""


class Strategy(NamedTuple):
    """A way to run the lanes."""

    within: str
    """On one device: "vmap" for all lanes at once (in groups on a CPU), "map" for one after
    another."""
    num_devices: int = 1
    """Devices over which the lanes are spread."""

    def __str__(self) -> str:
        return self.within if self.num_devices == 1 else f"shard-{self.within}"


class Population(NamedTuple):
    """W lanes of an algorithm as pure functions."""

    init: Callable[..., PyTree]
    """`init(configs, keys [W]) -> states`"""
    update: Callable[..., tuple[PyTree, Metrics]]
    """`update(configs, states, num_updates, size, active=None) -> (states, metrics)`: do
    `num_updates` updates of each lane. Metrics are `[W, size]`, zeros past the updates done; those
    of updates past `size` are lost. Lanes that are not `active` `[W]` may be skipped; their states
    and metrics are undefined."""
    refill: Callable[..., PyTree]
    """`refill(configs, states, keys, change, saved=None) -> states`: for each lane the agent in it
    (`KEEP`), a new one (`FRESH`) or the one in `saved` `[W]` (`RESUME`), by `change` `[W]`"""
    num_lanes: int
    strategy: Strategy


def pools_of_map(algo: Algorithm, num_lanes: int) -> int:
    """Return how many pools of host environments the lanes of strategy "map" may open at once."""
    devices_of_agent = min(algo.num_devices, jax.local_device_count())
    return 0 if algo.env.checkpointable else num_lanes * devices_of_agent


def population(algo: Algorithm, num_lanes: int, strategy: str | Strategy = "vmap") -> Population:
    """Make a population of `num_lanes` agents.

    With a host environment, all lanes share one pool under "vmap"; under "map" each lane has its
    own. The host environments of a new agent begin new episodes, but their simulators continue
    their random streams. So there (and only there) an agent depends on the agents that ran in its
    lane before.

    Args:
      algo: the algorithm of all lanes.
      num_lanes: number of lanes, W.
      strategy: "vmap", "map", "shard-vmap" or "shard-map" (over as many devices as divide the
        lanes evenly), or the strategy that `choose` returned.

    Raises:
      ValueError: for an unknown strategy, or too many pools of host environments.
    """
    checks.instance("algo", algo, Algorithm, "an algorithm, such as jaxrl.ppo(env)")
    num_lanes = checks.integer("num_lanes", num_lanes)
    chosen = as_strategy(strategy, num_lanes)
    env = algo.env
    if chosen.num_devices > 1 and algo.lane_axis is not None:
        raise ValueError(
            f"strategy {str(chosen)!r} spreads lanes over devices, but each agent is spread over "
            "them already; use 'vmap' or 'map', and `num_lane_devices` of "
            "`jaxrl.distributed.spread.spread`"
        )
    if chosen.within == "map" and pools_of_map(algo, num_lanes) > callback.max_groups():
        raise ValueError(
            f"strategy 'map' needs {pools_of_map(algo, num_lanes)} pools of host environments for "
            f"{num_lanes} lanes, one for each lane and device of an agent, and only "
            f"{callback.max_groups()} can be open; use 'vmap' or fewer lanes"
        )

    def init(configs: PyTree, keys: Array) -> PyTree:
        for name, tree in (("configs", configs), ("keys", keys)):
            shapes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)}
            if shapes - {(num_lanes,)}:  # a config of static fields has no leaves
                makers = "`jaxrl.population.stack` and `jax.random.split` make them"
                requirement = f"arrays with one row for each of {num_lanes} lanes ({makers})"
                raise checks.refuse(name, requirement, tree)
        return over_lanes(algo.init, chosen, algo)(configs, keys)

    def update(
        configs: PyTree,
        states: PyTree,
        num_updates: Array | int,
        size: int,
        active: Array | None = None,
    ) -> tuple[PyTree, Metrics]:
        def lane(config: Any, state: Any, num_updates: Array | int) -> tuple[Any, Metrics]:
            return run_chunk(algo, config, state, num_updates, size)

        if chosen.within == "vmap":  # a length per lane would make vmap select over states
            return over_lanes(lambda config, state: lane(config, state, num_updates), chosen, algo)(
                configs, states
            )
        active = jnp.ones(num_lanes, bool) if active is None else active
        lengths = jnp.where(active, num_updates, 0)
        return over_lanes(lane, chosen, algo)(configs, states, lengths)

    def refill(
        configs: PyTree, states: PyTree, keys: Array, change: Array, saved: PyTree = None
    ) -> PyTree:
        def lane(config: Any, state: Any, key: Array, change: Array, saved: Any) -> Any:
            if env.checkpointable:
                kept, new, resumed = state, (), saved
            else:
                simulation = restart(env, state.simulation, change != KEEP)
                kept, new = state._replace(simulation=simulation), (simulation,)
                resumed = None if saved is None else saved._replace(simulation=simulation)
            branches = [lambda: kept, lambda: algo.init(config, key, *new)]
            if resumed is not None:
                branches.append(lambda: resumed)
            return jax.lax.switch(change, branches)

        refill_lanes = over_lanes(lane, chosen, algo)
        return refill_lanes(configs, states, keys, change, saved)

    return Population(init, update, refill, num_lanes, chosen)


def as_strategy(strategy: str | Strategy, num_lanes: int) -> Strategy:
    """Return a strategy for this machine; one for other lanes is fitted to `num_lanes`."""
    if isinstance(strategy, Strategy):
        checks.choice("Strategy.within", strategy.within, ("vmap", "map"))
        checks.integer("Strategy.num_devices", strategy.num_devices, 1, jax.local_device_count())
        is_even = num_lanes % strategy.num_devices == 0
        return strategy if is_even else strategy._replace(num_devices=num_shards(num_lanes))
    within = checks.choice("strategy", strategy, STRATEGIES).removeprefix("shard-")
    return Strategy(within, 1 if within == strategy else num_shards(num_lanes))


def num_shards(num_lanes: int) -> int:
    """Return the largest number of devices that divides the lanes evenly."""
    most = min(num_lanes, jax.local_device_count())
    return max(n for n in range(1, most + 1) if num_lanes % n == 0)


def over_lanes(
    function: Callable[..., PyTree], strategy: Strategy, algo: Algorithm
) -> Callable[..., PyTree]:
    """Map a function of one lane over the leading axis of all its arguments."""

    def mapped(*args: PyTree) -> PyTree:
        num_lanes = len(jax.tree.leaves(args)[0])
        group = group_size(algo, num_lanes)
        if strategy.within == "vmap" and group == num_lanes:
            return jax.vmap(function, spmd_axis_name=algo.lane_axis)(*args)
        batch_size = group if strategy.within == "vmap" else None
        return jax.lax.map(lambda lane: function(*lane), args, batch_size=batch_size)

    if strategy.num_devices == 1:
        return mapped
    mesh = Mesh(np.array(jax.local_devices()[: strategy.num_devices]), ("lanes",))
    lanes = PartitionSpec("lanes")
    return jax.shard_map(mapped, mesh=mesh, in_specs=lanes, out_specs=lanes, check_vma=False)


def group_size(algo: Algorithm, num_lanes: int) -> int:
    """Return how many lanes of one device "vmap" trains at once: all, or groups of equal size.

    On a CPU it is the largest of `GROUPS` that divides the lanes, and all of them if none does.
    """
    # Lanes of a host environment share a pool, which steps all of them in one call.
    is_one_group = algo.lane_axis is not None or not algo.env.checkpointable
    if is_one_group or jax.default_backend() != "cpu":
        return num_lanes
    return max((n for n in GROUPS if num_lanes % n == 0), default=num_lanes)


def stack(config: Any, num_lanes: int, **values: Array | np.ndarray | list[Any]) -> Any:
    """Return configs `[W]`: copies of `config`, with the fields given as arrays `[W]` replaced.

    Only traced fields may be given: agents of one program share the static ones.

    Raises:
      ValueError: if an array has no value, or more than one, for a lane.
    """
    checks.instance("config", config, Config, "a config, such as jaxrl.PPOConfig()")
    num_lanes = checks.integer("num_lanes", num_lanes)
    arrays = {name: np.array(x) if isinstance(x, list) else x for name, x in values.items()}
    statics = {field.name for field in dataclasses.fields(config) if is_static(field)}
    if fixed := sorted(statics & {*arrays}):
        raise ValueError(
            f"{', '.join(fixed)} of {type(config).__name__} must be the same for all lanes, since "
            "it is part of the program: train each value by itself"
        )
    config = config.replace(**arrays)  # refuses unknown names
    for name, value in arrays.items():
        shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(value)]
        if any(shape != (num_lanes,) for shape in shapes):
            raise ValueError(
                f"{name} must have one value for each of num_lanes={num_lanes}, got shape "
                f"{', '.join(map(str, shapes))}"
            )
    leaves = jax.tree.map(jnp.asarray, config)
    return jax.tree.map(lambda x: x if x.ndim else jnp.broadcast_to(x, (num_lanes,)), leaves)


def without_host_envs(algo: Algorithm, states: PyTree) -> PyTree:
    """Return agents without environments on the host, which cannot be copied or saved."""
    return states if algo.env.checkpointable else states._replace(simulation=None)


def copies(algo: Algorithm, states: PyTree, agents: Array) -> PyTree:
    """Return copies of the agents at these places `[W]`, with the random keys of their new places.

    Environments on the host cannot be copied.
    """
    learners = without_host_envs(algo, states)
    return jax.tree.map(lambda x: x[agents], learners)._replace(key=states.key)


class MeasuredStrategy(NamedTuple):
    """The fastest strategy, and the speed of each."""

    strategy: Strategy
    steps_per_second: dict[str, float]
    """Valid environment steps of all lanes, by strategy."""


def choose(
    algo: Algorithm,
    configs: PyTree,
    seconds: float = 0.5,
    repeats: int = 3,
    planned_steps: float = math.inf,
) -> MeasuredStrategy:
    """Measure every strategy on this machine and return the fastest.

    Short work takes "vmap" at once: compiling the others costs more than they gain.

    Args:
      algo: the algorithm of all lanes.
      configs: of all lanes, as they will be trained.
      seconds: approximate time of one measurement, without compilation.
      repeats: measurements of each strategy; those within 25% of the fastest get three times as
        many more.
      planned_steps: environment steps that all lanes together will train for, if known.
    """
    check_agent(algo, configs, has_lanes=True)
    seconds = checks.number("seconds", seconds, POSITIVE)
    repeats = checks.integer("repeats", repeats)
    planned_steps = checks.number("planned_steps", planned_steps, BOUND)
    shapes = {jnp.shape(x)[:1] for x in jax.tree.leaves(configs)}
    if len(shapes) != 1 or shapes == {()}:
        raise ValueError(
            "configs must have leaves [W] for W lanes, as `jaxrl.population.stack(config, W)` "
            f"makes them, got {configs}"
        )
    num_lanes = len(jax.tree.leaves(configs)[0])

    def stopwatch(name: str) -> _Stopwatch:
        return _Stopwatch(algo, population(algo, num_lanes, name), configs, seconds, pools)

    with contextlib.ExitStack() as pools:
        began = time.perf_counter()
        made = {"vmap": stopwatch("vmap")}
        preparation = time.perf_counter() - began
        rate = made["vmap"].steps_per_second()
        if planned_steps < SHORT_WORK * preparation * rate:
            return MeasuredStrategy(as_strategy("vmap", num_lanes), {"vmap": rate})
        one_device = num_shards(num_lanes) == 1 or algo.lane_axis is not None
        names = STRATEGIES[:2] if one_device else STRATEGIES
        # Strategies of pure environments take turns, so that a busy moment of the machine slows all
        # alike. Together, the pools of host environments would be too many.
        groups: list[tuple[str, ...]] = [names]
        if not algo.env.checkpointable:
            few = pools_of_map(algo, num_lanes) <= callback.max_groups()
            groups = [(name,) for name in names if few or name.endswith("vmap")]
        medians = {}
        for group in groups:
            clocks = {name: made.pop(name, None) or stopwatch(name) for name in group}
            rates = _measure_in_turns(clocks, repeats)
            # The fastest are often close and change places from run to run: measure them again.
            fastest = max(rates.values())
            close = {name: clocks[name] for name in group if rates[name] > 0.75 * fastest}
            if len(close) > 1:
                rates |= _measure_in_turns(close, 3 * repeats)
            medians |= rates
            pools.close()
    best = max(medians, key=medians.__getitem__)
    return MeasuredStrategy(as_strategy(best, num_lanes), medians)


def _measure_in_turns(clocks: dict[str, _Stopwatch], repeats: int) -> dict[str, float]:
    """Return the median of `repeats` measurements of each strategy, in steps per second."""
    rounds = [{name: c.steps_per_second() for name, c in clocks.items()} for _ in range(repeats)]
    return {name: statistics.median(rates[name] for rates in rounds) for name in clocks}


class _Stopwatch:
    """The compiled program of a strategy, to be timed.

    Args:
      pools: closes the pools of host environments when it ends.
    """

    def __init__(
        self,
        algo: Algorithm,
        lanes: Population,
        configs: PyTree,
        seconds: float,
        pools: contextlib.ExitStack,
    ):
        self._configs = configs
        keys = jax.random.split(jax.random.key(0), lanes.num_lanes)
        self._states = jax.jit(lanes.init)(configs, keys)
        pools.enter_context(callback.closing(self._states))
        self._size = 64

        def update(configs: PyTree, states: PyTree, num_updates: Array) -> Any:
            return lanes.update(configs, states, num_updates, self._size)

        options = compiler_options(algo, jax.tree.map(lambda x: x[0], configs))
        self._update = jax.jit(update, donate_argnums=1, compiler_options=options)
        self._num_updates = 1
        for _ in range(2):  # the first call compiles
            began = time.perf_counter()
            self.steps_per_second()
            elapsed = time.perf_counter() - began
        self._num_updates = min(max(int(seconds / max(elapsed, 1e-4)), 1), self._size)

    def steps_per_second(self) -> float:
        """Time some updates."""
        began = time.perf_counter()
        self._states, metrics = self._update(
            self._configs, self._states, jnp.int32(self._num_updates)
        )
        steps = np.asarray(metrics["valid_steps"]).sum()
        return float(steps) / (time.perf_counter() - began)
