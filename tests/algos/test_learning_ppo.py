"""PPO learns: probes with known answers, then classic control."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algos import ppo as ppo_module

CONFIG = jaxrl.PPOConfig(num_steps=32, num_minibatches=4, learning_rate=3e-3, entropy_coef=0.0)
train = jax.jit(jaxrl.train, static_argnums=(0, 3))
pytestmark = pytest.mark.learning


def value(algo, config, state, obs):
    network = jaxrl.networks.actor_critic(algo.env.observation_space, algo.env.action_space, config)
    return np.asarray(network.apply(state.params, jnp.asarray(obs, jnp.float32))[1])


def solve(env_id, num_updates=150, config=CONFIG, **options):
    algo = jaxrl.ppo(jaxrl.make(env_id, num_envs=16, **options))
    config = config.replace(anneal_updates=num_updates)
    state, _ = train(algo, config, jax.random.key(0), num_updates)
    return algo, config, state


def greedy(algo, config, state, obs):
    return np.asarray(
        algo.act(config, state, (), jnp.asarray(obs, jnp.float32), jax.random.key(0), True)[1]
    )


def test_the_critic_discounts():
    config = CONFIG.replace(gamma=0.5)
    solved = solve("probe/Discounted-v0", config=config)
    assert value(*solved, [[0.0], [1.0]]) == pytest.approx([0.5, 1.0], abs=0.03)


def test_the_policy_uses_the_observation():
    solved = solve("probe/Contextual-v0")
    assert greedy(*solved, [[-1.0], [1.0]]).tolist() == [0, 1]
    assert value(*solved, [[-1.0], [1.0]]) == pytest.approx([1, 1], abs=0.05)


def test_a_continuous_policy_hits_its_target():
    solved = solve("probe/Target-v0", num_updates=300)
    assert greedy(*solved, [[-1.0], [1.0]])[:, 0] == pytest.approx([-1, 1], abs=0.15)


def test_the_critic_sums_rewards_until_a_termination():
    config = CONFIG.replace(gamma=0.9)
    solved = solve("probe/Episode-v0", num_updates=400, config=config, limit=3)
    expected = [1 + 0.9 + 0.81, 1 + 0.9, 1.0]
    assert value(*solved, [[0.0], [1 / 3], [2 / 3]]) == pytest.approx(expected, rel=0.03)


def time_limited_value():
    """Return the value of one state: 10, by reward 1 a step, gamma 0.9 and a limit of 5 steps."""
    config = CONFIG.replace(gamma=0.9, learning_rate=1e-2)
    return value(*solve("probe/TimeLimit-v0", num_updates=300, config=config, limit=5), [[0.0]])[0]


def test_a_time_limit_is_not_a_death():
    assert time_limited_value() == pytest.approx(10.0, rel=0.02)


def test_taking_a_time_limit_for_a_death_would_be_noticed(monkeypatch):
    right = ppo_module.returns.generalized_advantages

    def wrong(rewards, values, last_value, terminated, truncated, gamma, gae_lambda):
        ended = terminated | truncated
        return right(rewards, values, last_value, ended, truncated, gamma, gae_lambda)

    monkeypatch.setattr(ppo_module.returns, "generalized_advantages", wrong)
    assert time_limited_value() < 6.0


def test_ppo_solves_cartpole_for_five_of_five_seeds_in_one_program(preset):
    """Mean return >= 475 over the last 100 episodes within 500k steps."""
    cartpole = preset("ppo", "cartpole")
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=cartpole.num_envs))
    num_updates = 500_000 // (cartpole.num_envs * cartpole.config.num_steps)
    config = cartpole.config.replace(anneal_updates=num_updates)

    @jax.jit
    @jax.vmap
    def learn(key):
        return jaxrl.train(algo, config, key, num_updates)[1]

    metrics = jax.device_get(learn(jax.random.split(jax.random.key(0), 5)))
    for seed in range(5):
        counts = metrics["episode_count"][seed][::-1]
        last = np.searchsorted(np.cumsum(counts), 100) + 1
        mean = metrics["episode_return_sum"][seed][::-1][:last].sum() / counts[:last].sum()
        assert mean >= 475, f"seed {seed}: {mean}"
