"""The lanes of a sweep: the places where trials train, on one or several devices.

If only traced fields are searched, all lanes form one lane group. If static fields are searched,
each lane is a lane group of its own and runs whichever program its trial needs. The lane groups of
a device form a device group: they train in turns, in a thread of their own, so no device waits for
another's phases or compilations.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.envs.host import callback
from jaxrl.training import population as populations
from jaxrl.training.population import Strategy
from jaxrl.training.progress.schedule import MAX_CHUNK
from jaxrl.tuning.static_programs import Program, StaticPrograms
from jaxrl.tuning.sweeps.display import Display
from jaxrl.tuning.sweeps.lane_group import LaneGroup, Placement
from jaxrl.tuning.sweeps.state import PhaseRun, SweepState
from jaxrl.types import Algorithm, Array, Metrics, PyTree


class Trained(NamedTuple):
    """The updates and metrics of a lane group in one chunk."""

    num_updates: int
    metrics: dict[str, np.ndarray]
    """`[W * K, MAX_CHUNK]`, zeros after the updates."""


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
            algo, placements = self._to_place.pop(group)
            if self.groups[group].algo is not algo:
                self._seconds_per_update[group] = None  # it was another program's
            self.groups[group].place(algo, placements)
        measured = self._seconds_per_update[group]
        affordable = 1 if measured is None else int(seconds / max(measured, 1e-6))
        num_updates = min(updates_left, max(affordable, 1), MAX_CHUNK)
        began = time.perf_counter()
        is_active = [active[lane] for lane in self.lanes_of[group]]
        metrics = jax.device_get(self.groups[group].train(num_updates, is_active))
        self._seconds_per_update[group] = (time.perf_counter() - began) / num_updates
        return Trained(num_updates, metrics)

    def copy(self, configs: list[Any], parents: list[int]) -> None:
        """Let lanes continue as copies of others; see `LaneGroup.copy`. All must be one group."""
        (group,) = self.groups
        group.copy(configs, parents)

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
        """Wait for the device groups that train, and close all environments on the host."""
        self._threads.shutdown()
        with contextlib.ExitStack() as closed:
            for group in self.groups:
                closed.callback(group.close)

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

    def restore(
        self, state: SweepState, saved: dict[str, PyTree], key_of: Callable[[int], Array]
    ) -> None:
        """Continue from what `save` returned; environments on the host begin new episodes.

        Args:
          key_of: gives a trial's key. New episodes differ from those of earlier beginnings.
        """
        for group in self._used(state):
            first_config, program = self._of_first_trial(group, state)
            runs = self.runs(group, state)
            configs = [
                first_config if run is None else self._programs.find(state.values_of(run))[0]
                for run in runs
            ]
            # A free lane's environments are replaced before they are used.
            trials = [0 if run is None else run.trial for run in runs]
            keys = [jax.random.fold_in(key_of(trial), state.chunks) for trial in trials]
            self.groups[group].restore(program.algo, configs, saved[str(group)], keys)

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


def fastest(
    algo: Algorithm, config: Any, num_agents: int, planned_steps: float, display: Display
) -> Strategy:
    """Return the strategy that trains so many agents fastest, by a short measurement.

    Args:
      planned_steps: environment steps of the whole sweep, inf if unknown.
    """
    if num_agents == 1:
        return Strategy("vmap")
    display.show_text("measuring strategies")
    configs = populations.stack(config, num_agents)
    choice = populations.choose(algo, configs, planned_steps=planned_steps)
    rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in choice.steps_per_second.items())
    display.print_line(f"strategy {choice.strategy}; steps/s of all lanes: {rates}")
    display.show_text("compiling")
    return choice.strategy
