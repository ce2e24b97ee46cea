"""Distributions against distrax, and samples against their own probabilities."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.distributions import Categorical, DiagonalNormal

LEAD = (5, 3)


def random(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def categorical() -> tuple[Categorical, distrax.Distribution]:
    logits = 2 * random(0, *LEAD, 4) + 100  # unnormalized, far from 0
    return Categorical(logits), distrax.Categorical(logits)


def diagonal_normal(shared_scale: bool) -> tuple[DiagonalNormal, distrax.Distribution]:
    loc, log_scale = random(0, *LEAD, 2), random(1, *(() if shared_scale else LEAD), 2)
    scales = jnp.broadcast_to(jnp.exp(log_scale), loc.shape)
    return DiagonalNormal(loc, log_scale), distrax.MultivariateNormalDiag(loc, scales)


PAIRS = {
    "categorical": categorical,
    "diagonal_normal": lambda: diagonal_normal(False),
    "diagonal_normal_shared_scale": lambda: diagonal_normal(True),
}


@pytest.mark.parametrize("name", PAIRS)
def test_distributions_agree_with_distrax(name):
    ours, theirs = PAIRS[name]()
    action = theirs.sample(seed=jax.random.key(0))
    assert ours.log_prob(action).shape == ours.entropy().shape == LEAD
    np.testing.assert_allclose(ours.log_prob(action), theirs.log_prob(action), rtol=1e-4)
    np.testing.assert_allclose(ours.entropy(), theirs.entropy(), rtol=1e-4)
    np.testing.assert_allclose(ours.mode(), theirs.mode())


@pytest.mark.parametrize("name", PAIRS)
def test_log_prob_has_the_gradient_of_distrax(name):
    ours, theirs = PAIRS[name]()
    action = theirs.sample(seed=jax.random.key(0))

    def total(distribution, log_prob):
        return log_prob(distribution, action).sum()

    grads = jax.grad(total)(ours, lambda d, a: d.log_prob(a))
    if name == "categorical":
        expected = jax.grad(total)(ours, lambda d, a: distrax.Categorical(d.logits).log_prob(a))
    else:
        expected = jax.grad(total)(
            ours,
            lambda d, a: distrax.MultivariateNormalDiag(
                d.loc, jnp.broadcast_to(jnp.exp(d.log_scale), d.loc.shape)
            ).log_prob(a),
        )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), grads, expected
    )


@pytest.mark.parametrize("name", PAIRS)
def test_samples_have_the_shape_and_dtype_of_the_mode(name):
    ours, _ = PAIRS[name]()
    sample, mode = ours.sample(jax.random.key(0)), ours.mode()
    assert (sample.shape, sample.dtype) == (mode.shape, mode.dtype)
    assert mode.dtype == (jnp.int32 if name == "categorical" else jnp.float32)


def test_categorical_samples_come_as_often_as_they_should():
    probabilities = np.array([0.1, 0.2, 0.7])
    samples = Categorical(jnp.tile(jnp.log(probabilities), (20_000, 1))).sample(jax.random.key(0))
    frequencies = np.bincount(samples, minlength=3) / len(samples)
    np.testing.assert_allclose(frequencies, probabilities, atol=0.015)


def test_normal_samples_have_their_mean_and_scale():
    loc, scale = jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0])
    distribution = DiagonalNormal(jnp.tile(loc, (20_000, 1)), jnp.log(scale))
    samples = distribution.sample(jax.random.key(0))
    np.testing.assert_allclose(samples.mean(0), loc, atol=0.1)
    np.testing.assert_allclose(samples.std(0), scale, rtol=0.03)
    assert abs(np.corrcoef(samples.T)[0, 1]) < 0.03


def test_a_forbidden_action_is_never_taken_and_costs_no_nan():
    distribution = Categorical(jnp.tile(jnp.array([0.0, -1e9, 0.0]), (1000, 1)))
    samples = distribution.sample(jax.random.key(0))
    assert set(np.unique(samples)) == {0, 2}
    np.testing.assert_allclose(distribution.log_prob(samples), np.log(0.5), rtol=1e-5)
    np.testing.assert_allclose(distribution.entropy(), np.log(2), rtol=1e-5)
