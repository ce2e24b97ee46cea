"""Two processes train the agent that one process would train; one of them writes the files."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fast_compile
import numpy as np
import pytest

from jaxrl.distributed import processes
from jaxrl.training.loggers import read_jsonl

ROOT = Path(__file__).parents[2]
PPO = "-m", "jaxrl", "train", "ppo"
CARTPOLE = (
    *PPO, "--num-envs", "8", "--num-steps", "8", "--num-minibatches", "1", "--num-epochs", "2",
    "--log-every", "1", "--no-anneal", "--num-evaluations", "0", "--eval-episodes", "4",
)  # fmt: skip
PONG = (
    "experiments/ppo_atari.py", "--num-envs", "4", "--num-steps", "8", "--num-minibatches", "1",
    "--num-epochs", "1", "--torso", "ga3c_cnn", "--log-every", "1", "--num-evaluations", "0",
)  # fmt: skip


def begin(*arguments):
    """Start a Python process whose programs compile fast."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device" not in flag]
    flags += [fast_compile.FLAG, "--xla_backend_optimization_level=0"]
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], env=os.environ | {"XLA_FLAGS": " ".join(flags)},
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def free_address():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


def begin_two(*arguments):
    """Start two processes of two devices each."""
    joined = ("--devices", 2, "--coordinator", free_address(), "--num-hosts", 2, "--host-id")
    return [begin(*arguments, *joined, number) for number in (0, 1)]


def finish(started, status=0):
    """Wait until all processes end with a status; return the text that each printed."""
    try:
        texts = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [status] * len(started), texts
    return texts


def losses(directory):
    rows = [row for row in read_jsonl(directory / "metrics.jsonl") if "loss" in row]
    return [int(row["update"]) for row in rows], np.array([row["loss"] for row in rows])


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "steps_per_update"), [(CARTPOLE, 8 * 8), (PONG, 4 * 8)], ids=["cartpole", "pong"]
)
def test_two_processes_train_what_one_does(tmp_path, script, steps_per_update):
    def steps(num_updates):
        return "--total-steps", num_updates * steps_per_update

    one, two = tmp_path / "one", tmp_path / "two"
    finish([begin(*script, *steps(5), "--devices", 4, "--run-dir", one)])
    first, other = finish(begin_two(*script, *steps(5), "--run-dir", two))
    assert "valid_steps" in first
    assert "valid_steps" not in other
    for directory in (one, two):
        assert losses(directory)[0] == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(losses(two)[1], losses(one)[1], rtol=2e-3, atol=1e-4)


@pytest.mark.process
def test_a_signal_to_one_stops_both_and_any_number_of_processes_resumes(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    both = begin_two(*CARTPOLE, "--total-steps", 10**9, "--run-dir", two)
    while not len(read_jsonl(two / "metrics.jsonl")) > 3:
        assert all(process.poll() is None for process in both), finish(both)
        time.sleep(0.1)
    both[1].send_signal(signal.SIGTERM)
    finish(both, status=130)
    done, _ = losses(two)
    parts = {path.name for path in (two / "checkpoints").glob(f"{done[-1]}/state/ocdbt.process_*")}
    assert parts == {"ocdbt.process_0", "ocdbt.process_1"}
    total = ("--total-steps", 64 * (done[-1] + 3))
    # One process resumes the checkpoint of two, and two processes resume its checkpoint.
    finish([begin(*CARTPOLE, *total, "--devices", 2, "--resume", "--run-dir", two)])
    total = ("--total-steps", 64 * (done[-1] + 5))
    first, _ = finish(begin_two(*CARTPOLE, *total, "--resume", "--run-dir", two))
    assert f"resumed after update {done[-1] + 3:,}" in first
    finish([begin(*CARTPOLE, *total, "--run-dir", one)])
    assert losses(two)[0] == losses(one)[0] == [*range(1, done[-1] + 6)]
    early = slice(0, 6)  # rounding grows with every update
    np.testing.assert_allclose(losses(two)[1][early], losses(one)[1][early], rtol=2e-3, atol=1e-4)


JOINED = """
import sys
import jaxrl
from jaxrl.distributed import processes, spread
address, number, is_spread, run_dir = sys.argv[1:]
processes.connect(address, 2, int(number))
algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4))
algo = spread.spread(algo) if is_spread == "spread" else algo
config = jaxrl.PPOConfig(num_steps=4, num_minibatches=1, num_epochs=1)
try:
    jaxrl.run(algo, config, total_steps=64, run_dir=run_dir, num_evaluations=0, progress_bar=False)
except ValueError as error:
    print("refused:", error)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("spread", "names", "message"),
    [
        ("spread", ("same", "other"), "not all 2 processes see the same"),
        ("spread", ("used", "used"), "{}/used is not empty and holds no run"),
        ("alone", ("same", "same"), "2 processes are joined, but 'ppo' trains on the devices of"),
    ],
    ids=["two directories", "files of something else", "not spread"],
)
def test_runs_that_would_damage_checkpoints_are_refused_by_both(tmp_path, spread, names, message):
    address = free_address()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    both = [
        begin("-c", JOINED, address, number, spread, tmp_path / name)
        for number, name in enumerate(names)
    ]
    for text in finish(both):
        assert f"refused: {message.format(tmp_path)}" in text, text


@pytest.mark.process
def test_a_missing_process_ends_the_others_with_one_line():
    code = "from jaxrl.distributed import processes as p; p.connect('localhost:1', 2, 1, 2)"
    (text,) = finish([begin("-c", code)], status=1)
    last = text.strip().splitlines()[-1]
    assert last.startswith("error: process 1 of 2 waited 2 s for the others at localhost:1;")


def test_without_a_cluster_the_error_says_what_to_name(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM", "OMPI", "KUBERNETES", "TPU")):
            monkeypatch.delenv(name)
    with pytest.raises(ConnectionError, match=r"(?s)could not join .* name the coordinator"):
        processes.connect()


def test_a_coordinator_needs_a_port_and_numbers():
    with pytest.raises(ValueError, match="must be address:port, got 'localhost'"):
        processes.connect("localhost", 2, 0)
    with pytest.raises(ValueError, match="localhost:1 needs the number of processes"):
        processes.connect("localhost:1")


def test_one_process_agrees_with_itself():
    assert processes.is_first()
    assert processes.any_process(True)
    assert not processes.any_process(False)
    assert processes.broadcast_text("text") == "text"
    tree = {"x": np.arange(3)}
    assert processes.broadcast(tree) is processes.replicated_part(tree) is tree
