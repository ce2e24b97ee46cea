"""Worker processes that fail in every way: one error in time, and no process is left."""

import json
import multiprocessing
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import bad_simulators
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import simulators
from env_cases import played
from waiting import wait_until

import jaxrl
from jaxrl.envs.host import callback, worker
from jaxrl.envs.host.errors import SimulatorError
from jaxrl.envs.host.pools import PoolGroup
from jaxrl.envs.host.worker_pool import WorkerPool
from jaxrl.envs.host.worker_processes import Workers

N = 2
NO_ACTIONS = jnp.zeros(N, jnp.int32)
SEEDS = np.arange(N, dtype=np.int32)


@pytest.fixture(autouse=True)
def noted_pids(monkeypatch, tmp_path):
    """Close quickly; return the file to which simulators write the ids of their children."""
    monkeypatch.setattr("jaxrl.envs.host.worker_processes.CLOSE_SECONDS", 0.5)
    path = tmp_path / "pids"
    path.touch()
    return path


def pids_in(path):
    return [int(line) for line in path.read_text().split()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pids):
    wait_until(lambda: not any(map(is_running, pids)), 20, 0.05)


@pytest.fixture
def new_supervisors():
    """Return a function that lists the supervisors that a test started and that still run."""
    before = set(multiprocessing.active_children())
    return lambda: set(multiprocessing.active_children()) - before


def test_a_worker_ends_quietly_with_a_trainer_that_is_killed():
    theirs, ours = socket.socketpair()
    theirs.close()
    with ours:
        made_of = pickle.dumps((simulators.Counting, None))
        worker.work(ours, 0, pickle.dumps((dict(os.environ), made_of)), None)


# --- what a simulator may do ----------------------------------------------------------------------

FAILED = r"bad_simulators:Bad: environment 0 failed in {call}( \(and environments \[1\]\))?:\n"
TRACED = FAILED + r"Traceback[\s\S]*"
DIED = r"bad_simulators:Bad: the process of environment (0|1) \({how}\).* ended"
SILENT = r"bad_simulators:Bad: no answer to {call} from environments \[0(, 1)?\] within"
DEEDS = {
    "unpicklable": TRACED + r"bad_simulators.py[\s\S]*Local: a wheel came off",
    "two-arguments": TRACED + r"bad_simulators.py[\s\S]*TwoArguments: a wheel came off: no wheel",
    "unprintable": TRACED + "Unprintable",
    "chained": TRACED + r"KeyError: 'the cause'[\s\S]*RuntimeError: a wheel came off",
    "base": TRACED + "Base: a wheel came off",
    "system-exit": TRACED + "SystemExit: a wheel came off",
    "exits-well": TRACED + "SystemExit",
    "interrupt": TRACED + "KeyboardInterrupt",
    "long-text": TRACED + r"xxx\n\[...\]\nxxx",
    "surrogate": TRACED + r"ValueError: a wheel came off\\udc80",
    "recursion": TRACED + "RecursionError",
    "allocates": TRACED + "MemoryError",
    "prints-and-raises": TRACED + "ZeroDivisionError: a wheel came off",
    "closes-files": DIED.replace("{how}", "(exit code 1|its connection is closed)"),
    "killed": DIED.replace("{how}", "killed by SIGKILL"),
    "segfault": DIED.replace("{how}", "killed by SIGSEGV"),
    "os-exit": DIED.replace("{how}", "exit code 3"),
    "stopped": SILENT,
    "sleep": SILENT,
    "lock": SILENT,
    "kills-parent": DIED.replace("{how}", ".*"),
    "children-raises": TRACED + "ZeroDivisionError",
    "children-dies": DIED.replace("{how}", "exit code 3"),
    "children-hangs": SILENT,
    "child-with-connection": DIED.replace("{how}", "exit code 3"),
}
ERRORS = (
    "unpicklable", "unprintable", "chained", "base", "system-exit", "long-text", "surrogate",
    "recursion",
)  # fmt: skip
"""Deeds that differ from others by the error only, so that no process needs to do them."""
FEW = ("two-arguments", "killed", "sleep", "children-dies")
"""Those of other calls than `step`: a worker answers all calls alike."""
RESULTS = {
    "obs-none": r"step: obs must be float32\[2\] as its space says, is object\[\]",
    "obs-text": r"step: obs must be float32\[2\] as its space says, is <U3\[\]",
    "obs-ragged": "inhomogeneous shape",
    "obs-shape": r"step: obs must be float32\[2\] as its space says, is float32\[3\]",
    "obs-complex": r"step: obs must be float32\[2\] as its space says, is complex128\[2\]",
    "obs-nan": r"step: obs has numbers that are not finite float32: array\(\[ 1., nan\]",
    "reward-none": "step: the reward must be a number, is None",
    "reward-text": "step: the reward must be a number, is '1'",
    "reward-array": r"step: the reward must be a number, is array\(\[1.\]\)",
    "reward-nan": "step: the reward is nan, not a finite number",
    "reward-huge": r"step: the reward is 1e\+300, not a finite number",
    "terminated-text": "step: terminated must be True or False, is 'no'",
    "terminated-none": "step: terminated must be True or False, is None",
    "terminated-number": "step: terminated must be True or False, is 0.5",
    "truncated-array": r"step: truncated must be True or False, is array\(\[False\]\)",
    "four-values": r"step must return \(obs, reward, terminated, truncated, info\), got 4 values",
    "nothing": "step must return .*, got NoneType",
}


def make_bad(where, how, pids):
    timeout = 2.0 if DEEDS.get(how) == SILENT else 30.0
    render_mode = "rgb_array" if where == "render" else None
    return jaxrl.make(
        bad_simulators.Bad,
        N,
        where=where,
        how=how,
        pids=str(pids),
        render_mode=render_mode,
        timeout=timeout,
    )


def run(env):
    """Make a group of one pool, use it, and close it."""
    group = PoolGroup(env._make_pool, SEEDS, members=1, id=env.id)
    group.start()
    for _ in range(2):
        group.step(np.zeros(N, np.int32))
    if env.options["render_mode"]:
        group.pools[0].render()
    group.close()


@pytest.mark.parametrize("deed", ERRORS)
def test_an_error_of_every_kind_is_sent_as_text(deed):
    do: Any = bad_simulators.DEEDS[deed]
    theirs, ours = socket.socketpair()
    with ours:
        with theirs:
            assert not worker._answer(theirs, "step", do)
        answer = ours.makefile("rb").read()
    kind, length = worker.ANSWER.unpack(answer[: worker.ANSWER.size])
    content = answer[worker.ANSWER.size :]
    assert (kind, length) == (worker.FAILED, len(content))
    call, _, _, trace = json.loads(content)
    assert call == "step"
    assert re.match(DEEDS[deed].removeprefix(FAILED), trace)


@pytest.mark.process
@pytest.mark.parametrize(
    ("call", "deed"),
    [
        *(
            pytest.param("step", deed, marks=[pytest.mark.exhaustive] * (deed == "stopped"))
            for deed in DEEDS
            if deed not in ERRORS
        ),
        *(("reset", deed) for deed in FEW),
    ],
)
def test_a_bad_call_is_one_error_in_time_and_leaves_no_process(
    call, deed, noted_pids, new_supervisors
):
    env = make_bad(call, deed, noted_pids)
    with pytest.raises(SimulatorError, match=DEEDS[deed].replace("{call}", call)):
        run(env)
    assert not new_supervisors()
    if deed.startswith("child"):
        assert pids_in(noted_pids)
    wait_for_end(pids_in(noted_pids))


@pytest.mark.process
@pytest.mark.parametrize("deed", ["two-arguments", "lock", "children-dies"])
def test_a_bad_drawing_is_one_error(deed, noted_pids, new_supervisors):
    message = DEEDS[deed].replace("{call}", "render")
    with pytest.raises((SimulatorError, ValueError), match=message):
        run(make_bad("render", deed, noted_pids))
    assert not new_supervisors()
    wait_for_end(pids_in(noted_pids))


@pytest.mark.process
@pytest.mark.parametrize("deed", FEW)
def test_an_environment_that_cannot_be_made_is_one_error(deed, noted_pids, new_supervisors):
    with pytest.raises((SimulatorError, ValueError)) as caught:
        make_bad("make", deed, noted_pids)
    assert "bad_simulators:Bad" in str(caught.value)
    errors = f"{caught.value}\n{caught.value.__cause__}"
    assert re.search(DEEDS[deed].replace("{call}", "make"), errors)
    assert not new_supervisors()
    wait_for_end(pids_in(noted_pids))


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:gymnasium/bad_simulators:RuntimeWarning")
@pytest.mark.parametrize("deed", FEW)
def test_a_bad_end_leaves_no_process(deed, noted_pids, new_supervisors):
    run(make_bad("close", deed, noted_pids))
    assert not new_supervisors()
    wait_for_end(pids_in(noted_pids))


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:gymnasium/bad_simulators:RuntimeWarning")
@pytest.mark.parametrize(
    ("deed", "mode", "message"),
    [
        ("two-arguments", "async", r"environment 0 failed in close:\n[\s\S]*TwoArguments: a wheel"),
        ("sleep", "async", "environment 1 did not close within 0.5 s"),
        ("system-exit", "sync", r"environment 0 failed in close:\n[\s\S]*SystemExit: a wheel"),
    ],
)
def test_a_bad_end_is_a_warning(deed, mode, message, noted_pids):
    env: Any = make_bad("close", deed, noted_pids)
    env = env.with_options(vectorization_mode=mode)
    with pytest.warns(RuntimeWarning, match=message):
        run(env)


def test_all_environments_are_closed_if_the_first_one_fails():
    closed = []

    class Leaving(simulators.Counting):
        def close(self):
            closed.append(self)
            sys.exit(3)

    env: Any = jaxrl.make(Leaving, N, vectorization_mode="sync")
    group = PoolGroup(env._make_pool, np.arange(2 * N), members=1, num_pools=2, id=env.id)
    group.start()
    closed.clear()  # the one that showed its spaces
    with pytest.warns(RuntimeWarning, match="environment 0 failed in close"):
        group.close()
    assert len(closed) == 2 * N


@pytest.mark.parametrize(
    ("mode", "result"),
    [
        *(("sync", result) for result in RESULTS),
        pytest.param("async", "obs-nan", marks=pytest.mark.process),
        pytest.param("async", "nothing", marks=pytest.mark.process),
    ],
)
def test_a_wrong_step_is_refused(mode, result, noted_pids):
    env: Any = make_bad("step", result, noted_pids)
    env = env.with_options(vectorization_mode=mode)
    message = FAILED.replace("{call}", "step") + r"[\s\S]*" + RESULTS[result]
    with pytest.raises(SimulatorError, match=message):
        run(env)


# --- through the compiled program -----------------------------------------------------------------


FAULTS = {
    "step": r"Faulty: environment 0 failed in step[\s\S]*ZeroDivisionError: a wheel came off",
    "reset": r"Faulty: environment 0 failed in reset[\s\S]*ZeroDivisionError: no way back",
    "killed": r"process of environment 0 \(killed by SIGKILL\).* ended in step",
    "hang": r"no answer to step from environments \[0, 1(, 2, 3)?\] within 3 s",
}


@pytest.mark.process
def test_a_timeout_too_short_to_start_workers_is_named():
    with pytest.raises(SimulatorError, match=r"no worker started within .* \(`timeout`\)"):
        jaxrl.make("gymnasium/CartPole-v1", N, timeout=1e-9)


@pytest.mark.process
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("num_pools", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_the_program_reports_a_fault_and_ends_all_pools(fault, num_pools):
    timeout = 3.0 if fault == "hang" else 60.0
    env = jaxrl.make(simulators.Faulty, 2 * N, fault=fault, timeout=timeout, num_pools=num_pools)
    actions = jnp.zeros(2 * N, jnp.int32)
    state, _ = env.init(jax.random.key(0))
    pools: Any = callback.group_of(state).pools
    pids = [pid for pool in pools for pid in pool.workers.pids.values()]
    assert len(pids) == 2 * N
    for _ in range(2):
        state, _ = env.step(jax.random.key(0), state, actions)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with pytest.raises(jax.errors.JaxRuntimeError, match=FAULTS[fault]):
            jax.block_until_ready(env.step(jax.random.key(0), state, actions))
    assert [str(warning.message) for warning in shown] == []  # of the other pool
    wait_for_end(pids)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no longer exists"):
        jax.block_until_ready(env.step(jax.random.key(0), state, actions))


def test_simulators_that_draw_from_global_generators_draw_apart_and_by_the_key():
    env = jaxrl.make(simulators.Drawing, 3)
    first, again = (played(env, np.zeros((2, 3), np.int32)).obs for _ in range(2))
    assert len(np.unique(first)) == first.size == 3 * 3 * 2
    np.testing.assert_array_equal(again, first)


def test_an_interrupt_while_environments_are_made_ends_their_workers(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    started, close = [], Workers.close
    env: Any = jaxrl.make(simulators.Counting, N)
    monkeypatch.setattr(Workers, "receive", interrupt)
    monkeypatch.setattr(Workers, "close", lambda self: started.append(self) or close(self))
    with pytest.raises(KeyboardInterrupt):
        env._make_pool(SEEDS)
    wait_for_end(started[0].pids.values())


def test_a_lack_of_file_descriptors_is_named(monkeypatch):
    env: Any = jaxrl.make(simulators.Counting, N)
    receive = socket.recv_fds

    def receive_none(*arguments):
        notice, descriptors, *rest = receive(*arguments)
        for descriptor in descriptors:
            os.close(descriptor)
        return notice, [], *rest

    monkeypatch.setattr(socket, "recv_fds", receive_none)
    with pytest.raises(OSError, match="too many open files; each environment needs one"):
        env._make_pool(SEEDS)


def test_if_the_second_pool_cannot_be_made_the_first_one_ends(monkeypatch):
    env = jaxrl.make(simulators.Counting, N, num_pools=2)
    real, started = WorkerPool.__init__, []

    def make(pool, *args):
        if started:
            raise OSError("no more processes")
        started.append(pool)
        real(pool, *args)

    monkeypatch.setattr(WorkerPool, "__init__", make)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no more processes"):
        jax.block_until_ready(env.init(jax.random.key(0)))
    wait_for_end(started[0].workers.pids.values())


def test_workers_that_cannot_be_started_are_an_error(monkeypatch):
    def start(process):
        raise EOFError

    process_type = multiprocessing.get_context("forkserver").Process
    env: Any = jaxrl.make(simulators.Counting, N)
    monkeypatch.setattr(process_type, "start", start)
    with pytest.raises(
        SimulatorError,
        match="are files with `if __name__ == '__main__':`; with vectorization_mode='sync'",
    ):
        env._make_pool(SEEDS)


def test_a_space_that_changes_is_refused(tmp_path):
    env: Any = jaxrl.make(simulators.Changing, N, marker=str(tmp_path / "made"))
    message = (
        "failed in make.*\n[\\s\\S]*the observation space is .* now; it was .* when first made"
    )
    with pytest.raises(SimulatorError, match=message):
        env._make_pool(SEEDS)


def test_pictures_are_drawn_in_the_worker():
    env: Any = jaxrl.make(simulators.Counting, N, render_mode="rgb_array")
    pool = env._make_pool(SEEDS)
    pool.reset()
    np.testing.assert_array_equal(pool.render(), np.zeros((4, 6, 3)))
    pool.close()


# --- the end of the trainer -----------------------------------------------------------------------

SCRIPT = """
import sys, jax, jaxrl, bad_simulators
from jaxrl.envs.host import callback

# Without a guard: the main script is run again where workers start.
env = jaxrl.make(
    bad_simulators.Bad, 2, where="step", how="children-hangs", pids=sys.argv[2], timeout=1000
)

if __name__ == "__main__":
    state, _ = env.init(jax.random.key(0))
    (pool,) = callback.group_of(state).pools
    print(*pool.workers.pids.values(), pool.workers.process.pid, flush=True)
    if sys.argv[1] == "end":
        sys.exit()
    while True:
        state, _ = env.step(jax.random.key(0), state, jax.numpy.zeros(2, "int32"))
"""


@pytest.mark.process
@pytest.mark.parametrize("ending", ["end", "kill"])
def test_workers_and_their_children_end_with_the_trainer(ending, noted_pids, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, script, ending, noted_pids]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == N + 1
        if ending == "kill":

            def have_children():
                assert owner.poll() is None
                return len(pids_in(noted_pids)) >= 4 * N

            wait_until(have_children, 60, 0.05)
            owner.send_signal(signal.SIGKILL)
        owner.wait(60)
    wait_for_end([*pids, *pids_in(noted_pids)])


@pytest.mark.process
@pytest.mark.parametrize(
    ("deed", "message"),
    [
        ("sleep", r"no answer to reset from environments \[0, 1\] within"),
        ("killed", r"process of environment \d \(killed by SIGKILL\).* ended in reset$"),
    ],
)
def test_the_error_of_a_later_reset_names_the_reset(deed, message, noted_pids):
    env: Any = make_bad("restart", deed, noted_pids)
    group = PoolGroup(env._make_pool, SEEDS, members=1, id=env.id)
    group.start()
    for _ in range(bad_simulators.FAILS_AT):
        group.step(np.zeros(N, np.int32))
    with pytest.raises(SimulatorError, match=message):
        group.step(np.zeros(N, np.int32))
    wait_for_end(pids_in(noted_pids))


@pytest.mark.process
def test_workers_have_the_environment_variables_of_the_trainer(monkeypatch):
    for value in ("3", "4"):  # the server that starts workers has those of its own start
        monkeypatch.setenv("JAXRL_TEST_LENGTH", value)
        env = jaxrl.make(simulators.OfVariable, 1)
        timestep = played(env, np.zeros((4, 1), np.int32))
        assert timestep.terminated[:, 0].argmax() == int(value)


@pytest.mark.process
def test_a_simulator_can_end_its_own_programs():
    jaxrl.make(simulators.WithProgram, 1, timeout=60.0).init(jax.random.key(0))


def test_workers_leave_signals_to_their_owner():
    env = jaxrl.make(simulators.Counting, N)
    state, _ = env.init(jax.random.key(0))
    (pool,) = callback.group_of(state).pools
    assert isinstance(pool, WorkerPool)
    for pid in pool.workers.pids.values():
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    _, timestep = env.step(jax.random.key(0), state, NO_ACTIONS)
    np.testing.assert_array_equal(timestep.obs[:, 0], [1, 1])
