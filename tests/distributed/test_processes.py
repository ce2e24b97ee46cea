"""Two processes train the agent that one process would train; one of them writes the files."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from waiting import wait_until

from jaxrl.__main__ import main
from jaxrl.cli import train
from jaxrl.distributed import liveness, processes
from jaxrl.training.loggers import read_jsonl
from jaxrl.training.policy import load_policy

ROOT = Path(__file__).parents[2]
CARTPOLE = (
    "-m", "jaxrl", "train", "a2c", "--num-envs", "8", "--num-steps", "8", "--hidden-sizes", "4",
    "--log-every", "1", "--no-anneal", "--num-evaluations", "0",
)  # fmt: skip
SIMULATED = (
    "-m", "jaxrl", "train", "ppo", "--env-id", "envpool/CartPole-v1", "--num-envs", "4",
    "--num-steps", "8", "--num-minibatches", "1", "--num-epochs", "1", "--log-every", "1",
    "--num-evaluations", "1", "--eval-episodes", "2",
)  # fmt: skip


def test_signals_at_once_are_one_request_and_a_later_one_is_another(monkeypatch):
    """Slurm signals a job's shell and its children, and the shell passes its signal on."""
    now, ended = [100.0], []
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])
    before = signal.signal(signal.SIGTERM, lambda *_: ended.append(now[0]))
    try:
        with processes.Interrupt() as interrupt:
            for later in (0.0, 0.1, 0.5):
                now[0] = 100 + later
                os.kill(os.getpid(), signal.SIGTERM)
                assert interrupt.requested
                assert not ended
            now[0] = 102.0
            os.kill(os.getpid(), signal.SIGTERM)
            assert ended == [102.0]
    finally:
        signal.signal(signal.SIGTERM, before)


def begin(*arguments):
    """Start a Python process with one device."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device" not in flag]
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


@pytest.fixture
def train_here(monkeypatch):
    """`train_here(*arguments)` runs what `begin` would, in this process, whose JAX has started."""
    monkeypatch.setattr(train, "split_cpu", lambda *_: None)

    def run(*arguments):
        assert main([str(word) for word in arguments[2:]]) == 0  # without -m jaxrl

    return run


def losses(directory):
    rows = [row for row in read_jsonl(directory / "metrics.jsonl") if "loss" in row]
    return [int(row["update"]) for row in rows], np.array([row["loss"] for row in rows])


@pytest.mark.process
def test_two_processes_train_what_one_does_on_simulators(tmp_path, train_here):
    total = ("--total-steps", 5 * 4 * 8)
    one, two = tmp_path / "one", tmp_path / "two"
    train_here(*SIMULATED, *total, "--devices", 2, "--run-dir", one)
    first, other = finish(begin_two(*SIMULATED, *total, "--run-dir", two))
    assert "valid_steps" in first
    assert "valid_steps" not in other
    assert "lost" not in first + other  # a process that ends is not taken for dead
    for directory in (one, two):
        assert losses(directory)[0] == [1, 2, 3, 4, 5]
        assert load_policy(directory, which="best").config.num_steps == 8
    np.testing.assert_allclose(losses(two)[1], losses(one)[1], rtol=2e-3, atol=1e-4)


@pytest.mark.process
def test_a_signal_to_one_stops_both_and_any_number_of_processes_resumes(tmp_path, train_here):
    two = tmp_path / "two"
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
    train_here(*CARTPOLE, *total, "--devices", 2, "--resume", "--run-dir", two)
    total = ("--total-steps", 64 * (done[-1] + 5))
    first, _ = finish(begin_two(*CARTPOLE, *total, "--resume", "--run-dir", two))
    assert f"resumed after update {done[-1] + 3:,}" in first
    assert losses(two)[0] == [*range(1, done[-1] + 6)]


JOINED = """
import sys
from pathlib import Path
import jaxrl
from jaxrl.distributed import processes, spread
address, number, directory = sys.argv[1:]
processes.check_shared_file.__defaults__ = (0.5,)  # this machine's file system is quick
processes.connect(address, 2, int(number))
algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4))
config = jaxrl.PPOConfig(num_steps=4, num_minibatches=1, num_epochs=1)
two_directories = ("same", "other")[int(number)]
for algo, name in ((spread.spread(algo), two_directories), (spread.spread(algo), "used"),
                   (algo, "new")):
    try:
        jaxrl.run(algo, config, total_steps=64, run_dir=Path(directory) / name, num_evaluations=0,
                  progress_bar=False)
    except ValueError as error:
        print("refused:", error)
"""


@pytest.mark.process
def test_runs_that_would_damage_checkpoints_are_refused_by_both(tmp_path):
    """Two directories, files of something else, and an agent that is not spread."""
    address = free_address()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    for text in finish([begin("-c", JOINED, address, number, tmp_path) for number in (0, 1)]):
        refused = [line for line in text.splitlines() if line.startswith("refused: ")]
        assert len(refused) == 3, text
        assert "not all 2 processes see the same" in refused[0]
        assert f"{tmp_path}/used is not empty and holds no run" in refused[1]
        assert "2 processes are joined, but 'ppo' trains on the devices of" in refused[2]


@pytest.mark.process
def test_an_address_that_cannot_be_reached_is_named_early_and_ends_with_one_line():
    code = (
        "from jaxrl.distributed import processes as p; p.NAMED_AFTER_SECONDS = 0.5; "
        "p.connect('localhost:1', 2, 1, 3)"
    )
    (text,) = finish([begin("-c", code)], status=1)
    assert "process 1 of 2 has waited 0.5 s for the others at localhost:1, which cannot be" in text
    last = text.strip().splitlines()[-1]
    assert last.startswith("error: process 1 of 2 waited 3 s for the others at localhost:1;")


ENDLESS = """
import sys
from jaxrl.distributed import processes
processes.connect(sys.argv[1], 2, int(sys.argv[2]))
processes.any_process(False)
open(f"{sys.argv[3]}/joined-{sys.argv[2]}", "w").close()
while True:
    processes.any_process(False)
"""


@pytest.mark.process
@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_the_death_of_a_process_ends_the_other_and_is_named(tmp_path, killed):
    address = free_address()
    both = [begin("-c", ENDLESS, address, number, tmp_path) for number in (0, 1)]
    try:
        wait_until(lambda: len(list(tmp_path.glob("joined-*"))) == 2, 120)
        both[killed].kill()
        text, _ = both[1 - killed].communicate(timeout=30)
        assert both[1 - killed].returncode == liveness.LOST_STATUS == 75
        error = f"error: process {1 - killed} lost process {killed}, which died"
        # This script's own traceback may be cut by it, even within a line.
        assert error in text
        assert "stack trace" not in text
    finally:
        for process in both:
            process.kill()
            process.communicate()


FAILING = """
import sys
import gymnasium, jaxrl
from jaxrl.distributed import processes, spread
address, number, failing, place = sys.argv[1:]
def check(name, steps):
    if failing in (number, "both") and place == name and steps >= 50:
        raise ZeroDivisionError("a wheel came off")
class Failing(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}
    def step(self, action):
        self.steps += 1
        check("step", self.steps)
        return self.observation_space.sample(), 0.0, False, False, {}
processes.connect(address, 2, int(number))
check("start", 50)
env = jaxrl.make(Failing, 4, vectorization_mode="sync")
config = jaxrl.A2CConfig(num_steps=4, hidden_sizes=(4,))
jaxrl.run(spread.spread(jaxrl.a2c(env)), config, total_steps=10**6, num_evaluations=0,
          progress_bar=False, callbacks=[lambda update, state, row: check("callback", update)])
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("failing", "place"),
    [
        *(pytest.param(n, "step", marks=pytest.mark.exhaustive) for n in (0, 1)),
        (1, "callback"),
        (1, "start"),
    ],
)
def test_an_error_in_one_process_ends_both(failing, place):
    address = free_address()
    both = [begin("-c", FAILING, address, number, failing, place) for number in (0, 1)]
    texts = finish(both, status=1)
    assert "ZeroDivisionError: a wheel came off" in texts[failing]
    error = f"error: process {1 - failing} ends because process {failing} failed"
    assert error in texts[1 - failing]
    assert all("Begin stack trace" not in text for text in texts)


@pytest.mark.process
@pytest.mark.exhaustive
def test_processes_that_fail_at_the_same_time_show_their_own_errors():
    address = free_address()
    both = [begin("-c", FAILING, address, number, "both", "step") for number in (0, 1)]
    for text in finish(both, status=1):
        assert "ZeroDivisionError: a wheel came off" in text
        assert "error: process" not in text


def test_a_silent_connection_ends_the_lines(monkeypatch):
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(0.1)
        other.sendall(b"alive\nal")
        assert list(liveness.read_lines(one)) == ["alive"]


class Store(dict):
    """A stand-in for the key-value store of JAX's processes."""

    key_value_set = dict.__setitem__

    def blocking_key_value_get(self, key, milliseconds):
        return self[key]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_strangers_that_say_nothing_hold_nobody_up(monkeypatch, host):
    if ":" in host and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    store, given_up = Store(), []
    monkeypatch.setattr(liveness, "PING_SECONDS", 0.1)
    monkeypatch.setattr(liveness, "SILENCE_SECONDS", 3.0)
    monkeypatch.setattr(liveness.atexit, "register", lambda _: None)
    monkeypatch.setattr(liveness.Liveness, "_give_up", lambda *end: given_up.append(end[1:]))
    first = liveness.Liveness(store, host, 0)
    address = (host, int(store[liveness.KEY].split()[0]))
    with (
        socket.create_connection(address, 30) as silent,
        socket.create_connection(address) as talks,
    ):
        talks.sendall("é 1\n".encode())
        other = liveness.Liveness(store, host, 1)
        assert silent.recv(1) == b""  # it is closed, after so long a silence
        assert given_up == []
    for process in (other, first):
        process.leave()


def test_a_process_that_ends_at_once_is_not_taken_for_dead(monkeypatch):
    store, given_up, left = Store(), [], threading.Event()
    monkeypatch.setattr(liveness.atexit, "register", lambda _: None)
    monkeypatch.setattr(liveness.Liveness, "_give_up", lambda *end: given_up.append(end[1:]))
    watch = liveness.Liveness._watch

    def watch_late(*args):
        watch(*args)
        left.set()

    monkeypatch.setattr(liveness.Liveness, "_watch", watch_late)
    liveness.Liveness(store, "localhost", 0)
    port, secret = store[liveness.KEY].split()
    with socket.create_connection(("localhost", int(port))) as other:
        other.sendall(f"{secret} 1\nalive\nbye\n".encode())
    assert left.wait(5)
    time.sleep(0.2)
    assert given_up == []


def test_a_port_of_notices_that_cannot_be_reached_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    store = Store({liveness.KEY: f"{port} secret"})
    message = f"process 1 cannot reach port {port} of 127.0.0.1 .*refused.*firewall"
    with pytest.raises(ConnectionError, match=message):
        liveness.Liveness(store, "127.0.0.1", 1)


def test_without_a_cluster_the_error_says_what_to_name(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM", "OMPI", "KUBERNETES", "TPU")):
            monkeypatch.delenv(name)
    with pytest.raises(ConnectionError, match=r"(?s)could not join .* name the coordinator"):
        processes.connect()


def test_a_coordinator_needs_a_port_and_numbers():
    for bad in ("localhost", "localhost:", "localhost:port", "localhost:65536", ":1"):
        with pytest.raises(ValueError, match=f"must be address:port, got {bad!r}"):
            processes.connect(bad, 2, 0)
    with pytest.raises(ValueError, match="localhost:1 needs the number of processes"):
        processes.connect("localhost:1")


@pytest.mark.parametrize(
    ("environment", "is_only"),
    [
        ({}, False),
        ({"SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "2"}, True),
        ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_NODES": "2"}, False),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, True),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, False),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "SLURM_NTASKS": "2"}, True),
    ],
)
def test_a_process_that_is_alone_on_its_machine_uses_all_gpus(monkeypatch, environment, is_only):
    given = {}
    for name in ("SLURM_NTASKS", "SLURM_STEP_NUM_NODES", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **options: given.update(options))
    processes.connect("localhost:1", 2, 0)
    assert given["local_device_ids"] == ([] if is_only else None)


def test_one_process_agrees_with_itself():
    assert processes.is_first()
    assert processes.any_process(True)
    assert not processes.any_process(False)
    assert processes.broadcast_text("text") == "text"
    tree = {"x": jnp.arange(3)}
    assert processes.broadcast(tree) is tree
