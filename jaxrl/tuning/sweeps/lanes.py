"""The lanes of a sweep: the places where trials train, on one or several devices.

A trial has K agents, which differ by their seed and train side by side on its lane. A lane's agents
have leaves `[K, ...]`.

A lane group trains one compiled program at a time. If only traced fields are searched, all lanes
form one lane group. If static fields are searched, each lane is a lane group of its own and runs
whichever program its trial needs. The lane groups of a device form a device group: they train in
turns, in a thread of their own, so no device waits for another's phases or compilations.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.envs.host import callback
from jaxrl.training import population as populations
from jaxrl.training.compilation import MAX_CHUNK, compiler_options
from jaxrl.training.population import FRESH, KEEP, RESUME, Population, Strategy
from jaxrl.tuning.objectives import greedy_metrics
from jaxrl.tuning.rounds import agent_keys, evaluation_key, without_host_envs
from jaxrl.tuning.static_programs import Program, StaticPrograms
from jaxrl.tuning.sweeps.state import PhaseRun, SweepState
from jaxrl.types import Algorithm, Array, Metrics, PyTree


class Placement(NamedTuple):
    """A trial that takes a lane."""

    config: Any
    key: Array
    agents: PyTree = None
    """The trial's agents, if the trial paused, as `LaneGroup.agents` returned them."""


class Trained(NamedTuple):
    """The updates and metrics of a lane group in one chunk."""

    num_updates: int
    metrics: dict[str, np.ndarray]
    """`[W * K, MAX_CHUNK]`, zeros after the updates."""


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
def compiled_evaluation(algo: Algorithm, num_episodes: int) -> Callable[..., Metrics]:
    """Return `f(config, states, keys, phase) -> metrics [K, 1]` of K agents' greedy episodes."""

    def agent(config: Any, state: Any, key: Array, phase: Array) -> Metrics:
        return greedy_metrics(algo, config, state, evaluation_key(key, phase), num_episodes)

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
        self._number = seeds_per_trial
        self._num_agents = num_lanes * seeds_per_trial
        self.algo: Algorithm | None = None
        self._population: Population
        self._configs: list[Any] = []
        self._states: PyTree = None

    def place(self, algo: Algorithm, placements: dict[int, Placement]) -> None:
        """Put trials on lanes. The other lanes keep theirs, unless the algorithm is another one."""
        some = next(iter(placements.values()))
        if self.algo is not algo:
            self._release_host_envs()
            self._compile(algo, [some.config] * self.num_lanes)
            self._states = None
        for lane, placement in placements.items():
            self._configs[lane] = placement.config
        trial_keys = [placements.get(lane, some).key for lane in range(self.num_lanes)]
        keys = self._put(jnp.concatenate([agent_keys(key, self._number) for key in trial_keys]))
        if self._states is None:
            self._states = self._population.init(self._stacked_configs(), keys)
            placements = {lane: p for lane, p in placements.items() if p.agents is not None}
        if placements:
            self._refill(placements, keys)

    def _refill(self, placements: dict[int, Placement], keys: Array) -> None:
        """Begin trials on their lanes, or resume them with the agents of their placements."""
        resumed = {lane: p.agents for lane, p in placements.items() if p.agents is not None}
        change = [KEEP] * self.num_lanes
        for lane in placements:
            change[lane] = RESUME if lane in resumed else FRESH
        saved = self.all_agents() if resumed else None
        for lane, agents in resumed.items():
            places, own = self._places(lane), self._put(agents)
            saved = jax.tree.map(lambda x, own: x.at[places].set(own), saved, own)  # noqa: B023
        self._states = self._population.refill(
            self._stacked_configs(), self._states, keys, self._of_agents(change), saved
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
        keys = self._put(agent_keys(key, self._number))
        play = compiled_evaluation(self.algo, num_episodes)
        return jax.device_get(play(self._configs[lane], self.agents(lane), keys, phase))

    def all_agents(self) -> PyTree:
        """Return the agents of all lanes, as a checkpoint holds them."""
        assert self.algo is not None
        return without_host_envs(self.algo, self._states)

    def template(self, algo: Algorithm, config: Any) -> PyTree:
        """Return the shapes of what `all_agents` returns for such configs."""
        configs = populations.stack(config, self._num_agents)
        keys = jax.random.split(jax.random.key(0), self._num_agents)
        lanes = populations.population(algo, self._num_agents, self.strategy)
        return without_host_envs(algo, jax.eval_shape(lanes.init, configs, keys))

    def restore(self, algo: Algorithm, configs: list[Any], saved: PyTree) -> None:
        """Continue with what `all_agents` returned; environments on the host begin new episodes."""
        self._compile(algo, configs)
        if not algo.env.checkpointable:
            keys = jax.random.split(jax.random.key(0), self._num_agents)
            states = self._population.init(self._stacked_configs(), self._put(keys))
            saved = saved._replace(simulation=states.simulation)
        self._states = self._put(saved)

    def _compile(self, algo: Algorithm, configs: list[Any]) -> None:
        self.algo, self._configs = algo, configs
        options = tuple(compiler_options(algo, configs[0]).items())
        self._population = compiled_population(algo, self._num_agents, self.strategy, options)

    def _release_host_envs(self) -> None:
        """Close the environments on the host of the algorithm that is replaced."""
        if self._states is not None and self.algo is not None and not self.algo.env.checkpointable:
            callback.release(self._states.simulation.env_state)

    def _stacked_configs(self) -> Any:
        configs = self._configs
        stacked = jax.tree.map(
            lambda *x: self._of_agents([jnp.asarray(one) for one in x]), *configs
        )
        return self._put(stacked)

    def _of_agents(self, of_lanes: Sequence[Any]) -> Array:
        """Return values of the lanes for each of their agents, `[W * K]`."""
        return jnp.repeat(jnp.asarray(of_lanes), self._number, axis=0)

    def _places(self, lane: int) -> slice:
        """Return the places of a lane's agents in the population."""
        return slice(lane * self._number, (lane + 1) * self._number)

    def _put(self, tree: PyTree) -> PyTree:
        return tree if self._device is None else jax.device_put(tree, self._device)


class Lanes:
    """All lanes of a sweep.

    Lane groups and lanes are numbered from 0. `lanes_of[group]` lists the lanes of a lane group,
    `device_groups` the lane groups of each device.
    """

    def __init__(
        self,
        num_lanes: int,
        strategy: str | Strategy,
        programs: StaticPrograms,
        seeds_per_trial: int = 1,
    ):
        self._programs, self._seeds_per_trial = programs, seeds_per_trial
        if programs.static_names:
            # One pool group of each lane, and one that is being replaced.
            callback.keep_at_least(num_lanes + 1)
            devices = _devices(strategy, num_lanes, programs)
            count = len(devices)
            self.groups = [
                LaneGroup(1, "vmap", devices[i % count], seeds_per_trial) for i in range(num_lanes)
            ]
            self.lanes_of = [[lane] for lane in range(num_lanes)]
            self.device_groups = [list(range(i, num_lanes, count)) for i in range(count)]
            self.num_devices = count
        else:
            self.groups = [LaneGroup(num_lanes, strategy, None, seeds_per_trial)]
            self.lanes_of = [list(range(num_lanes))]
            self.device_groups = [[0]]
            num_agents = num_lanes * seeds_per_trial
            self.num_devices = populations.as_strategy(strategy, num_agents).num_devices
        self._to_place: dict[int, tuple[Algorithm, dict[int, Placement]]] = {}
        self._seconds_per_update: list[float | None] = [None] * len(self.groups)
        self._threads = ThreadPoolExecutor(len(self.device_groups))
        self._training: dict[Future[dict[int, Trained]], list[int]] = {}

    # --- train -----------------------------------------------------------------------------------

    def place(self, group: int, algo: Algorithm, placements: dict[int, Placement]) -> None:
        """Put trials on lanes of a lane group when it trains next."""
        self._to_place[group] = algo, placements

    def begin(self, updates_left: list[int], active: list[bool], seconds: float) -> None:
        """Let every idle device group train the active lanes for about that many seconds.

        A lane group does at most its `updates_left`.
        """
        for device_group in self.device_groups:
            groups = {group: updates_left[group] for group in device_group if updates_left[group]}
            if groups and device_group not in self._training.values():
                share = seconds / len(groups)
                future = self._threads.submit(self._train_groups, groups, active, share)
                self._training[future] = device_group

    def wait(self, until: str = FIRST_COMPLETED) -> dict[int, Trained]:
        """Wait for at least one device group, or for all; return what their lane groups did."""
        done, _ = wait(self._training, return_when=until)
        for future in done:
            del self._training[future]
        return {group: trained for future in done for group, trained in future.result().items()}

    def _train_groups(
        self, updates_left: dict[int, int], active: list[bool], seconds: float
    ) -> dict[int, Trained]:
        return {g: self._train_group(g, n, active, seconds) for g, n in updates_left.items()}

    def _train_group(
        self, group: int, updates_left: int, active: list[bool], seconds: float
    ) -> Trained:
        if group in self._to_place:
            self.groups[group].place(*self._to_place.pop(group))
        measured = self._seconds_per_update[group]
        affordable = 1 if measured is None else int(seconds / max(measured, 1e-6))
        num_updates = min(updates_left, max(affordable, 1), MAX_CHUNK)
        began = time.perf_counter()
        is_active = [active[lane] for lane in self.lanes_of[group]]
        metrics = jax.device_get(self.groups[group].train(num_updates, is_active))
        self._seconds_per_update[group] = (time.perf_counter() - began) / num_updates
        return Trained(num_updates, metrics)

    def agents(self, lane: int) -> PyTree:
        """Return a lane's agents: their whole states except for environments on the host."""
        group, place = self._place_of(lane)
        return self.groups[group].agents(place)

    def evaluate(self, lane: int, key: Array, phase: int, num_episodes: int) -> Metrics:
        """Return the metrics of greedy episodes of a lane's agents; see `LaneGroup.evaluate`."""
        group, place = self._place_of(lane)
        return self.groups[group].evaluate(place, key, phase, num_episodes)

    def _place_of(self, lane: int) -> tuple[int, int]:
        """Return a lane's lane group, and its place in it."""
        return (lane, 0) if self._programs.static_names else (0, lane)

    def close(self) -> None:
        """Wait for the device groups that train."""
        self._threads.shutdown()

    # --- checkpoints -----------------------------------------------------------------------------

    def save(self, state: SweepState) -> dict[str, PyTree]:
        """Return what a checkpoint holds of the lane groups that run trials."""
        return {str(group): self.groups[group].all_agents() for group in self._used(state)}

    def template(self, state: SweepState) -> dict[str, Any]:
        """Return the shapes of what `save` returns."""
        groups = {}
        for group in self._used(state):
            config, program = self._of_first_trial(group, state)
            groups[str(group)] = self.groups[group].template(program.algo, config)
        return groups

    def agents_template(self, values: dict[str, Any]) -> PyTree:
        """Return the shapes of what `agents` returns for a trial with these values."""
        config, program = self._programs.find(values)
        lane = LaneGroup(1, "vmap", None, self._seeds_per_trial)
        return lane.template(program.algo, config)

    def restore(self, state: SweepState, saved: dict[str, PyTree]) -> None:
        """Continue from what `save` returned; environments on the host begin new episodes."""
        for group in self._used(state):
            first_config, program = self._of_first_trial(group, state)
            configs = [
                first_config if run is None else self._programs.find(state.values[run.trial])[0]
                for run in self.runs(group, state)
            ]
            self.groups[group].restore(program.algo, configs, saved[str(group)])

    def _used(self, state: SweepState) -> list[int]:
        """Return the lane groups with a lane that runs a trial."""
        return [group for group in range(len(self.groups)) if any(self.runs(group, state))]

    def runs(self, group: int, state: SweepState) -> list[PhaseRun | None]:
        """Return the run on each lane of a lane group."""
        return [state.runs[lane] for lane in self.lanes_of[group]]

    def _of_first_trial(self, group: int, state: SweepState) -> tuple[Any, Program]:
        """Return the config and program of a lane group's first running trial."""
        first = next(run for run in self.runs(group, state) if run is not None)
        return self._programs.find(state.values[first.trial])


def _devices(
    strategy: str | Strategy, num_lanes: int, programs: StaticPrograms
) -> Sequence[jax.Device | None]:
    """Return the devices to which lanes of static fields are dealt."""
    count = min(num_lanes, jax.local_device_count())
    if strategy != "auto":
        count = populations.as_strategy(strategy, num_lanes).num_devices
    if count == 1 or programs.has_spread_agents:
        return (None,)
    return jax.local_devices()[:count]
