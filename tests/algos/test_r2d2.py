"""R2D2: sequences out of the replay, burn-in, targets against a walk of the rows, priorities."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_algorithms import network_of, train

import jaxrl
from jaxrl.algos import r2d2 as r2d2_module
from jaxrl.replay import sequences
from jaxrl.replay.sequences import Row

SMALL: dict[str, Any] = {
    "core_size": 4, "hidden_sizes": (4,), "num_steps": 3, "burn_in": 2, "unroll_length": 5,
    "n_step": 2, "batch_size": 4, "replay_size": 60, "learning_starts": 0,
}  # fmt: skip


def random_rows(seed: int, length: int, size: int) -> Row:
    """Rows `[length, size]` with ends and the dead steps after them."""
    rng = np.random.default_rng(seed)
    terminated, truncated, first = np.zeros((3, length, size), bool)
    for n in range(size):
        for t in range(length):
            if t and (terminated | truncated)[t - 1, n] and not first[t - 1, n]:
                continue  # the dead step: its transition leads to a first observation
            if t > 1 and (terminated | truncated)[t - 2, n]:
                first[t, n] = True
            terminated[t, n] = rng.random() < 0.15
            truncated[t, n] = not terminated[t, n] and rng.random() < 0.15
    action = rng.integers(0, 3, (length, size))
    reward = rng.normal(size=(length, size))
    inputs = jaxrl.Inputs(*(jnp.asarray(x) for x in (reward, first, action, reward)))
    return Row(inputs, *(jnp.asarray(x) for x in (action, reward, terminated)),
               ended=jnp.asarray(terminated | truncated))  # fmt: skip


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_targets_are_those_of_rows_walked_one_by_one(seed, rescale):
    length, size, n_step, gamma = 9, 4, 3, 0.9
    config = jaxrl.R2D2Config(n_step=n_step, gamma=gamma, rescale_values=rescale)
    rng = np.random.default_rng(100 + seed)
    online, target = rng.normal(size=(2, length + 1, size, 3)).astype(np.float32)
    rows = random_rows(seed, length + 1, size)
    found = r2d2_module.targets(config, jnp.asarray(online), jnp.asarray(target), rows)
    valid = ~np.asarray(rows.inputs.first[1:])
    for t, n in zip(*np.nonzero(valid), strict=True):
        total, discount, k = 0.0, 1.0, int(t)
        while True:
            total += discount * float(rows.reward[k, n])
            discount *= gamma
            k += 1
            if rows.ended[k - 1, n] or k == t + n_step or k == length:
                break
        if not rows.terminated[k - 1, n]:
            value = target[k, n, online[k, n].argmax()]
            if rescale:
                value = np.sign(value) * ((np.sqrt(1 + 4e-3 * (abs(value) + 1 + 1e-3)) - 1) ** 2
                                          / 4e-6 - 1)  # fmt: skip
            total += discount * value
        if rescale:
            total = np.sign(total) * (np.sqrt(abs(total) + 1) - 1) + 1e-3 * total
        assert float(found[t, n]) == pytest.approx(total, rel=2e-3, abs=2e-3)


def trained(num_updates: int, **fields: Any) -> Any:
    algo = jaxrl.r2d2(jaxrl.make("CartPole-v1", num_envs=3))
    config = jaxrl.R2D2Config(**(SMALL | fields))
    return algo, config, train(algo, config, jax.random.key(0), num_updates)[0]


def test_a_sequence_continues_the_memory_it_was_acted_with():
    algo, config, state = trained(9, learning_rate=0.0)
    network = network_of(algo, config)
    rollouts, envs = jnp.asarray([3, 4]), jnp.asarray([0, 2])
    layout = r2d2_module.layout_of(config)
    found = sequences.read(layout, state.replay, state.cores, rollouts, envs)
    inputs = jax.tree.map(lambda x: x[: config.num_steps], found.rows.inputs)
    core, _ = jaxrl.networks.recurrent.apply(network, state.params, found.core, inputs)
    expected = jax.tree.map(lambda ring: ring[rollouts + 1, envs], state.cores.rows)
    for a, b in zip(jax.tree.leaves(core), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_no_gradient_flows_through_the_burn_in():
    config = jaxrl.R2D2Config(burn_in=2, unroll_length=3)

    def apply(weight, core, inputs):
        outputs = weight * inputs.obs + core
        return core + weight * inputs.obs.sum(0), outputs

    def total(weight, burn_in):
        batch = sequences.Sequences(
            Row(
                jaxrl.Inputs(jnp.ones((6, 1)), *(jnp.zeros((6, 1)),) * 3), *(jnp.zeros((6, 1)),) * 4
            ),
            jnp.zeros(1),
        )
        return r2d2_module.values_after_burn_in(
            config.replace(burn_in=burn_in), apply, weight, batch
        ).sum()

    assert float(jax.grad(total)(1.0, 2)) == 4.0  # the 4 outputs after it, each weight * 1
    assert float(total(1.0, 2)) == 4.0 + 4 * 2.0


def test_priorities_mix_the_largest_and_the_mean_error():
    config = jaxrl.R2D2Config(priority_max_share=0.9, rescale_values=False, gamma=0.0)
    values = jnp.zeros((3, 2, 2))
    no = jnp.zeros((3, 2), bool)
    rows = Row(
        inputs=jaxrl.Inputs(no, no.at[2, 1].set(True), no, no),  # the second's last step is dead
        action=jnp.zeros((3, 2), jnp.int32),
        reward=jnp.asarray([[1.0, 2.0], [3.0, 7.0], [0.0, 0.0]]),
        terminated=no,
        ended=no.at[0, 1].set(True),
    )
    loss, (priority, _) = r2d2_module.loss(config, values, values, rows, jnp.asarray([1.0, 0.5]))
    np.testing.assert_allclose(priority, [0.9 * 3 + 0.1 * 2, 2.0], rtol=1e-6)
    assert float(loss) == pytest.approx((0.5 * (1 + 9) + 0.5 * 0.5 * 4) / 2)


def test_environments_explore_between_much_and_little():
    config = jaxrl.R2D2Config(epsilon_base=0.4, epsilon_exponent=8.0)
    epsilons = np.asarray(r2d2_module.epsilons(config, 8))
    np.testing.assert_allclose(epsilons, 0.4 ** np.linspace(1, 8, 8), rtol=1e-5)
    np.testing.assert_allclose(r2d2_module.epsilons(config, 1), [0.4], rtol=1e-6)


@pytest.mark.parametrize(("num_envs", "exponent"), [(1, 20.0), (3, 20.0), (3, 0.5)])
def test_acting_explores_with_the_smallest_epsilon_of_the_schedule(num_envs, exponent):
    algo = jaxrl.r2d2(jaxrl.make("CartPole-v1", num_envs=num_envs))
    config = jaxrl.R2D2Config(**SMALL, epsilon_base=0.9, epsilon_exponent=exponent)
    state, obs = jax.jit(algo.init)(config, jax.random.key(0)), jnp.zeros((5000, 4))
    _, greedy = algo.act(config, state, (), obs, jax.random.key(1), True)
    _, action = algo.act(config, state, (), obs, jax.random.key(1), False)
    # Half of the random actions are the greedy one.
    assert float((action != greedy).mean()) == pytest.approx(0.9 ** max(exponent, 1) / 2, abs=0.015)


def test_an_episode_whose_end_is_missing_is_cut_like_a_truncated_one():
    # A resumed run begins new episodes, while the replay still holds the rows of the old ones.
    config = jaxrl.R2D2Config(n_step=3, gamma=0.9)
    values, target_values = np.random.default_rng(1).normal(size=(2, 14, 4, 3)).astype(np.float32)
    rows = random_rows(0, 14, 4)
    assert (rows.ended & ~rows.terminated)[:-3].any()
    valid = ~np.asarray(rows.inputs.first[1:])
    targets = jax.jit(r2d2_module.targets)
    whole = targets(config, values, target_values, rows)
    cut = targets(config, values, target_values, rows._replace(ended=rows.terminated))
    np.testing.assert_array_equal(cut[valid], whole[valid])


def test_a_network_without_a_memory_is_refused_by_name():
    env = jaxrl.make("CartPole-v1", 2)
    network = jaxrl.networks.q_network(env.observation_space, env.action_space)
    with pytest.raises(ValueError, match=r"R2D2 needs .* memory, .*, got FeedForward; jaxrl.dqn"):
        jaxrl.r2d2(env, network).init(jaxrl.R2D2Config(**SMALL), jax.random.key(0))


def test_rollouts_longer_than_what_is_learned_of_them_are_refused():
    algo = jaxrl.r2d2(jaxrl.make("CartPole-v1", 2))
    config = jaxrl.R2D2Config(num_steps=11, unroll_length=10)
    with pytest.raises(ValueError, match=r"num_steps = 11 must be at most unroll_length = 10"):
        algo.init(config, jax.random.key(0))
