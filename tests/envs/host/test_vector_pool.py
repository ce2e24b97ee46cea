"""Worker processes that fail in every way, and simulators in every autoreset mode."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import simulators

import jaxrl
from jaxrl.envs.check import jit_play, random_actions
from jaxrl.envs.host import callback
from jaxrl.envs.host.vector_pool import VectorPool, Workers

N = 2
pytestmark = pytest.mark.usefixtures("quick_compilation")
NO_ACTIONS = jnp.zeros(N, jnp.int32)


def played(env, actions):
    return jax.tree.map(np.asarray, jit_play(env, jax.random.key(0), actions))


def workers_of(state):
    (pool,) = callback.group_of(state).pools
    assert isinstance(pool, VectorPool)
    assert isinstance(pool.envs, Workers)
    return pool.envs.processes


# --- workers --------------------------------------------------------------------------------------

FAULTS = {
    "step": r"environment 0 failed:[\s\S]*simulators.py[\s\S]*ZeroDivisionError: a wheel came off",
    "reset": r"environment 0 failed:[\s\S]*ZeroDivisionError: no way back",
    "killed": r"process of environment 0 \(killed by SIGKILL\).* ended in the middle",
    "exit": r"process of environment 0 \(exit code 3\).* ended in the middle",
    "hang": r"no answer from environments \[0, 1\] within 0.5 s",
    "kind": r"step: obs must be float32\[2\] as its space says, is complex128\[2\]",
    "shape": r"step: obs must be float32\[2\] as its space says, is float32\[3\]",
    "reward": r"step: the reward is nan",
    "nan": r"step: obs has NaN among its numbers: array\(\[ 1., nan\]",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_worker_is_reported_and_ends_all_processes(fault, monkeypatch):
    monkeypatch.setattr("jaxrl.envs.host.vector_pool.CLOSE_SECONDS", 0.5)
    timeout = 0.5 if fault == "hang" else 60.0
    env = jaxrl.make(simulators.Faulty, N, fault=fault, timeout=timeout)
    state, _ = env.init(jax.random.key(0))
    processes = workers_of(state)
    assert [process.is_alive() for process in processes] == [True] * N
    for _ in range(2):
        state, _ = env.step(jax.random.key(0), state, NO_ACTIONS)
    with pytest.raises(jax.errors.JaxRuntimeError, match=FAULTS[fault]):
        jax.block_until_ready(env.step(jax.random.key(0), state, NO_ACTIONS))
    assert [process.is_alive() for process in processes] == [False] * N


def test_an_environment_that_cannot_be_made_in_a_worker_is_an_error(monkeypatch):
    monkeypatch.setenv("JAXRL_TEST_PARENT", str(os.getppid()))
    env = jaxrl.make(simulators.BadStart, N)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"ended before its environment was made"):
        jax.block_until_ready(env.init(jax.random.key(0)))


def test_if_a_worker_cannot_be_started_the_others_end(monkeypatch):
    process_type = multiprocessing.get_context("forkserver").Process
    real, started = process_type.start, []

    def start(process):
        if started:
            raise OSError("no more processes")
        real(process)
        started.append(process)

    monkeypatch.setattr(process_type, "start", start)
    env = jaxrl.make(simulators.Counting, N)
    with pytest.raises(jax.errors.JaxRuntimeError, match="OSError: no more processes"):
        jax.block_until_ready(env.init(jax.random.key(0)))
    assert [process.is_alive() for process in started] == [False]


SCRIPT = """
import sys, time
import jax, jaxrl, simulators
from jaxrl.envs.host import callback

if __name__ == "__main__":
    env = jaxrl.make(simulators.Faulty, 2, fault="hang")
    state, _ = env.init(jax.random.key(0))
    (pool,) = callback.group_of(state).pools
    print(*(process.pid for process in pool.envs.processes), flush=True)
    if sys.argv[1] == "end":
        sys.exit()
    while True:
        state, _ = env.step(jax.random.key(0), state, jax.numpy.zeros(2, "int32"))
"""


@pytest.mark.process
@pytest.mark.parametrize("ending", ["end", "kill"])
def test_workers_end_with_their_owner(ending, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), str(root / "tests"), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, script, ending],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 2
        if ending == "kill":
            owner.send_signal(signal.SIGKILL)
        owner.wait(60)
    until = time.monotonic() + 60
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < until, f"{left} are left"
        time.sleep(0.1)


def test_workers_leave_signals_to_their_owner():
    env = jaxrl.make(simulators.Counting, N)
    state, _ = env.init(jax.random.key(0))
    for process in workers_of(state):
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGTERM)
    _, timestep = env.step(jax.random.key(0), state, NO_ACTIONS)
    np.testing.assert_array_equal(timestep.obs[:, 0], [1, 1])


# --- vectorization and autoreset modes ------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "truncates"),
    [("async", False), ("async", True), ("sync", False), ("vector_entry_point", False)],
)
def test_episodes_are_shown_whole(mode, truncates):
    is_batch = mode == "vector_entry_point"
    options = {"mode": "NEXT_STEP"} if is_batch else {"truncates": truncates}
    make = simulators.batch if is_batch else simulators.Counting
    steps = played(
        jaxrl.make(make, N, vectorization_mode=mode, **options), np.full((9, N), 2, np.int32)
    )
    ended = np.array([0, 0, 0, 1, 0, 0, 0, 1, 0, 0], bool)
    np.testing.assert_array_equal(steps.obs[:, 0, 0], [0, 1, 2, 3, 0, 1, 2, 3, 0, 1])
    np.testing.assert_array_equal(steps.obs[:, 1, 1], [1, 1, 1, 1, 2, 2, 2, 2, 3, 3])
    np.testing.assert_array_equal(steps.reward[:, 0], [0, 2, 2, 2, 0, 2, 2, 2, 0, 2])
    np.testing.assert_array_equal(steps.terminated[:, 0], ended & (not truncates))
    np.testing.assert_array_equal(steps.truncated[:, 0], ended & truncates)
    np.testing.assert_array_equal(steps.first[1:], [[end] * N for end in ended[:-1]])


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_a_simulator_that_resets_at_once_shows_the_true_last_observation(mode):
    options = {"vectorization_mode": "vector_entry_point", "mode": mode}
    steps = played(jaxrl.make(simulators.batch, N, **options), np.full((8, N), 2, np.int32))
    # After the last observation comes the new episode's second one; the first step is not shown.
    np.testing.assert_array_equal(steps.obs[:, 0, 0], [0, 1, 2, 3, 1, 2, 3, 1, 2])
    np.testing.assert_array_equal(steps.reward[:, 0], [0, 2, 2, 2, 0, 2, 2, 0, 2])
    np.testing.assert_array_equal(steps.terminated[:, 0], [0, 0, 0, 1, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(steps.first[:, 0], [1, 0, 0, 0, 1, 0, 0, 1, 0])
    jaxrl.check_env(jaxrl.make(simulators.batch, N, length=1, **options), num_steps=20)


def test_some_environments_restart_while_others_go_on():
    env: Any = jaxrl.make(simulators.Counting, N)
    state, timestep = env.init(jax.random.key(0))
    state, timestep = env.step(jax.random.key(0), state, NO_ACTIONS)
    state, timestep = env.restart(state, timestep, jnp.array([False, True]))
    np.testing.assert_array_equal(timestep.obs, [[1, 1], [0, 2]])
    np.testing.assert_array_equal(timestep.first, [False, True])
    _, timestep = env.step(jax.random.key(0), state, NO_ACTIONS)
    np.testing.assert_array_equal(timestep.obs, [[2, 1], [1, 2]])


def test_a_simulator_that_cannot_restart_some_environments_is_an_error():
    env: Any = jaxrl.make("gymnasium/CartPole-v1", N, vectorization_mode="vector_entry_point")
    state, timestep = env.init(jax.random.key(0))
    with pytest.raises(jax.errors.JaxRuntimeError, match="vectorization_mode='async'"):
        jax.block_until_ready(env.restart(state, timestep, jnp.array([False, True])))


def test_two_pools_of_workers_give_what_one_pool_gives():
    one = jaxrl.make("gymnasium/CartPole-v1", 4, vectorization_mode="sync")
    two = jaxrl.make("gymnasium/CartPole-v1", 4, num_pools=2)
    actions = random_actions(one, 0, 30)
    jax.tree.map(np.testing.assert_array_equal, *(played(env, actions) for env in (one, two)))
