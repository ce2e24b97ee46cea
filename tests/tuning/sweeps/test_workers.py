"""Several worker processes on one study, of which one is killed."""

import itertools
import json
import signal
import subprocess
import sys
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import optuna
import psycopg
import pytest
import sweep_worker
from postgresql import postgresql_server
from shared_studies import end, open_study
from sqlalchemy.pool import NullPool
from sweep_runs import scores_of_full_trials
from sweep_worker import NUM_PHASES, NUM_TRIALS, SCHEDULERS, SEED, SLOW
from waiting import wait_until

from jaxrl.tuning import Status, SuccessiveHalving
from jaxrl.tuning.studies.events import read_events, replay
from jaxrl.tuning.sweeps.lanes import Lanes

pytestmark = pytest.mark.process

WORKERS = ("a", "b", SLOW)
KILLED = "b"


@pytest.fixture(scope="module")
def database():
    """The URL of a PostgreSQL server of its own."""
    with postgresql_server() as url:
        yield url


def test_many_workers_at_once_share_the_trials(database):
    """They make the tables, the study and the queue at the same time: no test before made any."""

    def work(worker):
        study = open_study(database, worker, num_trials=16, heartbeat_seconds=30)
        ran = []
        while (claimed := study.claim(())) is not None:
            ran.append(claimed[0])
            end(study, claimed[0])
        study.close()
        return ran

    with ThreadPoolExecutor(8) as pool:
        ran = list(pool.map(work, "abcdefgh"))
    assert sorted(itertools.chain(*ran)) == list(range(16))
    assert sum(map(bool, ran)) > 1


def start_worker(url, directory, worker, scheduler="hypertrick", *agents_dir):
    arguments = [url, directory / worker, worker, scheduler, *agents_dir]
    with (directory / f"{worker}.log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "sweep_worker", *arguments],
            stdout=log,
            stderr=log,
        )


def read_trials(url):
    storage = optuna.storages.RDBStorage(
        url.replace("postgresql:", "postgresql+psycopg:"), engine_kwargs={"poolclass": NullPool}
    )
    try:
        return optuna.load_study(study_name="toy_algorithm", storage=storage).trials
    except KeyError:  # not made yet
        return []


def read_spans(directory):
    return json.loads((directory / "sweep.json").read_text())["spans"]


def is_midway(trials):
    """Return whether a quarter has ended, and the worker that will be killed ended one of them."""
    ended = [t for t in trials if t.state.name in ("COMPLETE", "PRUNED")]
    return len(ended) >= NUM_TRIALS / 4 and KILLED in {t.user_attrs["worker"] for t in ended}


def is_suspended_within_a_trial(process, url):
    """Suspend a worker; let it continue if it runs no trial at the moment, or just takes one."""
    process.send_signal(signal.SIGSTOP)
    running = [t for t in read_trials(url) if t.state.name == "RUNNING"]
    owners = {t.user_attrs.get("worker") for t in running}
    # A trial has no owner yet while a worker takes it.
    if KILLED in owners and None not in owners:
        return True
    process.send_signal(signal.SIGCONT)
    return False


class Outcome:
    """A study of three workers, one of which was killed, and what its restart changed."""

    def __init__(self, url, directory):
        self.directory = directory
        processes = {worker: start_worker(url, directory, worker) for worker in WORKERS}
        killed = processes[KILLED]
        try:
            wait_until(lambda: len(list(directory.glob("*.ready"))) == len(WORKERS), 120)
            (directory / "go").touch()
            wait_until(lambda: is_midway(read_trials(url)), 60, 0.2)
            wait_until(lambda: is_suspended_within_a_trial(killed, url), 60, 0.2)
            killed.send_signal(signal.SIGKILL)
            self.codes = {worker: p.wait(90) for worker, p in processes.items()}
            self.trials = read_trials(url)
            with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
                patch.setattr(Lanes, "_train_group", Lanes._train_group)  # undo what it sets
                # It may be killed while it writes an agent or its own checkpoint.
                warnings.filterwarnings("ignore", "the agent in .* is lost: it has no checkpoint")
                warnings.filterwarnings("ignore", ".*; perhaps the process was killed while")
                sweep_worker.main(url, directory / KILLED, KILLED, "hypertrick")
            self.trials_after = read_trials(url)
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
        self.lost = [t for t in self.trials if t.state.name == "FAIL" and "worker" in t.user_attrs]
        self.ended = {t.user_attrs["index"]: t for t in self.trials if t.state.name != "FAIL"}

    def logs(self):
        return "".join(path.read_text() for path in sorted(self.directory.glob("*.log")))


@pytest.fixture(scope="module")
def outcome(database, tmp_path_factory):
    return Outcome(database, tmp_path_factory.mktemp("workers"))


def test_workers_finish_a_study_though_one_is_killed(outcome):
    codes = dict.fromkeys(WORKERS, 0) | {KILLED: -signal.SIGKILL}
    assert outcome.codes == codes, outcome.logs()
    ended = [t.user_attrs["index"] for t in outcome.trials if t.state.name != "FAIL"]
    assert sorted(ended) == list(range(NUM_TRIALS))
    assert {t.state.name for t in outcome.ended.values()} == {"COMPLETE", "PRUNED"}
    assert {t.user_attrs["worker"] for t in outcome.ended.values()} == set(WORKERS)


def test_the_killed_workers_trials_are_repeated_by_others(outcome):
    # On a machine that stands still for two heartbeats others may be taken for dead too.
    of_the_killed = [t for t in outcome.lost if t.user_attrs["worker"] == KILLED]
    assert of_the_killed
    for lost in outcome.lost:
        repeated = outcome.ended[lost.user_attrs["index"]]
        assert repeated.number > lost.number
        # A worker may be killed before it has stored all of a trial's values.
        assert lost.params.items() <= repeated.params.items()
        assert repeated.user_attrs["worker"] != KILLED or lost not in of_the_killed
    # Two workers may add the same trial to the queue at once; the surplus one never runs.
    surplus = [t for t in outcome.trials if t.state.name == "FAIL" and t not in outcome.lost]
    assert all(not t.intermediate_values for t in surplus)


def test_no_trial_ran_twice_and_its_scores_are_its_own(outcome):
    phases = Counter(
        (span["trial"], span["phase"])
        for worker in set(WORKERS) - {KILLED}
        for span in read_spans(outcome.directory / worker)
    )
    lost = {t.user_attrs["index"] for t in outcome.lost}
    of_living = {t.user_attrs["index"] for t in outcome.lost if t.user_attrs["worker"] != KILLED}
    assert {number for (index, _), number in phases.items() if index not in of_living} == {1}
    full_scores = scores_of_full_trials(SEED, NUM_TRIALS, NUM_PHASES)
    for index, trial in outcome.ended.items():
        scores = dict(sorted(trial.intermediate_values.items()))  # a database has no order
        trained = {phase for i, phase in phases if i == index}
        # A worker may be killed after a trial's last report, and before it ends the trial.
        is_ended_for_another = index in lost and not trained
        is_known = index not in of_living and not is_ended_for_another
        if trial.user_attrs["worker"] != KILLED and is_known:
            assert trained == set(scores)
        assert list(scores) == list(range(len(scores)))
        assert (trial.state.name == "COMPLETE") == (len(scores) == NUM_PHASES)
        expected = full_scores[index, : len(scores)]
        np.testing.assert_allclose(list(scores.values()), expected, rtol=1e-4)


def test_no_worker_waits_for_another(outcome):
    """Free lanes take new trials at once, whatever the slowest worker does."""
    lost = {t.user_attrs["index"] for t in outcome.lost}
    for worker in set(WORKERS) - {KILLED}:
        spans = read_spans(outcome.directory / worker)
        lanes = [[span for span in spans if span["lane"] == lane] for lane in range(2)]
        for own, other in (lanes, reversed(lanes)):
            assert own[0]["begin"] < other[0]["end"]
            for before, after in itertools.pairwise(own):
                # The other lane reports at about the same time, and again if this one stays free.
                reports = [x for x in other if before["end"] < x["end"] < after["begin"]]
                # Workers wait for lost trials only.
                assert len(reports) <= 1 or after["trial"] in lost


def test_a_worker_that_comes_back_runs_nothing_twice(outcome):
    assert outcome.trials_after == outcome.trials
    summary = json.loads((outcome.directory / KILLED / "sweep.json").read_text())
    own = {i: t for i, t in outcome.ended.items() if t.user_attrs["worker"] == KILLED}
    assert {t["trial"] for t in summary["trials"]} == set(own)
    for trial in summary["trials"]:
        stored = own[trial["trial"]]
        assert trial["values"] == pytest.approx(stored.params)
        np.testing.assert_allclose(
            trial["scores"], list(stored.intermediate_values.values()), rtol=1e-6
        )
        state = {"completed": "COMPLETE", "stopped": "PRUNED"}[trial["status"]]
        assert stored.state.name == state


# --- schedulers that pause trials ----------------------------------------------------------------


@pytest.fixture
def sqlite(tmp_path):
    """The URL of a database in a file."""
    return f"sqlite:///{tmp_path / 'study.db'}"


@pytest.mark.parametrize(
    ("storage", "scheduler", "workers"),
    [
        pytest.param("sqlite", "asha", "ab", marks=pytest.mark.exhaustive),
        pytest.param("sqlite", "asha", "abcd", marks=pytest.mark.exhaustive),
        pytest.param("sqlite", "halving", "abcd", marks=pytest.mark.exhaustive),
        pytest.param("sqlite", "hyperband", "abcd", marks=pytest.mark.exhaustive),
        pytest.param("database_of_test", "halving", "abcd", marks=pytest.mark.exhaustive),
        pytest.param("database_of_test", "hyperband", "ab", marks=pytest.mark.exhaustive),
        pytest.param("database_of_test", "asha", "abcd", marks=pytest.mark.exhaustive),
        ("database_of_test", "asha", "ab"),
    ],
)
def test_workers_continue_what_others_paused_though_one_is_killed(
    request, tmp_path, storage, scheduler, workers
):
    url, rule = request.getfixturevalue(storage), SCHEDULERS[scheduler]
    agents_dir = [] if storage == "sqlite" else [tmp_path / "agents"]
    processes = {
        each: start_worker(url, tmp_path, each, scheduler, *agents_dir) for each in workers
    }
    try:
        wait_until(lambda: len(list(tmp_path.glob("*.ready"))) == len(workers), 120)
        (tmp_path / "go").touch()

        def is_midway():
            trials = read_trials(url)
            num_paused = sum("paused after" in trial.user_attrs for trial in trials)
            running = [t.user_attrs.get("worker") for t in trials if t.state.name == "RUNNING"]
            return num_paused > 4 and "a" in running

        wait_until(is_midway, 60, 0.2)
        processes["a"].send_signal(signal.SIGKILL)
        codes = {each: process.wait(120) for each, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert codes == dict.fromkeys(workers, 0) | {"a": -signal.SIGKILL}, logs
    ledger = replay(rule, read_events(url, "toy_algorithm"))
    ended = [trial for trial in read_trials(url) if trial.state.name != "FAIL"]
    assert sorted(t.user_attrs["index"] for t in ended) == list(range(rule.num_trials))
    full_scores = scores_of_full_trials(SEED, rule.num_trials, rule.num_phases)
    for trial in ended:
        index, scores = trial.user_attrs["index"], dict(sorted(trial.intermediate_values.items()))
        assert list(scores) == list(range(int(ledger.reported[index])))
        np.testing.assert_allclose(
            list(scores.values()), full_scores[index, : len(scores)], rtol=1e-4
        )
        states = {Status.COMPLETED: "COMPLETE", Status.STOPPED: "PRUNED"}
        assert trial.state.name == states[Status(int(ledger.status[index]))]
    if isinstance(rule, SuccessiveHalving):  # it does not depend on the order of reports
        for rung in rule.brackets[0]:
            reached = sum(len(t.intermediate_values) >= rung.num_phases for t in ended)
            assert reached == rung.num_trials


@pytest.fixture
def database_of_test(database):
    """The URL of an empty database on the same server."""
    with psycopg.connect(database, autocommit=True) as server:
        server.execute("CREATE DATABASE of_test")
        yield database.replace("/postgres?", "/of_test?")
        server.execute("DROP DATABASE of_test WITH (FORCE)")
