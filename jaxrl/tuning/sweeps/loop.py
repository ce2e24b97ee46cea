"""The loop of a sweep: fill the lanes, train them, report, judge, and save a checkpoint.

Any number of such loops, each in a process of its own, may work on one study.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ALL_COMPLETED
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxrl.distributed.processes import Interrupt
from jaxrl.distributed.spread import describe_unused
from jaxrl.files.json_values import score_to_json, values_from_json
from jaxrl.training.loggers import JsonlSink
from jaxrl.training.progress.rows import SUMS
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.checkpoint import Checkpoints
from jaxrl.tuning.evolution.lineage import Evolution
from jaxrl.tuning.explorers import Explorer
from jaxrl.tuning.objectives import names_of, score
from jaxrl.tuning.ranking import best_values
from jaxrl.tuning.samplers.sobol import Sobol
from jaxrl.tuning.schedulers import ledger as ledgers
from jaxrl.tuning.schedulers.contract import Scheduler, Status
from jaxrl.tuning.spaces import space as spaces
from jaxrl.tuning.static_programs import StaticPrograms
from jaxrl.tuning.studies.study import SharedStudy, has_other_worker
from jaxrl.tuning.sweeps import sweep_file
from jaxrl.tuning.sweeps.best_agents import BestAgents
from jaxrl.tuning.sweeps.display import Display
from jaxrl.tuning.sweeps.lane_group import Placement
from jaxrl.tuning.sweeps.lanes import Lanes, Trained, fastest
from jaxrl.tuning.sweeps.settings import SweepSettings
from jaxrl.tuning.sweeps.state import PhaseRun, SweepState
from jaxrl.tuning.sweeps.trials import Begun, Trials
from jaxrl.tuning.timeline import Span
from jaxrl.tuning.trial_start import TrialSource, source_of_search
from jaxrl.types import Algorithm


class SweepLoop:
    """One call of `jaxrl.tuning.sweep`, new or resumed from its last checkpoint.

    Args:
      description: what `sweep.json` says of the sweep besides its trials.
      search: what all workers of the study must have in common.
      source: what trials begin with; by default what `jaxrl.tuning.search` gives them.
    """

    def __init__(
        self,
        algo: Algorithm,
        config: Any,
        space: spaces.Space,
        scheduler: Scheduler,
        settings: SweepSettings,
        description: dict[str, Any],
        search: dict[str, Any],
        display: Display,
        source: TrialSource | None = None,
    ):
        self.settings, self.description, self.display = settings, description, display
        self.began, key = time.perf_counter(), jax.random.key(settings.seed)
        sampler = Sobol() if settings.sampler == "sobol" else None
        self.source = source or source_of_search(sampler, space, key, scheduler.num_trials)
        self.evolution = (
            Evolution(scheduler, space, key) if isinstance(scheduler, Explorer) else None
        )
        self.programs = StaticPrograms(algo, config, space)
        self.score = jax.jit(partial(score, settings.objective))
        with contextlib.ExitStack() as opened:
            identity = sweep_file.identity(description)
            self.checkpoints = Checkpoints(settings.run_dir / "checkpoints", identity)
            opened.callback(self.checkpoints.close)
            num_lanes = min(settings.num_lanes, scheduler.num_trials)
            self.state = SweepState(ledgers.start(scheduler), [None] * num_lanes)
            if self.checkpoints.latest() is not None:
                progress, update = self.checkpoints.progress(), self.checkpoints.latest()
                self.state = SweepState.from_json(progress, update, self.checkpoints.progress_file)
            self.best = BestAgents(settings.run_dir, settings.keep_best, settings.keep_best_per)
            self.best.verify(identity["run_id"])
            stored = sweep_file.read(settings.run_dir)
            self.with_finals = stored if "finals" in stored else None
            self.study = SharedStudy(
                settings.storage_url,
                settings.study_name,
                space,
                scheduler.num_trials,
                self.source.values,
                settings.sampler,
                settings.seed,
                settings.worker,
                settings.heartbeat_seconds,
                search,
                self.state.trials(),
                stored["trials"],
                is_shared=self.evolution is None,
            )
            opened.callback(self.study.close)
            opened.callback(display.close)
            self._start_lanes(algo, scheduler, opened)
            self._opened = opened.pop_all()

    def _start_lanes(
        self,
        algo: Algorithm,
        scheduler: Scheduler,
        opened: contextlib.ExitStack,
    ) -> None:
        strategy, num_lanes = self.settings.strategy, len(self.state.runs)
        seeds = self.settings.seeds_per_trial
        if strategy == "auto" and not self.programs.static_names:
            config, program = self.programs.find({})
            phases = scheduler.num_trials * scheduler.num_phases
            steps = phases * self.settings.phase.num_steps(program.steps_per_update) * seeds
            known = sweep_file.known_strategy(self.settings.run_dir, self.description)
            strategy = known or fastest(algo, config, num_lanes * seeds, steps, self.display)
            self.description["strategy"] = str(strategy)
            names = {"strategy", "resumptions"} & {*self.description}
            measured = {name: self.description[name] for name in names}
            directory = self.settings.run_dir  # now: a sweep that is killed soon must keep it
            sweep_file.write(directory, sweep_file.read(directory) | measured)
        self.lanes = Lanes(num_lanes, strategy, self.programs, seeds)
        opened.callback(self.lanes.close)
        agents = None
        if scheduler.pauses:
            # Workers whose folders differ are refused before they claim a trial. The study gets the
            # folder's name after all that is likely to fail: a failed start empties its directory.
            agents = self.study.open_agents(self.settings.agents_folder)
        self.trials = Trials(
            scheduler,
            self.study,
            self.state,
            self.best,
            self.settings.worker,
            agents,
            self.lanes.agents_template,
        )
        remedy = "--strategy auto with a multiple of as many --lanes may use all"
        unused = describe_unused(self.lanes.num_devices, remedy)
        if unused is not None and not self.programs.has_spread_agents:
            self.display.print_line(unused)
        if self.checkpoints.latest() is None:
            self.state.updates_left = [0] * len(self.lanes.groups)
        else:
            self._restore()
        self.trials.take_in()
        path = self.settings.run_dir / "metrics.jsonl"
        self.sink = JsonlSink(path, self.state.chunks, self.checkpoints.rows)

    def run(self) -> tuple[dict[str, Any], bool]:
        """Run until no trial is left; return `sweep.json`, and whether an interrupt ended it."""
        saved_at, is_over = time.perf_counter(), False
        with Interrupt() as interrupt:
            while not interrupt.requested and not self._is_spent():
                self._fill_lanes()
                if not any(self.state.updates_left):
                    if is_over := not self.trials.may_go_on():
                        break
                    self._save()  # it may wait for hours
                    self._show()
                    time.sleep(0.2)  # other workers may return trials to the queue
                    continue
                self._show()
                self._train_chunk()
                if time.perf_counter() - saved_at >= self.settings.checkpoint_seconds:
                    self._save()
                    saved_at = time.perf_counter()
            self._take_in(self.lanes.wait(ALL_COMPLETED))
            if interrupted := interrupt.requested:
                self._save()
                self.checkpoints.latest()  # here, where the same signal does not end it
        if not interrupted:
            self._write_best()
            if any(self.state.runs):  # the newest checkpoint may have this number, and them
                self.state.chunks += 1
            for lane, run in enumerate(self.state.runs):
                if run is not None and run.updates:
                    self._write_row(lane, run)
            self.state.runs = [None] * len(self.state.runs)
            self.trials.stop_all(is_over)
            self._save()  # a sweep that is resumed after its end trains nothing again
            self.checkpoints.latest()  # waits until it counts
            self.trials.remove_last_agents(is_over)
        self._show(is_last=True)
        return self._write_summary(), interrupted

    def _show(self, is_last: bool = False) -> None:
        self.display.show(
            self._seconds(),
            self.state.num_steps,
            self.trials.count_elsewhere,
            self.state.running(),
            self.state.trials,
            is_last,
        )

    def _is_spent(self) -> bool:
        """Return whether the sweep has taken as many steps or seconds as it may."""
        settings = self.settings
        return self.state.num_steps >= settings.max_steps or self._seconds() >= settings.max_seconds

    def _idle_device_groups(self) -> list[list[int]]:
        """Return the device groups whose lane groups have all trained until a lane may report."""
        left = self.state.updates_left
        return [groups for groups in self.lanes.device_groups if not any(left[g] for g in groups)]

    # --- fill the lanes --------------------------------------------------------------------------

    def _fill_lanes(self) -> None:
        """Give idle device groups' free lanes the next trials, and their lane groups updates to do.

        Once there is no trial for a lane, the study is not asked for the other ones.
        """
        next_trials = iter(self.trials.begin_next, None)
        for device_group in self._idle_device_groups():
            for group in device_group:
                self._fill_lane_group(group, next_trials)
                self.state.updates_left[group] = self._updates_left(group)
            if self.evolution is not None:
                self._check_side_by_side()

    def _check_side_by_side(self) -> None:
        """Raise `ValueError` unless all trials of an explorer train, or none, the same phase."""
        if len({None if run is None else run.phase for run in self.state.runs}) > 1:
            raise has_other_worker(self.settings.study_name, self.settings.worker)

    def _fill_lane_group(self, group: int, next_trials: Iterator[Begun]) -> None:
        placements: dict[int, Placement] = {}
        program = None
        runs = self.state.runs
        for place, lane in enumerate(self.lanes.lanes_of[group]):
            if runs[lane] is not None or (begun := next(next_trials, None)) is None:
                continue
            trial, phase, agent = begun
            runs[lane] = run = PhaseRun(trial, self._seconds(), phase)
            config, program = self.programs.find(self.state.values_of(run))
            placements[place] = Placement(config, self.source.key(trial), agent)
        if program is not None:
            self.lanes.place(group, program.algo, placements)

    def _updates_left(self, group: int) -> int:
        """Return after how many updates the first lane of a lane group may report."""
        runs, phase = self.lanes.runs(group, self.state), self.settings.phase
        left = [
            phase.updates_left(r, self._steps_per_update(r.trial)) for r in runs if r is not None
        ]
        return min(left, default=0)

    def _steps_per_update(self, trial: int) -> int:
        _, program = self.programs.find(self.state.values[trial])
        return program.steps_per_update

    # --- train -----------------------------------------------------------------------------------

    def _train_chunk(self) -> None:
        """Let all idle device groups train, and wait for at least one."""
        active = [run is not None for run in self.state.runs]
        self.lanes.begin(self.state.updates_left, active, self.settings.chunk_seconds)
        self._take_in(self.lanes.wait())

    def _take_in(self, trained: dict[int, Trained]) -> None:
        """Count what lane groups did, and let those report that have trained long enough."""
        if not trained:
            return
        self.state.chunks += 1
        for group, (num_updates, metrics) in trained.items():
            self.state.updates_left[group] -= num_updates
            self._count(group, metrics, num_updates)
        for device_group in self._idle_device_groups():
            self._report_and_free(device_group)

    def _count(self, group: int, metrics: dict[str, np.ndarray], num_updates: int) -> None:
        """Add a chunk to the runs of a lane group."""
        seeds = self.settings.seeds_per_trial
        for place, lane in enumerate(self.lanes.lanes_of[group]):
            run = self.state.runs[lane]
            if run is None:
                continue
            agents = slice(place * seeds, (place + 1) * seeds)
            part = {name: x[agents, :num_updates].astype(np.float64) for name, x in metrics.items()}
            run.count(part, num_updates)
            self.state.trial_updates[run.trial] += num_updates
            self.state.num_steps += num_updates * seeds * self._steps_per_update(run.trial)

    # --- report and judge ------------------------------------------------------------------------

    def _report_and_free(self, device_group: list[int]) -> None:
        """Report the finished phases of a device group; free the lanes whose trials don't continue.

        Lanes report in their order, whatever their speed. A report may stop or pause trials on
        other lanes. Those of other device groups leave their lanes when they report themselves.
        """
        phase, runs = self.settings.phase, self.state.runs
        lanes = sorted(lane for group in device_group for lane in self.lanes.lanes_of[group])
        is_over = {
            lane: phase.is_over(run, self._steps_per_update(run.trial))
            for lane in lanes
            if (run := runs[lane]) is not None
        }
        if self.evolution is not None and not all(is_over.values()):
            return  # all trials of an explorer train until the last one may report
        for lane in lanes:
            run = runs[lane]
            if run is not None and is_over[lane]:
                self._report(lane, run)
        for lane in lanes:
            run = runs[lane]
            if run is not None and self.trials.must_leave(run.trial, run.phase):
                runs[lane] = None
                self.trials.leave(run.trial, partial(self.lanes.agents, lane))
        if self.evolution is not None:
            self._evolve(self.evolution)

    def _report(self, lane: int, run: PhaseRun) -> None:
        """Report a trial's score, and free its lane unless the trial continues."""
        state, now = self.state, self._seconds()
        state.runs[lane] = None
        self._write_row(lane, run)
        metrics = run.metrics()
        if episodes := self.settings.evaluation_episodes:
            key = self.source.key(run.trial)
            metrics = metrics | self.lanes.evaluate(lane, key, run.phase, episodes)
        compared, scores = jax.device_get(self.score(metrics))
        named = {name: score_to_json(x) for name, x in scores.items()}
        agents = partial(self.lanes.agents, lane)
        status = self.trials.report(run.trial, run.phase, float(compared), agents, named)
        if status is None:  # the trial was taken from this worker
            return
        state.spans.append(Span(lane, run.trial, run.phase, run.began, now))
        if status == Status.RUNNING:
            state.runs[lane] = PhaseRun(run.trial, now, run.phase + 1)

    def _write_row(self, lane: int, run: PhaseRun) -> None:
        """Log the metrics of a phase, over all agents of its trial."""
        position = {
            "update": self.state.chunks,
            "trial": run.trial,
            "lane": lane,
            "phase": run.phase,
            "trial_update": self.state.trial_updates[run.trial],
            "seconds": round(self._seconds(), 3),
        }
        metrics = run.metrics()
        means = {name: float(x.mean()) for name, x in metrics.items()}
        sums = {name: float(x.sum()) for name, x in metrics.items() if name in SUMS}
        self.sink.write(position | means | sums)

    def _evolve(self, evolution: Evolution) -> None:
        """Let trials that have reported go on as copies of others, unless they have ended."""
        self._check_side_by_side()
        state, runs = self.state, [run for run in self.state.runs if run is not None]
        if not runs:
            return
        phase = runs[0].phase
        before = state.generations[: phase - 1]  # trials that were lost began anew
        changes = evolution.next(state.ledger.scores, state.values, before)
        state.generations = [*before, changes]
        for trial, change in enumerate(changes):
            self.study.change(trial, phase, *change)
        lane_of = {run.trial: lane for lane, run in enumerate(runs)}
        self.lanes.copy(
            [self.programs.find(state.values_of(run))[0] for run in runs],
            [lane_of[changes[run.trial].parent] for run in runs],
        )

    # --- checkpoints and other files -------------------------------------------------------------

    def _seconds(self) -> float:
        """Return how long the sweep has taken, without the time between stop and resume."""
        return self.state.seconds + time.perf_counter() - self.began

    def _save(self) -> None:
        """Save a checkpoint of all lanes, once they are idle, unless the newest is as new."""
        self._take_in(self.lanes.wait(ALL_COMPLETED))
        if self.checkpoints.latest() == self.state.chunks:
            return
        # A tree without any array would be saved, but with a warning of Orbax.
        agents = {"gangs": self.lanes.save(self.state), "chunks": np.int32(self.state.chunks)}
        self._write_best()
        progress = self.state.to_json(self._seconds())
        rows = self.sink.record()
        self.checkpoints.save(self.state.chunks, agents, progress, whole=True, rows=rows)
        self._write_summary()
        self.trials.remove_agents()

    def _restore(self) -> None:
        """Continue from the checkpoint, without the trials that are no longer this worker's."""
        gone = self.trials.resume()
        template = {"gangs": self.lanes.template(self.state), "chunks": np.int32(0)}
        saved, _ = self.checkpoints.restore(template, whole=True)
        self.lanes.restore(self.state, saved["gangs"], self.source.key)
        for lane, run in enumerate(self.state.runs):
            if run is not None and run.trial in gone:
                self.state.runs[lane] = None
        for trial in gone:
            self.trials.forget(trial)
        for group in range(len(self.lanes.groups)):
            if not any(self.lanes.runs(group, self.state)):  # ended within a phase, or all are gone
                self.state.updates_left[group] = 0
        seconds, versions = self._seconds(), self.checkpoints.other_versions
        self.display.print_line(f"resumed after {seconds:,.0f} s{versions}")

    def _write_best(self) -> None:
        def describe(trial: int, score: float) -> tuple[bool, dict[str, Any]]:
            (row,) = self.state.trials({trial})
            config, program = self.programs.find(values_from_json(best_values(row)))
            arguments = {"trial": trial, "score": score, "seed": self.settings.seed}
            arguments["run_id"] = self.description["run_id"]
            manifest = manifests.describe(program.algo, config, arguments)
            # A resumed sweep may have other threads and pools, but its agents are the same runs.
            manifest["env"]["options"] = self.description["env_options"]
            manifest |= manifests.origin_of(self.description)  # an earlier process may have begun
            return program.algo.env.checkpointable, manifest

        self.best.write(self.state.trials(self.best.available()), describe)

    def _write_summary(self) -> dict[str, Any]:
        elsewhere = self.trials.count_elsewhere()
        summary = self.description | self.state.summary(self._seconds(), elsewhere)
        if names := names_of(self.settings.objective):
            phases = {row["trial"]: len(row["scores"]) for row in summary["trials"]}
            found = self.study.objectives(names, phases)
            for row in summary["trials"]:
                lost = [[None] * len(row["scores"])] * len(names)
                row["objectives"] = found.get(row["trial"], lost)
        # Until finals train again, those that an ended sweep has stay in the file.
        if self.with_finals is not None and summary["trials"] == self.with_finals["trials"]:
            summary["finals"] = self.with_finals["finals"]
        sweep_file.write(self.settings.run_dir, summary)
        return summary

    def close(self) -> None:
        """Stop threads and close files."""
        with contextlib.closing(self.sink):
            self._opened.close()
