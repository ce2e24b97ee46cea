"""A masked transition that is infinite changes neither a loss nor its gradient nor its metrics."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algos import a2c, dqn, impala, ppo, r2d2
from jaxrl.algos.actor_critic import PolicyExtras
from jaxrl.ops.distributions import Categorical, DiagonalNormal
from jaxrl.replay.sequences import Row
from jaxrl.replay.transitions import Batch
from jaxrl.types import Inputs, Trajectory

T, N, A = 4, 3, 2
MASKED = (2, 1)  # the transition from the last observation of an episode to the next episode


def numbers(name: str, bad: float, shape: tuple[int, ...] = (T, N)) -> Any:
    """Return random numbers; `bad` ones at the masked transition."""
    rng = np.random.default_rng(sum(map(ord, name)))
    x = rng.normal(size=shape).astype(np.float32)
    x[MASKED] = bad
    return jnp.asarray(x)


def rollout(bad: float, action: Any) -> Trajectory:
    terminated = np.zeros((T, N), bool)
    terminated[MASKED[0] - 1, MASKED[1]] = True
    valid = np.ones((T, N), bool)
    valid[MASKED] = False
    first = np.concatenate([np.zeros((1, N), bool), ~valid[:-1]])
    inputs = Inputs(jnp.zeros((T, N)), jnp.asarray(first), action, jnp.zeros((T, N)))
    return Trajectory(
        inputs,
        action,
        numbers("reward", bad),
        jnp.asarray(terminated),
        jnp.zeros((T, N), bool),
        jnp.asarray(valid),
        PolicyExtras(numbers("log_prob", bad), numbers("value", bad)),
    )


def ppo_loss(outputs, bad, make, action):
    config = jaxrl.PPOConfig(clip_value=True)
    parts = (numbers(name, bad) for name in ("old", "advantage", "target"))
    batch = ppo.Batch(rollout(bad, action), *parts, core=())
    return ppo.loss(config, make(outputs), outputs["value"], batch)


def a2c_loss(outputs, bad, make, action):
    config, trajectory = jaxrl.A2CConfig(num_steps=T, log_eps=1e-6), rollout(bad, action)
    last_value = numbers("last", 0.0)[0]
    value = outputs["value"]
    advantage = a2c.advantages(config, trajectory, jax.lax.stop_gradient(value), last_value)
    return a2c.loss(config, make(outputs), value, advantage, trajectory, jnp.int32(0))


def impala_loss(outputs, bad, make, action):
    config, last_value = jaxrl.ImpalaConfig(num_steps=T), numbers("last", 0.0)[0]
    return impala.loss(config, make(outputs), outputs["value"], last_value, rollout(bad, action))


def categorical(outputs):
    return Categorical(outputs["loc"])


def normal(outputs):
    return DiagonalNormal(outputs["loc"], outputs["log_scale"])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 3e38])
@pytest.mark.parametrize("make", [categorical, normal])
@pytest.mark.parametrize("loss", [ppo_loss, a2c_loss, impala_loss])
def test_of_algorithms_that_learn_from_rollouts(loss, make, bad):
    rng = np.random.default_rng(0)
    discrete = make is categorical
    action = rng.integers(0, A, (T, N)) if discrete else rng.normal(size=(T, N, A))
    action = jnp.asarray(action, jnp.int32 if discrete else jnp.float32)

    def gradient(bad):
        outputs = {name: numbers(name, bad, (T, N, A)) for name in ("loc", "log_scale")}
        outputs["value"] = numbers("value", bad)
        return jax.grad(loss, has_aux=True)(outputs, bad, make, action)

    # A standard deviation of exp(3e38) is no finite distribution.
    bad = np.inf if bad == 3e38 and not discrete else bad
    assert_same(gradient(bad), gradient(0.5))


def assert_same(found: Any, expected: Any) -> None:
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
                 found, expected)  # fmt: skip
    assert any((x != 0).any() for x in jax.tree.leaves(found[0]))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 3e38])
@pytest.mark.parametrize("huber", [True, False])
def test_of_dqn(huber, bad):
    config, valid = jaxrl.DQNConfig(huber=huber), jnp.asarray([1.0, 0.0, 1.0])

    def gradient(bad):
        value, target = jnp.asarray([1.0, bad, 2.0]), jnp.asarray([3.0, -bad, 2.5])
        weights = jnp.ones(3) * valid
        return jax.grad(
            lambda value: dqn.loss(config, value, target, weights, valid), has_aux=True
        )(value)

    assert_same(gradient(bad), gradient(0.5))


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_dqn_looks_at_no_value_after_a_termination(bad):
    batch = Batch(jnp.zeros(2), jnp.zeros(2, jnp.int32), jnp.ones(2), jnp.asarray([0.0, 0.9]),
                  jnp.zeros(2), jnp.ones(2))  # fmt: skip
    values = jnp.asarray([[bad, bad], [2.0, 1.0]])
    found = dqn.q_targets(jaxrl.DQNConfig(), lambda params, obs: values, (), (), batch)
    np.testing.assert_allclose(found, [1.0, 1.0 + 0.9 * 2.0], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 3e38])
def test_of_r2d2(bad):
    config = jaxrl.R2D2Config(n_step=2, gamma=0.9)
    trajectory = rollout(0.0, jnp.zeros((T, N), jnp.int32))
    rng = np.random.default_rng(0)
    plain, target_values = rng.normal(size=(2, T, N, A)).astype(np.float32)
    # Row t is masked if row t + 1 is the first of an episode.
    assert bool(trajectory.inputs.first[MASKED[0] + 1, MASKED[1]])

    def gradient(bad):
        values = jnp.asarray(plain).at[MASKED].set(bad)
        reward = jnp.asarray(trajectory.reward).at[MASKED].set(bad)
        rows = Row(
            trajectory.inputs, trajectory.action, reward, trajectory.terminated,
            trajectory.terminated,
        )  # fmt: skip
        target = jnp.asarray(target_values).at[MASKED].set(bad)
        return jax.grad(
            lambda values: r2d2.loss(config, values, target, rows, jnp.ones(N)), has_aux=True
        )(values)

    assert_same(gradient(bad), gradient(0.5))
