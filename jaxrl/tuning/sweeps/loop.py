"""The loop of a sweep: lanes are filled, trained for a while, report, and are judged.

Any number of such loops may work on one study. What each knows is in its `Progress`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ALL_COMPLETED
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.training import manifest as manifests
from jaxrl.training.checkpoint import Checkpoints
from jaxrl.training.loggers import JsonlSink
from jaxrl.training.loop import Interrupt
from jaxrl.training.progress import SUMS
from jaxrl.tuning import schedulers
from jaxrl.tuning import space as spaces
from jaxrl.tuning.program import trial_key, trial_values
from jaxrl.tuning.schedulers import Scheduler, Status
from jaxrl.tuning.sweeps import state
from jaxrl.tuning.sweeps.best_agents import BestAgents
from jaxrl.tuning.sweeps.display import Board
from jaxrl.tuning.sweeps.lanes import Crew, Groups, Placement, Trained, fastest
from jaxrl.tuning.sweeps.samplers import draw_of
from jaxrl.tuning.sweeps.settings import SweepSettings
from jaxrl.tuning.sweeps.state import Progress, Run
from jaxrl.tuning.sweeps.study import Store
from jaxrl.tuning.timeline import Span
from jaxrl.types import Algorithm, PyTree


class Trials:
    """What becomes of the trials that one sweep runs; others may work on the same study.

    The store and the ledger of `progress` agree on every score, since a score is stored before
    anything is decided from it.

    Args:
      best: keeps the best agents.
    """

    def __init__(self, scheduler: Scheduler, store: Store, progress: Progress, best: BestAgents):
        self._scheduler, self._store = scheduler, store
        self._progress, self._best = progress, best
        self.paused: dict[int, PyTree] = {}
        """The agents of trials that pause."""

    def next(self) -> int | None:
        """The trial for a free lane: one that may go on after its pause, or one claimed from the
        study; None if there is none."""
        progress = self._progress
        if bool((progress.ledger.status == Status.READY).any()):
            progress.ledger, assigned = schedulers.assign(progress.ledger)
            return int(assigned)
        claimed = self._store.claim(progress.values)
        if claimed is None:
            return None
        index, progress.values[index] = claimed
        progress.ledger = schedulers.begin(progress.ledger, index)
        progress.trial_updates[index] = 0
        return index

    def report(self, trial: int, score: float, agent: Callable[[], PyTree]) -> Status | None:
        """A trial has done a phase: store its score, and judge it and whom else that decides.

        It counts as on no lane. Those that are judged while they run `leave` when their lanes rest.

        Args:
          agent: gives the trial's agent.

        Returns:
          What becomes of the trial; None if it was taken from this worker, as if it were dead.
        """
        progress = self._progress
        stored = self._store.report(trial, progress.phase(trial), score)
        if stored is None:
            self.forget(trial)
            return None
        merged = self._store.merge(progress.ledger)
        progress.ledger = schedulers.report(
            self._scheduler, merged, np.int32(trial), np.float32(stored)
        )
        if self._best.deserves(trial, stored, progress.trials()):
            self._best.keep(trial, stored, progress.trial_updates[trial], agent())
        status = Status(int(progress.ledger.status[trial]))
        if status in (Status.PAUSED, Status.READY):
            self.paused[trial] = agent()
        before, after = np.asarray(merged.status), np.asarray(progress.ledger.status)
        ended = (before != after) & (after >= Status.STOPPED)
        ended[trial] = status >= Status.STOPPED
        on_lanes = progress.on_lanes()
        for judged in np.flatnonzero(ended).tolist():
            if judged in progress.values and judged not in on_lanes:
                self._finish(judged, Status(after[judged]))
        return status

    def leave(self, trial: int, agent: Callable[[], PyTree]) -> None:
        """A trial that another's report has stopped or paused has left its lane."""
        status = Status(int(self._progress.ledger.status[trial]))
        if status >= Status.STOPPED:
            self._finish(trial, status)
        else:
            self.paused[trial] = agent()

    def resume(self) -> set[int]:
        """Take up the trials of the last checkpoint; those that are no longer this worker's."""
        alive = (Status.RUNNING, Status.PAUSED, Status.READY)
        status = np.asarray(self._progress.ledger.status)
        return self._store.resume([t for t in self._progress.values if status[t] in alive])

    def forget(self, trial: int) -> None:
        """It is another worker's now, or begins anew; or has ended already."""
        del self._progress.values[trial]
        self.paused.pop(trial, None)
        self._best.forget(trial)
        self.catch_up()

    def catch_up(self) -> None:
        """Take in what the study knows, and this sweep not yet."""
        self._progress.values |= self._store.ended()
        self._progress.ledger = self._store.merge(self._progress.ledger)

    def end(self) -> None:
        """No trial is left that may go on: those that still pause stop."""
        ledger = self._progress.ledger
        pauses = ledger.status == Status.PAUSED
        for trial in np.flatnonzero(np.asarray(pauses)).tolist():
            self._finish(trial, Status.STOPPED)
        stopped = jnp.where(pauses, Status.STOPPED, ledger.status)
        self._progress.ledger = ledger._replace(status=stopped)

    def _finish(self, trial: int, status: Status) -> None:
        self.paused.pop(trial, None)
        ledger = self._progress.ledger
        last = float(ledger.scores[trial, ledger.reported[trial] - 1])
        self._store.finish(trial, status, last)


class Sweep:
    """One call of `jaxrl.tuning.sweep`."""

    def __init__(
        self,
        algo: Algorithm,
        config: Any,
        space: spaces.Space,
        scheduler: Scheduler,
        settings: SweepSettings,
        description: dict[str, Any],
        board: Board,
    ):
        self.settings, self.description, self.board = settings, description, board
        self.began = time.perf_counter()
        self.key = jax.random.key(settings.seed)
        self.groups = Groups(algo, config, space)
        self.checkpoints = Checkpoints(settings.run_dir / "checkpoints")
        self.progress = Progress(schedulers.start(scheduler), [None] * settings.num_lanes)
        if self.checkpoints.latest() is not None:
            self.progress = Progress.from_json(self.checkpoints.progress())
        self.best = BestAgents(settings.run_dir, settings.keep_best, settings.keep_best_per)
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
            state.shared(description),
        )
        self.trials = Trials(scheduler, self.store, self.progress, self.best)
        try:
            self._start(algo)
        except BaseException:
            self.store.close()
            raise

    def _start(self, algo: Algorithm) -> None:
        """Lanes, as they were if the sweep is resumed."""
        strategy, num_lanes = self.settings.strategy, self.settings.num_lanes
        if strategy == "auto" and not self.groups.static:
            strategy = fastest(algo, self.groups.config, num_lanes, self.board)
            self.description["strategy"] = str(strategy)
        self.crew = Crew(num_lanes, strategy, self.groups)
        if self.checkpoints.latest() is None:
            self.progress.left = [0] * len(self.crew.gangs)
        else:
            self._restore()
        self.trials.catch_up()
        self.sink = JsonlSink(self.settings.run_dir / "metrics.jsonl", self.progress.chunks)

    # --- the loop --------------------------------------------------------------------------------

    def run(self) -> tuple[dict[str, Any], bool]:
        """What `sweep.json` holds at the end, and whether the sweep was interrupted before it."""
        saved_at = time.perf_counter()
        with Interrupt() as interrupt:
            while not interrupt.requested:
                for team in self._teams_at_rest():
                    self._fill_lanes(team)
                if not any(self.progress.left):
                    if not self.store.is_running_elsewhere():
                        break
                    time.sleep(0.2)
                    continue
                self._train_chunk()
                self.board.show(self._now(), self.progress.lines(), self.progress.trials())
                if time.perf_counter() - saved_at >= self.settings.checkpoint_seconds:
                    self._save()
                    saved_at = time.perf_counter()
        if interrupt.requested:
            self._save()
        else:
            self._write_best()
            self.trials.end()
        return self._write_summary(), interrupt.requested

    def _teams_at_rest(self) -> list[list[int]]:
        """Those whose gangs have all trained up to where their next lane may report."""
        left = self.progress.left
        return [team for team in self.crew.teams if not any(left[gang] for gang in team)]

    def _fill_lanes(self, team: list[int]) -> None:
        """Give a team's free lanes their next trials; then its gangs may train."""
        for gang in team:
            self._fill(gang)
            self.progress.left[gang] = self._updates_left(gang)

    def _fill(self, gang: int) -> None:
        """Give the free lanes of a gang their next trials."""
        placements: dict[int, Placement] = {}
        group = None
        runs = self.progress.runs
        for place, lane in enumerate(self.crew.lanes_of[gang]):
            if runs[lane] is not None or (trial := self.trials.next()) is None:
                continue
            runs[lane] = Run(trial, self._now())
            config, group = self.groups.of(self.progress.values[trial])
            key = trial_key(self.key, trial)
            placements[place] = Placement(config, key, self.trials.paused.pop(trial, None))
        if group is not None:
            self.crew.place(gang, group.algo, placements)

    def _train_chunk(self) -> None:
        """Let the teams train that may, until one of them has for a while."""
        active = [run is not None for run in self.progress.runs]
        self.crew.begin(self.progress.left, active, self.settings.chunk_seconds)
        self._take_in(self.crew.wait())

    def _take_in(self, trained: dict[int, Trained]) -> None:
        """Count what gangs did, and judge the teams that have done their part."""
        if not trained:
            return
        self.progress.chunks += 1
        for gang, (updates, metrics) in trained.items():
            self.progress.left[gang] -= updates
            self._count(gang, metrics, updates)
        for team in self._teams_at_rest():
            self._judge(team)

    def _judge(self, team: list[int]) -> None:
        """Let a team's lanes report whose phase is over, in their order whatever their speed."""
        for lane in sorted(lane for gang in team for lane in self.crew.lanes_of[gang]):
            run = self.progress.runs[lane]
            if run is not None and self.settings.phase.is_over(run, self._steps_per_update(run)):
                self._report(lane, run)
        self._free_judged(team)

    def _updates_left(self, gang: int) -> int:
        """Until the first of the gang's lanes may report."""
        runs = [self.progress.runs[lane] for lane in self.crew.lanes_of[gang]]
        left = [
            self.settings.phase.updates_left(run, self._steps_per_update(run))
            for run in runs
            if run is not None
        ]
        return min(left, default=0)

    def _steps_per_update(self, run: Run) -> int:
        _, group = self.groups.of(self.progress.values[run.trial])
        return group.steps_per_update

    def _count(self, gang: int, metrics: dict[str, np.ndarray], updates: int) -> None:
        """Take in what a gang's lanes did."""
        for place, lane in enumerate(self.crew.lanes_of[gang]):
            run = self.progress.runs[lane]
            if run is None:
                continue
            part = {name: x[place, :updates].astype(np.float64) for name, x in metrics.items()}
            row = {name: float(x.sum() if name in SUMS else x.mean()) for name, x in part.items()}
            run.count(row, updates)
            self.progress.trial_updates[run.trial] += updates
            self.board.count(row["valid_steps"])
            where = {
                "update": self.progress.chunks,
                "trial": run.trial,
                "lane": lane,
                "phase": self.progress.phase(run.trial),
                "trial_update": self.progress.trial_updates[run.trial],
                "seconds": round(self._now(), 3),
            }
            self.sink.write(where | row)

    def _report(self, lane: int, run: Run) -> None:
        """A lane's trial has done a phase: free the lane, unless the trial goes on."""
        progress, now = self.progress, self._now()
        phase = progress.phase(run.trial)
        progress.runs[lane] = None
        status = self.trials.report(run.trial, run.score, partial(self.crew.learner, lane))
        if status is None:  # it is another worker's
            return
        progress.spans.append(Span(lane, run.trial, phase, run.began, now))
        if status == Status.RUNNING:
            progress.runs[lane] = Run(run.trial, now)

    def _free_judged(self, team: list[int]) -> None:
        """Free the lanes of trials that another's report has stopped or paused. Those of teams that
        train are freed once they report."""
        progress = self.progress
        for lane in sorted(lane for gang in team for lane in self.crew.lanes_of[gang]):
            run = progress.runs[lane]
            if run is not None and progress.ledger.status[run.trial] != Status.RUNNING:
                progress.runs[lane] = None
                self.trials.leave(run.trial, partial(self.crew.learner, lane))

    # --- files -----------------------------------------------------------------------------------

    def _now(self) -> float:
        return self.progress.seconds + time.perf_counter() - self.began

    def _save(self) -> None:
        """A checkpoint of lanes at rest and of where the sweep stands, unless there is one."""
        self._take_in(self.crew.wait(ALL_COMPLETED))
        if self.checkpoints.latest() == self.progress.chunks:
            return
        kept = {str(trial): agent for trial, agent in self.trials.paused.items()}
        state = {"gangs": self.crew.save(self.progress), "kept": kept}
        self._write_best()
        self.checkpoints.save(
            self.progress.chunks, state, self.progress.to_json(self._now()), whole=True
        )
        self._write_summary()

    def _restore(self) -> None:
        """Go on from the checkpoint, without the trials that are no longer this worker's."""
        progress = self.progress
        gone = self.trials.resume()
        saved, _ = self.checkpoints.restore(self.crew.template(progress), whole=True)
        self.crew.restore(progress, saved["gangs"])
        self.trials.paused = {int(trial): agent for trial, agent in saved["kept"].items()}
        for lane, run in enumerate(progress.runs):
            if run is not None and run.trial in gone:
                progress.runs[lane] = None
        for trial in gone:
            self.trials.forget(trial)
        self.board.announce(f"resumed after {self._now():,.0f} s")

    def _write_best(self) -> None:
        def describe(trial: int, score: float) -> tuple[bool, dict[str, Any]]:
            config, group = self.groups.of(self.progress.values[trial])
            arguments = {"trial": trial, "score": score, "seed": self.settings.seed}
            manifest = manifests.describe(group.algo, config, arguments)
            return group.algo.env.checkpointable, manifest

        self.best.write(self.progress.trials(), describe)

    def _write_summary(self) -> dict[str, Any]:
        elsewhere = self.store.num_elsewhere()
        summary = self.description | self.progress.summary(self._now(), elsewhere)
        state.write(self.settings.run_dir, summary)
        return summary

    def close(self) -> None:
        self.crew.close()
        self.board.close()
        self.store.close()
        self.checkpoints.close()
        self.sink.close()
