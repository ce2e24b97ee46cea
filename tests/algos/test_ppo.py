"""PPO: its loss against NumPy, and what only its config has."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl
from jaxrl.algos import ppo as ppo_module
from jaxrl.algos.actor_critic import PolicyExtras
from jaxrl.algos.ppo import Batch
from jaxrl.ops.distributions import Categorical, DiagonalNormal
from jaxrl.types import Trajectory

NOTHING: Any = None


def small_config(**changes):
    return jaxrl.PPOConfig(num_steps=16, num_minibatches=2, num_epochs=2, **changes)


def acted(action, valid, log_prob):
    """Return a rollout with the fields that the loss reads."""
    extras = PolicyExtras(log_prob, NOTHING)
    return Trajectory(NOTHING, action, NOTHING, NOTHING, NOTHING, valid, extras)


def reference_loss(config, logits, value, batch):
    """Return the loss of the paper, a row at a time, over the valid rows alone."""
    rows = [i for i in range(len(value)) if batch.trajectory.valid[i]]
    advantage = np.array([batch.advantage[i] for i in rows], np.float64)
    if config.normalize_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_losses, value_losses, entropies = [], [], []
    for a, i in zip(advantage, rows, strict=True):
        probs = np.exp(logits[i] - np.log(np.exp(logits[i]).sum()))
        ratio = probs[batch.trajectory.action[i]] / np.exp(batch.trajectory.extras.log_prob[i])
        eps = config.clip_epsilon
        policy_losses.append(-min(ratio * a, min(max(ratio, 1 - eps), 1 + eps) * a))
        error = (value[i] - batch.target[i]) ** 2
        if config.clip_value:
            near = batch.value[i] + min(max(value[i] - batch.value[i], -eps), eps)
            error = max(error, (near - batch.target[i]) ** 2)
        value_losses.append(error / 2)
        entropies.append(-(probs * np.log(probs)).sum())
    return (
        np.mean(policy_losses)
        + config.value_coef * np.mean(value_losses)
        - config.entropy_coef * np.mean(entropies)
    )


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([2, 5, 12]),  # few, since each compiles
    clip_value=st.booleans(),
    normalize=st.booleans(),
    scale=st.sampled_from([1.0, 1e-6]),
)
def test_loss_equals_a_row_by_row_reference_over_valid_rows(
    seed, size, clip_value, normalize, scale
):
    rng = np.random.default_rng(seed)
    valid = rng.random(size) < 0.7
    valid[0] = valid[1] = True
    action, log_prob = rng.integers(0, 3, size), np.log(rng.uniform(0.1, 0.9, size))
    batch = Batch(
        acted(action, valid, log_prob),
        value=rng.normal(size=size),
        advantage=scale * rng.normal(size=size),
        target=rng.normal(size=size),
        core=(),
    )
    logits, value = rng.normal(size=(size, 3)), rng.normal(size=size)
    config = jaxrl.PPOConfig(
        value_coef=0.7, entropy_coef=0.03, clip_value=clip_value, normalize_advantages=normalize
    )
    as_jax = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), batch)
    loss, _ = ppo_module.loss(config, Categorical(jnp.asarray(logits)), jnp.asarray(value), as_jax)
    assert float(loss) == pytest.approx(
        reference_loss(config, logits, value, batch), rel=2e-4, abs=1e-6
    )


def test_loss_of_a_normal_policy_uses_its_density():
    config = jaxrl.PPOConfig(normalize_advantages=False, value_coef=0.0, entropy_coef=0.0)
    one = jnp.ones(1)
    batch = Batch(acted(jnp.zeros((1, 2)), one, jnp.zeros(1)), one, one, one, ())
    loss, _ = ppo_module.loss(config, DiagonalNormal(jnp.zeros((1, 2)), jnp.zeros(2)), one, batch)
    assert float(loss) == pytest.approx(-1 / (2 * np.pi))


def test_rollouts_that_do_not_split_into_minibatches_are_refused_by_name():
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=3))
    with pytest.raises(ValueError, match=r"3 \* 16 = 48 .*num_minibatches = 5"):
        algo.init(jaxrl.PPOConfig(num_steps=16, num_minibatches=5), jax.random.key(0))


@pytest.mark.exhaustive
def test_target_kl_stops_the_epochs():
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4))
    config = small_config(learning_rate=1e-1).replace(num_epochs=10)
    state = jax.jit(algo.init)(config, jax.random.key(0))
    update = jax.jit(algo.update)
    _, stopped = update(config.replace(target_kl=1e-4), state)
    _, loose = update(config.replace(target_kl=1e9), state)
    assert int(loose["epochs"]) == 10
    assert 1 <= int(stopped["epochs"]) < 10


def test_training_can_be_differentiated_by_hyperparameters():
    """The actions of the first rollout do not depend on the rate, so its loss has no jumps."""
    algo = jaxrl.ppo(jaxrl.make("probe/Contextual-v0", num_envs=4))

    def last_loss(rate):
        config = small_config().replace(learning_rate=rate)
        return jaxrl.train(algo, config, jax.random.key(0), 1)[1]["value_loss"][-1]

    loss_and_slope = jax.jit(jax.value_and_grad(last_loss))
    _, slope = loss_and_slope(1e-3)
    high, low = (loss_and_slope(rate)[0] for rate in (1.2e-3, 0.8e-3))
    assert float(slope) == pytest.approx(float(high - low) / 0.4e-3, rel=0.05)
    assert float(slope) != 0


def test_any_flax_module_can_be_the_network():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, obs):
            x = nn.relu(nn.Dense(8)(obs))
            return Categorical(nn.Dense(2)(x)), nn.Dense(1)(x)[:, 0]

    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=2), Network())
    state = jax.eval_shape(algo.init, small_config(), jax.random.key(0))
    state, _ = jax.eval_shape(algo.update, small_config(), state)
    assert state.params["params"]["Dense_0"]["kernel"].shape == (4, 8)


def test_a_surrogate_may_be_a_partial_function():
    def powered(config, ratio, advantage, power):
        return ratio**power * advantage

    env = jaxrl.make("CartPole-v1", 2)
    assert jaxrl.ppo(env, surrogate=functools.partial(powered, power=2)).name == "powered"
    assert jaxrl.ppo(env).name == "ppo"


@pytest.mark.parametrize(
    "reduced",
    [lambda x: x.mean(), lambda x: x[:, :, None], lambda x: None],
    ids=["mean", "axis", "none"],
)
def test_a_surrogate_gives_a_number_for_each_transition(reduced):
    env, config = jaxrl.make("CartPole-v1", 2), small_config()
    algo = jaxrl.ppo(env, surrogate=lambda config, ratio, advantage: reduced(ratio * advantage))
    state = jax.eval_shape(algo.init, config, jax.random.key(0))
    with pytest.raises(ValueError, match=r"result of surrogate must be .* an array \[1, 16\], got"):
        jax.eval_shape(algo.update, config, state)
    with pytest.raises(ValueError, match="surrogate must be a function, got None"):
        jaxrl.ppo(env, surrogate=NOTHING)
