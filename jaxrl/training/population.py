"""Populations: W agents of one algorithm, each with a config and a random key of its own.

A lane is a place in the population; `configs` and `states` have leaves `[W, ...]`. An agent's
result depends on its config and key alone, not on its lane, the population's size or the strategy
(to float tolerance). On a GPU a vmapped population costs little more than one agent; on a CPU it
can be slower than its agents one after another, so how lanes are run is a choice, and `choose`
measures it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxrl.envs.host.pools import max_pools
from jaxrl.rollouts.simulation import restart
from jaxrl.training.compilation import compiler_options
from jaxrl.training.loop import chunk
from jaxrl.types import Algorithm, Array, Metrics, PyTree

KEEP, FRESH, RESUME = 0, 1, 2
"""What `Population.refill` does with a lane."""


class Strategy(NamedTuple):
    """How lanes are run."""

    within: str
    """On one device: "vmap" for all at once, "map" for one after another."""
    num_devices: int = 1
    """The lanes are spread over so many devices."""

    def __str__(self) -> str:
        return self.within if self.num_devices == 1 else f"shard-{self.within}"


class Population(NamedTuple):
    """W lanes of an algorithm as pure functions."""

    init: Callable[..., PyTree]
    """`init(configs, keys [W]) -> states`"""
    update: Callable[..., tuple[PyTree, Metrics]]
    """`update(configs, states, num_updates, size, active=None) -> (states, metrics)`: so many
    updates of each lane; metrics `[W, size]`, zeros past them. Lanes that are not `active` `[W]`
    may be skipped; what becomes of them is undefined."""
    refill: Callable[..., PyTree]
    """`refill(configs, states, keys, change, saved) -> states`: for each lane the agent that is
    there (`KEEP`), a new one (`FRESH`) or the one of `saved` `[W]` (`RESUME`)"""
    num_lanes: int
    strategy: Strategy


def population(algo: Algorithm, num_lanes: int, strategy: str | Strategy = "vmap") -> Population:
    """W lanes of `algo`.

    All lanes of a host environment share one pool under "vmap"; under "map" each has a pool of its
    own. A new agent's host environments begin new episodes, but their simulators' randomness goes
    on from where it was, so there (and only there) a trial depends on what ran on its lane before.

    Args:
      strategy: "vmap", "map", "shard-vmap" or "shard-map" (over as many devices as divide the
        lanes evenly), or what `choose` returned.

    Raises:
      ValueError: for an unknown strategy, or more host environments than can be kept.
    """
    chosen = as_strategy(strategy, num_lanes)
    env = algo.env
    if chosen.num_devices > 1 and algo.lane_axis is not None:
        raise ValueError(
            f"strategy {str(chosen)!r} spreads lanes over devices, but each agent is spread over "
            "them already; use 'vmap' or 'map', and `num_lane_devices` of `jaxrl.distributed.spread.spread`"
        )
    if chosen.within == "map" and not env.checkpointable and num_lanes > max_pools():
        raise ValueError(
            f"strategy 'map' needs a pool of host environments for each of {num_lanes} lanes, and "
            f"only {max_pools()} are kept; use 'vmap' or fewer lanes"
        )

    def over_lanes(function: Callable[..., PyTree], *args: PyTree) -> PyTree:
        return _over_lanes(function, chosen, algo.lane_axis)(*args)

    def init(configs: PyTree, keys: Array) -> PyTree:
        return over_lanes(algo.init, configs, keys)

    def update(
        configs: PyTree,
        states: PyTree,
        num_updates: Array | int,
        size: int,
        active: Array | None = None,
    ) -> tuple[PyTree, Metrics]:
        if chosen.within == "vmap":  # a loop whose length differs would select over all states
            return over_lanes(
                lambda config, state: chunk(algo, config, state, num_updates, size),
                configs,
                states,
            )
        active = jnp.ones(num_lanes, bool) if active is None else active

        def lane(config: Any, state: Any, num_updates: Array) -> tuple[Any, Metrics]:
            return chunk(algo, config, state, num_updates, size)

        return over_lanes(lane, configs, states, jnp.where(active, num_updates, 0))

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
            ways = [lambda: kept, lambda: algo.init(config, key, *new)]
            if resumed is not None:
                ways.append(lambda: resumed)
            return jax.lax.switch(change, ways)

        return over_lanes(lane, configs, states, keys, change, saved)

    return Population(init, update, refill, num_lanes, chosen)


def as_strategy(strategy: str | Strategy, num_lanes: int) -> Strategy:
    """What a name means on this machine."""
    if isinstance(strategy, Strategy):
        fits = num_lanes % strategy.num_devices == 0
        return strategy if fits else strategy._replace(num_devices=num_shards(num_lanes))
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {STRATEGIES}, got {strategy!r}")
    within = strategy.removeprefix("shard-")
    return Strategy(within, 1 if within == strategy else num_shards(num_lanes))


STRATEGIES = ("vmap", "map", "shard-vmap", "shard-map")


def num_shards(num_lanes: int) -> int:
    """The most devices over which so many lanes can be spread evenly."""
    most = min(num_lanes, jax.local_device_count())
    return max(n for n in range(1, most + 1) if num_lanes % n == 0)


def _over_lanes(
    function: Callable[..., PyTree], strategy: Strategy, lane_axis: str | None
) -> Callable[..., PyTree]:
    """`function` of one lane, over the leading axis of all its arguments."""
    if strategy.within == "vmap":
        inner = jax.vmap(function, spmd_axis_name=lane_axis)
    else:

        def inner(*args: PyTree) -> PyTree:
            return jax.lax.map(lambda lane: function(*lane), args)

    if strategy.num_devices == 1:
        return inner
    devices = jax.local_devices()[: strategy.num_devices]
    mesh = Mesh(np.array(devices), ("lanes",))
    lanes = PartitionSpec("lanes")
    return jax.shard_map(inner, mesh=mesh, in_specs=lanes, out_specs=lanes, check_vma=False)


def stack(config: Any, num_lanes: int, **values: Array) -> Any:
    """Configs `[W]`: the same on each lane, but for the fields given as arrays `[W]`."""
    config = config.replace(**values)
    leaves = jax.tree.map(jnp.asarray, config)
    return jax.tree.map(lambda x: x if x.ndim else jnp.broadcast_to(x, (num_lanes,)), leaves)


class MeasuredStrategy(NamedTuple):
    """What `choose` found."""

    strategy: Strategy
    steps_per_second: dict[str, float]
    """Valid environment steps of all lanes, by strategy."""


def choose(
    algo: Algorithm, configs: PyTree, seconds: float = 0.5, repeats: int = 3
) -> MeasuredStrategy:
    """The fastest strategy on this machine, by short trials of each.

    Args:
      configs: of all lanes, as they will be trained.
      seconds: how long each of the repeats takes, about; those that come close to the fastest have
        three times as many again. Compilation comes on top.
    """
    num_lanes = len(jax.tree.leaves(configs)[0])
    one_device = num_shards(num_lanes) == 1 or algo.lane_axis is not None
    names = STRATEGIES[:2] if one_device else STRATEGIES
    # Pure environments take turns, so that a busy moment hits all strategies alike; pools of host
    # environments would be too many at once.
    groups: list[tuple[str, ...]] = [names]
    if not algo.env.checkpointable:
        few = num_lanes <= max_pools()
        groups = [(name,) for name in names if few or name.endswith("vmap")]
    medians = {}
    for group in groups:
        lanes = {name: population(algo, num_lanes, name) for name in group}
        trials = {name: _Trial(algo, lanes[name], configs, seconds) for name in group}
        rates = _take_turns(trials, repeats)
        # The fastest ones are often close and change places from run to run: look again.
        fastest = max(map(statistics.median, rates.values()))
        close = {n: t for n, t in trials.items() if statistics.median(rates[n]) > 0.75 * fastest}
        if len(close) > 1:
            rates |= _take_turns(close, 3 * repeats)
        medians |= {name: statistics.median(rate) for name, rate in rates.items()}
    best = max(medians, key=medians.__getitem__)
    return MeasuredStrategy(as_strategy(best, num_lanes), medians)


def _take_turns(trials: dict[str, _Trial], repeats: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in trials}
    for _ in range(repeats):
        for name, trial in trials.items():
            rates[name].append(trial.steps_per_second())
    return rates


class _Trial:
    """A strategy, compiled, and how fast it is."""

    def __init__(self, algo: Algorithm, lanes: Population, configs: PyTree, seconds: float):
        self._configs = configs
        keys = jax.random.split(jax.random.key(0), lanes.num_lanes)
        self._states = jax.jit(lanes.init)(configs, keys)
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
        began = time.perf_counter()
        self._states, metrics = self._update(
            self._configs, self._states, jnp.int32(self._num_updates)
        )
        steps = np.asarray(metrics["valid_steps"]).sum()
        return float(steps) / (time.perf_counter() - began)
