"""The behaviour that every algorithm shares, whatever it learns by."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_algorithms import (
    CONFIGS,
    WITH_MEMORY,
    algorithm,
    assert_close,
    few_in_every_run,
    learn,
    network_of,
    same,
    start,
)

import jaxrl
from jaxrl.networks import recurrent
from jaxrl.training.compilation import train_chunk

everything = pytest.mark.parametrize("name", CONFIGS)


# --- the program ---------------------------------------------------------------------------------


@pytest.mark.slow
@few_in_every_run("a2c")
def test_an_update_under_jit_equals_an_eager_one(name):
    config = CONFIGS[name]
    state, _ = learn(name, config, start(name), 4)
    jitted, metrics = learn(name, config, state, 1)
    with jax.disable_jit():
        eager, eager_metrics = algorithm(name).update(config, state)
    assert metrics["loss"] != 0
    assert_close(jitted.params, eager.params, rtol=1e-4, atol=1e-5)
    assert set(metrics) == set(eager_metrics)
    for key in metrics:
        np.testing.assert_allclose(metrics[key][0], eager_metrics[key], rtol=1e-3, atol=1e-5)


def assert_members_learn_alone(population, metrics, singles):
    for i, (state, one) in enumerate(singles):
        member = jax.tree.map(lambda x, i=i: x[i], population.params)
        assert_close(member, state.params, rtol=1e-3, atol=1e-5)
        for key in ("valid_steps", "episode_count", "episode_return_sum"):
            assert (metrics[key][i] == one[key]).all()
        np.testing.assert_allclose(metrics["loss"][i], one["loss"], rtol=1e-2, atol=1e-4)


@few_in_every_run("a2c")
def test_a_population_over_seeds_and_configs_learns_what_its_members_learn(name):
    algo, config = algorithm(name), CONFIGS[name]
    keys = jax.random.split(jax.random.key(3), 4)
    rates, gammas = [0.01, 0.02, 0.05, 0.1], [0.9, 0.99, 0.5, 1.0]

    @jax.jit
    @jax.vmap
    def train(rate, gamma, key):
        return jaxrl.train(algo, config.replace(learning_rate=rate, gamma=gamma), key, 6)

    population, metrics = train(jnp.array(rates), jnp.array(gammas), keys)
    configs = [config.replace(learning_rate=r, gamma=g) for r, g in zip(rates, gammas, strict=True)]
    singles = [learn(name, configs[i], start(name, keys[i]), 6) for i in range(4)]
    assert_members_learn_alone(population, metrics, singles)


@pytest.mark.exhaustive
@everything
def test_a_population_on_the_host_shares_a_pool_and_learns_what_its_members_learn(name):
    algo, config = algorithm(name, "envpool/CartPole-v1"), CONFIGS[name]
    keys, rates = jax.random.split(jax.random.key(3), 2), jnp.array([0.01, 0.1])

    def train(rate, key):
        return jaxrl.train(algo, config.replace(learning_rate=rate), key, 6)

    population, metrics = jax.jit(jax.vmap(train))(rates, keys)
    assert len(np.unique(population.simulation.env_state.pool)) == 1
    single = jax.jit(train)
    singles = [single(rates[i], keys[i]) for i in range(2)]
    assert_members_learn_alone(population, metrics, singles)


@pytest.mark.parametrize("number", [float, np.asarray])
@few_in_every_run("ppo-gru", "dqn-prioritized", "r2d2")
def test_a_program_with_64_bit_numbers_keeps_the_state_s_dtypes(name, number):
    algo = getattr(jaxrl, algorithm(name).name)(jaxrl.make("probe/Bandit-v0", 2))
    config = CONFIGS[name].replace(gamma=number(0.9))
    with jax.enable_x64(True):
        state = jax.eval_shape(algo.init, config, jax.random.key(0))
        after, _ = jax.eval_shape(algo.update, config, state)
    jax.tree.map(lambda x, y: np.testing.assert_equal(y.dtype, x.dtype), state, after)


@pytest.fixture(scope="module")
def run_in_two_parts(tmp_path_factory):
    """Return a function that runs ten updates, resumed from a checkpoint after the fourth."""

    @functools.cache
    def run(name):
        directory = tmp_path_factory.mktemp(name) / "run"
        for num_updates in (4, 10):
            result = jaxrl.run(
                algorithm(name),
                CONFIGS[name],
                total_steps=num_updates * 2 * 4,
                run_dir=directory,
                resume=True,
                **QUIET,
            )
        return result

    return run


QUIET: dict[str, Any] = {
    "seed": 3, "num_evaluations": 0, "chunk_updates": 2, "log_every": 1, "progress_bar": False
}  # fmt: skip


@few_in_every_run("r2d2")
def test_ten_updates_equal_four_and_six_more_bit_for_bit(name, run_in_two_parts):
    parts = run_in_two_parts(name)
    whole = jaxrl.run(algorithm(name), CONFIGS[name], total_steps=10 * 2 * 4, **QUIET)
    assert int(whole.state.num_updates) == int(parts.state.num_updates) == 10
    assert not same(whole.state.params, start(name, 3).params)
    assert same(parts.state, whole.state)


@pytest.mark.parametrize(
    ("name", "env_id", "changes"),
    [
        pytest.param("dqn", "Breakout-MinAtar", {}, marks=pytest.mark.exhaustive),
        ("dqn-prioritized", "frames", {"frame_stack": 4}),
        pytest.param("r2d2", "Breakout-MinAtar", {}, marks=pytest.mark.exhaustive),
    ],
    ids=["dqn", "dqn-of-frames", "r2d2"],
)
def test_the_replay_is_not_copied(name, env_id, changes):
    algo = algorithm(name, env_id, 32)
    config = CONFIGS[name].replace(**{"replay_size": 200_000, "torso": "mlp"} | changes)
    state = jax.eval_shape(algo.init, config, jax.random.key(0))
    replay_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.replay))
    assert replay_bytes > 60e6
    compiled = train_chunk.lower(algo, config, state, jnp.int32(1)).compile()
    memory: Any = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= replay_bytes
    assert memory.temp_size_in_bytes < replay_bytes / 10


# --- acting --------------------------------------------------------------------------------------


@functools.cache
def actor(algo):
    return jax.jit(algo.act, static_argnums=5)


# A2C and IMPALA act by the function by which PPO does.
ACTING = ("ppo", "ppo-gru", "dqn", "dqn-prioritized", "pqn", "pqn-lstm", "r2d2")


@few_in_every_run(*ACTING)
def test_acting_is_greedy_without_chance_and_samples_with_it(name):
    config, state, obs = CONFIGS[name], start(name), jnp.zeros((64, 4))
    chance = {
        "dqn": {"final_epsilon": 1.0},
        "pqn": {"final_epsilon": 1.0},
        "r2d2": {"epsilon_base": 1.0},
    }
    exploring = config.replace(**chance.get(algorithm(name).name, {}))

    def act(config, key, greedy):
        _, action = actor(algorithm(name))(config, state, (), obs, jax.random.key(key), greedy)
        assert (action.shape, action.dtype) == ((64,), jnp.int32)
        return np.asarray(action)

    assert set(act(exploring, 0, False)) == {0, 1}
    assert (act(exploring, 0, False) != act(exploring, 1, False)).any()
    greedy = act(exploring, 0, True)
    assert len(set(greedy)) == 1
    assert (act(exploring, 1, True) == greedy).all()


def random_params(params):
    """Return parameters of a size at which outputs and memory differ from step to step."""
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(8), len(leaves))
    drawn = [jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def greedy_actions(outputs):
    """Return the greedy actions of action values, or of a distribution and a value."""
    return jnp.argmax(outputs, -1) if isinstance(outputs, jax.Array) else outputs[0].mode()


@few_in_every_run(*ACTING, of=WITH_MEMORY)
def test_acting_step_by_step_equals_the_unrolled_sequence(name):
    config, num_steps, num_envs = CONFIGS[name], 8, 3
    state = start(name)
    state = state._replace(params=random_params(state.params))
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(num_steps, num_envs, 4)).astype(np.float32)
    reward = rng.normal(size=(num_steps, num_envs)).astype(np.float32)
    first = rng.random((num_steps, num_envs)) < 0.2
    first[0] = True
    memory: Any = ()
    actions = []
    for t in range(num_steps):
        if t:
            memory = memory._replace(last_reward=jnp.asarray(reward[t]), first=first[t])
        memory, action = actor(algorithm(name))(
            config, state, memory, obs[t], jax.random.key(t), True
        )
        actions.append(np.asarray(action))
    last_action = np.stack([np.zeros_like(actions[0]), *actions[:-1]])
    inputs = jaxrl.Inputs(*map(jnp.asarray, (obs, first, last_action, reward)))
    network = network_of(algorithm(name), config)
    core, outputs = jax.jit(functools.partial(recurrent.apply, network))(
        state.params, recurrent.initial_core(network, num_envs), inputs
    )
    assert_close(memory.core, core, rtol=1e-4, atol=1e-5)
    expected = np.asarray(greedy_actions(outputs))
    assert (np.stack(actions) == expected).all()
    assert set(expected.ravel()) == {0, 1}


@few_in_every_run("r2d2", of=WITH_MEMORY)
def test_a_loaded_policy_remembers_between_calls_until_it_is_reset(name, run_in_two_parts):
    result = run_in_two_parts(name)
    policy = jaxrl.load_policy(result.run_dir)
    obs = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    memories = []
    for _ in range(2):
        action, _ = policy(obs[0]), memories.append(policy.memory)
        assert action.shape == ()
    assert not same(memories[0].core, memories[1].core)
    policy.reset()
    policy(obs[0])
    assert same(policy.memory, memories[0])
    policy.observe(reward=1.0, first=True)
    policy(obs[0])
    assert same(policy.memory, memories[0])
    expected, _ = actor(algorithm(name))(
        CONFIGS[name], result.state, (), obs[:1], jax.random.key(0), True
    )
    assert_close(expected.core, memories[0].core, rtol=1e-5, atol=1e-6)
    with pytest.raises(
        ValueError, match=r"remembers 1 episodes, got observations of 3; call reset"
    ):
        policy(obs)
    policy.reset()
    assert policy(obs).shape == (3,)


@few_in_every_run("ppo", "dqn", "r2d2")
def test_evaluation_plays_whole_episodes(name):
    algo = algorithm(name)
    evaluate = jax.jit(jaxrl.evaluate, static_argnums=(0, 3, 5, 6))
    env = algo.env.for_evaluation(3)
    scores = evaluate(algo, CONFIGS[name], start(name), env, jax.random.key(0), 2, True)
    assert scores.episode_length.shape == (6,)
    assert ((scores.episode_length >= 5) & (scores.episode_length <= 500)).all()
    assert (scores.episode_return == scores.episode_length).all()
