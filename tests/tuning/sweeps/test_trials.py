"""Workers that share a search: all come to the same decisions, whoever judges and whoever dies.

No trial trains here: a phase's score is known, and an agent is the number of phases that it did.
"""

import collections
import functools
import gc
import random
import sys

import numpy as np
import optuna
import pytest
from shared_studies import open_study, states

from jaxrl.tuning import (
    ASHA,
    HyperBand,
    HyperTrick,
    RandomSearch,
    Status,
    SuccessiveHalving,
)
from jaxrl.tuning.schedulers import ledger as ledgers
from jaxrl.tuning.studies.events import BEGUN, REPORTED, replay
from jaxrl.tuning.studies.heartbeat import requeue
from jaxrl.tuning.studies.paused_agents import PausedAgent
from jaxrl.tuning.studies.storage import change_state
from jaxrl.tuning.sweeps.best_agents import BestAgents
from jaxrl.tuning.sweeps.state import PhaseRun, SweepState
from jaxrl.tuning.sweeps.trials import Trials


class Folder:
    """The agents of paused trials, in memory."""

    def __init__(self):
        self.agents = {}

    def save(self, trial, phases, state, num_updates):
        assert state == phases
        self.agents[trial, phases] = PausedAgent(state, num_updates)

    def load(self, trial, phases, like):
        return self.agents[trial, phases]

    def remove(self, is_over):
        self.agents = {key: agent for key, agent in self.agents.items() if not is_over(key[0])}


def score_of(trial, phase):
    """Return a score that differs between all trials and phases; the order of trials changes."""
    return float((trial * 7 + 3 * phase) % 23 + 0.01 * trial)


class Worker:
    """A worker whose lanes train one phase at each step."""

    def __init__(self, url, name, scheduler, folder, directory, num_lanes=2):
        self.study = open_study(url, name, scheduler.num_trials)
        self.state = SweepState(ledgers.start(scheduler), [None] * num_lanes)
        best = BestAgents(directory, 0, None)
        self.trials = Trials(
            scheduler, self.study, self.state, best, name, folder, lambda values: None
        )
        self.name, self.trained = name, []
        self.is_over = False

    def begin(self, lane):
        """Give a lane a trial, if there is one."""
        if (begun := self.trials.begin_next()) is not None:
            assert (begun.agents or 0) == begun.phase
            self.state.runs[lane] = PhaseRun(begun.trial, 0.0, begun.phase)
        elif not any(self.state.runs) and not self.trials.may_go_on():
            self.trials.stop_all(is_over=True)
            self.is_over = True

    def report(self, lane):
        """Let the trial on a lane report its phase."""
        run, self.state.runs[lane] = self.state.runs[lane], None
        self.trained.append((run.trial, run.phase))
        status = self.trials.report(
            run.trial, run.phase, score_of(run.trial, run.phase), lambda: run.phase + 1
        )
        if status == Status.RUNNING:
            self.state.runs[lane] = PhaseRun(run.trial, 0.0, run.phase + 1)

    def step(self, rng):
        lane = rng.randrange(len(self.state.runs))
        (self.begin if self.state.runs[lane] is None else self.report)(lane)

    def die(self):
        """Die as by SIGKILL; another worker notices at its next heartbeat."""
        self.study.close()

    def find_dead(self, dead):
        """Return the trials of a dead worker to the queue."""
        for number in [trial.number for trial in dead.study._claimed.values()]:
            trial = self.study._study.trials[number]
            if trial.state.name == "RUNNING" and trial.user_attrs.get("worker") == dead.name:
                change_state(self.study._storage, trial, "FAIL")
                requeue(self.study._study, self.study._study.trials[number])


def statuses(worker):
    return [Status(x).name for x in worker.state.ledger.status.tolist()]


def test_a_cap_of_one_worker_leaves_the_places_of_a_rung_to_others(tmp_path, monkeypatch):
    """Its paused trials are the best, and it stops the last one that their rung waits for."""
    scores = [100, 90, 80, 1, 7, 6, 5, 4, 3]
    monkeypatch.setattr(sys.modules[__name__], "score_of", lambda trial, phase: scores[trial])
    url, folder = f"sqlite:///{tmp_path / 's.db'}", Folder()
    a, b = (Worker(url, name, SuccessiveHalving(9, 9), folder, tmp_path, 1) for name in "ab")
    for _ in range(3):
        a.begin(0)
        a.report(0)
    a.begin(0)
    for _ in range(5):
        b.begin(0)
        b.report(0)
    a.trials.stop_all(is_over=False)
    b.trials.take_in()
    assert statuses(b) == ["STOPPED"] * 4 + ["READY"] * 3 + ["STOPPED"] * 2


def test_a_spent_cap_stops_trials_that_were_killed_before_they_began(tmp_path):
    """Without a checkpoint; the others have paused. All are this worker's."""
    url, rule = f"sqlite:///{tmp_path / 's.db'}", SuccessiveHalving(3, 3)
    killed = Worker(url, "a", rule, Folder(), tmp_path, 1)
    for _ in range(2):
        killed.begin(0)
        killed.report(0)
    killed.study.claim(killed.state.values)
    killed.die()
    resumed = Worker(url, "a", rule, Folder(), tmp_path, 1)
    resumed.trials.stop_all(is_over=False)
    assert statuses(resumed) == ["STOPPED"] * 3
    assert sorted(resumed.state.values) == [0, 1, 2]
    assert resumed.trials.count_elsewhere() == 0


def test_a_trial_that_another_worker_took_and_ended_is_not_in_the_list_of_a_slow_one(tmp_path):
    url, rule = f"sqlite:///{tmp_path / 's.db'}", RandomSearch(2, 2)
    slow, other = (Worker(url, name, rule, Folder(), tmp_path) for name in "ab")
    slow.begin(0)
    slow.begin(1)
    other.find_dead(slow)
    other.begin(0)
    other.report(0)
    other.report(0)
    slow.trials.take_in()
    assert slow.trials.must_leave(0, 0)
    slow.state.runs[0] = None
    slow.trials.leave(0, lambda: 0)
    assert [trial["trial"] for trial in slow.state.trials()] == [1]
    assert slow.trials.count_elsewhere() == 1


def sweep(scheduler, tmp_path, num_workers, seed, num_deaths=0):
    """Let workers share a search in a random order; return one that is left and all that were."""
    rng, folder, url = random.Random(seed), Folder(), f"sqlite:///{tmp_path / 's.db'}"
    workers = []
    for name in "abcdef"[:num_workers]:
        workers.append(Worker(url, name, scheduler, folder, tmp_path))
    deaths = sorted(rng.sample(range(20, 60), num_deaths))
    living, step = list(workers), 0
    while not all(worker.is_over for worker in living):
        assert step < 5000
        worker = rng.choice([worker for worker in living if not worker.is_over])
        worker.step(rng)
        step += 1
        if deaths and step >= deaths[0] and len(living) > 1:
            deaths.pop(0)
            living.remove(worker)
            worker.die()
            living[0].is_over = False
            living[0].find_dead(worker)
    return living[0], workers


def outcome(worker):
    """Return the state and scores of each trial in the study, by index."""
    trials = [trial for trial in worker.study._study.trials if trial.state.name != "FAIL"]
    return {
        trial.user_attrs["index"]: (
            trial.state.name,
            [score for _, score in sorted(trial.intermediate_values.items())],
        )
        for trial in trials
    }


def expected_halving(scheduler):
    """Return how many phases each trial reports, by sorting each rung's scores with NumPy."""
    phases, first = {}, 0
    for rungs in scheduler.brackets:
        alive = list(range(first, first + rungs[0].num_trials))
        first += rungs[0].num_trials
        for place, rung in enumerate(rungs):
            phases |= dict.fromkeys(alive, rung.num_phases)
            if place + 1 < len(rungs):
                scores = np.array([score_of(trial, rung.num_phases - 1) for trial in alive])
                best = np.argsort(-scores, kind="stable")[: rungs[place + 1].num_trials]
                alive = [alive[i] for i in best]
    return phases


slow = functools.partial(pytest.param, marks=pytest.mark.slow)
exhaustive = functools.partial(pytest.param, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize(
    ("scheduler", "num_workers", "num_deaths"),
    [
        (SuccessiveHalving(9, 9), 4, 2),
        exhaustive(SuccessiveHalving(9, 9), 1, 0),
        exhaustive(SuccessiveHalving(9, 9), 2, 0),
        exhaustive(HyperBand(4, 2), 4, 0),
        slow(HyperBand(4, 2), 4, 2),
    ],
)
def test_workers_that_share_a_halving_decide_as_one_does(
    tmp_path, scheduler, num_workers, num_deaths
):
    worker, workers = sweep(scheduler, tmp_path, num_workers, 3, num_deaths)
    found = outcome(worker)
    expected = expected_halving(scheduler)
    assert {i: len(scores) for i, (_, scores) in found.items()} == expected
    for index, (state, scores) in found.items():
        np.testing.assert_allclose(scores, [score_of(index, p) for p in range(len(scores))], 1e-6)
        assert state == ("COMPLETE" if len(scores) == scheduler.num_phases else "PRUNED")
    if not num_deaths:
        trained = collections.Counter(phase for each in workers for phase in each.trained)
        assert set(trained.values()) == {1}
    for each in workers:
        each.study.close()


@pytest.mark.parametrize(
    ("scheduler", "num_workers", "num_deaths"),
    [
        (ASHA(9, 9), 2, 0),
        exhaustive(ASHA(9, 9), 1, 0),
        exhaustive(ASHA(9, 9), 4, 2),
        exhaustive(HyperTrick(8, 4), 4, 2),
    ],
)
def test_decisions_of_workers_follow_from_the_stored_order_of_reports(
    tmp_path, scheduler, num_workers, num_deaths
):
    worker, workers = sweep(scheduler, tmp_path, num_workers, 4, num_deaths)
    events = worker.study.log.events
    ledger = replay(scheduler, events)
    found = outcome(worker)
    assert sorted(found) == list(range(scheduler.num_trials))
    for index, (state, scores) in found.items():
        status = Status(int(ledger.status[index]))
        assert state == {Status.COMPLETED: "COMPLETE", Status.STOPPED: "PRUNED"}[status]
        np.testing.assert_allclose(scores, ledger.scores[index, : ledger.reported[index]], 1e-6)
    if scheduler.pauses:
        check_promotions(scheduler, events)
    if num_workers > 1:
        continued = [e.worker for e in events if e.kind == BEGUN and e.phases]
        assert len({e.worker for e in events}) > 1
        assert not scheduler.pauses or len(set(continued)) > 1
    for each in workers:
        each.study.close()


def check_promotions(scheduler, events):
    """Check that each trial that went on had been among the best third of its rung's scores."""
    scores = {rung: {} for rung in scheduler.rungs}
    promoted = set()
    for event in events:
        if event.kind == REPORTED and (phases := event.phases + 1) in scores:
            rung = scores[phases]
            rung[event.trial] = event.score
            best = sorted(rung, key=lambda trial: -rung[trial])[: len(rung) // scheduler.eta]
            promoted |= {(trial, phases) for trial in best}
        if event.kind == BEGUN and event.phases:
            assert (event.trial, event.phases) in promoted


def test_two_workers_that_judge_at_once_continue_a_trial_once(tmp_path):
    scheduler, folder = SuccessiveHalving(3, 3), Folder()
    url = f"sqlite:///{tmp_path / 's.db'}"
    a, b = (Worker(url, name, scheduler, folder, tmp_path) for name in "ab")
    a.begin(0), a.begin(1), b.begin(0)
    a.report(0), a.report(1), b.report(0)
    a.trials.take_in()
    b.trials.take_in()
    for worker in (a, b):  # both have judged that the same trial is ready
        assert worker.state.ledger.status.tolist().count(Status.READY) == 1
    a.begin(0), b.begin(0)
    assert (a.state.runs[0] is None) != (b.state.runs[0] is None)
    for worker in (a, b):
        worker.study.close()


def test_nobody_waits_for_a_trial_that_workers_added_beyond_the_last(tmp_path):
    """Its worker takes it off the queue, but is between the two writes, or died there."""
    worker = Worker(f"sqlite:///{tmp_path / 's.db'}", "a", RandomSearch(1, 1), Folder(), tmp_path)
    worker.begin(0)
    worker.report(0)
    worker.study._study.add_trial(optuna.create_trial(state=optuna.trial.TrialState.WAITING))
    assert not worker.trials.may_go_on()
    worker.study.close()


@pytest.mark.parametrize(
    "scheduler",
    [SuccessiveHalving(3, 3), exhaustive(RandomSearch(2, 1)), exhaustive(ASHA(4, 3))],
)
def test_a_trial_whose_workers_die_is_stopped_and_the_others_go_on(
    tmp_path, scheduler, monkeypatch
):
    monkeypatch.setattr("jaxrl.tuning.sweeps.trials.MOST_LOSSES", 2)
    folder, url = Folder(), f"sqlite:///{tmp_path / 's.db'}"
    dead = None
    for name in "ab":
        worker = Worker(url, name, scheduler, folder, tmp_path)
        if dead is not None:
            worker.find_dead(dead)
        worker.begin(0)
        assert [run and run.trial for run in worker.state.runs] == [0, None]
        worker.die()
        dead = worker
    worker = Worker(url, "c", scheduler, folder, tmp_path, num_lanes=1)
    worker.find_dead(dead)
    while not worker.is_over:
        worker.step(random.Random(0))
    found = outcome(worker)
    assert found.pop(0) == ("PRUNED", [])
    assert sorted(found) == [*range(1, scheduler.num_trials)]
    assert "COMPLETE" in {state for state, _ in found.values()}
    assert {trial for trial, _ in worker.trained} == found.keys()
    assert worker.state.values.keys() == {0} | found.keys()
    worker.study.close()


def test_a_paused_trial_that_has_lost_is_ended_at_the_next_claim_of_any_worker(tmp_path):
    scheduler, folder = SuccessiveHalving(3, 3), Folder()
    url = f"sqlite:///{tmp_path / 's.db'}"
    a, b = (Worker(url, name, scheduler, folder, tmp_path) for name in "ab")
    a.begin(0)
    a.report(0)
    b.begin(0), b.begin(1)
    b.report(0), b.report(1)
    assert states(b.study) == ["WAITING"] * 3
    b.begin(0)
    assert states(b.study) == ["PRUNED", "PRUNED", "RUNNING"]
    for worker in (a, b):
        worker.study.close()


def test_the_last_worker_deletes_the_agents_of_trials_that_a_dead_one_paused(tmp_path):
    scheduler, folder = SuccessiveHalving(3, 3), Folder()
    url = f"sqlite:///{tmp_path / 's.db'}"
    a, b = (Worker(url, name, scheduler, folder, tmp_path) for name in "ab")
    a.begin(0)
    a.report(0)
    assert [*folder.agents] == [(0, 1)]
    a.die()
    rng = random.Random(0)
    while not b.is_over:
        b.step(rng)
        b.trials.remove_agents()
    assert (0, 1) in folder.agents
    assert 0 not in b.state.values
    b.trials.remove_last_agents(is_over=True)
    assert not folder.agents
    b.study.close()


def test_a_worker_that_knows_too_little_does_not_take_a_paused_trial(tmp_path):
    """A trial went on and paused again, since this worker has read the events."""
    scheduler, folder = ASHA(9, 9), Folder()
    url = f"sqlite:///{tmp_path / 's.db'}"
    late, other = (Worker(url, name, scheduler, folder, tmp_path, 3) for name in ("late", "other"))
    for lane in range(3):
        other.begin(lane)
    for lane in range(3):
        other.report(lane)
    late.trials.take_in()
    ready = late.state.ledger.status.tolist().index(Status.READY)
    other.begin(0)
    assert [run and run.trial for run in other.state.runs] == [ready, None, None]
    other.report(0), other.report(0)
    assert other.state.runs[0] is None
    claimed = late.study.claim_paused(ready)  # it reads no events before
    assert claimed is not None
    assert late.trials._begin(*claimed) is None
    trial = late.study._study.trials[ready]
    assert trial.state.name == "WAITING"
    assert trial.user_attrs["paused after"] == 3
    for worker in (late, other):
        worker.study.close()


def count_calls(work):
    """Return how many functions, of Python and of C, are called while `work` is done."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    ("kind", "scheduler"),
    [
        ("sqlite", RandomSearch(40, 1)),
        ("journal", ASHA(40, 3)),
        pytest.param("sqlite", ASHA(40, 3), marks=pytest.mark.exhaustive),
        pytest.param("journal", RandomSearch(40, 1), marks=pytest.mark.exhaustive),
    ],
)
def test_a_trial_costs_the_same_however_many_the_study_has(tmp_path, scheduler, kind):
    """No claim, report, pause or end reads, checks or lists the trials and events before it."""
    url = f"{kind}:///{tmp_path / 's'}"
    worker = Worker(url, "a", scheduler, Folder(), tmp_path, num_lanes=1)

    def run_a_trial():
        worker.begin(0)
        while worker.state.runs[0] is not None:
            worker.report(0)

    gc.collect()
    gc.disable()  # it would call functions of what other tests have left
    try:
        counts = [count_calls(run_a_trial) for _ in range(16)]
    finally:
        gc.enable()
    # Each of the eight trials would add more than a thousandth, if it were read twice.
    assert max(counts[10:]) < 1.005 * max(counts[2:8])
    assert len({trial for trial, _ in worker.trained}) > 8
    worker.study.close()
