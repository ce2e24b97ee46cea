"""gymnax's adapter: its own steps, every id, and options."""

import functools
from typing import Any

import chex
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from env_cases import CASES, N, actions_of
from gymnax.environments import spaces
from gymnax.environments.classic_control import cartpole
from gymnax.utils import load_mnist

import jaxrl
from jaxrl.envs import check
from jaxrl.envs import gymnax as adapter
from jaxrl.envs.check import jit_play


@pytest.fixture
def fake_mnist(monkeypatch):
    """Replace the images that MNISTBandit would download."""
    images = np.zeros((4, 28, 28), np.float32), np.arange(4)
    monkeypatch.setattr(load_mnist, "load_mnist", lambda: (images, images))
    yield
    adapter._inner.cache_clear()
    adapter._spaces.cache_clear()


def test_steps_are_those_of_step_env():
    name = "gymnax-cartpole-limit"
    case, env, actions = CASES[name], CASES[name].make(), actions_of(name)
    inner_env, params = gymnax.make(env.name)
    state, timestep = env.init(jax.random.key(0))
    inner = jax.tree.map(lambda x: x[0], state.inner)
    step, step_env = jax.jit(env.step), jax.jit(inner_env.step_env)
    for t in range(case.length):
        state, timestep = step(jax.random.key(t), state, actions[t])
        obs, inner, reward, *_ = step_env(jax.random.key(t), inner, actions[t, 0], params)
        np.testing.assert_allclose(timestep.obs[0], obs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(timestep.reward[0], np.squeeze(reward), rtol=1e-5)
    assert timestep.truncated.all()


def test_a_pole_that_falls_at_the_time_limit_is_terminated():
    push_right = np.ones((15, 1), np.int32)
    free = jit_play(jaxrl.make("gymnax/CartPole-v1", 1), jax.random.key(0), push_right)
    length = int(np.argmax(free.terminated[:, 0]))
    env = jaxrl.make("gymnax/CartPole-v1", 1, max_steps_in_episode=length)
    limited = jit_play(env, jax.random.key(0), push_right)
    assert limited.terminated[length, 0]
    assert not limited.truncated[length, 0]


# Games of MinAtar take a second each to trace.
GAMES = ("Asterix-MinAtar", "Freeway-MinAtar", "Seaquest-MinAtar", "SpaceInvaders-MinAtar")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] * (name in GAMES))
        for name in gymnax.registered_envs
    ],
)
def test_every_id_has_consistent_shapes(name, fake_mnist):
    env = jaxrl.make(f"gymnax/{name}", N)
    assert isinstance(env.observation_space, jaxrl.Box)
    assert not list(check._check_shapes(env, 0))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", gymnax.registered_envs)
def test_every_id_runs(name, fake_mnist):
    problems = check._check_steps(jaxrl.make(f"gymnax/{name}", N), 100, 0)
    # Some environments leave the bounds that they declare.
    assert not [problem for problem in problems if "must be within" not in problem]


@pytest.mark.slow
@pytest.mark.parametrize(
    "game",
    [
        "Breakout",
        *(
            pytest.param(game, marks=pytest.mark.exhaustive)
            for game in ("Asterix", "Freeway", "Seaquest", "SpaceInvaders")
        ),
    ],
)
def test_minatar_observations_are_zeros_and_ones_as_booleans(game):
    env: Any = jaxrl.make(f"{game}-MinAtar", N)
    backend, _ = gymnax.make(f"{game}-MinAtar")

    @jax.jit
    def run(keys):
        def step(state, key):
            raw = jax.vmap(backend.get_obs)(state.inner)
            action = jax.random.randint(key, (N,), 0, env.action_space.n)
            state, timestep = env.step(key, state, action)
            return state, (raw, timestep.obs)

        return jax.lax.scan(step, env.init(keys[0])[0], keys)[1]

    raw, obs = run(jax.random.split(jax.random.key(1), 200))
    assert obs.dtype == env.observation_space.dtype == np.bool_
    assert set(np.unique(raw)) == {0.0, 1.0}
    np.testing.assert_array_equal(raw[1:], obs[:-1])


@pytest.fixture
def register():
    """Give environments an id for the time of a test."""
    names = []

    def register_for_test(name, factory):
        gymnax.register(name, factory)
        names.append(name)

    yield register_for_test
    for name in names:
        del gymnax.registration._registry[name]
        gymnax.registered_envs.remove(name)


def test_observations_of_several_arrays_are_refused(register):
    def make():
        env: Any = gymnax.environments.CartPole()
        space = env.observation_space(env.default_params)
        env.observation_space = lambda params: spaces.Dict({"state": space})
        return env

    register("Parts-v0", make)
    with pytest.raises(ValueError, match=r"gymnax/Parts-v0 has the observations Dict; "):
        _ = jaxrl.make("gymnax/Parts-v0").observation_space


def test_a_registered_environment_gets_an_id(register):
    register("Own-v0", gymnax.environments.CartPole)
    own, known = (jaxrl.make(id, N) for id in ("Own-v0", "CartPole-v1"))
    starts = [jax.jit(env.init)(jax.random.key(0))[1] for env in (own, known)]
    assert own.id == "gymnax/Own-v0"
    np.testing.assert_array_equal(starts[0].obs, starts[1].obs)


def test_an_integer_is_accepted_for_a_count_that_gymnax_keeps_as_a_float():
    env = jaxrl.make("BernoulliBandit-misc", 2, max_steps_in_episode=3)
    steps = jit_play(env, jax.random.key(0), jnp.zeros((8, 2), jnp.int32))
    assert (steps.terminated | steps.truncated).all(1).any()


def test_bad_values_of_parameters_are_refused():
    assert jaxrl.make("Asterix-MinAtar", 2, ramping=False).options == {"ramping": False}
    with pytest.raises(ValueError, match=r"option ramping .* must be True or False, got 2"):
        jaxrl.make("Asterix-MinAtar", 2, ramping=2)
    with pytest.raises(
        ValueError, match=r"option shot_cool_down .* must be an integer .* got True"
    ):
        jaxrl.make("Asterix-MinAtar", 2, shot_cool_down=True)


@pytest.mark.parametrize("value", [-1, 0, 0.1, True, "x", None, float("nan"), 10**30])
def test_a_time_limit_is_a_number_of_steps(value):
    with pytest.raises(ValueError, match=r"option max_steps_in_episode of gymnax/.* integer"):
        jaxrl.make("CartPole-v1", 2, max_steps_in_episode=value)


def test_parameters_that_are_arrays_take_tuples_of_their_length():
    assert jaxrl.make("Acrobot-v1", 2, available_torque=(-2.0, 0.0, 2.0))
    with pytest.raises(ValueError, match=r"available_torque .* must be an array \[3\] of numbers"):
        jaxrl.make("Acrobot-v1", 2, available_torque=1.0)


def test_sticky_actions_repeat_the_last_action_as_often_as_asked():
    num_steps, num_envs, probability = 400, 8, 0.25
    make = functools.partial(jaxrl.make, "Pendulum-v1", num_envs, max_steps_in_episode=7)
    sticky, plain = make(repeat_action_probability=probability), make()
    given = jax.random.uniform(jax.random.key(1), (num_steps, num_envs, 1), minval=-2, maxval=2)
    keys = jax.random.split(jax.random.key(2), num_steps)

    def play(env, actions):
        def step(state, inputs):
            state, timestep = env.step(inputs[0], state, inputs[1])
            return state, (timestep, state.last_action)

        return jax.lax.scan(step, env.init(jax.random.key(0))[0], (keys, actions))[1]

    timesteps, carried_out = jax.jit(functools.partial(play, sticky))(given)
    expected, _ = jax.jit(functools.partial(play, plain))(carried_out)
    chex.assert_trees_all_equal(timesteps, expected)

    before = np.concatenate([np.zeros((1, num_envs, 1)), carried_out[:-1]])
    repeated = carried_out == before
    np.testing.assert_array_equal(carried_out, np.where(repeated, before, given))
    first = np.asarray(timesteps.first)[..., None]
    assert repeated[first].all()  # these steps have no action
    share, count = repeated[~first].mean(), (~first).sum()
    assert abs(share - probability) < 4 * (probability * (1 - probability) / count) ** 0.5


@pytest.mark.parametrize("value", [-0.1, 1.0, "often", float("nan"), True])
def test_a_probability_of_sticky_actions_is_below_one(value):
    with pytest.raises(ValueError, match=r"option repeat_action_probability of gymnax/C.*\[0, 1\)"):
        jaxrl.make("CartPole-v1", 2, repeat_action_probability=value)


def test_a_failed_download_is_an_import_error(monkeypatch):
    def offline(name):
        raise OSError("no route to host")

    monkeypatch.setattr(adapter.gymnax, "make", offline)
    adapter._inner.cache_clear()
    with pytest.raises(ImportError, match="MNIST-bsuite cannot run on this machine: no route"):
        adapter._inner("MNIST-bsuite", ())


class Walk(cartpole.CartPole):
    """An environment of one's own, whose size has no default."""

    def __init__(self, size):
        super().__init__()
        self.size = size


class WithTruncated(cartpole.CartPole):
    """An environment whose `step_env` returns what gymnax's `step` does."""

    def step_env(self, key, state, action, params):  # pyrefly: ignore[bad-override]
        obs, state, reward, terminated, info = super().step_env(key, state, action, params)
        return obs, state, reward, terminated, jnp.array(False), info


def test_own_environments_that_the_adapter_cannot_make_or_step_are_named(monkeypatch):
    for name, own in (("Walk-v0", Walk), ("WithTruncated-v0", WithTruncated)):
        monkeypatch.setitem(gymnax.registration._registry, name, own)
    for options in ({}, {"size": 3}):
        with pytest.raises(ValueError, match=r"gymnax/Walk-v0 cannot be made .* 'size'; .*default"):
            adapter.GymnaxEnv("Walk-v0", 2, tuple(options.items()))
    env = adapter.GymnaxEnv("WithTruncated-v0", 2)
    with pytest.raises(ValueError, match=r"step_env of gymnax/WithTruncated-v0 must .* got 6 val"):
        list(check._check_shapes(env, 0))
