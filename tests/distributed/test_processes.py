"""Two processes that train one agent: as one process would, and one of them keeps the files."""

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
PPO = "experiments/ppo_gymnax.py", "cartpole"
CARTPOLE = (
    *PPO, "--num-envs", "8", "--num-steps", "8", "--num-minibatches", "1", "--num-epochs", "2",
    "--log-every", "1", "--no-anneal", "--num-evaluations", "0", "--eval-episodes", "4",
)  # fmt: skip
PONG = (
    "experiments/ppo_atari.py", "--num-envs", "4", "--num-steps", "8", "--num-minibatches", "1",
    "--num-epochs", "1", "--torso", "ga3c_cnn", "--log-every", "1", "--num-evaluations", "0",
)  # fmt: skip


def environment():
    flags = os.environ.get("XLA_FLAGS", "").split()
    kept = [flag for flag in flags if "device_count" not in flag]
    return os.environ | {
        "XLA_FLAGS": " ".join([*kept, fast_compile.FLAG, "--xla_backend_optimization_level=0"])
    }


def begin(*arguments):
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], env=environment(), cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def free_address():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


def begin_two(*arguments):
    """Two processes of two devices each."""
    joined = ("--devices", 2, "--coordinator", free_address(), "--num-hosts", 2, "--host-id")
    return [begin(*arguments, *joined, number) for number in (0, 1)]


def finish(processes, status=0):
    """What they print, once all have ended as they should."""
    try:
        texts = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [status] * len(processes), texts
    return texts


def losses(directory):
    rows = [row for row in read_jsonl(directory / "metrics.jsonl") if "loss" in row]
    return [int(row["update"]) for row in rows], np.array([row["loss"] for row in rows])


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


def test_a_signal_to_one_stops_both_and_any_number_of_processes_goes_on(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    processes = begin_two(*CARTPOLE, "--total-steps", 10**9, "--run-dir", two)
    while not len(read_jsonl(two / "metrics.jsonl")) > 3:
        assert all(process.poll() is None for process in processes), finish(processes)
        time.sleep(0.1)
    processes[1].send_signal(signal.SIGTERM)
    finish(processes, status=130)
    done, _ = losses(two)
    parts = {path.name for path in (two / "checkpoints").glob(f"{done[-1]}/state/ocdbt.process_*")}
    assert parts == {"ocdbt.process_0", "ocdbt.process_1"}
    total = ("--total-steps", 64 * (done[-1] + 3))
    # One process goes on with what two have saved, and two with that.
    finish([begin(*CARTPOLE, *total, "--devices", 2, "--resume", "--run-dir", two)])
    total = ("--total-steps", 64 * (done[-1] + 5))
    first, _ = finish(begin_two(*CARTPOLE, *total, "--resume", "--run-dir", two))
    assert f"resumed after update {done[-1] + 3:,}" in first
    finish([begin(*CARTPOLE, *total, "--run-dir", one)])
    assert losses(two)[0] == losses(one)[0] == [*range(1, done[-1] + 6)]
    early = slice(0, 6)  # rounding grows with every update
    np.testing.assert_allclose(losses(two)[1][early], losses(one)[1][early], rtol=2e-3, atol=1e-4)


def test_a_mistake_of_the_run_directory_ends_both(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    processes = begin_two(*CARTPOLE, "--total-steps", 64, "--run-dir", tmp_path)
    for text in finish(processes, status=1):
        assert f"error: {tmp_path} is not empty and holds no run" in text


JOINED = """
import sys
import jaxrl
from jaxrl import hosts, parallel
address, number, spread, run_dir = sys.argv[1:]
processes.connect(address, 2, int(number))
algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4))
algo = parallel.spread(algo) if spread == "spread" else algo
config = jaxrl.PPOConfig(num_steps=4, num_minibatches=1, num_epochs=1)
try:
    jaxrl.run(algo, config, total_steps=64, run_dir=run_dir, num_evaluations=0, progress_bar=False)
except ValueError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize(
    ("spread", "names", "message"),
    [
        ("spread", ("same", "other"), "not all 2 processes see the same"),
        ("alone", ("same", "same"), "2 processes are joined, but 'ppo' trains on one's devices"),
    ],
)
def test_what_would_damage_checkpoints_is_refused_by_both(tmp_path, spread, names, message):
    address = free_address()
    processes = [
        begin("-c", JOINED, address, number, spread, tmp_path / name)
        for number, name in enumerate(names)
    ]
    for text in finish(processes):
        assert f"refused: {message}" in text, text


def test_a_missing_process_is_told_in_one_line():
    code = "from jaxrl import hosts; processes.connect('localhost:1', 2, 1, timeout_seconds=2)"
    (text,) = finish([begin("-c", code)], status=1)
    last = text.strip().splitlines()[-1]
    assert last.startswith("error: process 1 of 2 waited 2 s for the others at localhost:1;")


def test_without_a_cluster_the_way_out_is_named(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM", "OMPI", "KUBERNETES", "TPU")):
            monkeypatch.delenv(name)
    with pytest.raises(ConnectionError, match=r"(?s)could not be joined .* name the coordinator"):
        processes.connect()


def test_a_coordinator_needs_a_port_and_numbers():
    with pytest.raises(ValueError, match="must be address:port, got 'localhost'"):
        processes.connect("localhost", 2, 0)
    with pytest.raises(ValueError, match="localhost:1 needs the number of processes"):
        processes.connect("localhost:1")


def test_one_process_agrees_with_itself():
    assert processes.is_first()
    assert processes.any_of(True)
    assert not processes.any_of(False)
    assert processes.agree_on_text("so be it") == "so be it"
    tree = {"x": np.arange(3)}
    assert processes.agree(tree) is processes.replicated_part(tree) is tree
