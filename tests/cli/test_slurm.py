"""Jobs of `jaxrl submit` on a real Slurm cluster: two nodes on this machine."""

import contextlib
import json
import os
import re
import signal
from pathlib import Path

import pytest
from cluster_jobs import SWEEP, enter_place, processes_of, starts, write_script
from slurm_cluster import MISSING, NODES, running_cluster
from waiting import wait_until

from jaxrl.cli import submit

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]

PPO = (
    "--", "jaxrl", "train", "ppo", "--num-envs", "8", "--num-steps", "8", "--num-minibatches", "1",
    "--num-epochs", "1", "--total-steps", "1000000000", "--log-every", "1", "--no-anneal",
    "--num-evaluations", "0",
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as running:
        yield running


class Job:
    """A job of the cluster, or a task of an array."""

    def __init__(self, cluster, number, log):
        self.cluster, self.number, self._log = cluster, number, Path(log)

    def field(self, name):
        shown = self.cluster.call("scontrol", "show", "job", "--oneliner", self.number)
        found = re.search(rf"\b{name}=(\S+)", shown)
        return "" if found is None else found[1]

    def wait_for(self, value, seconds=60, name="JobState"):
        """Wait until a field has a value; show the job and its log if it does not come to that."""
        try:
            wait_until(lambda: self.field(name) == value, seconds, 0.2)
        except AssertionError as error:
            shown = self.cluster.call("scontrol", "show", "job", self.number)
            raise AssertionError(shown + self.log()) from error

    def release(self):
        """Let a job that is in the queue again begin soon: Slurm waits two minutes.

        A job that begins in the second in which its earlier processes end fails: for slurmd, whose
        credentials count whole seconds, it was killed already. Their end puts its time off again.
        """
        # The signal before the end of a job's time may come a minute late.
        self.wait_for("BeginTime", 150, "Reason")

        def begins():
            self.cluster.call("scontrol", "update", f"JobId={self.number}", "StartTime=now+2")
            with contextlib.suppress(AssertionError):
                return wait_until(lambda: self.field("JobState") != "PENDING", 5, 0.2)

        wait_until(begins, 60)

    def log(self):
        return self._log.read_text() if self._log.exists() else ""


@pytest.fixture
def submit_job(cluster, tmp_path, monkeypatch):
    """`submit_job(*argv, **changes)` submits a job whose lines may be changed; it is cancelled."""
    enter_place(tmp_path, cluster.environment, monkeypatch)
    jobs = []

    def make(*argv, changes=()):
        printed = cluster.call("sbatch", write_script(argv, changes))
        number = printed.split()[-1]
        assert number.isdigit(), printed
        jobs.append(number)
        return Job(cluster, number, f"runs/pong-{number}.log")

    yield make
    for number in jobs:
        cluster.call("scancel", number)
        wait_until(lambda n=number: not cluster.call("squeue", "-h", "-j", n).strip(), 30, 0.2)


def test_jaxrl_submits_to_slurm(submit_job, cluster, capfd):
    submit.main(["--name", "pong", "--", "train.py"])
    number = re.search(r"Submitted batch job (\d+)", capfd.readouterr().out)
    assert number is not None
    job = Job(cluster, number[1], f"runs/pong-{number[1]}.log")
    wait_until(starts, 30)
    assert job.field("JobState") == "RUNNING"
    cluster.call("scancel", job.number)
    job.wait_for("CANCELLED")


def test_a_job_whose_time_is_up_resumes(submit_job):
    # The signal may come a minute late, which must be before the job's time is up.
    changes = ("--time=24:00:00", "--time=00:02:00"), ("B:TERM@120", "B:TERM@115")
    job = submit_job("--", "train.py", changes=changes)
    wait_until(starts, 30)
    job.release()  # after its signal
    assert Path("runs/pong/checkpoint").exists()
    assert "requeued, to resume in runs/pong" in job.log()
    job.wait_for("COMPLETED")
    assert len(starts()) == 2


def test_a_job_that_slurm_requeues_writes_a_checkpoint_and_resumes_once(submit_job, cluster):
    job = submit_job("--", "train.py")
    wait_until(starts, 30)
    cluster.call("scontrol", "requeue", job.number)
    job.release()
    job.wait_for("COMPLETED")
    assert len(starts()) == 2
    assert job.field("Restarts") == "1"


@pytest.mark.exhaustive
def test_a_cancelled_job_writes_a_checkpoint_and_does_not_come_back(submit_job, cluster):
    job = submit_job("--", "train.py")
    wait_until(starts, 30)
    cluster.call("scancel", job.number)
    job.wait_for("CANCELLED")
    wait_until(Path("runs/pong/checkpoint").exists, 30)
    assert job.field("Restarts") == "0"
    assert len(starts()) == 1


def test_an_array_of_two_workers_shares_a_study(submit_job, tmp_path, cluster):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    array = submit_job("--workers", "2", *SWEEP, "--storage", storage)
    summaries = []
    for task in (1, 2):
        log = f"runs/pong-{array.number}_{task}.log"
        Job(cluster, f"{array.number}_{task}", log).wait_for("COMPLETED", 150)
        summaries.append(json.loads(Path(f"runs/pong/worker-{task}/sweep.json").read_text()))
    trials = [trial["trial"] for summary in summaries for trial in summary["trials"]]
    assert sorted(trials) == list(range(6))
    assert [summary["study"] for summary in summaries] == ["pong", "pong"]


def test_a_run_on_two_nodes_survives_a_killed_process_and_stops_at_a_signal(submit_job, cluster):
    run_dir = Path.cwd() / "run"
    job = submit_job("--nodes", "2", *PPO, "--run-dir", str(run_dir))

    def is_saved():
        assert job.field("JobState") in ("PENDING", "RUNNING"), job.log()
        return [*run_dir.glob("checkpoints/*/seal.json")]

    wait_until(is_saved, 150, 0.2)
    both = processes_of(run_dir)
    assert len(both) == 2
    os.kill(both[1], signal.SIGKILL)
    wait_until(lambda: "requeued, to resume in" in job.log(), 30, 0.2)
    assert re.search(r"error: process [01] lost process [01], which died", job.log()), job.log()
    assert "a process was lost, for the 1. time of at most 5" in job.log()
    assert "Check failure" not in job.log()
    job.release()
    metrics = run_dir / "metrics.jsonl"

    def trains_on():
        resumed = re.search(r"resumed after update ([\d,]+)", job.log())
        if resumed is None or job.log().count("compiled in") < 2:
            return False
        return len(metrics.read_text().splitlines()) > int(resumed[1].replace(",", ""))

    try:
        wait_until(trains_on, 150, 0.2)
        # Before a job's time is up, Slurm signals as here: the processes, and not the script.
        cluster.call("scancel", "--signal=TERM", job.number)
        wait_until(lambda: job.log().count("requeued, to resume in") == 2, 60, 0.2)
    except AssertionError as error:
        raise AssertionError(job.log()[-4000:]) from error
    assert "interrupted; continue with the same command" in job.log()
    assert "forcing job termination" not in job.log()


def test_a_job_on_a_node_that_fails_moves_to_another_and_the_node_comes_back(submit_job, cluster):
    job = submit_job("--", "train.py")
    wait_until(starts, 30)
    (failed,) = starts()
    cluster.kill_node(failed)
    job.release()  # after Slurm has given up the node
    wait_until(lambda: len(starts()) == 2, 60, 0.2)
    (other,) = set(NODES) - {failed}
    assert starts() == [failed, other]
    cluster.call("scancel", job.number)
    cluster.start_node(failed)
