"""A2C: its gradient by hand, its returns over several rollouts, GA3C's variants."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_algorithms import CONFIGS, algorithm, train

import jaxrl
from jaxrl.algos import a2c as a2c_module
from jaxrl.networks import recurrent
from jaxrl.ops.distributions import Categorical
from jaxrl.types import Inputs, Trajectory

T, N, D, ACTIONS = 4, 3, 2, 3


class Linear(nn.Module):
    """The smallest actor-critic: one matrix each."""

    @nn.compact
    def __call__(self, obs):
        logits = nn.Dense(ACTIONS, use_bias=False, name="policy")(obs)
        return Categorical(logits), nn.Dense(1, use_bias=False, name="value")(obs)[:, 0]


def random_trajectory(seed: int) -> tuple[Trajectory, np.ndarray]:
    """Return a rollout with a termination, a truncation and invalid steps, and the last values."""
    rng = np.random.default_rng(seed)
    terminated, truncated = np.zeros((2, T, N), bool)
    terminated[1, 0] = truncated[0, 1] = True
    valid = np.ones((T, N), bool)
    valid[1:] = ~(terminated | truncated)[:-1]
    obs = rng.normal(size=(T, N, D))
    first = np.concatenate([np.zeros((1, N), bool), ~valid[:-1]])
    action = rng.integers(0, ACTIONS, (T, N))
    reward = rng.normal(size=(T, N)) * valid
    inputs = Inputs(*(jnp.asarray(x) for x in (obs, first, action, reward)))
    rest = (jnp.asarray(x) for x in (action, reward, terminated, truncated, valid))
    return Trajectory(inputs, *rest, extras=()), rng.normal(size=N)


def gradient_by_hand(config: Any, params: Any, trajectory: Any, last_value: Any) -> Any:
    """Return the gradient of the loss in the module's docstring, a transition at a time."""
    policy, critic = (np.asarray(params["params"][k]["kernel"]) for k in ("policy", "value"))
    obs = np.asarray(trajectory.obs, np.float64)
    values = (obs @ critic)[..., 0]
    total = 1.0 if config.sum_losses else float(np.asarray(trajectory.valid).sum())
    d_policy, d_critic = np.zeros_like(policy, np.float64), np.zeros_like(critic, np.float64)
    for n in range(N):
        for t in range(T):
            if not trajectory.valid[t, n]:
                continue
            target, discount, k = 0.0, 1.0, t
            while True:
                target += discount * float(trajectory.reward[k, n])
                discount *= config.gamma
                if trajectory.terminated[k, n]:
                    break
                if trajectory.truncated[k, n] or k == T - 1:
                    target += discount * (values[k + 1, n] if k < T - 1 else last_value[n])
                    break
                k += 1
            advantage = target - values[t, n]
            logits = obs[t, n] @ policy
            probs = np.exp(logits) / np.exp(logits).sum()
            chosen = np.eye(ACTIONS)[int(trajectory.action[t, n])]
            entropy = -(probs * np.log(probs)).sum()
            d_entropy = -probs * (np.log(probs) + entropy)
            d_logits = -(chosen - probs) * advantage - config.entropy_coef * d_entropy
            d_policy += np.outer(obs[t, n], d_logits) / total
            d_critic[:, 0] -= config.value_coef * advantage * obs[t, n] / total
    return {"policy": d_policy, "value": d_critic}


@pytest.mark.parametrize("sum_losses", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_is_the_one_by_hand(seed, sum_losses):
    config = jaxrl.A2CConfig(
        num_steps=T, gamma=0.9, gae_lambda=1.0, value_coef=0.7, entropy_coef=0.3,
        sum_losses=sum_losses,
    )  # fmt: skip
    trajectory, last_value = random_trajectory(seed)
    network = Linear()
    params = network.init(jax.random.key(seed), jnp.zeros((1, D)))

    def objective(params):
        _, (distribution, value) = recurrent.apply(network, params, (), trajectory.inputs)
        advantage = a2c_module.advantages(
            config, trajectory, jax.lax.stop_gradient(value), jnp.asarray(last_value)
        )
        return a2c_module.loss(config, distribution, value, advantage, trajectory, jnp.int32(0))

    grads, _ = jax.grad(objective, has_aux=True)(params)
    expected = gradient_by_hand(config, params, trajectory, last_value)
    for name in expected:
        np.testing.assert_allclose(
            grads["params"][name]["kernel"], expected[name], rtol=2e-4, atol=1e-5
        )


def test_the_bounded_log_probability_is_that_of_the_formula():
    """GA3C's NetworkVP.py takes log(max(p, epsilon)) of the probabilities."""
    logits = jnp.asarray([[0.0, 1.0, -30.0], [2.0, 0.0, 1.0]])
    action = jnp.asarray([2, 0])
    probs = np.asarray(jax.nn.softmax(logits), np.float64)
    for log_eps in (1e-6, 0.1):
        log_prob, entropy = a2c_module.bounded(Categorical(logits), action, log_eps)
        chosen = probs[np.arange(2), np.asarray(action)]
        np.testing.assert_allclose(log_prob, np.log(np.maximum(chosen, log_eps)), rtol=1e-5)
        expected = -(probs * np.log(np.maximum(probs, log_eps))).sum(1)
        np.testing.assert_allclose(entropy, expected, rtol=1e-5)
    log_prob, entropy = a2c_module.bounded(Categorical(logits), action, 0.0)
    np.testing.assert_array_equal(log_prob, Categorical(logits).log_prob(action))
    np.testing.assert_allclose(entropy, Categorical(logits).entropy(), rtol=1e-6)


def test_a_bounded_probability_has_no_gradient_below_its_bound():
    def log_prob(logits):
        return a2c_module.bounded(Categorical(logits), jnp.asarray([1]), 0.1)[0].sum()

    assert (jax.grad(log_prob)(jnp.asarray([[9.0, 0.0]])) == 0).all()
    assert (jax.grad(log_prob)(jnp.asarray([[0.0, 0.0]])) != 0).all()


def test_the_bounded_log_probability_has_finite_gradients_for_certain_policies():
    def total(logits, log_eps):
        return sum(x.sum() for x in a2c_module.bounded(Categorical(logits), action, log_eps))

    action, logits = jnp.asarray([1]), jnp.asarray([[300.0, -300.0, 0.0]])
    for log_eps in (0.0, 1e-6):
        assert np.isfinite(jax.grad(total)(logits, log_eps)).all()


def test_the_entropy_coefficient_falls_to_its_final_value():
    config = CONFIGS["a2c"].replace(entropy_coef=0.1, final_entropy_coef=0.02, anneal_updates=4)
    _, metrics = train(algorithm("a2c"), config, jax.random.key(0), 6)
    expected = [0.1, 0.08, 0.06, 0.04, 0.02, 0.02]
    np.testing.assert_allclose(metrics["entropy_coef"], expected, rtol=1e-5)


def test_what_would_have_no_effect_is_refused():
    with pytest.raises(ValueError, match=r"final_entropy_coef = 0\.02 is reached after anneal_upd"):
        jaxrl.A2CConfig(final_entropy_coef=0.02)
