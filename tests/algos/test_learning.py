"""Every algorithm learns: probes with known answers, then CartPole."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_algorithms import few_in_every_run, network_of, train

import jaxrl
from jaxrl.algos import ppo as ppo_module
from jaxrl.networks import recurrent
from jaxrl.ops import returns
from jaxrl.presets import PRESETS

PPO = jaxrl.PPOConfig(num_steps=32, num_minibatches=4, learning_rate=3e-3, entropy_coef=0.0)
A2C = jaxrl.A2CConfig(
    learning_rate=1e-2, gae_lambda=1.0, rmsprop_decay=0.99, rmsprop_eps=1e-8, entropy_coef=0.001,
    num_steps=8,
)  # fmt: skip
IMPALA = jaxrl.ImpalaConfig(
    learning_rate=1e-2, trace_lambda=1.0, rmsprop_decay=0.99, rmsprop_eps=1e-8,
    entropy_coef=0.001, num_steps=8,
)  # fmt: skip
DQN = jaxrl.DQNConfig(
    learning_rate=3e-3, exploration_steps=2_000, final_epsilon=0.5, learning_starts=200,
    target_period=25, num_steps=2, num_gradient_steps=2, batch_size=64, replay_size=4_000,
    n_step=1, double=True, layer_norm=False,
)  # fmt: skip
PQN = jaxrl.PQNConfig(
    learning_rate=3e-3, adam_eps=1e-8, trace_lambda=0.9, final_epsilon=0.5,
    exploration_steps=2_000, num_epochs=2,
)  # fmt: skip
R2D2 = jaxrl.R2D2Config(
    core_size=16, hidden_sizes=(16,), learning_rate=3e-3, adam_eps=1e-6, max_grad_norm=10.0,
    gamma=0.997, layer_norm=False,
    epsilon_base=0.7, epsilon_exponent=1.0, learning_starts=200, target_period=25, num_steps=4,
    burn_in=4, unroll_length=8, n_step=2, num_gradient_steps=2, batch_size=32, replay_size=8_000,
)  # fmt: skip


class Learner(NamedTuple):
    """An algorithm, and what it needs on probes."""

    make: Any
    config: Any
    num_updates: int


LEARNERS = {
    "ppo": Learner(jaxrl.ppo, PPO, 150),
    "a2c": Learner(jaxrl.a2c, A2C, 500),
    "impala": Learner(jaxrl.impala, IMPALA, 500),
    "dqn": Learner(jaxrl.dqn, DQN, 1000),
    "pqn": Learner(jaxrl.pqn, PQN, 150),
    "r2d2": Learner(jaxrl.r2d2, R2D2, 500),
}

ACTOR_CRITICS = ["ppo", "a2c", "impala"]
pytestmark = pytest.mark.learning


def solve(name: str, env_id: str, config: Any = None, factor: float = 1, **options: Any) -> Any:
    make, default, num_updates = LEARNERS[name]
    num_updates = int(factor * num_updates)
    algo = make(jaxrl.make(env_id, num_envs=16, **options))
    config = (config or default).replace(anneal_updates=num_updates)
    state, metrics = train(algo, config, jax.random.key(0), num_updates)
    return algo, config, state, metrics


def value(algo: Any, config: Any, state: Any, obs: Any) -> np.ndarray:
    """Return the values of first observations `[B, ...]`."""
    env, obs = algo.env, jnp.asarray(obs, jnp.float32)
    network = network_of(algo, config)
    nothing = jnp.zeros(len(obs))
    action = jnp.zeros((len(obs), *env.action_space.shape), env.action_space.dtype)
    inputs = jaxrl.Inputs(obs, jnp.ones(len(obs), bool), action, nothing)
    core = recurrent.initial_core(network, len(obs))
    apply = functools.partial(recurrent.apply, network)
    _, outputs = recurrent.apply_step(apply, state.params, core, inputs)
    if algo.name in ACTOR_CRITICS:
        return np.asarray(outputs[1])
    values = outputs.max(-1)
    return np.asarray(returns.unscale_value(values) if algo.name == "r2d2" else values)


def greedy(algo: Any, config: Any, state: Any, obs: Any) -> np.ndarray:
    obs = jnp.asarray(obs, jnp.float32)
    return np.asarray(algo.act(config, state, (), obs, jax.random.key(0), True)[1])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LEARNERS)
def test_values_are_discounted(name):
    config = LEARNERS[name].config.replace(gamma=0.5)
    algo, config, state, _ = solve(name, "probe/Discounted-v0", config)
    tolerance = 0.03 if name == "ppo" else 0.04
    assert value(algo, config, state, [[0.0]]) == pytest.approx([0.5], abs=tolerance)


@few_in_every_run("a2c", "impala", "dqn", "pqn", of=LEARNERS)
def test_the_policy_uses_the_observation(name):
    algo, config, state, _ = solve(name, "probe/Contextual-v0", factor=0.5)
    assert greedy(algo, config, state, [[-1.0], [1.0]]).tolist() == [0, 1]
    tolerance = 0.05 if name == "ppo" else 0.06
    assert value(algo, config, state, [[-1.0], [1.0]]) == pytest.approx([1, 1], abs=tolerance)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["a2c", "impala", "dqn", "pqn", "r2d2"])
def test_a_time_limit_is_not_a_death(name):
    config = LEARNERS[name].config.replace(gamma=0.8)
    algo, config, state, _ = solve(name, "probe/TimeLimit-v0", config, factor=2, limit=5)
    assert value(algo, config, state, [[0.0]]) == pytest.approx([5.0], rel=0.03)


@few_in_every_run("ppo", of=ACTOR_CRITICS)
def test_a_continuous_policy_hits_its_target(name):
    config = LEARNERS[name].config
    config = config if name == "ppo" else config.replace(learning_rate=2e-3)
    factor = 1 if name == "ppo" else 2
    algo, config, state, _ = solve(name, "probe/Target-v0", config, factor)
    action = greedy(algo, config, state, [[-1.0], [1.0]])[:, 0]
    assert action == pytest.approx([-1, 1], abs=0.15 if name == "ppo" else 0.2)


@pytest.mark.exhaustive
def test_the_critic_sums_rewards_until_a_termination():
    config = PPO.replace(gamma=0.9)
    algo, config, state, _ = solve("ppo", "probe/Episode-v0", config, factor=200 / 150, limit=3)
    obs, expected = [[0.0], [1 / 3], [2 / 3]], [1 + 0.9 + 0.81, 1 + 0.9, 1.0]
    assert value(algo, config, state, obs) == pytest.approx(expected, rel=0.03)


def time_limited_value():
    """Return the value of one state: 10, by reward 1 a step, gamma 0.9 and a limit of 5 steps."""
    config = PPO.replace(gamma=0.9, learning_rate=1e-2)
    algo, config, state, _ = solve("ppo", "probe/TimeLimit-v0", config, factor=0.5, limit=5)
    return value(algo, config, state, [[0.0]])[0]


def test_a_time_limit_is_not_a_death_for_ppo():
    assert time_limited_value() == pytest.approx(10.0, rel=0.02)


@pytest.mark.exhaustive
def test_taking_a_time_limit_for_a_death_would_be_noticed(monkeypatch):
    right = ppo_module.returns.generalized_advantages

    def wrong(rewards, values, last_value, terminated, truncated, gamma, gae_lambda):
        ended = terminated | truncated
        return right(rewards, values, last_value, ended, truncated, gamma, gae_lambda)

    monkeypatch.setattr(ppo_module.returns, "generalized_advantages", wrong)
    assert time_limited_value() < 6.0


# --- memory --------------------------------------------------------------------------------------

MEMORY = {"core": "gru", "core_size": 16, "hidden_sizes": (16,)}
SMALL_PPO = PPO.replace(num_minibatches=2, entropy_coef=0.01, hidden_sizes=(16,))
REMEMBERING = {
    "ppo": Learner(jaxrl.ppo, SMALL_PPO.replace(**MEMORY), 100),
    "a2c": Learner(jaxrl.a2c, A2C.replace(**MEMORY, learning_rate=3e-3), 1500),
    "impala": Learner(
        jaxrl.impala, IMPALA.replace(**MEMORY | {"core": "lstm"}, learning_rate=3e-3), 1500
    ),
    "pqn": Learner(jaxrl.pqn, PQN.replace(**MEMORY, num_minibatches=2, final_epsilon=0.1), 300),
    "r2d2": Learner(jaxrl.r2d2, R2D2, 400),
}


def recall_score(learner: Learner) -> float:
    """Mean return of the greedy policy on a probe where chance, or no memory, gets 1/2."""
    algo = learner.make(jaxrl.make("probe/Recall-v0", num_envs=16, limit=4))
    config = learner.config.replace(anneal_updates=learner.num_updates)
    state, _ = train(algo, config, jax.random.key(1), learner.num_updates)
    evaluate = jax.jit(jaxrl.evaluate, static_argnums=(0, 3, 5, 6))
    env = algo.env.for_evaluation(256)
    scores = evaluate(algo, config, state, env, jax.random.key(2), 1, True)
    return float(scores.episode_return.mean())


@few_in_every_run("ppo", "r2d2", of=REMEMBERING)
def test_a_memory_recalls_what_was_seen(name):
    assert recall_score(REMEMBERING[name]) >= 0.95


@pytest.mark.exhaustive
def test_without_a_memory_recall_is_chance():
    assert recall_score(Learner(jaxrl.ppo, SMALL_PPO, 200)) == pytest.approx(0.5, abs=0.12)


# --- CartPole ------------------------------------------------------------------------------------

SEEDS = {"pqn": 2, "r2d2": 1}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["pqn", "r2d2"])
def test_cartpole_is_solved_by_every_seed(name):
    """Mean return >= 450 of the greedy policy over 32 whole episodes, at one of ten times within
    the steps allowed: policies of Q-learning come and go. Presets that are defaults have the next
    test."""
    cartpole = PRESETS[name]["cartpole"]
    algo = LEARNERS[name].make(jaxrl.make("CartPole-v1", num_envs=cartpole.num_envs))
    num_updates = cartpole.total_steps // (cartpole.num_envs * algo.num_steps(cartpole.config))
    config = cartpole.config.replace(anneal_updates=num_updates)
    num_parts = 10

    @jax.jit
    @jax.vmap
    def learn(key, state):
        update = lambda state, _: algo.update(config, state)  # noqa: E731
        state, _ = jax.lax.scan(update, state, length=num_updates // num_parts)
        env = algo.env.for_evaluation(32)
        scores = jaxrl.evaluate(algo, config, state, env, key, 1, greedy=True)
        return state, scores.episode_return.mean()

    keys = jax.random.split(jax.random.key(0), SEEDS[name])
    states = jax.jit(jax.vmap(lambda key: algo.init(config, key)))(keys)
    scores = np.zeros((0, SEEDS[name]))
    while len(scores) < num_parts and not (scores >= 450).any(0).all():
        states, score = learn(keys, states)
        scores = np.vstack([scores, score])
    assert (scores >= 450).any(0).all(), scores


@pytest.mark.parametrize(
    ("name", "is_preset"),
    [
        ("ppo", False),
        *(
            pytest.param(name, False, marks=pytest.mark.exhaustive)
            for name in ("a2c", "impala", "pqn", "dqn")
        ),
        pytest.param("ppo", True, marks=pytest.mark.exhaustive),
    ],
)
def test_cartpole_is_solved_for_five_of_five_seeds_in_one_program(name, is_preset):
    """Mean return >= 475 over 100 episodes, at one of five times within 500k steps, by default and
    preset."""
    cartpole = PRESETS[name]["cartpole"]
    num_envs = cartpole.num_envs if is_preset else 8
    algo = LEARNERS[name].make(jaxrl.make("CartPole-v1", num_envs=num_envs))
    config = cartpole.config if is_preset else algo.config_class()
    num_updates = 500_000 // (num_envs * config.num_steps) + 1
    config = config.replace(anneal_updates=num_updates if is_preset else 0)
    num_parts = 5

    @jax.jit
    @jax.vmap
    def learn(state):
        update = lambda state, _: algo.update(config, state)  # noqa: E731
        return jax.lax.scan(update, state, length=num_updates // num_parts)

    keys = jax.random.split(jax.random.key(0), 5)
    states = jax.jit(jax.vmap(lambda key: algo.init(config, key)))(keys)
    means = np.zeros((0, 5))
    while len(means) < num_parts and not (means >= 475).any(0).all():
        states, metrics = learn(states)
        counts = np.cumsum(metrics["episode_count"][:, ::-1], axis=1)
        sums = np.cumsum(metrics["episode_return_sum"][:, ::-1], axis=1)
        last = (counts < 100).sum(axis=1)[:, None]
        mean = np.take_along_axis(sums, last, 1) / np.take_along_axis(counts, last, 1)
        means = np.vstack([means, mean[:, 0]])
    assert (means >= 475).any(0).all(), means
