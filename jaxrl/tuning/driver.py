"""A sweep: a hyperparameter search driven from the host, with a study, live logs and checkpoints.

Where `search` is one program and takes traced fields only, a sweep takes any, keeps every trial in
an Optuna study that several sweeps may share, shows what it does, keeps the best agents, and goes
on after a kill. The decisions are the same functions, and with the sampler "random" so are the
trials.

If only traced fields are searched, all lanes are one gang: one program, compiled once. If static
ones are searched too, each lane is a gang of its own that runs whichever program its trial needs,
compiled once for each combination of static values.
"""

from __future__ import annotations

import dataclasses
import math
import platform
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl
from jaxrl import manifest as manifests
from jaxrl import population as populations
from jaxrl.checkpoint import Checkpoints
from jaxrl.chunk import MAX_CHUNK, SUMS
from jaxrl.compilation import enable_compilation_cache
from jaxrl.envs import host, make
from jaxrl.interrupt import Interrupt
from jaxrl.logging import JsonlSink
from jaxrl.population import Strategy
from jaxrl.tuning import record, schedulers
from jaxrl.tuning import space as spaces
from jaxrl.tuning.display import Board
from jaxrl.tuning.gang import Gang, Placement
from jaxrl.tuning.program import trial_key, trial_values
from jaxrl.tuning.record import BestAgents
from jaxrl.tuning.schedulers import Ledger, Scheduler, Status
from jaxrl.tuning.study import Store, draw_of
from jaxrl.tuning.timeline import Span, occupancy
from jaxrl.types import Algorithm, PyTree

UNITS = ("updates", "steps", "episodes")
EPISODE_CHECK = 16
"""Updates after which the episodes of a phase are counted."""


class Phase(NamedTuple):
    """How long a trial trains between two reports."""

    length: int
    unit: str = "updates"
    """"updates", environment "steps" (rounded up to whole updates), or "episodes" that ended."""


class SweepResult(NamedTuple):
    """What `sweep` returns."""

    summary: dict[str, Any]
    """As in `sweep.json`: trials with values, scores and status, spans, occupancy."""
    interrupted: bool
    run_dir: Path

    @property
    def best(self) -> dict[str, Any] | None:
        """The trial with the best score of all phases."""
        return next(iter(record.ranked(self.summary["trials"])), None)


def sweep(
    algo: Algorithm,
    config: Any,
    space: spaces.Space,
    scheduler: Scheduler,
    *,
    num_lanes: int,
    phase: Phase,
    run_dir: str | Path,
    seed: int = 0,
    sampler: str = "random",
    storage: str | None = None,
    study_name: str | None = None,
    strategy: str | Strategy = "auto",
    resume: bool = False,
    keep_best: int = 3,
    keep_best_per: str | None = None,
    worker: str | None = None,
    heartbeat_seconds: int = 60,
    checkpoint_seconds: float = 30.0,
    chunk_seconds: float = 2.0,
    progress_bar: bool = True,
) -> SweepResult:
    """Search for the config that scores best; a phase's score is the mean return of its episodes.

    Ctrl-C and SIGTERM stop after the current chunk, with a checkpoint. A resumed sweep ends with
    the same trials, scores and decisions as an uninterrupted one, if its environments run on the
    device and no other worker interferes.

    Args:
      config: gives the values that are not searched.
      num_lanes: trials trained at the same time.
      run_dir: receives `sweep.json`, `metrics.jsonl`, `checkpoints/`, the best agents under
        `best/`, and `study.db` unless `storage` says otherwise.
      sampler: "random" (from `seed` alone), or Optuna's "tpe", "cmaes", "gp", which learn from the
        trials that have ended.
      storage: a database URL (see `Store`); several workers with one URL and `study_name` share
        the trials. Schedulers that pause trials need all of them in one process.
      strategy: of `jaxrl.population`, or "auto" for the fastest by a short measurement.
      keep_best: how many of the best agents are kept, for `jaxrl.load_policy`.
      keep_best_per: keep the best agent of each value of this hyperparameter too.
      worker: this process's name in the study, the same after a restart; None for one made of the
        host and the run directory.

    Raises:
      ValueError: for bad values, a `run_dir` that holds a sweep already, or one that differs.
      ImportError: without Optuna.
    """
    directory = Path(run_dir)
    _check(config, space, scheduler, num_lanes, phase, keep_best_per)
    description = record.describe(
        algo, config, space, scheduler, num_lanes, phase, seed, sampler, str(strategy)
    )
    record.open_run_dir(directory, description, resume)
    enable_compilation_cache()
    settings = _Settings(
        num_lanes=min(num_lanes, scheduler.num_trials),
        phase=phase,
        run_dir=directory,
        seed=seed,
        sampler=sampler,
        storage=storage or f"sqlite:///{directory / 'study.db'}",
        study_name=study_name or directory.name,
        strategy=strategy,
        keep_best=keep_best,
        keep_best_per=keep_best_per,
        worker=worker or f"{platform.node()}:{directory.resolve()}",
        heartbeat_seconds=heartbeat_seconds,
        checkpoint_seconds=checkpoint_seconds,
        chunk_seconds=chunk_seconds,
    )
    board = Board(description, progress_bar)
    run = _Sweep(algo, config, space, scheduler, settings, description, board)
    try:
        return run.run()
    finally:
        run.close()


@dataclasses.dataclass
class _Run:
    """A trial on a lane, within its phase."""

    trial: int
    began: float  # seconds since the sweep began
    updates: int = 0
    episodes: float = 0.0
    return_sum: float = 0.0
    diverged: bool = False

    @property
    def score(self) -> float:
        if self.diverged:
            return -math.inf
        # In the precision of the ledger, so that store and ledger agree.
        return float(np.float32(self.return_sum / self.episodes)) if self.episodes else math.nan


class _Group(NamedTuple):
    """Trials that one program can train."""

    algo: Algorithm
    steps_per_update: int


class _Settings(NamedTuple):
    """How a sweep is run; see `sweep`."""

    num_lanes: int
    phase: Phase
    run_dir: Path
    seed: int
    sampler: str
    storage: str
    study_name: str
    strategy: str | Strategy
    keep_best: int
    keep_best_per: str | None
    worker: str
    heartbeat_seconds: int
    checkpoint_seconds: float
    chunk_seconds: float


class _Sweep:
    """One call of `sweep`."""

    def __init__(
        self,
        algo: Algorithm,
        config: Any,
        space: spaces.Space,
        scheduler: Scheduler,
        settings: _Settings,
        description: dict[str, Any],
        board: Board,
    ):
        self.algo, self.config, self.space, self.scheduler = algo, config, space, scheduler
        self.settings = settings
        self.description, self.board = description, board
        self.key = jax.random.key(settings.seed)
        self.static = spaces.static_names(space, type(config))
        self.groups: dict[Any, _Group] = {}
        self.ledger = schedulers.start(scheduler)
        self.values: dict[int, dict[str, Any]] = {}
        self.runs: list[_Run | None] = [None] * settings.num_lanes
        self.kept: dict[int, PyTree] = {}
        self.best = BestAgents(settings.run_dir, settings.keep_best, settings.keep_best_per)
        self.trial_updates: dict[int, int] = {}
        self.spans: list[Span] = []
        self.passes = 0
        self.seconds_before = 0.0
        self.began = time.perf_counter()
        self.checkpoints = Checkpoints(settings.run_dir / "checkpoints")
        self.store = Store(
            settings.storage,
            settings.study_name,
            space,
            scheduler.num_trials,
            draw_of(space, lambda index: trial_values(space, self.key, index)),
            settings.sampler,
            settings.seed,
            settings.worker,
            settings.heartbeat_seconds,
        )
        self.gangs, self.lanes_of = self._make_gangs(settings.num_lanes, settings.strategy)
        self.seconds_per_update: list[float | None] = [None] * len(self.gangs)
        self._restore()
        self.values |= self.store.ended()
        self.ledger = self.store.merge(self.ledger)
        self.sink = JsonlSink(settings.run_dir / "metrics.jsonl", self.passes)

    # --- the loop --------------------------------------------------------------------------------

    def run(self) -> SweepResult:
        saved_at = time.perf_counter()
        with Interrupt() as interrupt:
            while not interrupt.requested:
                for gang in range(len(self.gangs)):
                    self._fill(gang)
                if not any(self.runs):
                    if not self.store.is_running_elsewhere():
                        break
                    time.sleep(0.2)
                    continue
                self._train_pass(interrupt)
                if time.perf_counter() - saved_at >= self.settings.checkpoint_seconds:
                    self._save()
                    saved_at = time.perf_counter()
        if interrupt.requested:
            self._save()
        else:
            self._end()
        summary = self._write_summary()
        return SweepResult(summary, interrupt.requested, self.settings.run_dir)

    def _fill(self, gang: int) -> None:
        """Give the free lanes of a gang their next trials."""
        placements: dict[int, Placement] = {}
        group = None
        for place, lane in enumerate(self.lanes_of[gang]):
            if self.runs[lane] is not None or (trial := self._next_trial()) is None:
                continue
            self.runs[lane] = _Run(trial, self._now())
            config, group = self._group(self.values[trial])
            key = trial_key(self.key, trial)
            placements[place] = Placement(config, key, self.kept.pop(trial, None))
        if group is not None:
            self.gangs[gang].place(group.algo, placements)

    def _next_trial(self) -> int | None:
        if bool((self.ledger.status == Status.READY).any()):
            self.ledger, assigned = schedulers.assign(self.ledger)
            return int(assigned)
        claimed = self.store.claim(self.values)
        if claimed is None:
            return None
        index, self.values[index] = claimed
        self.ledger = self.ledger._replace(
            scores=self.ledger.scores.at[index].set(jnp.nan),
            reported=self.ledger.reported.at[index].set(0),
            status=self.ledger.status.at[index].set(Status.RUNNING),
        )
        self.trial_updates[index] = 0
        return index

    def _train_pass(self, interrupt: Interrupt) -> None:
        """Train every gang up to where its next lane may report, then let lanes report."""
        left = [self._updates_left(gang) for gang in range(len(self.gangs))]
        while any(left) and not interrupt.requested:
            begun = {}
            for gang, updates in enumerate(left):
                if updates:
                    updates = min(updates, self._chunk_length(gang))
                    active = [self.runs[lane] is not None for lane in self.lanes_of[gang]]
                    began = time.perf_counter()
                    begun[gang] = updates, began, self.gangs[gang].train(updates, active)
            for gang, (updates, began, metrics) in begun.items():
                metrics = jax.device_get(metrics)
                self.seconds_per_update[gang] = (time.perf_counter() - began) / updates
                left[gang] -= updates
                self._count(gang, metrics, updates)
        self.passes += 1
        for gang, lanes in enumerate(self.lanes_of):
            for place, lane in enumerate(lanes):
                run = self.runs[lane]
                if run is not None and self._phase_is_over(run):
                    self._report(gang, place, lane, run)
        self.board.show(self._now(), self._lines(), self._trials())

    def _chunk_length(self, gang: int) -> int:
        seconds = self.seconds_per_update[gang]
        length = 1 if seconds is None else int(self.settings.chunk_seconds / max(seconds, 1e-6))
        return min(max(length, 1), MAX_CHUNK)

    def _updates_left(self, gang: int) -> int:
        """Until the first of the gang's lanes may report."""
        runs = [run for lane in self.lanes_of[gang] if (run := self.runs[lane]) is not None]
        if not runs or self.settings.phase.unit == "episodes":
            return EPISODE_CHECK if runs else 0
        return min(self._phase_updates(run) - run.updates for run in runs)

    def _phase_updates(self, run: _Run) -> int:
        if self.settings.phase.unit == "updates":
            return self.settings.phase.length
        _, group = self._group(self.values[run.trial])
        return math.ceil(self.settings.phase.length / group.steps_per_update)

    def _phase_is_over(self, run: _Run) -> bool:
        if self.settings.phase.unit == "episodes":
            return run.episodes >= self.settings.phase.length or run.diverged
        return run.updates >= self._phase_updates(run)

    def _count(self, gang: int, metrics: dict[str, np.ndarray], updates: int) -> None:
        """Take in what a gang's lanes did."""
        for place, lane in enumerate(self.lanes_of[gang]):
            run = self.runs[lane]
            if run is None:
                continue
            part = {name: x[place, :updates].astype(np.float64) for name, x in metrics.items()}
            row = {name: float(x.sum() if name in SUMS else x.mean()) for name, x in part.items()}
            run.updates += updates
            run.episodes += row["episode_count"]
            run.return_sum += row["episode_return_sum"]
            run.diverged |= not math.isfinite(row["loss"])
            self.trial_updates[run.trial] += updates
            self.board.count(row["valid_steps"])
            where = {
                "update": self.passes,
                "trial": run.trial,
                "lane": lane,
                "phase": int(self.ledger.reported[run.trial]),
                "trial_update": self.trial_updates[run.trial],
                "seconds": round(self._now(), 3),
            }
            self.sink.write(where | row)

    def _report(self, gang: int, place: int, lane: int, run: _Run) -> None:
        """A lane's trial has done a phase: store its score, judge, and free the lane or go on."""
        phase = int(self.ledger.reported[run.trial])
        now = self._now()
        self.runs[lane] = None
        score = self.store.report(run.trial, phase, run.score)
        if score is None:  # taken from this worker, as if it were dead
            self._forget(run.trial)
            return
        self.spans.append(Span(lane, run.trial, phase, run.began, now))
        merged = self.store.merge(self.ledger)
        before = np.asarray(merged.status)
        self.ledger = schedulers.report(
            self.scheduler, merged, np.int32(run.trial), np.float32(score)
        )
        status = int(self.ledger.status[run.trial])
        if self.best.deserves(run.trial, score, self._trials()):
            self.best.keep(
                run.trial, score, self.trial_updates[run.trial], self.gangs[gang].learner(place)
            )
        if status == Status.RUNNING:
            self.runs[lane] = _Run(run.trial, now)
        elif status in (Status.PAUSED, Status.READY):
            self.kept[run.trial] = self.gangs[gang].learner(place)
        for trial, (old, new) in enumerate(zip(before, self.ledger.status, strict=True)):
            if old != new and int(new) >= Status.STOPPED and trial in self.values:
                self._finish(trial, Status(int(new)))

    def _forget(self, trial: int) -> None:
        """It is another worker's now."""
        del self.values[trial]
        self.best.forget(trial)
        self.ledger = self.store.merge(self.ledger)

    def _finish(self, trial: int, status: Status) -> None:
        self.kept.pop(trial, None)
        reported = int(self.ledger.reported[trial])
        self.store.finish(trial, status, float(self.ledger.scores[trial, reported - 1]))

    def _end(self) -> None:
        """No trial is left that may go on: those that still pause stop."""
        self._write_best()
        paused = np.flatnonzero(np.asarray(self.ledger.status) == Status.PAUSED)
        for trial in paused:
            self._finish(int(trial), Status.STOPPED)
            status = self.ledger.status.at[trial].set(Status.STOPPED)
            self.ledger = self.ledger._replace(status=status)

    # --- groups and gangs ------------------------------------------------------------------------

    def _group(self, values: dict[str, Any]) -> tuple[Any, _Group]:
        """The config of a trial, and the group it belongs to."""
        values = dict(values)
        num_envs = values.pop("num_envs", self.algo.env.num_envs)
        config = self.config.replace(**values)
        static = (num_envs, *(values.get(name) for name in self.static))
        if static not in self.groups:
            algo = self.algo
            if num_envs != algo.env.num_envs:
                env = make(algo.env.id, num_envs=num_envs, **algo.env.options)
                algo = getattr(jaxrl, algo.name)(env, algo.network)
            elif self.static:  # a NamedTuple of its own, so that gangs see another group
                algo = algo._replace()
            self.groups[static] = _Group(algo, num_envs * algo.num_steps(config))
        return config, self.groups[static]

    def _make_gangs(
        self, num_lanes: int, strategy: str | Strategy
    ) -> tuple[list[Gang], list[list[int]]]:
        if self.static:
            host.keep_pools(num_lanes + 1)  # of host environments each lane has one, or makes it
            return [Gang(1, "vmap") for _ in range(num_lanes)], [[i] for i in range(num_lanes)]
        if strategy == "auto":
            strategy = self._choose(num_lanes)
        return [Gang(num_lanes, strategy)], [list(range(num_lanes))]

    def _choose(self, num_lanes: int) -> str | Strategy:
        if num_lanes == 1:
            return "vmap"
        self.board.say("measuring strategies")
        choice = populations.choose(self.algo, populations.stack(self.config, num_lanes))
        rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in choice.steps_per_second.items())
        self.board.announce(f"strategy {choice.strategy}; steps/s of all lanes: {rates}")
        self.description["strategy"] = str(choice.strategy)
        return choice.strategy

    # --- files -----------------------------------------------------------------------------------

    def _now(self) -> float:
        return self.seconds_before + time.perf_counter() - self.began

    def _save(self) -> None:
        """A checkpoint of all lanes and of where the sweep stands."""
        trained = [gang for gang, lanes in enumerate(self.lanes_of) if self._is_used(lanes)]
        state = {
            "gangs": {str(gang): self.gangs[gang].save() for gang in trained},
            "kept": {str(trial): state for trial, state in self.kept.items()},
        }
        progress = {
            "ledger": [np.asarray(x).tolist() for x in self.ledger],
            "values": [[trial, record.plain(v)] for trial, v in self.values.items()],
            "runs": [None if run is None else dataclasses.asdict(run) for run in self.runs],
            "trial_updates": list(self.trial_updates.items()),
            "spans": self.spans,
            "passes": self.passes,
            "seconds": self._now(),
        }
        self._write_best()
        self.checkpoints.save(self.passes, state, progress, whole=True)
        self._write_summary()

    def _write_best(self) -> None:
        def describe(trial: int, score: float) -> tuple[bool, dict[str, Any]]:
            config, group = self._group(self.values[trial])
            arguments = {"trial": trial, "score": score, "seed": self.settings.seed}
            manifest = manifests.describe(group.algo, config, arguments)
            return group.algo.env.checkpointable, manifest

        self.best.write(self._trials(), describe)

    def _is_used(self, lanes: list[int]) -> bool:
        return any(self.runs[lane] is not None for lane in lanes)

    def _restore(self) -> None:
        if self.checkpoints.latest() is None:
            return
        progress = self.checkpoints.progress()
        scores, reported, status = progress["ledger"]
        self.ledger = Ledger(
            jnp.asarray(scores, jnp.float32),
            jnp.asarray(reported, jnp.int32),
            jnp.asarray(status, jnp.int32),
        )
        self.values = {trial: record.unplain(values) for trial, values in progress["values"]}
        self.runs = [None if run is None else _Run(**run) for run in progress["runs"]]
        self.trial_updates = dict(progress["trial_updates"])
        self.spans = [Span(*span) for span in progress["spans"]]
        self.passes, self.seconds_before = progress["passes"], progress["seconds"]
        alive = np.flatnonzero(np.isin(status, [Status.RUNNING, Status.PAUSED, Status.READY]))
        gone = self.store.resume([int(trial) for trial in alive if int(trial) in self.values])
        template: dict[str, Any] = {"gangs": {}, "kept": {}}
        for gang, lanes in enumerate(self.lanes_of):
            if self._is_used(lanes):
                config, group = self._of_gang(lanes)
                template["gangs"][str(gang)] = self.gangs[gang].template(group.algo, config)
        paused = [t for t in self.values if status[t] in (Status.PAUSED, Status.READY)]
        for trial in paused:
            config, group = self._group(self.values[trial])
            one = Gang(1, "vmap").template(group.algo, config)
            template["kept"][str(trial)] = jax.eval_shape(
                lambda x: jax.tree.map(lambda x: x[0], x), one
            )
        saved, _ = self.checkpoints.restore(template, whole=True)
        for gang, lanes in enumerate(self.lanes_of):
            if self._is_used(lanes):
                _, group = self._of_gang(lanes)
                self.gangs[gang].restore(
                    group.algo, self._configs_of(lanes), saved["gangs"][str(gang)]
                )
        self.kept = {int(trial): state for trial, state in saved["kept"].items()}
        for lane, run in enumerate(self.runs):
            if run is not None and run.trial in gone:
                self.runs[lane] = None
        for trial in gone:
            self._forget(trial)
        self.board.announce(f"resumed after {self._now():,.0f} s")

    def _of_gang(self, lanes: list[int]) -> tuple[Any, _Group]:
        """The config and group of a gang's first running trial."""
        run = next(run for lane in lanes if (run := self.runs[lane]) is not None)
        return self._group(self.values[run.trial])

    def _configs_of(self, lanes: list[int]) -> list[Any]:
        some, _ = self._of_gang(lanes)
        runs = [self.runs[lane] for lane in lanes]
        return [some if run is None else self._group(self.values[run.trial])[0] for run in runs]

    def _lines(self) -> list[tuple[int, int, int]]:
        """What runs: lane, trial and phase of each."""
        return [
            (lane, run.trial, int(self.ledger.reported[run.trial]))
            for lane, run in enumerate(self.runs)
            if run is not None
        ]

    def _trials(self) -> list[dict[str, Any]]:
        return record.trials(self.ledger, self.values)

    def _write_summary(self) -> dict[str, Any]:
        summary = self.description | {
            "trials": self._trials(),
            "spans": [span._asdict() for span in self.spans],
            "seconds": self._now(),
            "occupancy": occupancy(self.spans, len(self.runs)) if self.spans else 0.0,
        }
        record.write(self.settings.run_dir, summary)
        return summary

    def close(self) -> None:
        self.board.close()
        self.store.close()
        self.checkpoints.close()
        if hasattr(self, "sink"):
            self.sink.close()


def _check(
    config: Any,
    space: spaces.Space,
    scheduler: Scheduler,
    num_lanes: int,
    phase: Phase,
    keep_best_per: str | None,
) -> None:
    spaces.check(space, config)
    if phase.unit not in UNITS:
        raise ValueError(f"phases are counted in {UNITS}, got {phase.unit!r}")
    if phase.length < 1 or num_lanes < 1:
        raise ValueError(
            f"a phase's length and num_lanes must be >= 1, got {phase.length} and {num_lanes}"
        )
    if keep_best_per is not None and keep_best_per not in space:
        raise ValueError(f"keep_best_per = {keep_best_per!r} is not searched: {sorted(space)}")
