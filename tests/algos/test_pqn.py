"""PQN: targets against the paper's recursion and rlax, the loss, and one step of learning."""

import functools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rlax
from small_algorithms import CONFIGS, algorithm, network_of, start

import jaxrl
from jaxrl.algos import epsilon_greedy
from jaxrl.algos import pqn as pqn_module
from jaxrl.networks import recurrent


def trajectory(rng, length, num_envs, ends=True) -> Any:
    """Return a random rollout, with its largest action values as `extras`."""
    shape = length, num_envs
    ended = rng.random(shape) < 0.3 * ends
    terminated = ended & (rng.random(shape) < 0.5)
    first = np.concatenate([np.zeros((1, num_envs), bool), ended[:-1]])
    terminated, truncated = terminated & ~first, ended & ~terminated & ~first
    return types.SimpleNamespace(
        reward=rng.normal(size=shape).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=~first,
        extras=rng.normal(size=shape).astype(np.float32),
    )


def by_the_paper(rollout, last_value, gamma, trace_lambda):
    """Return the targets of valid rows by the recursion of the paper; others are arbitrary."""
    values = np.concatenate([rollout.extras, last_value[None]])
    targets = values.copy()
    for t in reversed(range(len(rollout.reward))):
        for n in range(rollout.reward.shape[1]):
            following = (1 - trace_lambda) * values[t + 1, n] + trace_lambda * targets[t + 1, n]
            if rollout.terminated[t, n]:
                following = 0.0
            if rollout.truncated[t, n]:  # the next row has the episode's last observation
                following = values[t + 1, n]
            targets[t, n] = rollout.reward[t, n] + gamma * following
    return targets[:-1]


@pytest.mark.parametrize("trace_lambda", [0.0, 0.65, 1.0])
def test_targets_follow_the_recursion_of_the_paper(trace_lambda):
    rng = np.random.default_rng(0)
    rollout, last_value = trajectory(rng, 12, 40), rng.normal(size=40).astype(np.float32)
    config = jaxrl.PQNConfig(gamma=0.9, trace_lambda=trace_lambda)
    found = np.asarray(pqn_module.lambda_returns(config, rollout, jnp.asarray(last_value)))
    expected = by_the_paper(rollout, last_value, 0.9, trace_lambda)
    assert rollout.terminated.any()
    assert rollout.truncated.any()
    np.testing.assert_allclose(found[rollout.valid], expected[rollout.valid], rtol=1e-4, atol=1e-5)


def test_targets_without_ends_are_those_of_rlax():
    rng = np.random.default_rng(1)
    rollout = trajectory(rng, 9, 1, ends=False)
    last_value = rng.normal(size=1).astype(np.float32)
    config = jaxrl.PQNConfig(gamma=0.95, trace_lambda=0.7, reward_scale=0.5)
    following = np.concatenate([rollout.extras[1:, 0], last_value])
    expected = rlax.lambda_returns(
        0.5 * rollout.reward[:, 0], np.full(9, 0.95, np.float32), following, 0.7
    )
    found = pqn_module.lambda_returns(config, rollout, jnp.asarray(last_value))[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_loss_is_half_the_squared_error_over_valid_transitions():
    q_values = jnp.array([[[1.0, 5.0], [2.0, 0.0], [jnp.inf, 0.0]]])
    action, target = jnp.array([[1, 0, 0]]), jnp.array([[4.0, 4.0, 0.0]])
    rollout: Any = types.SimpleNamespace(action=action, valid=jnp.array([[True, True, False]]))
    batch = pqn_module.Batch(rollout, target, ())

    def of(q_values):
        return pqn_module.loss(q_values, batch)

    loss, metrics = of(q_values)
    assert float(loss) == pytest.approx((0.5 * 1 + 0.5 * 4) / 2)
    assert float(metrics["q_value"]) == pytest.approx((5 + 2) / 2)
    assert float(metrics["td_error"]) == pytest.approx((1 + 2) / 2)
    gradient = np.asarray(jax.grad(lambda x: of(x)[0])(q_values))
    np.testing.assert_allclose(gradient, [[[0, 0.5], [-1, 0], [0, 0]]])


def test_one_epoch_of_one_minibatch_is_a_step_of_radam_towards_the_targets():
    name, algo = "pqn", algorithm("pqn")
    config = CONFIGS[name].replace(num_epochs=1, num_minibatches=1, max_grad_norm=0.1)
    state = start(name, config=config)
    after, metrics = jax.jit(algo.update)(config, state)
    collected = jax.jit(lambda: collect(algo, config, state))()
    optimizer = optax.chain(
        optax.clip_by_global_norm(0.1), optax.radam(config.learning_rate, eps=config.adam_eps)
    )
    gradient = jax.grad(mean_loss, 4)(algo, config, collected, state.params, state.params)
    updates, _ = optimizer.update(gradient, optimizer.init(state.params))
    expected = optax.apply_updates(state.params, updates)
    for found, wanted in zip(jax.tree.leaves(after.params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    assert int(metrics["gradient_steps"]) == 1
    assert float(metrics["epsilon"]) == 1.0


def collect(algo, config, state):
    """Return the simulation after an update's rollout, and the rollout."""
    _, rollout_key, _ = jax.random.split(state.key, 3)
    apply = functools.partial(recurrent.apply, network_of(algo, config))
    return epsilon_greedy.collect(
        algo.env, apply, state.params, 1.0, state.simulation, rollout_key, config.num_steps,
        extras_of=pqn_module.largest,
    )  # fmt: skip


def mean_loss(algo, config, collected, old_params, params):
    """Return half the mean squared error of a rollout's action values."""
    simulation, rollout = collected
    apply = functools.partial(recurrent.apply, network_of(algo, config))
    _, last = recurrent.apply_step(apply, old_params, (), simulation.inputs)
    on_host = jax.tree.map(np.asarray, rollout)
    target = by_the_paper(on_host, np.asarray(last.max(-1)), config.gamma, config.trace_lambda)
    _, q_values = apply(params, (), rollout.inputs)
    chosen = jnp.take_along_axis(q_values, rollout.action[..., None], -1)[..., 0]
    return 0.5 * jnp.mean((chosen - target) ** 2, where=rollout.valid)
