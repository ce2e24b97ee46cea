"""Simulators in every vectorization and autoreset mode."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import simulators
from env_cases import played

import jaxrl
from jaxrl.envs.check import random_actions

N = 2
NO_ACTIONS = jnp.zeros(N, jnp.int32)


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


@pytest.mark.parametrize(
    ("id", "options"),
    [
        ("envpool/CartPole-v1", {"max_episode_steps": 3}),
        ("gymnasium/CartPole-v1", {"max_episode_steps": 3, "vectorization_mode": "sync"}),
        ("gymnasium/CartPole-v1", {"max_episode_steps": 3, "vectorization_mode": "async"}),
    ],
)
def test_an_environment_that_restarts_after_its_end_goes_on(id, options):
    """The other one begins its next episode by itself."""
    env: Any = jaxrl.make(id, N, **options)
    state, timestep = env.init(jax.random.key(0))
    for _ in range(3):
        state, timestep = env.step(jax.random.key(0), state, NO_ACTIONS)
    assert timestep.truncated.all()
    state, fresh = env.restart(state, timestep, jnp.array([False, True]))
    _, after = env.step(jax.random.key(0), state, NO_ACTIONS)
    np.testing.assert_array_equal(after.first, [True, False])
    np.testing.assert_array_equal(after.reward, [0, 1])
    assert (after.obs[1] != fresh.obs[1]).any()


def test_atari_games_restart_with_copies_of_their_first_frame():
    env: Any = jaxrl.make("gymnasium/ALE/Pong-v5", N)
    state, timestep = env.init(jax.random.key(0))
    for _ in range(40):
        state, timestep = env.step(jax.random.key(0), state, NO_ACTIONS)
    _, fresh = env.restart(state, timestep, jnp.array([False, True]))
    np.testing.assert_array_equal(fresh.obs[0], timestep.obs[0])
    assert (fresh.obs[0][..., :1] != fresh.obs[0]).any()
    np.testing.assert_array_equal(fresh.obs[1], fresh.obs[1][..., :1].repeat(4, -1))
    np.testing.assert_array_equal(fresh.first, [False, True])


def test_a_simulator_that_cannot_restart_some_environments_is_an_error():
    env: Any = jaxrl.make("gymnasium/CartPole-v1", N, vectorization_mode="vector_entry_point")
    state, timestep = env.init(jax.random.key(0))
    with pytest.raises(jax.errors.JaxRuntimeError, match="vectorization_mode='async'"):
        jax.block_until_ready(env.restart(state, timestep, jnp.array([False, True])))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("obs", r"step: obs must be float32\[2, 2\] as its space says, is float32\[2, 3\]"),
        ("reward", r"step: the reward is array\(\[ 0., nan\]\), not a finite number"),
        ("terminated", r"step: terminated must be bools \[2\], is array\(\['no', 'no'\]"),
        ("truncated", r"step: truncated must be bools \[2\], is None"),
    ],
)
def test_a_wrong_step_of_a_batched_simulator_is_refused(part, message):
    mode = "vector_entry_point"
    env = jaxrl.make(simulators.WrongBatch, N, part=part, vectorization_mode=mode)
    state, _ = env.init(jax.random.key(0))
    message = r"gymnasium/simulators:WrongBatch failed:\n[\s\S]*" + message
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(env.step(jax.random.key(0), state, NO_ACTIONS))


def test_two_pools_of_workers_give_what_one_pool_gives():
    one = jaxrl.make("gymnasium/CartPole-v1", 4, vectorization_mode="sync")
    two = jaxrl.make("gymnasium/CartPole-v1", 4, num_pools=2)
    actions = random_actions(one, 0, 30)
    jax.tree.map(np.testing.assert_array_equal, *(played(env, actions) for env in (one, two)))
