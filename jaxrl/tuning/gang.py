"""Gangs: the lanes of a sweep that one compiled program trains together."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl import population as populations
from jaxrl.chunk import MAX_CHUNK
from jaxrl.compilation import compiler_options
from jaxrl.envs import host
from jaxrl.population import FRESH, KEEP, RESUME, Strategy
from jaxrl.tuning.program import without_host
from jaxrl.types import Algorithm, Array, Metrics, PyTree


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
            host.release(self._states.simulation.env_state)

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
