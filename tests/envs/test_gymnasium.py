"""Gymnasium's adapter: options, functions, OpenAI's Gym, and Atari through ale-py."""

import functools
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import simulators
from env_cases import played
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box as GymBox
from gymnasium.spaces import Discrete as GymDiscrete
from gymnasium.vector import AutoresetMode
from small_algorithms import train

import jaxrl
from jaxrl.envs.host import callback
from jaxrl.envs.host.ale_pool import AtariPool

N = 2


def zeros(num_steps, num_envs=N):
    return jnp.zeros((num_steps, num_envs), jnp.int32)


# --- how environments are made --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vectorization_mode", "options", "message"),
    [
        ("async", {"colour": "red"}, r"refuses the options \{'colour': 'red'\}.*colour"),
        ("rows", {}, "vectorization_mode must be one of .*'rows'"),
        ("async", {"timeout": 0}, "timeout must be a number of seconds > 0, .*got 0"),
    ],
)
def test_bad_options_are_refused_by_name(vectorization_mode, options, message):
    with pytest.raises(ValueError, match=message):
        jaxrl.make(simulators.Counting, N, vectorization_mode=vectorization_mode, **options)


def test_a_simulator_that_is_seeded_as_a_whole_is_not_split_over_pools():
    options = {"vectorization_mode": "vector_entry_point", "num_pools": 2}
    with pytest.raises(ValueError, match="num_pools must be 1 for gymnasium/CartPole-v1"):
        jaxrl.make("gymnasium/CartPole-v1", N, **options)


@pytest.mark.parametrize("option", ["continuous", "life_loss_info"])
def test_options_of_ale_that_change_its_interface_are_refused(option):
    with pytest.raises(ValueError, match=f"gymnasium/ALE/Pong-v5 does not take {option}"):
        jaxrl.make("gymnasium/ALE/Pong-v5", N, **{option: True})


def test_actions_of_a_diverged_agent_do_not_stop_the_others():
    env = jaxrl.make("gymnasium/Pendulum-v1", N, vectorization_mode="sync")
    actions = np.ones((3, N, 1), np.float32)
    steps = played(env, actions)
    actions[1:, 0] = np.nan
    with_nan = played(env, actions)
    np.testing.assert_array_equal(with_nan.obs[:, 1], steps.obs[:, 1])
    assert np.isfinite(with_nan.obs).all()


def test_a_module_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"gymnasium/:make must be .* '' is no module's name"):
        jaxrl.make("gymnasium/:make", 2)
    with pytest.raises(ValueError, match=r"'\.json' is no module's name"):
        jaxrl.make("gymnasium/.json:dumps", 2)
    with pytest.raises(ImportError, match="no module 'nowhere'"):
        jaxrl.make("gymnasium/nowhere:Env-v0", N)
    with pytest.raises(ValueError, match="module 'json' has no function 'make_env'"):
        jaxrl.make("gymnasium/json:make_env", N)
    with pytest.raises(ValueError, match=r"'__main__' \(the script that made it; move it to"):
        jaxrl.make("gymnasium/__main__:make_env", N)


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
def test_functions_and_ids_that_make_no_environment_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        jaxrl.make(wrong, 2)


def test_functions_have_the_same_id_in_each_process():
    def id_of(make):
        return jaxrl.make(make, 2, vectorization_mode="sync").id.removeprefix("gymnasium/")

    make = simulators.Spaced
    assert id_of(functools.partial(make, kind="image")) == "simulators:Spaced(kind='image')"
    assert id_of(functools.partial(make, "image")) == "simulators:Spaced('image')"
    assert id_of(functools.partial(Maker("image"), None)) == f"{__name__}:Maker()(None)"


class Maker:
    """A function with settings."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, unused):
        return simulators.Spaced(self.kind)


def test_workers_know_what_the_main_script_has_registered(monkeypatch):
    spec = EnvSpec("Registered-v0", entry_point="simulators:Counting", kwargs={"length": 2})
    monkeypatch.setitem(gymnasium.registry, "Registered-v0", spec)
    steps = played(jaxrl.make("Registered-v0", N), zeros(3))
    np.testing.assert_array_equal(steps.terminated[:, 0], [False, False, True, False])


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (simulators.Counting, {}),
        (simulators.batch, {"mode": "NEXT_STEP", "vectorization_mode": "vector_entry_point"}),
    ],
)
def test_pictures_come_from_the_simulator(make, options):
    env: Any = jaxrl.make(make, N, **options).for_rendering()
    state, _ = env.init(jax.random.key(0))
    state, _ = env.step(jax.random.key(0), state, zeros(1, 1)[0])
    np.testing.assert_array_equal(env.render(state), np.ones((4, 6, 3)))
    assert env.render_fps == 7


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_simulator_that_cannot_draw_is_named(mode):
    env: Any = jaxrl.make(simulators.Undrawable, N, vectorization_mode=mode).for_rendering()
    state, _ = env.init(jax.random.key(0))
    message = r"gymnasium/simulators:Undrawable: the simulator cannot draw[\s\S]*no brush"
    with pytest.raises(ValueError, match=message):
        env.render(state)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_simulator_without_pictures_is_told_apart(mode):
    env: Any = jaxrl.make(simulators.Unpictured, N, vectorization_mode=mode).for_rendering()
    state, _ = env.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"draws no pictures: it has no method render$"):
        env.render(state)


def test_a_function_that_takes_no_render_mode_is_told_to_take_it():
    env: Any = jaxrl.make(simulators.old, N, vectorization_mode="sync")
    with pytest.raises(ValueError, match=r"old draws no pictures: let the function .* render_mode"):
        env.for_rendering()


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


@pytest.mark.parametrize(
    "game", ["Pong-v5", pytest.param("Breakout-v5", marks=pytest.mark.exhaustive)]
)
def test_ale_shows_and_pays_what_envpool_does(game):
    """Pixels are equal until the step in which the game ends, which shows another frame."""
    ale: Any = jaxrl.make(f"gymnasium/ALE/{game}", 1, noop_max=0, **PLAIN)
    pool = jaxrl.make(f"envpool/{game}", 1, noop_max=1, **PLAIN)
    assert (ale.observation_space, ale.action_space) == (pool.observation_space, pool.action_space)
    actions = np.random.default_rng(0).integers(0, ale.action_space.n, (300, 1), np.int32)
    one, other = (played(env, actions) for env in (ale, pool))
    np.testing.assert_array_equal(one.raw_reward, other.raw_reward)
    assert one.raw_reward.any()
    np.testing.assert_array_equal(one.game_over, other.game_over)
    until = np.argmax(one.game_over[:, 0]) or len(one.obs)
    assert until > 100
    np.testing.assert_array_equal(one.obs[:until], other.obs[:until])


def test_a_lost_life_ends_an_episode_and_not_the_game():
    env = jaxrl.make("gymnasium/ALE/Breakout-v5", 1, episodic_life=True, reward_clip=True, **PLAIN)
    whole = jaxrl.make("gymnasium/ALE/Breakout-v5", 1, **PLAIN)
    actions = np.ones((200, 1), np.int32)  # FIRE, which also begins a life
    lives, game = played(env, actions), played(whole, actions)
    np.testing.assert_array_equal(lives.obs, game.obs)
    np.testing.assert_array_equal(lives.raw_reward, game.reward)
    np.testing.assert_array_equal(lives.reward, np.sign(game.reward) * ~lives.first)
    np.testing.assert_array_equal(lives.game_over, game.terminated)
    overs = np.flatnonzero(game.terminated[:, 0])
    assert len(overs) > 0
    assert lives.terminated[: overs[0] + 1].sum() == 5


def test_a_life_that_is_lost_at_the_limit_of_a_game_ends_the_game():
    options = {"max_num_frames_per_episode": 84, "episodic_life": True, **PLAIN}
    env: Any = jaxrl.make("gymnasium/ALE/Breakout-v5", 1, **options)
    pool = env._make_pool(np.full(1, 3, np.int32))  # with this seed a life is lost in step 21
    pool.reset()
    steps = []
    for _ in range(22):
        pool.send(np.ones(1, np.int32))
        steps.append(pool.recv())
    pool.close()
    assert [t for t, step in enumerate(steps, 1) if step.ended[0]] == [21]
    assert steps[20].game_over[0]
    assert steps[21].obs[0].any(axis=(1, 2)).all()  # no black frames before the new game's first


def test_without_fire_a_life_begins_with_no_operation():
    env: Any = jaxrl.make("gymnasium/ALE/Breakout-v5", 1, use_fire_reset=False)
    pool = env._make_pool(np.zeros(1, np.int32))
    pool.close()
    assert pool._first_action == 0


def test_ale_simulates_while_the_agent_learns():
    env = jaxrl.make("gymnasium/ALE/Pong-v5", 2, send_ahead=True, **PLAIN)
    config = jaxrl.A2CConfig(torso="mlp", hidden_sizes=(8,), num_steps=2)
    state, metrics = train(jaxrl.a2c(env), config, jax.random.key(0), 3)
    assert metrics["valid_steps"].tolist() == [4, 4, 4]
    assert callback.group_of(state.simulation.env_state).simulating == [True]
    callback.release(state.simulation.env_state)


class OverWithLives:
    """A stand-in for ale-py's simulator, with a game that ends while lives are left."""

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
    pool = AtariPool(OverWithLives(), raw, np.zeros(1, np.int32), reward_clip=False, options={})
    steps = []
    for _ in range(4):
        pool.send(np.zeros(1, np.int32))
        steps.append(pool.recv())
    assert [bool(step.ended[0]) for step in steps] == [False, True, False, True]
    assert [bool(step.game_over[0]) for step in steps] == [False, False, False, True]
