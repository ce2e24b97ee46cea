"""The crew of a sweep: all its gangs, whose lanes are whose, and their part of a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl import population as populations
from jaxrl.chunk import MAX_CHUNK
from jaxrl.envs import pools
from jaxrl.population import Strategy
from jaxrl.tuning.display import Board
from jaxrl.tuning.gang import Gang, Placement
from jaxrl.tuning.groups import Group, Groups
from jaxrl.tuning.progress import Progress
from jaxrl.tuning.schedulers import Status
from jaxrl.types import Algorithm, PyTree


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
