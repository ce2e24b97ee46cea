"""Pools of environments that simulate at the same time: their steps, and clear errors."""

from types import SimpleNamespace
from typing import Any

import chex
import jax
import jax.numpy as jnp
import pytest

import jaxrl
from jaxrl.envs.host import callback
from jaxrl.envs.host.pools import ANY, NONE
from jaxrl.rollouts import pipelined


def make(asynchronous=False) -> Any:
    return jaxrl.make(
        "envpool/CartPole-v1", 4, num_threads=1, num_pools=2, asynchronous=asynchronous
    )


@pytest.fixture
def env():
    return make()


def refused(message):
    return pytest.raises(jax.errors.JaxRuntimeError, match=message)


def test_a_step_of_all_pools_is_one_of_their_steps(env):
    key, action = jax.random.key(0), jnp.array([0, 1, 1, 0], jnp.int32)
    _, whole = env.step(key, env.init(key)[0], action)
    state, _ = env.init(key)
    state, pool, _ = env.send_and_receive(state, 0, action[:2], NONE)
    assert pool == 0  # zeros at once
    for sent, awaited in ((1, 0), (NONE, 1)):
        state, pool, part = env.send_and_receive(state, sent, action[2:], awaited)
        assert pool == awaited
        chex.assert_trees_all_equal(
            part, jax.tree.map(lambda x, p=awaited: x[2 * p : 2 * p + 2], whole)
        )


def test_nothing_is_received_that_was_not_sent(env):
    state, _ = env.init(jax.random.key(0))
    with refused("pool 1 was sent no action"):
        jax.block_until_ready(env.send_and_receive(state, NONE, jnp.zeros(2, jnp.int32), 1))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_pools_are_received_by_number_or_as_they_get_ready(asynchronous):
    env = make(asynchronous)
    state, _ = env.init(jax.random.key(0))
    with refused("asynchronous pools are received in the order .*, other pools by number"):
        awaited = 0 if asynchronous else ANY
        jax.block_until_ready(env.send_and_receive(state, 0, jnp.zeros(2, jnp.int32), awaited))


def test_asynchronous_pools_that_were_sent_nothing_are_not_awaited():
    env = make(asynchronous=True)
    state, _ = env.init(jax.random.key(0))
    with refused("no pool was sent an action"):
        jax.block_until_ready(env.send_and_receive(state, NONE, jnp.zeros(2, jnp.int32), ANY))


def test_a_simulating_pool_is_sent_nothing(env):
    state, _ = env.init(jax.random.key(0))
    state, _, _ = env.send_and_receive(state, 0, jnp.zeros(2, jnp.int32), NONE)
    with refused("pool 0 is simulating a step already"):
        jax.block_until_ready(env.send_and_receive(state, 0, jnp.zeros(2, jnp.int32), NONE))


def test_an_error_of_a_pool_names_the_environment(env, monkeypatch):
    state, _ = env.init(jax.random.key(0))
    pool = callback.group_of(state).pools[1]

    def recv(self):
        raise SystemExit("a wheel came off")

    monkeypatch.setattr(type(pool), "recv", recv)
    with refused(r"pool 0 of 2: envpool/CartPole-v1 failed:\n[\s\S]*SystemExit: a wheel came off"):
        jax.block_until_ready(env.step(jax.random.key(0), state, jnp.zeros(4, jnp.int32)))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_interrupted_step_closes_all_pools(asynchronous, monkeypatch):
    env = make(asynchronous)
    state, _ = env.init(jax.random.key(0))
    group, action = callback.group_of(state), jnp.zeros(4, jnp.int32)

    def interrupt(*_):
        raise KeyboardInterrupt

    if asynchronous:
        monkeypatch.setattr(group, "_ready", SimpleNamespace(get=interrupt, put=lambda _: None))
    else:
        monkeypatch.setattr(type(group.pools[1]), "recv", interrupt)
    with refused("KeyboardInterrupt"):
        jax.block_until_ready(env.step(jax.random.key(0), state, action))
    assert not group.pools
    with refused("no longer exists"):
        jax.block_until_ready(env.step(jax.random.key(0), state, action))


def test_times_of_simulators_add_up(env):
    state, _ = env.init(jax.random.key(0))
    for _ in range(20):
        state, _ = env.step(jax.random.key(0), state, jnp.zeros(4, jnp.int32))
    lived, waited, simulated = callback.group_of(state).host_time()
    assert 0 < waited <= simulated <= lived


@pytest.mark.parametrize("asynchronous", [False, True])
def test_environments_that_simulate_can_be_restarted(asynchronous):
    """Restart some environments of pools that simulate; the others answer their step."""
    env = make(asynchronous)
    key, action = jax.random.key(0), jnp.array([0, 1, 1, 0], jnp.int32)
    _, step = env.step(key, env.init(key)[0], action)
    state, timestep = env.init(key)
    for pool in (0, 1):
        state, _, _ = env.send_and_receive(state, pool, action[2 * pool : 2 * pool + 2], NONE)
    where = jnp.array([True, False, False, True])
    state, fresh = env.restart(state, timestep, where)
    chex.assert_trees_all_equal(fresh.obs[1], timestep.obs[1])
    parts = [None, None]
    for pool in (0, 1):
        state, received, parts[int(received)] = env.send_and_receive(
            state, NONE, action[:2], ANY if asynchronous else pool
        )
    shown = pipelined.join(parts)
    chex.assert_trees_all_equal(shown.first, where)
    chex.assert_trees_all_equal(shown.obs[where], fresh.obs[where])
    chex.assert_trees_all_equal(shown.obs[~where], step.obs[~where])
    chex.assert_trees_all_equal(shown.reward, jnp.where(where, 0.0, step.reward))
    _, after = env.step(key, state, action)
    assert not after.first.any()
    assert (after.obs[where] != fresh.obs[where]).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"num_pools": bad}, "num_pools must be an integer >= 1") for bad in (0, 1.5, True)),
        ({"num_pools": 3}, "num_envs = 4 cannot be split over num_pools = 3"),
        ({"asynchronous": True}, "asynchronous=True needs num_pools >= 2"),
        ({"asynchronous": "yes"}, "asynchronous must be True or False, got 'yes'"),
        ({"send_ahead": 1}, "send_ahead must be True or False, got 1"),
    ],
)
def test_bad_options_of_pools_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        jaxrl.make("envpool/CartPole-v1", 4, **options)
