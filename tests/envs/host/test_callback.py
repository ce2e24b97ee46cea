"""States of host environments: each has one pool group, and can be used once."""

import functools
import itertools
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import pytest
from env_cases import N, assert_same, differ, member

import jaxrl
from jaxrl.envs.check import jit_play, random_actions
from jaxrl.envs.host import callback
from jaxrl.envs.host.callback import HostState

P = 2  # members of a population


@pytest.fixture
def cartpole() -> jaxrl.Env:
    return jaxrl.make("envpool/CartPole-v1", N)


def push(env: jaxrl.Env, state: HostState) -> tuple[HostState, jaxrl.TimeStep]:
    return env.step(jax.random.key(0), state, jnp.ones(N, jnp.int32))


def refused(message: str) -> Any:
    """Expect JAX's runtime error with the message of the host's error."""
    return pytest.raises(jax.errors.JaxRuntimeError, match=message)


def test_a_population_shares_one_pool(cartpole):
    before = set(callback._groups)
    state, _ = jax.vmap(cartpole.init)(jax.random.split(jax.random.key(0), P))
    assert state.pool.tolist() == [state.pool[0].tolist()] * P
    (number,) = set(callback._groups) - before
    assert number == state.pool[0, 0]
    assert len(callback._groups[number].seeds) == P * N


def test_a_population_may_share_its_key(cartpole):
    actions = random_actions(cartpole, 1, P, 10)
    key = jax.random.key(0)
    population = jax.vmap(lambda actions: jit_play(cartpole, key, actions))(jnp.asarray(actions))
    assert differ(population.obs[0], population.obs[1])
    for i in range(P):
        assert_same(member(population, i), jit_play(cartpole, key, jnp.asarray(actions[i])))


@pytest.mark.parametrize("shared", ["inner", "outer"])
def test_agents_of_nested_populations_keep_their_simulators(cartpole, shared):
    """A grid of keys and actions; only one of the two axes has the keys."""
    keys = jax.random.split(jax.random.key(0), 2)
    actions = jnp.asarray(random_actions(cartpole, 1, 3, 10))
    play = functools.partial(jit_play, cartpole)
    if shared == "inner":
        grid = jax.vmap(lambda key: jax.vmap(lambda each: play(key, each))(actions))(keys)
    else:
        grid = jax.vmap(lambda each: jax.vmap(lambda key: play(key, each))(keys))(actions)
        grid = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), grid)
    for i, key in enumerate(keys):
        for j, each in enumerate(actions):
            assert_same(member(member(grid, i), j), play(key, each))


def test_states_of_a_population_cannot_be_copied_from_agent_to_agent(cartpole):
    keys = jax.random.split(jax.random.key(0), P)
    states, _ = jax.vmap(cartpole.init)(keys)
    copies = jax.tree.map(lambda x: x[jnp.zeros(P, int)], states)
    with refused(r"copied or reordered: their members are \[0, 0"):
        jax.block_until_ready(jax.vmap(lambda state: push(cartpole, state))(copies))


def test_simulators_that_begin_otherwise_are_not_copied():
    env = jaxrl.make("gymnasium/CartPole-v1", 1, vectorization_mode="vector_entry_point")
    actions = jnp.asarray(random_actions(env, 1, P, 2))
    with refused(f"begins otherwise in copies for {P} agents"):
        jax.vmap(lambda each: jit_play(env, jax.random.key(0), each))(actions)


def test_a_population_whose_simulators_cannot_be_made_leaves_no_pool():
    made = itertools.count()

    def make():
        if next(made) == 3:  # one to read the spaces, and one of the first two, were before it
            raise ValueError("no more")
        return gymnasium.make("CartPole-v1")

    env, key = jaxrl.make(make, 1, vectorization_mode="sync"), jax.random.key(0)
    before = set(callback._groups)
    state, _ = env.init(key)
    with refused("no more"):
        jax.vmap(lambda action: env.step(key, state, action))(jnp.zeros((P, 1), jnp.int32))
    assert set(callback._groups) <= before  # the oldest of other tests may have made room


def test_a_running_environment_cannot_become_a_population_nor_be_split(cartpole):
    state, _ = push(cartpole, cartpole.init(jax.random.key(0))[0])
    with refused("cannot be copied or split"):
        jax.vmap(lambda a: cartpole.step(jax.random.key(0), state, a))(jnp.ones((P, N), jnp.int32))
    push(cartpole, state)  # the refusal did not touch the pool
    state, _ = jax.vmap(cartpole.init)(jax.random.split(jax.random.key(0), P))
    with refused("cannot be copied or split"):
        push(cartpole, member(state, 0))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_state_used_twice_or_copied_is_refused(cartpole, transform):
    step = transform(functools.partial(push, cartpole))
    old, _ = cartpole.init(jax.random.key(0))
    copy = jax.tree.map(jnp.copy, old)
    state, _ = step(old)
    for used in (old, copy):
        with refused(r"used twice \(or copied\)"):
            jax.block_until_ready(step(used))
    step(state)  # the refusal did not touch the pool


def test_a_state_of_other_options_is_refused(cartpole):
    """Simulators keep their options, so the state of an easy task never becomes a hard one's."""
    state, _ = cartpole.init(jax.random.key(0))
    longer = jaxrl.make("envpool/CartPole-v1", N, max_episode_steps=7)
    with refused(r"of \('envpool/CartPole-v1', .* cannot be stepped by .*'max_episode_steps', 7"):
        push(longer, state)
    push(jaxrl.make("envpool/CartPole-v1", N, num_threads=1), state)  # an option of speed alone


def test_a_state_of_another_process_is_refused(cartpole):
    with refused("no longer exists"):
        none = jnp.zeros(1, jnp.int32)
        push(cartpole, HostState(jnp.full(1, 2**30, jnp.int32), none, none))


def test_states_of_different_pools_cannot_be_stacked(cartpole):
    states = [cartpole.init(jax.random.key(seed))[0] for seed in range(P)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *states)
    with refused("different pools were stacked"):
        jax.vmap(functools.partial(push, cartpole))(stacked)


def test_the_wrong_number_of_actions_is_refused(cartpole):
    state, _ = cartpole.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"takes actions of shape \(3,\), got \(4,\)"):
        cartpole.step(jax.random.key(0), state, jnp.ones(N + 1, jnp.int32))


def test_the_least_recently_used_pool_is_closed_and_its_state_refused(cartpole):
    used, _ = cartpole.init(jax.random.key(0))
    unused, _ = cartpole.init(jax.random.key(0))
    for seed in range(callback.max_groups() - 1):
        used, _ = push(cartpole, used)
        cartpole.init(jax.random.key(seed))
    assert len(callback._groups) == callback.max_groups()
    push(cartpole, used)
    with refused("no longer exists"):
        push(cartpole, unused)


def test_two_states_of_one_environment_can_be_interleaved(cartpole):
    actions = random_actions(cartpole, 1, 10)
    key = jax.random.key(0)

    @jax.jit  # XLA must not merge the two equal calls
    def interleave(key):
        (one, start), (two, _) = cartpole.init(key), cartpole.init(key)

        def step(states, action):
            one, first = cartpole.step(key, states[0], action)
            two, second = cartpole.step(key, states[1], action)
            return (one, two), (first, second)

        return (one, two), start, jax.lax.scan(step, (one, two), actions)[1]

    (one, two), start, (first, second) = interleave(key)
    assert one.pool != two.pool
    assert_same(first, second)
    assert differ(first.obs[0], start.obs)
