"""envpool's adapter: the simulator's own steps, Atari's scores, and options."""

import functools
import sys
from types import SimpleNamespace

import envpool
import jax
import numpy as np
import pytest
from env_cases import CASES, LIFE, N, actions_of, member, needs_new_envpool, played

import jaxrl
from jaxrl.envs import envpool as adapter
from jaxrl.envs import episodes
from jaxrl.envs.check import random_actions
from jaxrl.envs.host import callback
from jaxrl.spaces import Box, Discrete


def play_with_a_copy(env, actions):
    """Return the time steps of an environment, and a new envpool with the same seeds."""
    steps = played(env, actions)
    seeds = [*callback._groups.values()][-1].seeds.tolist()
    return steps, envpool.make(
        env.name, env_type="gymnasium", num_envs=N, seed=seeds, **env.options
    )


def channels_last(obs):
    return np.moveaxis(obs, 1, -1) if obs.ndim == 4 else obs


@pytest.mark.parametrize(
    "name", ["envpool-cartpole", "envpool-pendulum-limit", "envpool-pong-limit"]
)
def test_steps_are_those_of_envpool(name):
    env, actions = CASES[name].make(), actions_of(name)[:10]
    steps, pool = play_with_a_copy(env, actions)
    obs, _ = pool.reset()
    np.testing.assert_array_equal(steps.obs[0], channels_last(obs))
    for t, action in enumerate(actions, start=1):
        obs, reward, terminated, truncated, _ = pool.step(action)
        np.testing.assert_array_equal(steps.obs[t], channels_last(obs))
        np.testing.assert_allclose(steps.reward[t], reward, rtol=1e-6)
        np.testing.assert_array_equal(steps.truncated[t], truncated & ~terminated)
        np.testing.assert_array_equal(steps.terminated[t], terminated)


def test_an_agent_of_single_lives_is_evaluated_on_whole_games_without_pressing_fire():
    """In Breakout no ball comes after a lost life until FIRE is pressed."""
    env = jaxrl.make("envpool/Breakout-v5", 2, **LIFE).for_evaluation(1)
    steps = played(env, np.zeros((200, 1), np.int32))
    over = int(np.argmax(steps.game_over[:, 0]))
    assert over > 0
    assert steps.terminated[: over + 1].sum() == 5  # lives


def test_a_termination_at_the_time_limit_is_no_truncation(monkeypatch):
    pool = CASES["envpool-cartpole"].make()._make_pool(np.arange(N))
    obs, both = pool.reset().obs, np.array([True, False, False])
    truncated = np.array([True, True, False])
    step = (obs, np.ones(N), both, truncated, {})  # as envpool's Highway may report it
    monkeypatch.setattr(pool, "_envs", SimpleNamespace(recv=lambda: step))
    found = pool.recv()
    np.testing.assert_array_equal(found.ended, [True, True, False])
    np.testing.assert_array_equal(found.truncated, [False, True, False])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "num_steps"),
    [
        pytest.param("Breakout-v5", 400, marks=pytest.mark.exhaustive),
        ("SpaceInvaders-v5", 600),
    ],
)
def test_atari_scores_are_raw_and_of_whole_games(game, num_steps):
    env = jaxrl.make(f"envpool/{game}", N, **LIFE)
    actions = random_actions(env, 1, num_steps)
    steps, pool = play_with_a_copy(env, actions)
    start, *rows = (member(steps, t) for t in range(num_steps + 1))
    statistics = functools.reduce(jax.jit(episodes.update), rows, episodes.start(start))
    pool.reset()
    scores, lengths = [[] for _ in range(N)], [[] for _ in range(N)]
    score, length, resets = np.zeros(N), np.zeros(N, int), np.zeros(N, bool)
    for action in actions:
        _, _, terminated, truncated, info = pool.step(action)
        score, length, resets = score + info["reward"], length + ~resets, terminated | truncated
        for n in np.flatnonzero(info["lives"] == 0):  # the game is over, not only a life
            scores[n].append(score[n])
            lengths[n].append(length[n])
            score[n] = length[n] = 0

    games = [len(s) for s in scores]
    assert sum(games) > 0
    assert (steps.terminated | steps.truncated).sum() > sum(games)
    np.testing.assert_array_equal(statistics.count, games)
    np.testing.assert_array_equal(statistics.return_sum, [sum(s) for s in scores])
    np.testing.assert_array_equal(statistics.length_sum, [sum(n) for n in lengths])
    np.testing.assert_array_equal(statistics.running_return, score)
    np.testing.assert_array_equal(statistics.running_length, length)
    assert set(np.unique(steps.reward)) == {0, 1}
    if game == "SpaceInvaders-v5":
        assert statistics.return_sum.sum() > 2 * steps.reward.sum()


def test_integer_observations_are_one_hot():
    env = jaxrl.make("envpool/FrozenLake-v1", N)
    assert env.observation_space == Box((16,), np.dtype(np.float32), 0.0, 1.0)
    _, timestep = env.init(jax.random.key(0))
    np.testing.assert_array_equal(timestep.obs, np.eye(16, dtype=np.float32)[[0] * N])


@pytest.mark.parametrize(
    ("env_id", "shape"), [("Pong-v5", (84, 84, 4)), ("envpool/CarRacing-v3", (96, 96, 3))]
)
def test_images_are_channels_last(env_id, shape):
    space = jaxrl.make(env_id).observation_space
    assert isinstance(space, jaxrl.Box)
    assert space.shape == shape


@needs_new_envpool
def test_sensors_that_a_robot_lacks_are_left_out():
    name = "DmcCmuHumanoidRunWalls-v1"
    env = jaxrl.make(f"envpool/{name}", 2)
    steps = played(env, np.zeros((1, 2, *env.action_space.shape), np.float32))
    given = envpool.make_spec(name).observation_space.spaces
    empty = {name for name, part in given.items() if 0 in part.shape}
    assert empty
    assert set(steps.obs) == set(given) - empty


def test_buttons_of_vizdoom_are_one_choice_by_default():
    assert jaxrl.make("envpool/D1Basic-v1", N).action_space == Discrete(6)
    apart = jaxrl.make("envpool/D1Basic-v1", N, use_combined_action=False)
    assert apart.action_space == Box.of((3,), np.float32)


@pytest.mark.parametrize(("asked", "made"), [(None, 0), (1, 1), (1_000_000, 3)])
def test_a_pool_has_at_most_a_thread_for_each_environment(asked, made):
    options = {} if asked is None else {"num_threads": asked}
    pool = adapter.EnvpoolPool("CartPole-v1", tuple(options.items()), np.arange(3))
    assert pool._envs.config["num_threads"] == made
    pool.close()


@pytest.mark.parametrize(
    ("id", "option", "message"),
    [
        (
            "Pong-v5",
            {"num_threads": -1},
            "num_threads of .*Pong-v5 must be an integer >= 0, got -1",
        ),
        ("Pong-v5", {"frame_skip": 0}, "frame_skip of .*Pong-v5 must be an integer >= 1, got 0"),
        ("Pong-v5", {"noop_max": 0}, "noop_max of .*Pong-v5 must be an integer >= 1, got 0"),
        ("Pong-v5", {"repeat_action_probability": 2}, r"must be within \[0, 1\], got 2"),
        ("Pong-v5", {"episodic_life": 3}, "episodic_life of .* must be True or False, got 3"),
        ("Pong-v5", {"seed": 3}, r"Pong-v5 does not take the options \['seed'\]"),
        ("TicTacToe-v1", {}, r"envpool/TicTacToe-v1.*multi-player"),
    ],
)
def test_bad_options_are_refused_before_envpool_crashes(id, option, message):
    with pytest.raises(ValueError, match=message):
        jaxrl.make(f"envpool/{id}", 2, **option)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("ModuleNotFoundError('no envpool')", "pip install envpool"),
        ("ImportError('libEGL.so.1: cannot open')", "libEGL.so.1.*apt-get install libegl1"),
    ],
)
def test_an_import_that_fails_says_what_to_install(tmp_path, monkeypatch, error, advice):
    (tmp_path / "envpool.py").write_text(f"raise {error}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "envpool")
    with pytest.raises(ImportError, match=advice):
        adapter._envpool.__wrapped__()
