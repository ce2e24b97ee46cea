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
MANY = 20_000


def random(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def categorical() -> Categorical:
    return Categorical(2 * random(0, *LEAD, 4) + 100)  # unnormalized, far from 0


def multi_categorical() -> MultiCategorical:
    return MultiCategorical(tuple(Categorical(2 * random(n, *LEAD, n) + 100) for n in SIZES))


def diagonal_normal(shared_scale: bool = False) -> DiagonalNormal:
    return DiagonalNormal(random(0, *LEAD, 2), random(1, *(() if shared_scale else LEAD), 2))


def in_distrax(distribution: Any) -> Any:
    if isinstance(distribution, Categorical):
        return distrax.Categorical(distribution.logits)
    loc, log_scale = distribution
    return distrax.MultivariateNormalDiag(loc, jnp.broadcast_to(jnp.exp(log_scale), loc.shape))


def assert_close(a: Any, b: Any, rtol: float = 1e-4):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-5), a, b)


@pytest.mark.parametrize(
    "ours", [categorical(), diagonal_normal(), diagonal_normal(shared_scale=True)]
)
def test_distributions_agree_with_distrax(ours):
    action = in_distrax(ours).sample(seed=jax.random.key(0))

    def numbers(convert):
        def log_prob(d):
            x = convert(d).log_prob(action)
            return x.sum(), x

        def run(d):
            gradient, log_probs = jax.grad(log_prob, has_aux=True)(d)
            return gradient, log_probs, convert(d).entropy(), convert(d).mode()

        return jax.jit(run)(ours)

    _, log_probs, entropy, mode = actual = numbers(lambda d: d)
    assert log_probs.shape == entropy.shape == LEAD
    assert_close(actual, numbers(in_distrax))
    sample = ours.sample(jax.random.key(0))
    assert (sample.shape, sample.dtype) == (mode.shape, mode.dtype)
    assert mode.dtype == (jnp.int32 if isinstance(ours, Categorical) else jnp.float32)


def test_a_multi_categorical_is_the_product_of_its_parts():
    distribution = multi_categorical()
    actions = jnp.asarray(np.random.default_rng(0).integers(0, SIZES, (*LEAD, len(SIZES))))
    parts = [distrax.Categorical(part.logits) for part in distribution.parts]
    log_probs = [part.log_prob(actions[..., i]) for i, part in enumerate(parts)]
    assert distribution.log_prob(actions).shape == distribution.entropy().shape == LEAD
    assert_close(distribution.log_prob(actions), sum(np.asarray(x) for x in log_probs))
    assert_close(distribution.entropy(), sum(np.asarray(part.entropy()) for part in parts))
    mode = distribution.mode()
    np.testing.assert_array_equal(mode, np.stack([part.mode() for part in parts], -1))
    assert mode.dtype == jnp.int32


def test_a_joint_categorical_is_a_categorical_over_combinations():
    logits = random(0, *LEAD, 6)
    joint, flat = JointCategorical(logits, (2, 3)), distrax.Categorical(logits)
    actions = np.random.default_rng(0).integers(0, (2, 3), (*LEAD, 2))
    combinations = np.ravel_multi_index(tuple(np.moveaxis(actions, -1, 0)), (2, 3))
    assert_close(joint.log_prob(jnp.asarray(actions)), flat.log_prob(combinations))
    assert_close(joint.entropy(), flat.entropy())
    modes = np.stack(np.divmod(np.asarray(flat.mode()), 3), -1)
    np.testing.assert_array_equal(joint.mode(), modes)


def frequencies(integers: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return how often each combination of k integers, `k` arrays, comes."""
    counts = np.zeros(shape)
    np.add.at(counts, tuple(np.asarray(x).ravel() for x in integers), 1)
    return counts / counts.sum()


LAW, OTHER_LAW = np.array([0.1, 0.2, 0.7]), np.array([0.4, 0.6])
JOINT_LAW = np.arange(1, 7).reshape(2, 3) / 21


def many(law: np.ndarray) -> jax.Array:
    return jnp.tile(jnp.log(jnp.asarray(law.ravel(), jnp.float32)), (MANY, 1))


@pytest.mark.parametrize(
    ("distribution", "law"),
    [
        (Categorical(many(LAW)), LAW),
        (
            MultiCategorical((Categorical(many(LAW)), Categorical(many(OTHER_LAW)))),
            np.outer(LAW, OTHER_LAW),
        ),
        (JointCategorical(many(JOINT_LAW), (2, 3)), JOINT_LAW),
    ],
)
def test_samples_come_as_often_as_they_should(distribution, law):
    samples = jax.jit(type(distribution).sample)(distribution, jax.random.key(0))
    assert samples.dtype == jnp.int32
    integers = np.asarray(samples).reshape(MANY, -1).T
    np.testing.assert_allclose(frequencies(integers, law.shape), law, atol=0.015)


def test_logits_of_few_bits_give_the_samples_and_probabilities_of_many():
    logits = jnp.log(jnp.array([0.989, 0.01, 0.001])).astype(jnp.bfloat16)
    few, many = Categorical(logits), Categorical(logits.astype(jnp.float32))
    key, actions = jax.random.key(0), jnp.arange(3)
    np.testing.assert_array_equal(few.noise(key), many.noise(key))
    np.testing.assert_array_equal(few.sample(key), many.sample(key))
    np.testing.assert_array_equal(few.log_prob(actions), many.log_prob(actions))
    np.testing.assert_array_equal(few.entropy(), many.entropy())


def test_normal_samples_have_their_mean_and_scale():
    loc, scale = jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0])
    samples = DiagonalNormal(jnp.tile(loc, (MANY, 1)), jnp.log(scale)).sample(jax.random.key(0))
    np.testing.assert_allclose(samples.mean(0), loc, atol=0.1)
    np.testing.assert_allclose(samples.std(0), scale, rtol=0.03)
    assert abs(np.corrcoef(samples.T)[0, 1]) < 0.03


@pytest.mark.parametrize("least", [-1e9, -np.inf])
def test_a_masked_action_is_never_sampled_and_gives_no_nan(least):
    logits = jnp.tile(jnp.array([0.0, least, 0.0]), (1000, 1))
    distribution = Categorical(logits)
    samples = distribution.sample(jax.random.key(0))
    assert set(np.unique(samples)) == {0, 2}
    np.testing.assert_allclose(distribution.log_prob(samples), np.log(0.5), rtol=1e-5)
    np.testing.assert_allclose(distribution.entropy(), np.log(2), rtol=1e-5)

    def objective(logits):
        distribution = Categorical(logits)
        log_prob, entropy = a2c.bounded(distribution, samples, 0.1)
        return (distribution.log_prob(samples) + distribution.entropy() + log_prob + entropy).sum()

    assert np.isfinite(jax.jit(jax.grad(objective))(logits)).all()


@pytest.mark.parametrize("distribution", [categorical(), diagonal_normal(), multi_categorical()])
def test_samples_of_many_steps_are_made_from_the_noise_of_each(distribution):
    keys = jax.random.split(jax.random.key(0), 3)

    @jax.jit
    def draw(d, keys):
        noise = jax.vmap(d.noise)(keys)
        return noise, jax.vmap(d.from_noise)(noise), d.sample(keys[1])

    noise, samples, alone = draw(distribution, keys)
    assert_close(samples[1], alone)
    assert (samples[0] != samples[1]).any()
    other = jax.tree.map(lambda x: np.asarray(x) ** 2, distribution)
    assert_close(draw(other, keys)[0], noise)  # which does not depend on the parameters


def neighbours(samples: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pairs along time and along environments, of samples `[T, N]`."""
    return [(samples[:-1], samples[1:]), (samples[:, :-1], samples[:, 1:])]


def test_noise_drawn_for_many_steps_gives_independent_samples():
    discrete = Categorical(many(LAW)[:100])
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
        np.testing.assert_allclose(frequencies(pair, (3, 3)), np.outer(LAW, LAW), atol=0.02)
    for a, b in neighbours(normals[..., 0]):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.03
