"""Populations: every lane computes what its agent would compute alone, whatever the strategy."""

import functools
from types import SimpleNamespace
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_algorithms import without_keys
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl.distributed.spread import spread
from jaxrl.envs.host import callback
from jaxrl.rollouts.simulation import advance
from jaxrl.training import population as populations
from jaxrl.training.population import (
    FRESH,
    KEEP,
    RESUME,
    STRATEGIES,
    Strategy,
    pools_of_map,
    population,
)

CONFIGS = {
    "toy": ToyConfig(),
    "ppo": jaxrl.PPOConfig(num_steps=4, num_minibatches=1, num_epochs=1, hidden_sizes=(8,)),
}
RATES = jnp.array([1e-4, 3e-4, 1e-3, 3e-3])
KEYS = jax.random.split(jax.random.key(0), 4)


@functools.cache
def algorithm(name):
    env = jaxrl.make("CartPole-v1", num_envs=2)
    return toy(env) if name == "toy" else jaxrl.ppo(env)


@functools.cache
def trained(name, strategy, num_lanes=4):
    """Return parameters `[W, ...]` and metrics `[W, 4]` after three updates."""
    lanes = population(algorithm(name), num_lanes, strategy)
    configs = populations.stack(CONFIGS[name], num_lanes, learning_rate=RATES[:num_lanes])

    @jax.jit
    def train(keys):
        states, metrics = lanes.update(configs, lanes.init(configs, keys), 3, 4)
        return states.params, metrics

    return train(KEYS[:num_lanes])


@functools.cache
def alone(name, lane):
    config = CONFIGS[name].replace(learning_rate=RATES[lane])
    train = jax.jit(jaxrl.train, static_argnums=(0, 3))
    state, metrics = train(algorithm(name), config, KEYS[lane], 3)
    return state.params, metrics


def lane_of(tree, lane):
    return jax.tree.map(lambda x: x[lane], tree)


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        *(("toy", strategy) for strategy in ("vmap", "map", "shard-vmap")),
        ("ppo", "vmap"),
        *(pytest.param(n, "shard-map", marks=pytest.mark.exhaustive) for n in ("toy", "ppo")),
    ],
)
def test_a_lane_learns_what_its_agent_learns_alone(name, strategy):
    params, metrics = trained(name, strategy)
    num_devices = 2 if strategy.startswith("shard") else 1
    assert population(algorithm(name), 4, strategy).strategy.num_devices == num_devices
    for lane in range(4):
        expected_params, expected = alone(name, lane)
        chex.assert_trees_all_close(lane_of(params, lane), expected_params, atol=2e-5)
        for metric, values in expected.items():
            np.testing.assert_allclose(metrics[metric][lane, :3], values, rtol=2e-3, atol=2e-4)
            assert metrics[metric][lane, 3] == 0


@pytest.mark.parametrize("num_lanes", [1, 3])
def test_the_size_of_the_population_does_not_matter(num_lanes):
    """Three lanes cannot be spread over two devices, and run on one."""
    for strategy in ("vmap", "shard-map"):
        params, _ = trained("toy", strategy, num_lanes)
        for lane in range(num_lanes):
            chex.assert_trees_all_close(lane_of(params, lane), alone("toy", lane)[0], atol=2e-5)


@pytest.mark.parametrize(
    ("num_lanes", "size"), [(4, 4), (32, 32), (33, 11), (64, 32), (1000, 25), (37, 37)]
)
def test_many_lanes_are_vmapped_in_groups_of_equal_size_on_a_cpu(num_lanes, size):
    algo = algorithm("toy")
    assert populations.group_size(algo, num_lanes) == size
    on_host = algo._replace(env=SimpleNamespace(checkpointable=False))
    assert populations.group_size(on_host, num_lanes) == num_lanes


def test_the_size_of_the_groups_does_not_matter(monkeypatch):
    monkeypatch.setattr(populations, "GROUPS", range(1, 3))
    assert populations.group_size(algorithm("toy"), 4) == 2
    grouped, metrics = trained.__wrapped__("toy", "vmap")
    expected, all_metrics = trained("toy", "map")
    chex.assert_trees_all_close(grouped, expected, atol=2e-5)
    chex.assert_trees_all_close(metrics, all_metrics, atol=2e-4)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_refilled_lanes_have_new_or_saved_agents_and_the_others_keep_theirs(strategy):
    lanes = population(algorithm("toy"), 4, strategy)
    configs = populations.stack(CONFIGS["toy"], 4, learning_rate=RATES)
    init: Any = jax.jit(lanes.init)
    refill: Any = jax.jit(lanes.refill)
    saved = init(configs, KEYS)
    states = jax.jit(lambda states: lanes.update(configs, states, 2, 2)[0])(saved)
    refilled = refill(configs, states, KEYS[::-1], jnp.array([KEEP, FRESH, KEEP, RESUME]), saved)
    compiled = refill._cache_size()  # with those of other tests
    expected = jax.tree.map(
        lambda old, new, kept: jnp.stack([old[0], new[1], old[2], kept[3]]),
        *map(without_keys, (states, init(configs, KEYS[::-1]), saved)),
    )
    chex.assert_trees_all_close(without_keys(refilled), expected, atol=1e-6)
    refill(configs, states, KEYS, jnp.array([FRESH, FRESH, KEEP, KEEP]), saved)
    assert refill._cache_size() == compiled  # other changes need no other program


@pytest.mark.parametrize(
    "rates", [jnp.ones(3), jnp.ones((4, 1)), jnp.ones((4, 2)), jnp.ones(()), 0.1]
)
def test_a_field_of_a_stack_needs_one_value_for_each_lane(rates):
    with pytest.raises(ValueError, match="learning_rate must have one value for each of num_lanes"):
        populations.stack(CONFIGS["toy"], 4, learning_rate=rates)


def test_a_stack_takes_lists_and_names_fields_that_lanes_cannot_have():
    config = jaxrl.PPOConfig()
    np.testing.assert_allclose(populations.stack(config, 2, gamma=[0.5, 1]).gamma, [0.5, 1])
    with pytest.raises(ValueError, match="num_steps of PPOConfig must be the same for all lanes"):
        populations.stack(config, 2, num_steps=[8, 16])
    with pytest.raises(ValueError, match="activation of ToyConfig must be the same"):
        populations.stack(CONFIGS["toy"], 2, activation=["tanh", "relu"])
    with pytest.raises(TypeError, match="'rate'"):
        populations.stack(config, 2, rate=[0.1, 0.2])


def test_lanes_begin_with_a_config_and_a_key_each():
    config, lanes = CONFIGS["toy"], population(algorithm("toy"), 4)
    with pytest.raises(ValueError, match="configs must be arrays with one row for each of 4 lanes"):
        lanes.init(config, KEYS)
    for keys in (KEYS[0], KEYS[:2]):
        with pytest.raises(ValueError, match="keys must be arrays with one row for each of 4"):
            lanes.init(populations.stack(config, 4), keys)


def stepping_toy(env):
    """Make a toy whose updates step the environments."""
    algo = toy(env)

    def update(config, state):
        action = jnp.zeros(env.num_envs, jnp.int32)
        simulation = advance(env, state.simulation, state.key, (), action)
        return algo.update(config, state._replace(simulation=simulation))

    return algo._replace(update=update)


@pytest.mark.parametrize("strategy", ["vmap", "shard-map"])
def test_host_environments_of_refilled_lanes_begin_new_episodes(strategy):
    lanes = population(stepping_toy(jaxrl.make("envpool/CartPole-v1", num_envs=2)), 2, strategy)
    configs = populations.stack(CONFIGS["toy"], 2)
    states = jax.jit(lanes.init)(configs, KEYS[:2])
    update = jax.jit(lambda states: lanes.update(configs, states, 3, 3)[0])
    states = update(states)
    old = states.simulation.timestep
    assert not old.first.any()
    refilled = jax.jit(lanes.refill)(configs, states, KEYS[2:], jnp.array([KEEP, FRESH]))
    new = refilled.simulation
    assert new.timestep.first[1].all()
    assert (jnp.abs(new.timestep.obs[1]) <= 0.05).all()  # where episodes of CartPole begin
    assert (new.episodes.running_length[1] == 0).all()
    np.testing.assert_array_equal(new.timestep.obs[0], old.obs[0])
    np.testing.assert_array_equal(new.timestep.first[0], old.first[0])
    assert refilled.num_updates.tolist() == [3, 0]
    lengths = update(refilled).simulation.episodes.running_length
    assert lengths.tolist() == [[6, 6], [3, 3]]


def test_the_fastest_strategy_is_chosen_by_measurement():
    configs = populations.stack(CONFIGS["toy"], 4)
    choice = populations.choose(algorithm("toy"), configs, seconds=0.02)
    assert set(choice.steps_per_second) == set(STRATEGIES)
    fastest = max(choice.steps_per_second, key=choice.steps_per_second.__getitem__)
    assert str(choice.strategy) == fastest
    assert all(rate > 0 for rate in choice.steps_per_second.values())


@pytest.mark.parametrize("planned_steps", [1, float("inf")])
def test_the_simulators_of_a_measurement_are_closed(planned_steps):
    algo, before = toy(jaxrl.make("envpool/CartPole-v1", 2)), set(callback._groups)
    configs = populations.stack(CONFIGS["toy"], 2)
    populations.choose(algo, configs, 0.001, 1, planned_steps)
    assert set(callback._groups) <= before


def test_short_work_is_not_measured():
    configs = populations.stack(CONFIGS["toy"], 4)
    choice = populations.choose(algorithm("toy"), configs, seconds=0.02, planned_steps=1)
    assert choice.strategy == Strategy("vmap")
    assert set(choice.steps_per_second) == {"vmap"}


def test_a_strategy_for_more_lanes_is_fitted_to_fewer():
    algo = algorithm("toy")
    assert population(algo, 4, Strategy("map", 2)).strategy == Strategy("map", 2)
    assert population(algo, 3, Strategy("map", 2)).strategy == Strategy("map", 1)
    assert population(algo, 3, Strategy("map")).num_lanes == 3


def test_bad_strategies_are_refused():
    with pytest.raises(ValueError, match=r"strategy must be one of .*, got 'pmap'"):
        population(algorithm("toy"), 4, "pmap")
    host = jaxrl.a2c(jaxrl.make("envpool/CartPole-v1", num_envs=2))
    with pytest.raises(ValueError, match="needs 64 pools of host environments for 64 lanes"):
        population(host, 64, "map")
    num_lanes = callback.max_groups() // 2 + 1  # an agent on two devices has two pools
    assert population(host, num_lanes, "map").num_lanes == num_lanes
    with pytest.raises(ValueError, match=rf"needs {2 * num_lanes} pools"):
        population(spread(host, 2), num_lanes, "map")
    assert pools_of_map(spread(host, 1), num_lanes) == num_lanes
