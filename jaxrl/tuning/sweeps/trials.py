"""The trials of one worker: begin, report, judge, pause and end them.

A worker judges by the events of all workers, in their order (`jaxrl.tuning.studies.events`). A
worker that resumes alone goes back to the events of its checkpoint and meets those after it again,
one by one, as its trials train. Where others have taken part, it takes in all events at once; its
trials then train again what they have already reported, which changes nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxrl.tuning.schedulers.contract import Scheduler, Status
from jaxrl.tuning.studies import events
from jaxrl.tuning.studies.damage import DamagedStudyError
from jaxrl.tuning.studies.events import BEGUN, REPORTED, STOPPED, Event
from jaxrl.tuning.studies.paused_agents import PausedAgents
from jaxrl.tuning.studies.study import SharedStudy
from jaxrl.tuning.sweeps.best_agents import BestAgents
from jaxrl.tuning.sweeps.state import SweepState
from jaxrl.types import PyTree

MAY_PAUSE = (Status.PAUSED, Status.READY)
MOST_LOSSES = 5
"""How often a trial may be lost with its worker. It may be the cause, as one that takes too much
memory is, and would end one worker after the other."""


class Begun(NamedTuple):
    """A trial for a free lane."""

    trial: int
    phase: int
    """The phase that its agents train next, from 0."""
    agents: PyTree
    """None if it trains from its beginning."""


class Trials:
    """The trials that this worker runs; other workers may run others of the same study.

    Args:
      agents: the agents of paused trials; None if the scheduler pauses none.
      template: returns the shapes of the agents of a trial with these values.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        study: SharedStudy,
        state: SweepState,
        best: BestAgents,
        worker: str,
        agents: PausedAgents | None,
        template: Callable[[dict[str, Any]], PyTree],
    ):
        self._scheduler, self._study, self._worker = scheduler, study, worker
        self._state, self._best = state, best
        self._agents, self._template = agents, template
        log = study.log.events
        if len(log) < state.num_events:
            raise DamagedStudyError(
                f"it has {len(log)} events, but the checkpoint knows of {state.num_events}"
            )
        self._judged = events.judge(scheduler, log[: state.num_events])
        state.ledger = self._judged.ledger
        self._resumed_until = len(log) if study.was_alone else 0
        """The number of events that a worker which resumes alone meets again."""
        self._unneeded: set[int] = set()
        """The trials that had ended at the checkpoint before."""
        state.values |= study.ended_values()

    # --- begin -----------------------------------------------------------------------------------

    def begin_next(self) -> Begun | None:
        """Return the trial for a free lane; None if there is none.

        A trial that may continue after a pause comes first, then one claimed from the study.
        """
        begun = None
        while begun is None:
            self.take_in()
            for trial in self._study.claim_to_end(self._judged.has_ended.item):
                self._finish(trial)
            if (claimed := self._claim()) is None:
                return None
            begun = self._begin(*claimed)
        return begun

    def _claim(self) -> tuple[int, dict[str, Any]] | None:
        status, reported = (
            np.asarray(x) for x in (self._judged.ledger.status, self._judged.ledger.reported)
        )
        ready = np.flatnonzero(status == Status.READY)
        for trial in ready[np.argsort(-reported[ready], kind="stable")].tolist():
            if (claimed := self._study.claim_paused(trial)) is not None:
                return claimed
        # Trials that it continued after the checkpoint that it resumed from run, but on no lane.
        running = np.flatnonzero(status == Status.RUNNING).tolist()
        return self._study.claim(self._state.values.keys() - running, self._is_free)

    def _is_free(self, trial: int, paused_after: int) -> bool:
        """Return whether a waiting trial may be taken: unless it pauses or has ended.

        A trial of a dead worker that had reported since its pause may be taken. If a trial paused
        later than this worker knows, its events are still to be read.
        """
        status, reported = self._judged.status(trial), self._judged.reported(trial)
        is_paused = status == Status.PAUSED and reported == paused_after
        return not (is_paused or status.has_ended or paused_after > reported)

    def _begin(self, trial: int, values: dict[str, Any]) -> Begun | None:
        """Store that a claimed trial trains, and return it with its agents.

        Returns None if others have judged it meanwhile, or if it was stopped: before a restart, or
        now, since it was lost too often.
        """
        number, paused_after = self._study.number(trial), self._study.paused_after(trial)
        if not self._met_again():
            self.take_in()  # what its last worker stored before it left the trial
            if not self._is_free(trial, paused_after):
                self._leave_study(trial, paused_after)
                return None
        is_same, is_ready = self._is_judged(trial), self._judged.status(trial) == Status.READY
        is_repeated = not is_same and self._judged.numbers[trial] >= 0
        phases = self._judged.reported(trial)
        if not is_same:  # the repetition of a lost trial trains again what came after the pause
            phases = min(paused_after, phases)
        if is_ready or not is_same:  # otherwise it ran before a restart, and had begun
            before = [e.phases for e in self._met_again() if e[:3] == (BEGUN, trial, number)]
            if not before and self._study.has_ended(trial):
                self._resumed_until = 0
                self.forget(trial)
                return None
            phases = before[0] if before else phases
            self._store(BEGUN, trial, phases)
            self._study.fill(trial, self._judged.scores(trial))
        self._state.values[trial], self._state.trial_updates[trial] = values, 0
        if is_repeated and self._num_losses(trial) >= MOST_LOSSES:
            self._store(STOPPED, trial, phases)
            self._finish(trial)
            return None
        phases = min(paused_after, phases)
        if not phases:
            return Begun(trial, 0, None)
        assert self._agents is not None
        paused = self._agents.load(trial, phases, self._template(values))
        if paused is None:
            return Begun(trial, 0, None)
        self._state.trial_updates[trial] = paused.num_updates
        return Begun(trial, phases, paused.state)

    # --- report ----------------------------------------------------------------------------------

    def report(
        self,
        trial: int,
        phase: int,
        score: float,
        agents: Callable[[], PyTree],
        named: Mapping[str, Any] | None = None,
    ) -> Status | None:
        """Store the score of a trial's phase, and let the scheduler judge.

        The trial must have been taken off its lane. The scheduler may judge other trials too;
        those that are on lanes leave them by `leave`, once their lanes are idle.

        Args:
          agents: returns the trial's agents.
          named: the scores of several objectives by name, as `score_to_json` returns them.

        Returns:
          The trial's status; None if the trial was taken from this worker, as if it were dead.
        """
        state = self._state
        stored = self._study.report(trial, phase, score, named)
        if stored is None:
            self.forget(trial)
            return None
        if phase < self._judged.reported(trial):  # it trains again what it has reported
            stored = self._judged.scores(trial)[phase]
        else:
            self._store(REPORTED, trial, phase, stored)
            if not self._is_judged(trial):  # it was taken meanwhile
                self.forget(trial)
                return None
        compared = state.trials({trial, *self._best.available()})
        if self._best.is_among_best(trial, stored, compared):
            self._best.keep(trial, stored, state.trial_updates[trial], agents())
        if phase + 1 < self._judged.reported(trial):
            return Status.RUNNING
        status = self._judged.status(trial)
        if status != Status.RUNNING:
            self.leave(trial, agents)
        return status

    def leave(self, trial: int, agents: Callable[[], PyTree]) -> None:
        """End or pause a trial that has been judged and has left its lane."""
        phases = self._judged.reported(trial)
        if not self._is_judged(trial):  # it was taken meanwhile
            self.forget(trial)
            return
        if not self._judged.status(trial).has_ended:
            assert self._agents is not None
            self._agents.save(trial, phases, agents(), self._state.trial_updates[trial])
        if not self._leave_study(trial, phases):
            self.forget(trial)

    def _leave_study(self, trial: int, paused_after: int) -> bool:
        """End or pause a claimed trial in the study; return False if another worker has it."""
        if not self._judged.status(trial).has_ended:
            return self._study.pause(trial, paused_after)
        self._finish(trial)
        return True

    def must_leave(self, trial: int, phase: int) -> bool:
        """Return whether a trial that trains this phase on a lane was stopped or paused."""
        status = self._judged.status(trial)
        return status.has_ended or (status in MAY_PAUSE and phase == self._judged.reported(trial))

    # --- resume ----------------------------------------------------------------------------------

    def resume(self) -> set[int]:
        """Claim the trials on the lanes of the last checkpoint; return those that are gone."""
        return self._study.resume([run.trial for run in self._state.runs if run is not None])

    def forget(self, trial: int) -> None:
        """Give up a trial that another worker runs now, that begins anew, or that had ended."""
        self._state.values.pop(trial, None)
        self._study.give_up(trial)
        self._best.forget(trial)
        self._state.values |= self._study.ended_values()

    def take_in(self) -> None:
        """Judge by all events of all workers, unless this worker still meets its own again."""
        if self._met_again():
            return
        self._state.values |= self._study.end_resuming()
        self._study.log.read()
        self._apply(len(self._study.log.events))

    # --- end -------------------------------------------------------------------------------------

    def may_go_on(self) -> bool:
        """Return whether a trial may be found later, though there is none for a free lane now."""
        if self._met_again():
            self._resumed_until = 0  # its trials report in another order than before
            return True
        # Events are read after the trials: whoever pauses a trial has stored its report before.
        is_running, waiting = self._study.unfinished_elsewhere()
        self.take_in()
        return is_running or any(
            self._is_free(trial, phases) or self._judged.status(trial).has_ended
            for trial, phases in waiting.items()
        )

    def count_elsewhere(self) -> int:
        """Return how many trials have begun that are not this worker's."""
        begun = {trial for trial, number in enumerate(self._judged.numbers) if number >= 0}
        return len(begun - self._state.values.keys())

    def stop_all(self, is_over: bool) -> None:
        """Stop the trials that have not ended: this worker's, which have left their lanes.

        Args:
          is_over: no trial of any worker can go on, so paused ones are stopped too, whoever
            trained them.
        """
        self._resumed_until = 0
        self.take_in()
        # It may have been killed while it ended one, or after the checkpoint that it resumed from.
        self._state.values |= self._study.claim_running()
        _, waiting = self._study.unfinished_elsewhere()

        def is_meant(trial: int) -> bool:
            return waiting.get(trial, 0) > 0 and (is_over or trial in self._state.values)

        # Paused ones first: otherwise the end of the last one that runs would fill a rung, in which
        # those that are about to be stopped could take the places of other workers' trials.
        for trial in itertools.chain(self._study.claim_to_end(is_meant), self._study.claimed()):
            if not self._judged.status(trial).has_ended:
                phases = self._judged.reported(trial)
                if not self._is_judged(trial):  # its worker was killed before it stored this
                    phases = min(self._study.paused_after(trial), phases)
                    self._store(BEGUN, trial, phases)
                self._store(STOPPED, trial, phases)
            self._finish(trial)

    def remove_agents(self) -> None:
        """Delete agents of trials that have ended, after a checkpoint.

        They are those of this worker's trials that had ended at the checkpoint before, with which
        it resumes if the newest is damaged.
        """
        if self._agents is not None:
            self._agents.remove(self._unneeded.__contains__)
            self._unneeded = self._ended_trials() & self._state.values.keys()

    def remove_last_agents(self, is_over: bool) -> None:
        """Delete agents of trials that have ended, after the last checkpoint.

        They are those of this worker's trials. If no trial of any worker can go on, they are those
        of all trials: the worker that had some may be dead.
        """
        if self._agents is not None:
            ended = self._ended_trials()
            own = ended & self._state.values.keys()
            self._agents.remove((ended if is_over else own).__contains__)

    def _ended_trials(self) -> set[int]:
        return set(np.flatnonzero(self._judged.has_ended).tolist())

    # --- helpers ---------------------------------------------------------------------------------

    def _store(self, kind: str, trial: int, phases: int, score: float = math.nan) -> None:
        """Store an event of a claimed trial, unless it is stored already, and judge by it."""
        event = Event(kind, trial, self._study.number(trial), phases, self._worker, score)
        log = self._study.log
        place = log.place_of(event)
        if place is None:
            place = log.append(event)
        self._apply(place + 1)

    def _apply(self, until: int) -> None:
        """Judge by the events up to this place; give up the trials that others have taken."""
        for event in self._study.log.events[self._state.num_events : until]:
            before = self._judged.has_ended
            self._judged = events.apply(self._scheduler, self._judged, event)
            ended = np.flatnonzero(self._judged.has_ended & ~before).tolist()
            # Whoever runs a trial ends it. Those that wait are ended at the next claim.
            self._study.offer(trial for trial in ended if trial != event.trial)
            is_others = event.kind == BEGUN and event.worker != self._worker
            is_on_lane = event.trial in self._study.claimed()  # it is given up when it reports
            if is_others and event.trial in self._state.values and not is_on_lane:
                self.forget(event.trial)
        self._state.ledger = self._judged.ledger
        self._state.num_events = self._judged.num_events

    def _finish(self, trial: int) -> None:
        self._study.finish(trial, self._judged.status(trial), self._judged.scores(trial))

    def _met_again(self) -> list[Event]:
        """Return the events that a worker which resumes alone has still to meet again."""
        return self._study.log.events[self._state.num_events : self._resumed_until]

    def _num_losses(self, trial: int) -> int:
        """Return how often a trial that has begun was repeated, since its worker died.

        It reads all events.
        """
        log = self._study.log.events
        return len({e.number for e in log if e.kind == BEGUN and e.trial == trial}) - 1

    def _is_judged(self, trial: int) -> bool:
        """Return whether a claimed trial is the one of its index that is judged."""
        return self._study.number(trial) == self._judged.numbers[trial]
