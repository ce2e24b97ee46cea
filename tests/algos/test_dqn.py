"""DQN: n-step transitions out of the replay against rows walked one by one, targets, schedules."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_algorithms import algorithm, same, train

import jaxrl
from jaxrl.algos import dqn as dqn_module
from jaxrl.algos import epsilon_greedy, q_learning
from jaxrl.device_axis import SINGLE_DEVICE, Axis
from jaxrl.networks import heads
from jaxrl.replay.transitions import Batch
from jaxrl.spaces import Discrete


@pytest.mark.parametrize("double", [False, True])
def test_targets_are_those_of_the_papers(double):
    rng = np.random.default_rng(0)
    online, target = rng.normal(size=(2, 8, 3))
    batch = Batch(
        obs=jnp.zeros((8, 1)),
        action=jnp.zeros(8, jnp.int32),
        reward=jnp.asarray(rng.normal(size=8)),
        discount=jnp.asarray(rng.choice([0.0, 0.9], 8)),
        last_obs=jnp.zeros((8, 1)),
        valid=jnp.ones(8),
    )
    values = {"online": jnp.asarray(online), "target": jnp.asarray(target)}
    config = jaxrl.DQNConfig(double=double)
    found = dqn_module.q_targets(config, lambda name, _: values[name], "online", "target", batch)
    best = (online if double else target).argmax(1)
    expected = batch.reward + batch.discount * target[np.arange(8), best]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("huber", "expected"), [(True, 0.5 * 0.5**2 + 0.5 * 2.5), (False, 0.5**2 + 0.5 * 3.0**2)]
)
def test_the_loss_is_huber_or_squared_over_valid_transitions(huber, expected):
    config = jaxrl.DQNConfig(huber=huber)
    value, target = jnp.asarray([0.0, 0.0, 0.0]), jnp.asarray([0.5, -3.0, 100.0])
    valid = jnp.asarray([1.0, 1.0, 0.0])
    weights = jnp.asarray([1.0, 0.5, 1.0]) * valid
    loss, _ = dqn_module.loss(config, value, target, weights, valid)
    assert float(loss) == pytest.approx(expected / 2)


def on_cartpole(name: str) -> Any:
    return algorithm(name, num_envs=4)


def small(**fields: Any) -> Any:
    base: dict[str, Any] = {
        "num_steps": 2,
        "replay_size": 400,
        "num_gradient_steps": 1,
        "batch_size": 8,
        "n_step": 1,
        "learning_rate": 1e-4,
        "hidden_sizes": (8,),
        "layer_norm": False,
    }
    return jaxrl.DQNConfig(**(base | {"learning_starts": 40, "target_period": 5.0} | fields))


def trained(num_updates: int, **fields: Any) -> Any:
    return train(on_cartpole("dqn"), small(**fields), jax.random.key(0), num_updates)


def test_continuous_actions_are_refused_whatever_the_network():
    algo = jaxrl.dqn(jaxrl.make("Pendulum-v1", num_envs=2), jaxrl.networks.QHead(3))
    config = jaxrl.DQNConfig(replay_size=100)
    state = jax.jit(algo.init)(config, jax.random.key(0))
    with pytest.raises(ValueError, match="Q-learning needs Discrete actions, got the space Box"):
        algo.update(config, state)


def test_random_actions_are_uniform_over_those_not_forbidden():
    forbidden = heads.MASKED_LOGIT
    values = [[0.0, 1, 2], [forbidden, 3, 2], [forbidden, forbidden, -5], [-jnp.inf, 0, -jnp.inf]]
    values = jnp.tile(jnp.array(values), (3000, 1))
    draw = epsilon_greedy.exploration_noise(Discrete(3), len(values), 1.0)
    actions = np.asarray(epsilon_greedy.explore(values, draw(jax.random.key(0)))).reshape(-1, 4).T
    shares = [np.bincount(row, minlength=3) / len(row) for row in actions]
    expected = [[1 / 3, 1 / 3, 1 / 3], [0, 0.5, 0.5], [0, 0, 1], [0, 1, 0]]
    np.testing.assert_allclose(shares, expected, atol=0.04)
    for share, wanted in zip(shares, expected, strict=True):
        assert (share[np.array(wanted) == 0] == 0).all()
    never = epsilon_greedy.exploration_noise(Discrete(3), len(values), 0.0)(jax.random.key(0))
    greedy = np.asarray(epsilon_greedy.explore(values, never)).reshape(-1, 4)
    np.testing.assert_array_equal(greedy, np.tile([2, 1, 2, 1], (3000, 1)))


def test_epsilon_falls_over_the_exploration_steps():
    config, algo = small(exploration_steps=32.0, final_epsilon=0.2), on_cartpole("dqn")
    state, update = jax.jit(algo.init)(config, jax.random.key(0)), jax.jit(algo.update)
    for epsilon in (1, 0.8, 0.6, 0.4, 0.2, 0.2):
        state, metrics = update(config, state)
        np.testing.assert_allclose(metrics["epsilon"], epsilon, rtol=1e-5)


@pytest.mark.parametrize("name", ["dqn", pytest.param("r2d2", marks=pytest.mark.exhaustive)])
def test_learning_goes_on_past_what_32_bits_count(name):
    algo = on_cartpole(name)
    fields = {"num_steps": 2, "replay_size": 400, "batch_size": 4, "hidden_sizes": (8,)}
    if name == "r2d2":
        fields |= {"core_size": 8, "burn_in": 2, "unroll_length": 2, "n_step": 1}
    config = algo.config_class(learning_starts=40, **fields)
    state, update = jax.jit(algo.init)(config, jax.random.key(0)), jax.jit(algo.update)
    for _ in range(20):
        state, _ = update(config, state)
    state = state._replace(num_updates=jnp.int32(2**28 - 2))  # of 8 steps each
    for _ in range(3):
        state, metrics = update(config, state)
        assert int(metrics["gradient_steps"]) == config.num_gradient_steps


@pytest.mark.parametrize("period", [5.0, 4.6])  # a search may draw any number
def test_the_target_network_is_copied_every_period(period):
    config, algo = small(target_period=period), on_cartpole("dqn")
    state, update = jax.jit(algo.init)(config, jax.random.key(0)), jax.jit(algo.update)
    for num_updates in range(1, 12):
        state, _ = update(config, state)
        # Nothing is learned before the fifth.
        is_copied = num_updates < 5 or num_updates % 5 == 0
        assert same(state.params, state.target_params) == is_copied


def test_the_learning_rate_falls_to_zero_after_the_annealed_updates():
    config, algo = small(anneal_updates=6), on_cartpole("dqn")
    state, update = jax.jit(algo.init)(config, jax.random.key(0)), jax.jit(algo.update)
    changed = []
    for _ in range(8):
        before = state.params
        state, _ = update(config, state)
        changed.append(not same(before, state.params))
    assert changed == [False] * 4 + [True] * 2 + [False] * 2


def test_only_rows_that_can_be_learned_from_have_priority():
    n_step = 3
    state, _ = trained(60, n_step=n_step, prioritized=True)  # 120 rows, the ring holds 100
    slots = (int(state.replay.num_added) - 1 - np.arange(100)) % 100
    priorities = np.asarray(state.priorities)[slots]  # the newest row first
    assert (priorities[:n_step] == 0).all()
    assert (priorities[n_step:] > 0).mean() > 0.8
    first = np.asarray(state.replay.rows.first)[slots]
    # New rows have what was the largest priority then, which is about the largest now.
    sampled_dead = (priorities[1:] < 0.99 * float(state.max_priority)) & first[:-1]
    assert (priorities[1:][sampled_dead] == 0).all()


def test_what_is_drawn_of_nothing_has_no_weight():
    config, key = jaxrl.DQNConfig(batch_size=4), jax.random.key(0)
    draw = jax.jit(functools.partial(q_learning.draw_by_priority, config, SINGLE_DEVICE))
    for priorities, weight in ((jnp.zeros((5, 2)), 0), (jnp.ones((5, 2)), 1)):
        *_, weights = draw(priorities, key)
        np.testing.assert_array_equal(weights, weight)


def test_devices_draw_equal_shares_whose_weights_correct_for_it():
    config = jaxrl.DQNConfig(batch_size=64, importance_exponent=0.5)
    priorities = np.random.default_rng(0).uniform(0.1, 1, (2, 5, 3)) * [[[1.0]], [[9.0]]]
    key, axis = jax.random.key(0), Axis("devices", 2)

    @jax.jit
    @functools.partial(jax.vmap, axis_name="devices")
    def draw(own):
        return q_learning.draw_by_priority(config, axis, own, key)

    rows, envs, weights = draw(jnp.asarray(priorities, jnp.float32))
    assert rows.shape == (2, 32)
    assert (rows[0] != rows[1]).any()  # devices have keys of their own
    share = np.take_along_axis(priorities.reshape(2, -1), np.asarray(rows * 3 + envs), 1)
    expected = (15 * share / priorities.sum((1, 2))[:, None]) ** -0.5
    np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-5)


def test_a_network_with_a_memory_is_refused_by_name():
    env = jaxrl.make("CartPole-v1", num_envs=2)
    config = jaxrl.R2D2Config(core_size=4)
    network = jaxrl.networks.q_network(env.observation_space, env.action_space, config)
    algo = jaxrl.dqn(env, network)
    with pytest.raises(ValueError, match=r"DQN has no memory, got .* Recurrent; use jaxrl.r2d2"):
        algo.init(jaxrl.DQNConfig(replay_size=100), jax.random.key(0))
