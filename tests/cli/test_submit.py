"""`jaxrl submit`: the jobs that it writes, and how they behave when the scheduler stops them."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tyro
from waiting import wait_until

from jaxrl.cli import submit, sweep
from jaxrl.cli.flags.sweep import make_scheduler

SWEEP = ("--", "train.py", "--storage", "postgresql://user@host/db")

# A stand-in for a training script; the environment variable THEN says what it does.
TRAIN = """
import os, pathlib, signal, sys, time
run_dir = pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
run_dir.mkdir(parents=True, exist_ok=True)
(run_dir / "argv").write_text("\\n".join(sys.argv[1:]))

def stop(number, frame):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(1))  # a second one
    time.sleep(0.2)
    (run_dir / "checkpoint").touch()
    sys.exit(130)

if os.environ["THEN"] != "wait":
    sys.exit(int(os.environ["THEN"]))
if (run_dir / "checkpoint").exists() and "--resume" in sys.argv:
    sys.exit(0)
if "--deaf" not in sys.argv:
    signal.signal(signal.SIGTERM, stop)
(run_dir / "pid").write_text(str(os.getpid()))
(run_dir / "ready").touch()
time.sleep(300)
"""
PROGRAMS = {
    "python": f'exec {sys.executable} "$@"',
    # An image stands between its options and the command.
    "apptainer": 'echo "$@" >> apptainer.log; while [[ $1 != *.sif ]]; do shift; done; '
    'shift; exec "$@"',
    "scontrol": 'if [ "$1" = show ]; then echo "   JobState=RUNNING Reason=None"; '
    'else echo "$@" >> scontrol.log; fi',
    # Two nodes, here directories, and srun's status. It kills all processes if it gets SIGTERM.
    "srun": """[ "$1" = --cpus-per-task=1 ] || exit 9
shift 2; trap 'kill -KILL $first $second' TERM
mkdir -p 0 1; cp train.py 0; cp train.py 1
(cd 0; exec "$@") & first=$!; (cd 1; exec "$@") & second=$!
wait $first; wait $first; status=$?; wait $second || status=$?; exit $status""",
    "qsub": "exit 3",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory to submit from, with a training script and a cluster's programs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "bin").mkdir()
    for name, body in PROGRAMS.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def write(*argv):
    """Return the job that these arguments write."""
    submit.main(["--name", "pong", "--dry-run", *argv])
    return Path("runs/pong.sh")


def start(path, **environment):
    """Start a job's script in a process group of its own."""
    defaults = {"THEN": "wait", "SLURM_JOB_ID": "7"}
    return subprocess.Popen(
        ["bash", str(path)], start_new_session=True, env=os.environ | defaults | environment
    )


def stop(job, *run_dirs, number=signal.SIGTERM, times=1, send=os.kill):
    """Send a signal to a job whose runs are ready, and return its status."""
    for run_dir in run_dirs or ("runs/pong",):
        wait_until((Path(run_dir) / "ready").exists, 120)
    for _ in range(times):
        send(job.pid, number)
        time.sleep(0.03)
    return job.wait(60)


def requeued():
    path = Path("scontrol.log")
    return path.read_text().splitlines() if path.exists() else []


def filled(path, template):
    """Return the lines of a job that its template does not have."""
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
    known = (submit.TEMPLATES / template).read_text().splitlines()
    assert "{{" not in path.read_text()
    return [line for line in path.read_text().splitlines() if line not in known]


def test_the_job_for_slurm(place):
    path = write(
        "--gpus", "2", "--cpus", "16", "--hours", "36.5", "--container", "jaxrl-gpu.sif",
        "--extra", "partition=gpu", "--extra", "account=lab",
        "--", "train.py", "--env-id", "it's; $HOME",
    )  # fmt: skip
    assert path.stat().st_mode & 0o777 == 0o600  # a command may have a password
    assert filled(path, "slurm.sh") == [
        "#SBATCH --job-name=pong",
        "#SBATCH --output=runs/%x-%j.log",
        "#SBATCH --nodes=1",
        "#SBATCH --cpus-per-task=16",
        "#SBATCH --time=36:30:00",
        "#SBATCH --signal=B:TERM@120",
        "#SBATCH --gres=gpu:2",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=lab",
        "run_dir=runs/pong",
        'job="$SLURM_JOB_ID"',
        "apptainer exec --nv jaxrl-gpu.sif python train.py --env-id 'it'\"'\"'s; $HOME' \\",
        '    --run-dir "$run_dir" --resume &',
    ]
    for fixed in ("--requeue", "--open-mode=append"):
        assert f"#SBATCH {fixed}" in path.read_text().splitlines()


def test_a_job_in_a_container_runs_the_image_s_jaxrl(place):
    path = write("--container", "jaxrl.sif", "--", "jaxrl", "train", "ppo")
    (line,) = (line for line in filled(path, "slurm.sh") if "apptainer" in line)
    assert line.startswith("apptainer exec jaxrl.sif python -P -m jaxrl train ppo")


def test_the_array_for_slurm(place):
    command = ("--", "jaxrl", "sweep", *SWEEP[2:], "--run-dir=a b", "--resume")
    path = write("--workers", "8", *command)
    assert filled(path, "slurm.sh") == [
        "#SBATCH --job-name=pong",
        "#SBATCH --output=runs/%x-%A_%a.log",
        "#SBATCH --nodes=1",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --time=24:00:00",
        "#SBATCH --signal=B:TERM@120",
        "#SBATCH --array=1-8",
        "run_dir='a b'/worker-$SLURM_ARRAY_TASK_ID",
        'job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"',
        f"{sys.executable} -m jaxrl sweep --storage postgresql://user@host/db --study pong \\",
        '    --run-dir "$run_dir" --resume --worker "$run_dir" &',
    ]


def test_the_job_for_grid_engine(place):
    path = write(
        "--scheduler", "sge", "--gpus", "1", "--cpus", "4", "--workers", "3",
        "--container", "jaxrl.sif", "--extra", "q gpu.q", *SWEEP, "--study", "one",
    )  # fmt: skip
    assert filled(path, "sge.sh") == [
        "#$ -N pong",
        "#$ -pe smp 4",
        "#$ -l h_rt=24:00:00,s_rt=23:58:00",
        "#$ -l gpu=1",
        "#$ -t 1-3",
        "#$ -q gpu.q",
        "run_dir=runs/pong/worker-$SGE_TASK_ID",
        'apptainer exec --nv jaxrl.sif sh -c \'trap "" USR1 USR2; exec "$@"\' sh '
        "python train.py --storage postgresql://user@host/db --study one \\",
        '    --run-dir "$run_dir" --resume --worker "$run_dir" &',
    ]
    for fixed in ("-notify", "-r y", "-cwd"):
        assert f"#$ {fixed}" in path.read_text().splitlines()


@pytest.mark.parametrize(
    ("flags", "command", "added"),
    [
        (("--gpus", "4"), ("train", "ppo"), " --devices 4"),
        (
            ("--gpus", "4", "--nodes", "2"),
            ("train", "ppo", "--num-envs", "8"),
            " --devices 4 --cluster",
        ),
        (("--gpus", "4"), ("train", "ppo", "--devices", "2"), ""),
        (("--gpus", "1"), ("train", "ppo"), ""),
        (("--gpus", "4"), ("train", "ppo", "--autotune"), ""),  # it chooses their number
        (("--gpus", "4"), ("sweep",), ""),  # it uses all by itself
    ],
)
def test_a_job_uses_the_gpus_that_it_asks_for(place, capsys, flags, command, added):
    path = write(*flags, "--", "jaxrl", *command)
    expected = f"-m jaxrl {' '.join(command)}{added} \\\n"
    assert expected in path.read_text()
    assert capsys.readouterr().err == ""


def test_an_autotuned_run_is_one_process(place):
    with pytest.raises(ValueError, match=r"--autotune .* one process; leave out it or --nodes"):
        write("--nodes", "2", "--", "jaxrl", "train", "ppo", "--autotune")


def test_a_script_that_is_not_told_of_several_gpus_is_named(place, capsys):
    write("--gpus", "4", "--", "train.py")
    assert "note: train.py is not told to use 4 GPUs" in capsys.readouterr().err
    write("--gpus", "4", "--", "train.py", "--devices=4")
    assert capsys.readouterr().err == ""


def test_flags_of_a_file_count_as_those_of_the_command(place):
    (place / "sweep.yaml").write_text("storage: sqlite:///s.db\nstudy: pong\nrun_dir: there\n")
    args = submit.SubmitArguments("search", workers=2)
    job = submit.make_job(args, ["jaxrl", "sweep", "--config", "sweep.yaml"])
    assert "--study" not in job
    assert "there" in job
    (place / "sweep.yaml").write_text("storage: sqlite:///s.db\nscheduler: pbt\n")
    with pytest.raises(ValueError, match="--scheduler pbt trains all trials in one worker"):
        submit.make_job(args, ["jaxrl", "sweep", "--config=sweep.yaml"])


def test_an_array_of_workers_has_no_explorer(place):
    with pytest.raises(ValueError, match="--scheduler pbt trains all trials in one worker: leave"):
        write("--workers", "2", *SWEEP, "--scheduler", "pbt")
    write("--workers", "1", *SWEEP, "--scheduler", "pbt")


@pytest.mark.parametrize("name", ["hypertrick", "random", "halving", "hyperband", "asha"])
def test_an_array_of_workers_needs_a_folder_for_agents_if_the_scheduler_pauses_trials(place, name):
    argv = ("--workers", "2", *SWEEP, "--scheduler", name)
    if make_scheduler(sweep.SweepArguments(scheduler=name)).pauses:
        with pytest.raises(ValueError, match=f"--scheduler {name} pauses .* needs --agents-dir"):
            write(*argv)
        write("--workers", "1", *argv[2:])
        write(*argv, "--agents-dir", "shared")
        # Agents lie beside a file.
        write("--workers", "2", "--", "train.py", "--storage", "sqlite:///x", *argv[-2:])
    else:
        write(*argv)


def test_an_array_of_workers_has_no_journal(place):
    sweep = ("--", "train.py", "--storage", "journal:////nfs/x")
    with pytest.raises(
        ValueError, match="journal:////nfs/x: a journal is for one worker at a time"
    ):
        write("--workers", "2", *sweep)
    write("--workers", "1", *sweep)


@pytest.mark.process
def test_slurm_stops_a_run_with_a_checkpoint_and_restarts_it(place):
    path = write("--gpus", "1", "--container", "x.sif", "--", "train.py", "--seed", "3")
    assert stop(start(path), times=3) == 130
    assert (place / "runs/pong/checkpoint").exists()
    assert requeued() == ["requeue 7"]
    assert start(path).wait(60) == 0  # it has resumed, and ends
    assert requeued() == ["requeue 7"]
    argv = (place / "runs/pong/argv").read_text().split("\n")
    assert argv == ["--seed", "3", "--run-dir", "runs/pong", "--resume"]
    assert (place / "apptainer.log").read_text().startswith("exec --nv x.sif python train.py")


@pytest.mark.process
def test_processes_on_several_nodes_stop_together_and_resume(place):
    command = ("--", "train.py", "--seed", "3", "--resume")
    path = write("--nodes", "2", "--gpus", "4", "--container", "x.sif", *command)
    assert "#SBATCH --nodes=2" in path.read_text().splitlines()
    assert "#SBATCH --signal=TERM@120" in path.read_text()  # to the processes
    job, run_dirs = start(path), [place / node / "runs/pong" for node in ("0", "1")]
    for run_dir in run_dirs:
        wait_until((run_dir / "ready").exists, 120)
    for run_dir in run_dirs:
        os.kill(int((run_dir / "pid").read_text()), signal.SIGTERM)
    os.kill(job.pid, signal.SIGTERM)  # as when Slurm requeues a job
    assert job.wait(60) == 130
    assert requeued() == ["requeue 7"]
    assert start(path).wait(60) == 0
    expected = ["--seed", "3", "--cluster", "--run-dir", "runs/pong", "--resume"]
    for node in ("0", "1"):
        assert (place / node / "runs/pong/argv").read_text().split("\n") == expected


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_grid_engine_stops_a_run_in_a_container_and_restarts_it(place, number):
    path = write("--scheduler", "sge", "--container", "x.sif", "--", "train.py")
    assert stop(start(path), number=number, times=2, send=os.killpg) == 99  # all processes
    assert (place / "runs/pong/checkpoint").exists()
    assert start(path).wait(60) == 0


@pytest.mark.process
@pytest.mark.parametrize("scheduler", ["slurm", "sge"])
@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_run_that_ends_by_itself_is_not_requeued(place, scheduler, code):
    path = write("--scheduler", scheduler, "--", "train.py")
    assert start(path, THEN=str(code)).wait(60) == code
    assert requeued() == []


@pytest.mark.process
def test_a_job_that_cannot_checkpoint_yet_is_requeued(place):
    assert stop(start(write("--", "train.py", "--deaf"))) == 143
    assert requeued() == ["requeue 7"]


@pytest.mark.process
def test_tasks_of_an_array_share_only_their_study(place):
    path = write("--workers", "2", *SWEEP, "--trials", "4")
    first, second = (
        start(path, SLURM_ARRAY_JOB_ID="6", SLURM_ARRAY_TASK_ID=task) for task in ("1", "2")
    )
    assert stop(second, "runs/pong/worker-2") == 130
    assert requeued() == ["requeue 6_2"]
    assert first.poll() is None
    assert stop(first, "runs/pong/worker-1") == 130
    for task in (1, 2):
        run_dir = Path(f"runs/pong/worker-{task}")
        args = tyro.cli(sweep.SweepArguments, args=(run_dir / "argv").read_text().split("\n"))
        assert (args.study, args.run_dir, args.resume, args.trials) == ("pong", run_dir, True, 4)
        assert args.worker == str(run_dir)


def test_a_job_that_the_scheduler_refuses_is_an_error(place):
    with pytest.raises(ValueError, match=re.escape("qsub runs/pong.sh failed with 3")):
        submit.main(["--name", "pong", "--scheduler", "sge", "--", "train.py"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no command; it comes after --"),
        (["--", "python", "train.py"], "'python' is not a file"),
        (
            ["--hours", "0", "--", "train.py"],
            "--hours must be a number over 0.03 (--margin)",
        ),
        (
            ["--hours", "inf", "--", "train.py"],
            "--hours must be a number over 0.03 (--margin)",
        ),
        (
            ["--margin", "0", "--", "train.py"],
            "--margin must be an integer from 1 to 65,535",
        ),
        (["--gpus", "-1", "--", "train.py"], "--gpus must be an integer >= 0, got -1"),
        (["--workers", "0", *SWEEP], "--workers must be an integer >= 1, got 0"),
        (["--workers", "2", "--", "train.py"], "the command needs --storage"),
        (["--", "jaxrl", "doctor"], "runs jaxrl train or jaxrl sweep, got jaxrl doctor"),
        (["--workers", "2", "--", "jaxrl", "train"], "runs jaxrl sweep, got jaxrl train"),
        (["--nodes", "2", "--", "jaxrl", "sweep"], "runs jaxrl train, got jaxrl sweep"),
        (["--nodes", "2", "--workers", "2", *SWEEP], "--nodes needs --scheduler slurm"),
        (["--nodes", "2", "--scheduler", "sge", *SWEEP], "--nodes needs --scheduler slurm"),
        (["--name", "a b", "--", "train.py"], "got 'a b'"),
        (["--extra", "a=1\nrm x", "--", "train.py"], "--extra takes options of one line each"),
        (["--extra", "", "--", "train.py"], "--extra takes options of one line each"),
        (["--", "train.py", "--run-dir"], "--run-dir has no value"),
        (["--", "jaxrl", "train", "--seed", "1"], "takes an algorithm first, one of ppo, a2c"),
        (["--", "jaxrl", "train", "ppo", "--gamma", "2"], "--gamma must be within [0, 1], got 2"),
        (
            ["--gpus", "3", "--", "jaxrl", "train", "ppo", "--num-envs", "64"],
            "--num-envs 64 cannot be shared evenly by the job's 3 devices",
        ),
        (
            ["--gpus", "2", "--nodes", "4", "--", "jaxrl", "train", "ppo", "--num-envs", "4"],
            "--num-envs 4 cannot be shared evenly by the job's 8 devices",
        ),
        (
            ["--gpus", "2", "--", "jaxrl", "train", "ppo", "--devices", "4"],
            "--devices 4 is more than the job's --gpus 2",
        ),
    ],
)
def test_bad_jobs_are_refused(place, argv, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        submit.main(["--name", "pong", *argv])
    assert not (place / "runs").exists()


@pytest.mark.parametrize("command", [("train", "ppo"), ("sweep",)])
def test_a_mistyped_flag_is_refused_before_it_waits_in_the_queue(place, command, capsys):
    with pytest.raises(SystemExit):
        submit.main(["--name", "pong", "--", "jaxrl", *command, "--sede", "1"])
    assert "--sede" in capsys.readouterr().err
    assert not (place / "runs").exists()


def test_without_a_scheduler_there_is_one_line(jaxrl_command, place, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    finished = jaxrl_command("submit", "--name", "pong", "--", "train.py")
    assert finished.returncode == 1
    message = "error: there is no sbatch here; --dry-run writes the job without it"
    assert finished.stderr == message
