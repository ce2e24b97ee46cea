"""Gymnasium environments: in processes that may fail, in every autoreset mode, with every space."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import simulators
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box as GymBox
from gymnasium.spaces import Dict as GymDict
from gymnasium.spaces import Discrete as GymDiscrete
from gymnasium.spaces import MultiBinary as GymMultiBinary
from gymnasium.spaces import MultiDiscrete as GymMultiDiscrete
from gymnasium.vector import AutoresetMode

import jaxrl
from jaxrl.envs import conversions
from jaxrl.envs.check import play
from jaxrl.envs.gymnasium import AtariPool
from jaxrl.envs.host import callback, worker
from jaxrl.envs.host.vector_pool import VectorPool, Workers
from jaxrl.types import Box, Discrete, MultiDiscrete

N = 2
pytestmark = pytest.mark.usefixtures("quick_compilation")


def zeros(num_steps, num_envs=N):
    return jnp.zeros((num_steps, num_envs), jnp.int32)


def played(env, actions, seed=0):
    steps = jax.jit(play, static_argnums=0)(env, jax.random.key(seed), actions)
    return jax.tree.map(np.asarray, steps)


def workers_of(state):
    (pool,) = callback._groups[int(state.pool[0])].pools
    assert isinstance(pool, VectorPool)
    assert isinstance(pool.envs, Workers)
    return pool.envs.processes


# --- what goes wrong in a worker ------------------------------------------------------------------

MISDEEDS = {
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


@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_what_goes_wrong_in_a_worker_is_said_and_no_process_is_left(misdeed, monkeypatch):
    monkeypatch.setattr("jaxrl.envs.host.vector_pool.CLOSE_SECONDS", 1.0)
    timeout = 0.5 if misdeed == "hang" else 60.0
    env = jaxrl.make(simulators.Misbehaving, N, misdeed=misdeed, timeout=timeout)
    state, _ = env.init(jax.random.key(0))
    processes = workers_of(state)
    assert [process.is_alive() for process in processes] == [True] * N
    for _ in range(2):
        state, _ = env.step(jax.random.key(0), state, zeros(1)[0])
    with pytest.raises(jax.errors.JaxRuntimeError, match=MISDEEDS[misdeed]):
        jax.block_until_ready(env.step(jax.random.key(0), state, zeros(1)[0]))
    assert [process.is_alive() for process in processes] == [False] * N


def test_an_environment_that_cannot_be_made_in_a_worker(monkeypatch):
    monkeypatch.setenv("JAXRL_TEST_PARENT", str(os.getppid()))
    env = jaxrl.make(simulators.BadStart, N)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"ended before its environment was made"):
        jax.block_until_ready(env.init(jax.random.key(0)))


def test_a_worker_that_cannot_be_started_leaves_no_other(monkeypatch):
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


@pytest.mark.parametrize(
    ("vectorization_mode", "options", "message"),
    [
        ("async", {"colour": "red"}, r"refuses the options \{'colour': 'red'\}.*colour"),
        ("rows", {}, "vectorization_mode must be one of .*'rows'"),
        ("async", {"timeout": 0}, "timeout must be a number of seconds > 0, got 0"),
    ],
)
def test_bad_options_are_refused_by_name(vectorization_mode, options, message):
    with pytest.raises(ValueError, match=message):
        jaxrl.make(simulators.Counting, N, vectorization_mode=vectorization_mode, **options)


def test_a_module_that_does_not_exist_is_refused():
    with pytest.raises(ImportError, match="no module 'nowhere'"):
        jaxrl.make("gymnasium/nowhere:Env-v0", N)


SCRIPT = """
import sys, time
import jax, jaxrl, simulators
from jaxrl.envs.host import callback

if __name__ == "__main__":
    env = jaxrl.make(simulators.Misbehaving, 2, misdeed="hang")
    state, _ = env.init(jax.random.key(0))
    (pool,) = callback.group_of(state).pools
    print(*(process.pid for process in pool.envs.processes), flush=True)
    if sys.argv[1] == "end":
        sys.exit()
    while True:
        state, _ = env.step(jax.random.key(0), state, jax.numpy.zeros(2, "int32"))
"""


@pytest.mark.parametrize("ending", ["end", "kill"])
def test_workers_end_with_their_owner_however_it_ends(ending, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[2]
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
    _, timestep = env.step(jax.random.key(0), state, zeros(1)[0])
    np.testing.assert_array_equal(timestep.obs[:, 0], [1, 1])


# --- the contract, whatever the simulator does ----------------------------------------------------


@pytest.mark.parametrize("mode", ["async", "sync", "vector_entry_point"])
@pytest.mark.parametrize("truncates", [False, True])
def test_episodes_are_shown_whole(mode, truncates):
    options = {"truncates": truncates} if mode != "vector_entry_point" else {"mode": "NEXT_STEP"}
    make = simulators.batch if mode == "vector_entry_point" else simulators.Counting
    steps = played(jaxrl.make(make, N, vectorization_mode=mode, **options), zeros(9) + 2)
    truncated = truncates and mode != "vector_entry_point"
    ended = np.array([0, 0, 0, 1, 0, 0, 0, 1, 0, 0], bool)
    np.testing.assert_array_equal(steps.obs[:, 0, 0], [0, 1, 2, 3, 0, 1, 2, 3, 0, 1])
    np.testing.assert_array_equal(steps.obs[:, 1, 1], [1, 1, 1, 1, 2, 2, 2, 2, 3, 3])
    np.testing.assert_array_equal(steps.reward[:, 0], [0, 2, 2, 2, 0, 2, 2, 2, 0, 2])
    np.testing.assert_array_equal(steps.terminated[:, 0], ended & (not truncated))
    np.testing.assert_array_equal(steps.truncated[:, 0], ended & truncated)
    np.testing.assert_array_equal(steps.first[1:], [[end] * N for end in ended[:-1]])


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_a_simulator_that_goes_on_at_once_is_shown_as_far_as_it_can_be(mode):
    env = jaxrl.make(simulators.batch, N, vectorization_mode="vector_entry_point", mode=mode)
    jaxrl.check_env(env, num_steps=20)
    steps = played(env, zeros(8) + 2)
    # The true last observation, then the new episode's second: its first step was nobody's.
    np.testing.assert_array_equal(steps.obs[:, 0, 0], [0, 1, 2, 3, 1, 2, 3, 1, 2])
    np.testing.assert_array_equal(steps.reward[:, 0], [0, 2, 2, 2, 0, 2, 2, 0, 2])
    np.testing.assert_array_equal(steps.terminated[:, 0], [0, 0, 0, 1, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(steps.first[:, 0], [1, 0, 0, 0, 1, 0, 0, 1, 0])


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_episodes_of_one_step_are_not_shown_as_two_ends(mode):
    env = jaxrl.make(
        simulators.batch, N, vectorization_mode="vector_entry_point", mode=mode, length=1
    )
    jaxrl.check_env(env, num_steps=20)


def test_some_environments_begin_anew_while_others_go_on():
    env: Any = jaxrl.make(simulators.Counting, N)
    state, timestep = env.init(jax.random.key(0))
    state, timestep = env.step(jax.random.key(0), state, zeros(1)[0])
    state, timestep = env.restart(state, timestep, jnp.array([False, True]))
    np.testing.assert_array_equal(timestep.obs, [[1, 1], [0, 2]])
    np.testing.assert_array_equal(timestep.first, [False, True])
    _, timestep = env.step(jax.random.key(0), state, zeros(1)[0])
    np.testing.assert_array_equal(timestep.obs, [[2, 1], [1, 2]])


def test_a_simulator_that_cannot_begin_some_episodes_anew_says_so():
    env: Any = jaxrl.make("gymnasium/CartPole-v1", N, vectorization_mode="vector_entry_point")
    state, timestep = env.init(jax.random.key(0))
    with pytest.raises(jax.errors.JaxRuntimeError, match="vectorization_mode='async'"):
        jax.block_until_ready(env.restart(state, timestep, jnp.array([False, True])))


def test_pictures_are_the_simulators_own():
    env: Any = jaxrl.make(simulators.Counting, N).for_rendering()
    state, _ = env.init(jax.random.key(0))
    state, _ = env.step(jax.random.key(0), state, zeros(1, 1)[0])
    np.testing.assert_array_equal(env.render(state), np.ones((4, 6, 3)))
    assert env.render_fps == 7


def test_pools_that_take_turns_give_what_one_pool_gives():
    one = jaxrl.make("gymnasium/CartPole-v1", 4, vectorization_mode="sync")
    two = jaxrl.make("gymnasium/CartPole-v1", 4, num_pools=2)
    config = jaxrl.PPOConfig(num_steps=16)
    train = jax.jit(jaxrl.train, static_argnums=(0, 3))
    states = [train(jaxrl.ppo(env), config, jax.random.key(0), 2)[0] for env in (one, two)]
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
        *(state.params for state in states),
    )


# --- OpenAI's Gym ---------------------------------------------------------------------------------


def test_environments_of_old_gym_run():
    steps = played(jaxrl.make(simulators.old, N), jnp.array([[1, 1], [2, 4], [3, 1], [1, 1]]))
    np.testing.assert_array_equal(steps.obs[:, :, 0], [[0, 0], [1, 1], [2, 2], [3, 0], [4, 1]])
    np.testing.assert_array_equal(steps.terminated[:, 1], [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(steps.truncated[:, 0], [0, 0, 0, 0, 1])
    assert (steps.obs[:, :, 1] == steps.obs[0, :, 1]).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_environments_of_the_last_gym_run():
    gym = jaxrl.make(simulators.last_gym, N)
    same = jaxrl.make("gymnasium/CartPole-v1", N, vectorization_mode="sync")
    steps, expected = (played(env, zeros(20)) for env in (gym, same))
    np.testing.assert_allclose(steps.obs, expected.obs, rtol=1e-5)
    np.testing.assert_array_equal(steps.terminated, expected.terminated)


# --- Atari through ale-py -------------------------------------------------------------------------

PLAIN = {"repeat_action_probability": 0.0}


@pytest.mark.parametrize("game", ["Pong-v5", "Breakout-v5", "SpaceInvaders-v5"])
def test_ale_shows_and_pays_what_envpool_does(game):
    """Pixel for pixel, from when the stack is full to the picture in which the game is over.

    Before the fourth frame ale-py's stack is filled up with black, envpool's with copies of the
    first one. Of the last step's frames, of which the game ends in one, they show different ones.
    """
    ale: Any = jaxrl.make(f"gymnasium/ALE/{game}", 1, noop_max=0, **PLAIN)
    pool = jaxrl.make(f"envpool/{game}", 1, noop_max=1, **PLAIN)
    assert (ale.observation_space, ale.action_space) == (pool.observation_space, pool.action_space)
    actions = np.random.default_rng(0).integers(0, ale.action_space.n, (600, 1), np.int32)
    one, other = (played(env, actions) for env in (ale, pool))
    np.testing.assert_array_equal(one.raw_reward, other.raw_reward)
    assert one.raw_reward.any()
    np.testing.assert_array_equal(one.game_over, other.game_over)
    until = np.argmax(one.game_over[:, 0]) or len(one.obs)
    assert until > 100
    np.testing.assert_array_equal(one.obs[3:until], other.obs[3:until])
    assert (one.obs[0, 0, ..., :3] == 0).all()


def test_a_lost_life_ends_an_episode_and_not_the_game():
    env = jaxrl.make("gymnasium/ALE/Breakout-v5", 1, episodic_life=True, reward_clip=True, **PLAIN)
    whole = jaxrl.make("gymnasium/ALE/Breakout-v5", 1, **PLAIN)
    actions = np.ones((900, 1), np.int32)  # FIRE, which is also what begins a life
    lives, game = played(env, actions), played(whole, actions)
    np.testing.assert_array_equal(lives.obs, game.obs)
    np.testing.assert_array_equal(lives.raw_reward, game.reward)
    np.testing.assert_array_equal(lives.reward, np.sign(game.reward) * ~lives.first)
    np.testing.assert_array_equal(lives.game_over, game.terminated)
    overs = np.flatnonzero(game.terminated[:, 0])
    assert len(overs) > 0
    assert lives.terminated[: overs[0] + 1].sum() == 5


def test_ale_simulates_while_the_agent_learns():
    env = jaxrl.make("gymnasium/ALE/Pong-v5", 2, send_ahead=True, **PLAIN)
    config = jaxrl.A2CConfig(torso="mlp", hidden_sizes=(8,), num_steps=2)
    train = jax.jit(jaxrl.train, static_argnums=(0, 3))
    state, metrics = train(jaxrl.a2c(env), config, jax.random.key(0), 3)
    assert metrics["valid_steps"].tolist() == [4, 4, 4]
    assert callback.group_of(state.simulation.env_state).simulating == [True]
    callback.release(state.simulation.env_state)


class Gauntlet:
    """Of ale-py's simulator what a pool uses: a game that time ends while there are lives."""

    def __init__(self):
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = GymBox(0, 255, (4, 84, 84), np.uint8)
        self.single_action_space = GymDiscrete(2)
        self.ale = SimpleNamespace(get_action_set=list)
        self._script = iter([(3, False), (2, True), (2, False), (2, True)])  # lives, end

    def send(self, action):
        pass

    def recv(self):
        lives, end = next(self._script)
        obs, no = np.zeros((1, 4, 84, 84), np.uint8), np.zeros(1, bool)
        return obs, np.ones(1), no | end, no, {"lives": np.array([lives])}


def test_a_game_that_ends_with_lives_left_is_over():
    raw = jax.ShapeDtypeStruct((4, 84, 84), np.uint8)
    pool = AtariPool(Gauntlet(), raw, np.zeros(1, np.int32), reward_clip=False)
    steps = []
    for _ in range(4):
        pool.send(np.zeros(1, np.int32))
        steps.append(pool.recv())
    assert [bool(step.ended[0]) for step in steps] == [False, True, False, True]
    assert [bool(step.game_over[0]) for step in steps] == [False, False, False, True]


# --- spaces ---------------------------------------------------------------------------------------

SHOWN = {
    "discrete": [0, 1, 0],
    "multi-discrete": [0, 1, 1, 0, 0],
    "grid": [0, 1, 1, 0, 0, 1, 1, 0],
    "long": [4, 1],
    "longer": [2**33],
    "multi-binary": [1, 0, 1],
    "double": [0.5, -0.5],
    "bool": [1, 0],
    "image": np.arange(60).reshape(5, 4, 3),
    "stack": np.arange(120).reshape(2, 5, 4, 3).transpose(1, 2, 0, 3).reshape(5, 4, 6),
}


@pytest.mark.parametrize("kind", SHOWN)
def test_observations_of_every_kind(kind):
    env = jaxrl.make(simulators.Spaced, N, kind=kind, vectorization_mode="sync")
    steps = played(env, zeros(1) + jnp.array([0, 1]))
    assert isinstance(env.observation_space, Box)
    dtypes = {"image": np.uint8, "stack": np.uint8, "long": np.int32}
    assert steps.obs.dtype == dtypes.get(kind, np.float32)
    np.testing.assert_array_equal(steps.obs[1], [SHOWN[kind]] * N)
    np.testing.assert_array_equal(steps.reward[1], [3, 4])  # its actions begin at 3


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (GymDiscrete(3), 3),
        (GymDiscrete(3, start=1), 0),
        (GymMultiDiscrete([3, 2]), np.array([0, 2])),
        (GymMultiDiscrete([3, 2]), np.array([-1, 0])),
    ],
)
def test_counts_beyond_their_space_are_refused(space, obs):
    with pytest.raises(ValueError, match="obs must be of "):
        worker.check(space, obs, "obs")


def test_observations_without_a_fixed_shape_are_refused():
    with pytest.raises(ValueError, match="Spaced cannot be run: the observation space Text"):
        jaxrl.make(simulators.Spaced, N, kind="text")


@pytest.mark.parametrize(
    ("space", "ours", "action", "sent"),
    [
        (GymDiscrete(3, start=2), Discrete(3), [0, 2], [2, 4]),
        (GymMultiDiscrete([2, 3]), MultiDiscrete((2, 3)), [[0, 1]], [[0, 1]]),
        (
            GymMultiDiscrete(np.array([[2, 3], [1, 2]]), start=np.array([[4, 0], [0, -1]])),
            MultiDiscrete((2, 3, 1, 2)),
            [[1, 0, 0, 1]],
            [[[5, 0], [0, 0]]],
        ),
        (GymMultiBinary(2), MultiDiscrete((2, 2)), [[0, 1]], [[0, 1]]),
        (GymMultiBinary((2, 1)), MultiDiscrete((2, 2)), [[0, 1]], [[[0], [1]]]),
        (GymBox(-1, 2, ()), Box.of((1,), np.float32, -1, 2), [[0.5]], [0.5]),
        (
            GymBox(np.array([[0, 1]], np.float32), np.array([[2, 3]], np.float32)),
            Box.of((2,), np.float32, [0, 1], [2, 3]),
            [[0.5, 1.5]],
            [[[0.5, 1.5]]],
        ),
        (GymBox(1, 3, (2, 1), np.int64), MultiDiscrete((3, 3)), [[0, 2]], [[[1], [3]]]),
        (GymBox(-1, 1, (1,), np.float64), Box.of((1,), np.float32, -1, 1), [[0.5]], [[0.5]]),
    ],
)
def test_actions_of_every_kind(space, ours, action, sent):
    assert conversions.action_space("x", space) == ours
    result = conversions.to_simulator(space, np.asarray(action, ours.dtype))
    np.testing.assert_array_equal(result, sent)
    assert result.dtype == space.dtype
    assert space.contains(np.asarray(result[0]))


def needs_a_license():
    raise RuntimeError("license server not found")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((1, 2), r"a function that returns a gymnasium.Env, got \(1, 2\); .*gymnax.register"),
        (needs_a_license, "cannot be made: RuntimeError: license server not found"),
        (dict, "cannot be made: a function must return a gymnasium.Env, got dict"),
    ],
)
def test_what_makes_no_environments_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        jaxrl.make(wrong, 2)


def test_workers_know_what_the_main_script_has_registered(monkeypatch):
    spec = EnvSpec("Registered-v0", entry_point="simulators:Counting", kwargs={"length": 2})
    monkeypatch.setitem(gymnasium.registry, "Registered-v0", spec)
    steps = played(jaxrl.make("Registered-v0", N), zeros(3))
    np.testing.assert_array_equal(steps.terminated[:, 0], [False, False, True, False])


def test_actions_without_a_distribution_are_refused():
    with pytest.raises(ValueError, match=r"x has the actions Dict.*which jaxrl does not run"):
        conversions.action_space("x", GymDict({"a": GymDiscrete(2)}))
    limits = np.iinfo(np.int64)
    with pytest.raises(ValueError, match=r"integers of 18446744073709551616 values"):
        conversions.action_space("x", GymBox(limits.min, limits.max, (1,), np.int64))


def test_bounds_of_nothing_are_no_bounds():
    limits = np.finfo(np.float64)
    space = conversions.observation_space(
        GymBox(limits.tiny, limits.max, (2,), np.float64), jax.ShapeDtypeStruct((2,), np.float32)
    )
    assert space == Box.of((2,), np.float32)
