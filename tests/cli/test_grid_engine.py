"""Jobs of `jaxrl submit --scheduler sge` on a real Grid Engine on this machine."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from cluster_jobs import SWEEP, enter_place, processes_of, starts, write_script
from grid_engine_cluster import MISSING, running_grid_engine
from waiting import wait_until

from jaxrl.cli import submit

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]

OPTIONS = "--scheduler", "sge", "--extra", "V"  # V: jobs get the environment


@pytest.fixture(scope="module")
def engine():
    with running_grid_engine() as running:
        yield running


class Job:
    """A job of Grid Engine, or all tasks of an array."""

    def __init__(self, engine, number):
        self.engine, self.number = engine, number

    def is_known(self):
        return self.number in self.engine.call("qstat", "-u", "*").split()

    def wait_for_end(self, seconds=60):
        try:
            wait_until(lambda: not self.is_known(), seconds, 0.2)
        except AssertionError as error:
            raise AssertionError(
                self.engine.call("qstat", "-j", self.number) + self.log()
            ) from error

    def field(self, name):
        """Return a field of the record that Grid Engine keeps of an ended job, of each start."""
        wait_until(lambda: "exit_status" in self.engine.call("qacct", "-j", self.number), 30, 0.2)
        return re.findall(rf"^{name}\s+(\S+)", self.engine.call("qacct", "-j", self.number), re.M)

    def log(self):
        return "".join(path.read_text() for path in Path("runs").glob(f"pong.o{self.number}*"))


@pytest.fixture
def place(engine, tmp_path, monkeypatch):
    """Work in a directory with a script to submit."""
    enter_place(tmp_path, engine.environment, monkeypatch)


@pytest.fixture
def submit_job(engine, place):
    """`submit_job(*argv, changes=())` submits a job whose lines may be changed; it is deleted."""
    jobs = []

    def make(*argv, changes=()):
        printed = engine.call("qsub", "-terse", write_script([*OPTIONS, *argv], changes))
        number = printed.strip().split(".")[0]
        assert number.isdigit(), printed
        jobs.append(Job(engine, number))
        return jobs[-1]

    yield make
    for job in jobs:
        engine.call("qdel", "-f", job.number)
        job.wait_for_end()


def test_jaxrl_submits_to_grid_engine(engine, place, capfd):
    submit.main(["--name", "pong", *OPTIONS, "--", "train.py"])
    number = re.search(r"Your job (\d+) ", capfd.readouterr().out)
    assert number is not None
    engine.call("qdel", number[1])
    Job(engine, number[1]).wait_for_end()


def test_a_job_whose_time_is_up_resumes(submit_job):
    job = submit_job("--", "train.py", changes=[("s_rt=23:58:00", "s_rt=00:00:08")])
    wait_until(lambda: len(starts()) == 2, 90, 0.2)
    job.wait_for_end()
    assert Path("runs/pong/checkpoint").exists()
    assert "requeued, to resume in runs/pong" in job.log()
    wait_until(lambda: job.field("exit_status") == ["99", "0"], 30, 0.5)


@pytest.mark.exhaustive
def test_a_job_that_is_rescheduled_writes_a_checkpoint_and_resumes(submit_job, engine):
    job = submit_job("--", "train.py")
    wait_until(starts, 30)
    time.sleep(5)  # Grid Engine loses a job that goes back to its host within its first seconds
    engine.call("qmod", "-rj", job.number)
    wait_until(lambda: len(starts()) == 2, 90, 0.2)
    job.wait_for_end()


def test_a_deleted_job_writes_a_checkpoint_and_does_not_come_back(submit_job, engine):
    job = submit_job("--", "train.py")
    wait_until(starts, 30)
    engine.call("qdel", job.number)
    job.wait_for_end()
    assert Path("runs/pong/checkpoint").exists()
    assert len(starts()) == 1


def test_a_job_whose_training_is_killed_does_not_come_back(submit_job):
    job = submit_job("--", "train.py")
    wait_until(starts, 30)
    numbers = processes_of("runs/pong")
    assert numbers
    for number in numbers:
        os.kill(number, signal.SIGKILL)
    job.wait_for_end()
    assert job.field("exit_status") == ["137"]
    assert len(starts()) == 1


@pytest.mark.exhaustive
def test_an_array_of_two_workers_shares_a_study(submit_job, tmp_path):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    array = submit_job("--workers", "2", *SWEEP, "--storage", storage)
    array.wait_for_end(150)
    files = [Path(f"runs/pong/worker-{task}/sweep.json") for task in (1, 2)]
    assert all(file.exists() for file in files), array.log()
    summaries = [json.loads(file.read_text()) for file in files]
    trials = [trial["trial"] for summary in summaries for trial in summary["trials"]]
    assert sorted(trials) == list(range(6))
    assert [summary["study"] for summary in summaries] == ["pong", "pong"]
