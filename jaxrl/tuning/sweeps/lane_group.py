"""A lane group of a sweep: lanes that train one compiled program.

A trial has K agents, which differ by their seed and train side by side on its lane. A lane's agents
have leaves `[K, ...]`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.envs.host import callback
from jaxrl.training import population as populations
from jaxrl.training.compilation import compiler_options
from jaxrl.training.population import FRESH, KEEP, RESUME, Population, Strategy
from jaxrl.training.progress.schedule import MAX_CHUNK
from jaxrl.tuning.objectives import greedy_metrics
from jaxrl.tuning.trial_start import agent_keys
from jaxrl.types import Algorithm, Array, Metrics, PyTree


class Placement(NamedTuple):
    """A trial that takes a lane."""

    config: Any
    key: Array
    agents: PyTree = None
    """The trial's agents, if the trial paused, as `LaneGroup.agents` returned them."""


@functools.lru_cache(maxsize=256)
def compiled_population(
    algo: Algorithm, num_agents: int, strategy: str | Strategy, options: tuple[tuple[str, Any], ...]
) -> Population:
    """Return a population's functions, compiled once for all lane groups of the same kind."""
    lanes = populations.population(algo, num_agents, strategy)
    return lanes._replace(
        init=jax.jit(lanes.init),
        update=jax.jit(
            lanes.update, static_argnums=3, donate_argnums=1, compiler_options=dict(options)
        ),
        refill=jax.jit(lanes.refill, donate_argnums=1),
    )


@functools.lru_cache(maxsize=256)
def compiled_copy(algo: Algorithm, lanes: Population) -> Callable[..., PyTree]:
    """Return `f(configs, states, agents, change) -> states`, with copies where `change` says so.

    A copy is one of the agent at the place that `agents` `[W]` names; `change` is that of
    `Population.refill`.
    """

    def copy(configs: PyTree, states: PyTree, agents: Array, change: Array) -> PyTree:
        saved = populations.copies(algo, states, agents)
        return lanes.refill(configs, states, states.key, change, saved)

    return jax.jit(copy, donate_argnums=1)


@functools.lru_cache(maxsize=256)
def compiled_evaluation(algo: Algorithm, num_episodes: int) -> Callable[..., Metrics]:
    """Return `f(config, states, keys, phase) -> metrics [K, 1]` of K agents' greedy episodes."""
    agent = functools.partial(greedy_metrics, algo, num_episodes)
    return jax.jit(jax.vmap(agent, in_axes=(None, 0, 0, None)))


class LaneGroup:
    """W lanes that train one program at a time; their configs differ in traced fields only.

    Args:
      device: where it trains; None leaves that to the strategy.
    """

    def __init__(
        self,
        num_lanes: int,
        strategy: str | Strategy,
        device: jax.Device | None = None,
        seeds_per_trial: int = 1,
    ):
        self.num_lanes, self.strategy, self._device = num_lanes, strategy, device
        self._seeds_per_trial = seeds_per_trial
        self._num_agents = num_lanes * seeds_per_trial
        self.algo: Algorithm | None = None
        self._population: Population
        self._configs: list[Any] = []
        self._states: PyTree = None
        self._pools = contextlib.ExitStack()
        """Closes the pools of environments on the host."""

    def place(self, algo: Algorithm, placements: dict[int, Placement]) -> None:
        """Put trials on lanes. The other lanes keep theirs, unless the algorithm is another one."""
        some = next(iter(placements.values()))
        if self.algo is not algo:
            self.close()
            self._compile(algo, [some.config] * self.num_lanes)
            self._states = None
        for lane, placement in placements.items():
            self._configs[lane] = placement.config
        keys = self._agent_keys([placements.get(lane, some).key for lane in range(self.num_lanes)])
        if self._states is None:
            self._states = self._population.init(self._stacked_configs(), keys)
            self._pools.enter_context(callback.closing(self._states))
            placements = {lane: p for lane, p in placements.items() if p.agents is not None}
        if placements:
            self._refill(placements, keys)

    def _refill(self, placements: dict[int, Placement], keys: Array) -> None:
        """Begin trials on their lanes, or resume them with the agents of their placements."""
        resumed = {lane: p.agents for lane, p in placements.items() if p.agents is not None}
        change = [KEEP] * self.num_lanes
        for lane in placements:
            change[lane] = RESUME if lane in resumed else FRESH
        saved = None
        if resumed:
            some = next(iter(resumed.values()))  # on lanes that do not resume, which ones is open
            parts = [self._put(resumed.get(lane, some)) for lane in range(self.num_lanes)]
            devices = jax.tree.map(lambda x: x.sharding, self.all_agents())
            saved = jax.jit(_join, out_shardings=devices)(*parts)
        self._states = self._population.refill(
            self._stacked_configs(), self._states, keys, self._of_agents(change), saved
        )

    def copy(self, configs: list[Any], parents: list[int]) -> None:
        """Let lanes continue with copies of other lanes' agents, and all lanes with new configs.

        As in `jaxrl.tuning.search`, copies keep the random keys of their lanes. They take
        environments on the device along; those on the host stay, and begin new episodes.

        Args:
          parents: the lane whose agents each lane continues with, its own if it keeps them.
        """
        assert self.algo is not None
        self._configs = configs
        own = np.arange(self.num_lanes)
        change = np.where(np.array(parents) == own, KEEP, RESUME)
        if (change == KEEP).all():
            return
        agents = np.arange(self._num_agents).reshape(self.num_lanes, -1)[parents].reshape(-1)
        self._states = compiled_copy(self.algo, self._population)(
            self._stacked_configs(), self._states, agents, self._of_agents(change.tolist())
        )

    def train(self, num_updates: int, active: list[bool]) -> Metrics:
        """Start that many updates without waiting for them; return metrics `[W * K, MAX_CHUNK]`."""
        self._states, metrics = self._population.update(
            self._stacked_configs(),
            self._states,
            jnp.int32(num_updates),
            MAX_CHUNK,
            self._of_agents(active),
        )
        return metrics

    def agents(self, lane: int) -> PyTree:
        """Return a lane's agents: their whole states except for environments on the host."""
        return jax.tree.map(lambda x: x[self._places(lane)], self.all_agents())

    def evaluate(self, lane: int, key: Array, phase: int, num_episodes: int) -> Metrics:
        """Return the metrics of greedy episodes of a lane's agents, `[K, 1]`.

        Args:
          key: of the trial.
        """
        assert self.algo is not None
        keys = self._put(agent_keys(key, self._seeds_per_trial))
        play = compiled_evaluation(self.algo, num_episodes)
        return jax.device_get(play(self._configs[lane], self.agents(lane), keys, phase))

    def all_agents(self) -> PyTree:
        """Return the agents of all lanes, as a checkpoint holds them."""
        assert self.algo is not None
        return populations.without_host_envs(self.algo, self._states)

    def template(self, algo: Algorithm, config: Any) -> PyTree:
        """Return the shapes of what `all_agents` returns for such configs."""
        configs = populations.stack(config, self._num_agents)
        keys = jax.random.split(jax.random.key(0), self._num_agents)
        lanes = populations.population(algo, self._num_agents, self.strategy)
        return populations.without_host_envs(algo, jax.eval_shape(lanes.init, configs, keys))

    def restore(
        self, algo: Algorithm, configs: list[Any], saved: PyTree, keys: list[Array]
    ) -> None:
        """Continue with what `all_agents` returned; environments on the host begin new episodes.

        Args:
          keys: of each lane, for new episodes.
        """
        self._compile(algo, configs)
        if not algo.env.checkpointable:
            states = self._population.init(self._stacked_configs(), self._agent_keys(keys))
            self._pools.enter_context(callback.closing(states))
            saved = saved._replace(simulation=states.simulation)
        self._states = self._put(saved)

    def close(self) -> None:
        """Close the environments on the host; the lanes train no more, or another algorithm."""
        self._pools.close()

    def _compile(self, algo: Algorithm, configs: list[Any]) -> None:
        self.algo, self._configs = algo, configs
        options = tuple(compiler_options(algo, configs[0]).items())
        self._population = compiled_population(algo, self._num_agents, self.strategy, options)

    def _stacked_configs(self) -> Any:
        # By NumPy: JAX needs a second for the numbers of some hundred lanes.
        return self._put(jax.tree.map(lambda *x: self._of_agents(np.array(x)), *self._configs))

    def _agent_keys(self, keys: list[Array]) -> Array:
        """Return the keys of all agents `[W * K]`, given those of the lanes."""
        return self._put(jnp.concatenate([agent_keys(key, self._seeds_per_trial) for key in keys]))

    def _of_agents(self, of_lanes: Sequence[Any] | np.ndarray) -> Array:
        """Return values of the lanes for each of their agents, `[W * K]`."""
        return jnp.repeat(jnp.asarray(of_lanes), self._seeds_per_trial, axis=0)

    def _places(self, lane: int) -> slice:
        """Return the places of a lane's agents in the population."""
        return slice(lane * self._seeds_per_trial, (lane + 1) * self._seeds_per_trial)

    def _put(self, tree: PyTree) -> PyTree:
        return tree if self._device is None else jax.device_put(tree, self._device)


def _join(*parts: PyTree) -> PyTree:
    """Return the agents of all lanes, given those of each lane."""
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
