"""Distributions against distrax, and samples against their own probabilities."""

from typing import Any

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algos import a2c
from jaxrl.ops.distributions import Categorical, DiagonalNormal, JointCategorical, MultiCategorical

LEAD = (5, 3)
SIZES = (4, 1)


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


@pytest.mark.parametrize("least", [-1e9, -np.inf])
def test_a_forbidden_action_is_never_taken_and_costs_no_nan(least):
    logits = jnp.tile(jnp.array([0.0, least, 0.0]), (1000, 1))
    distribution = Categorical(logits)
    samples = distribution.sample(jax.random.key(0))
    assert set(np.unique(samples)) == {0, 2}
    np.testing.assert_allclose(distribution.log_prob(samples), np.log(0.5), rtol=1e-5)
    np.testing.assert_allclose(distribution.entropy(), np.log(2), rtol=1e-5)

    def objective(logits):
        distribution = Categorical(logits)
        log_prob, entropy = a2c.smoothed(distribution, samples, 0.1)
        return (distribution.log_prob(samples) + distribution.entropy() + log_prob + entropy).sum()

    assert np.isfinite(jax.grad(objective)(logits)).all()


def test_a_joint_categorical_is_a_categorical_over_combinations():
    logits = random(0, *LEAD, 6)
    joint, flat = JointCategorical(logits, (2, 3)), distrax.Categorical(logits)
    actions = jnp.asarray(np.random.default_rng(0).integers(0, (2, 3), (*LEAD, 2)))
    together = np.ravel_multi_index(tuple(np.moveaxis(np.asarray(actions), -1, 0)), (2, 3))
    np.testing.assert_allclose(joint.log_prob(actions), flat.log_prob(together), rtol=1e-5)
    np.testing.assert_allclose(joint.entropy(), flat.entropy(), rtol=1e-5)
    modes = np.stack(np.divmod(np.asarray(flat.mode()), 3), -1)
    np.testing.assert_array_equal(joint.mode(), modes)
    tiled = JointCategorical(jnp.tile(jnp.log(jnp.arange(1.0, 7.0) / 21), (20_000, 1)), (2, 3))
    samples = tiled.sample(jax.random.key(0))
    assert (samples.shape, samples.dtype) == ((20_000, 2), jnp.int32)
    expected = np.arange(1, 7).reshape(2, 3) / 21
    np.testing.assert_allclose(frequencies(np.asarray(samples).T, (2, 3)), expected, atol=0.015)


def multi_categorical() -> MultiCategorical:
    return MultiCategorical(tuple(Categorical(2 * random(n, *LEAD, n) + 100) for n in SIZES))


def test_a_multi_categorical_is_the_product_of_its_parts():
    distribution = multi_categorical()
    actions = np.random.default_rng(0).integers(0, SIZES, (*LEAD, len(SIZES)))

    @jax.jit
    def ours(d, actions):
        return d.log_prob(actions), d.entropy(), d.mode()

    @jax.jit
    def theirs(d, actions):
        parts = [distrax.Categorical(part.logits) for part in d.parts]
        log_probs = [part.log_prob(actions[..., i]) for i, part in enumerate(parts)]
        return log_probs, [part.entropy() for part in parts], [part.mode() for part in parts]

    log_prob, entropy, mode = ours(distribution, actions)
    log_probs, entropies, modes = theirs(distribution, actions)
    assert log_prob.shape == entropy.shape == LEAD
    np.testing.assert_allclose(log_prob, sum(np.asarray(x) for x in log_probs), rtol=1e-4)
    np.testing.assert_allclose(entropy, sum(np.asarray(x) for x in entropies), rtol=1e-4)
    np.testing.assert_array_equal(mode, np.stack(modes, -1))
    assert mode.dtype == jnp.int32


def frequencies(pairs: Any, shape: tuple[int, int]) -> np.ndarray:
    counts = np.zeros(shape)
    np.add.at(counts, tuple(x.ravel() for x in pairs), 1)
    return counts / counts.sum()


def test_multi_categorical_samples_come_as_often_as_they_should():
    laws = np.array([0.1, 0.2, 0.7]), np.array([0.4, 0.6])
    logits = [np.tile(np.log(p).astype(np.float32), (20_000, 1)) for p in laws]

    @jax.jit
    def draw(logits, key):
        return MultiCategorical(tuple(Categorical(x) for x in logits)).sample(key)

    samples = draw(logits, jax.random.key(0))
    assert (samples.shape, samples.dtype) == ((20_000, 2), jnp.int32)
    joint = frequencies(np.asarray(samples).T, (3, 2))
    np.testing.assert_allclose(joint, np.outer(*laws), atol=0.015)


@pytest.mark.parametrize("name", ["categorical", "diagonal_normal", "multi_categorical"])
def test_samples_of_many_steps_are_made_from_the_noise_of_each(name):
    distribution = multi_categorical() if name == "multi_categorical" else PAIRS[name]()[0]
    keys = jax.random.split(jax.random.key(0), 3)

    @jax.jit
    def draw(d, keys):
        noise = jax.vmap(d.noise)(keys)
        return noise, jax.vmap(d.from_noise)(noise), d.sample(keys[1])

    noise, samples, alone = draw(distribution, keys)
    assert_close(samples[1], alone)
    assert (samples[0] != samples[1]).any()
    # The law of the noise knows no parameters.
    other = jax.tree.map(lambda x: np.asarray(x) ** 2, distribution)
    assert_close(draw(other, keys)[0], noise)


def assert_close(a: Any, b: Any):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


def neighbours(samples: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs along time and along environments, of samples `[T, N]`."""
    return [(samples[:-1], samples[1:]), (samples[:, :-1], samples[:, 1:])]


def test_noise_drawn_for_many_steps_gives_independent_samples():
    p = np.array([0.1, 0.2, 0.7])
    discrete = Categorical(jnp.asarray(np.tile(np.log(p), (100, 1)), jnp.float32))
    distributions: list[Any] = [
        MultiCategorical((discrete, discrete)),
        DiagonalNormal(jnp.zeros((100, 1)), jnp.zeros(1)),
    ]

    @jax.jit
    def draw(keys):
        return [jax.vmap(d.from_noise)(jax.vmap(d.noise)(keys)) for d in distributions]

    samples, normals = map(np.asarray, draw(jax.random.split(jax.random.key(0), 300)))
    pairs = [(samples[..., 0], samples[..., 1])]
    for pair in pairs + neighbours(samples[..., 0]) + neighbours(samples[..., 1]):
        np.testing.assert_allclose(frequencies(pair, (3, 3)), np.outer(p, p), atol=0.02)
    for a, b in neighbours(normals[..., 0]):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.03
