"""Populations: every lane computes what its agent would compute alone, whatever the strategy."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.training import population as populations
from jaxrl.training.population import FRESH, KEEP, RESUME, STRATEGIES, Strategy, population
from jaxrl.tuning.program import trial_key

pytestmark = pytest.mark.usefixtures("quick_compilation")

CONFIG = jaxrl.PPOConfig(num_steps=16, num_minibatches=2, num_epochs=2, hidden_sizes=(16,))
RATES = jnp.array([1e-4, 3e-4, 1e-3, 3e-3])
KEYS = jax.vmap(lambda trial: trial_key(jax.random.key(0), trial))(jnp.arange(4))


@functools.cache
def cartpole():
    return jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4))


@functools.cache
def trained(strategy, num_lanes=4):
    """Parameters `[W, ...]` and metrics `[W, 6]` after five updates."""
    lanes = population(cartpole(), num_lanes, strategy)
    configs = populations.stack(CONFIG, num_lanes, learning_rate=RATES[:num_lanes])

    @jax.jit
    def train(keys):
        states, metrics = lanes.update(configs, lanes.init(configs, keys), 5, 6)
        return states.params, metrics

    return train(KEYS[:num_lanes])


@functools.cache
def alone(lane):
    config = CONFIG.replace(learning_rate=RATES[lane])
    train = jax.jit(jaxrl.train, static_argnums=(0, 3))
    state, metrics = train(cartpole(), config, KEYS[lane], 5)
    return state.params, metrics


def row(tree, lane):
    return jax.tree.map(lambda x: x[lane], tree)


def test_a_strategy_for_more_lanes_is_fitted_to_fewer():
    assert population(cartpole(), 4, Strategy("map", 2)).strategy == Strategy("map", 2)
    assert population(cartpole(), 3, Strategy("map", 2)).strategy == Strategy("map", 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_lane_learns_what_its_agent_learns_alone(strategy):
    params, metrics = trained(strategy)
    assert population(cartpole(), 4, strategy).strategy.num_devices == (
        2 if strategy.startswith("shard") else 1
    )
    for lane in range(4):
        one, expected = alone(lane)
        chex.assert_trees_all_close(row(params, lane), one, atol=2e-5)
        for name, values in expected.items():
            np.testing.assert_allclose(metrics[name][lane, :5], values, rtol=2e-3, atol=2e-4)
            assert metrics[name][lane, 5] == 0


@pytest.mark.parametrize("num_lanes", [1, 3])
def test_the_size_of_the_population_does_not_matter(num_lanes):
    """Three lanes cannot be spread over two devices, and run on one."""
    for strategy in ("vmap", "shard-map"):
        params, _ = trained(strategy, num_lanes)
        for lane in range(num_lanes):
            one, _ = alone(lane)
            chex.assert_trees_all_close(row(params, lane), one, atol=2e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_refilled_lane_is_a_new_agent_and_the_others_stay(strategy):
    lanes = population(cartpole(), 4, strategy)
    configs = populations.stack(CONFIG, 4, learning_rate=RATES)
    states = jax.jit(lanes.init)(configs, KEYS)
    saved = states
    update = jax.jit(lambda states: lanes.update(configs, states, 2, 2)[0])
    states = update(states)
    change = jnp.array([KEEP, FRESH, KEEP, RESUME])
    refilled = jax.jit(lanes.refill)(configs, states, KEYS[::-1], change, saved)
    expected = jax.tree.map(
        lambda old, new, kept: jnp.stack([old[0], new[1], old[2], kept[3]]),
        without_keys(states),
        without_keys(jax.jit(lanes.init)(configs, KEYS[::-1])),
        without_keys(saved),
    )
    chex.assert_trees_all_close(without_keys(refilled), expected, atol=1e-6)


def without_keys(states):
    return jax.tree.map(
        lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x,
        states,
    )


def test_refills_do_not_recompile():
    lanes = population(cartpole(), 2, "map")
    configs = populations.stack(CONFIG, 2)
    traces = []

    @jax.jit
    def refill(states, change):
        traces.append(change)
        return lanes.refill(configs, states, KEYS[2:], change)

    states = jax.jit(lanes.init)(configs, KEYS[:2])
    for change in ([KEEP, FRESH], [FRESH, FRESH], [KEEP, KEEP]):
        states = refill(states, jnp.array(change))
    assert len(traces) == 1


@pytest.mark.parametrize("strategy", ["vmap", "shard-map"])
def test_host_environments_of_refilled_lanes_begin_new_episodes(strategy):
    algo = jaxrl.ppo(jaxrl.make("envpool/CartPole-v1", num_envs=2))
    lanes = population(algo, 2, strategy)
    configs = populations.stack(CONFIG, 2)
    states = jax.jit(lanes.init)(configs, KEYS[:2])
    update = jax.jit(lambda states: lanes.update(configs, states, 1, 1))
    states, _ = update(states)
    old = states.simulation.timestep
    assert not old.first.all()
    refilled = jax.jit(lanes.refill)(configs, states, KEYS[2:], jnp.array([KEEP, FRESH]))
    new = refilled.simulation
    assert new.timestep.first[1].all()
    assert (jnp.abs(new.timestep.obs[1]) <= 0.05).all()  # where episodes of CartPole begin
    assert (new.episodes.running_length[1] == 0).all()
    np.testing.assert_array_equal(new.timestep.obs[0], old.obs[0])
    np.testing.assert_array_equal(new.timestep.first[0], old.first[0])
    assert refilled.num_updates.tolist() == [1, 0]
    states, metrics = update(refilled)  # and both go on
    assert (metrics["valid_steps"] > 0).all()


def test_a_host_lane_learns_what_its_agent_learns_alone():
    """One pool for all lanes, seeded lane by lane."""
    algo = jaxrl.ppo(jaxrl.make("envpool/CartPole-v1", num_envs=2))

    def train(rate, key):
        state, metrics = jaxrl.train(algo, CONFIG.replace(learning_rate=rate), key, 3)
        return state.params, metrics["episode_return_sum"]

    together = jax.jit(jax.vmap(train))(RATES, KEYS)
    one_by_one = [jax.jit(train)(rate, key) for rate, key in zip(RATES, KEYS, strict=True)]
    expected = jax.tree.map(lambda *x: jnp.stack(x), *one_by_one)
    chex.assert_trees_all_close(together, expected, atol=2e-5)


def test_the_fastest_strategy_is_chosen_by_a_measurement_that_is_reported():
    configs = populations.stack(CONFIG, 4)
    choice = populations.choose(cartpole(), configs, seconds=0.02)
    assert set(choice.steps_per_second) == set(STRATEGIES)
    fastest = max(choice.steps_per_second, key=choice.steps_per_second.__getitem__)
    assert str(choice.strategy) == fastest
    assert all(rate > 0 for rate in choice.steps_per_second.values())


def test_bad_strategies_are_refused():
    with pytest.raises(ValueError, match=r"strategy must be one of .*, got 'pmap'"):
        population(cartpole(), 4, "pmap")
    algo = jaxrl.ppo(jaxrl.make("envpool/CartPole-v1", num_envs=2))
    with pytest.raises(ValueError, match="a pool of host environments for each of 64 lanes"):
        population(algo, 64, "map")
    assert population(cartpole(), 3, Strategy("map")).num_lanes == 3
