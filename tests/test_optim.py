"""The optimizer against plain optax, and its numbers as traced values."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl import optim


def tree(seed: int, scale: float = 1.0) -> dict[str, jax.Array]:
    generator = np.random.default_rng(seed)
    shapes = {"kernel": (3, 4), "bias": (4,), "scale": ()}
    return {
        k: jnp.asarray(scale * generator.normal(size=s), jnp.float32) for k, s in shapes.items()
    }


def assert_close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


def descend(learning_rate, eps, max_grad_norm, num_steps=5):
    optimizer = optim.adam(eps, max_grad_norm)
    params = tree(0)
    state = optimizer.init(params)
    for step in range(num_steps):
        updates, state = optimizer.update(tree(1 + step, 10.0**-step), state, params)
        params = optim.apply_updates(params, updates, learning_rate)
    return params


@pytest.mark.parametrize("max_grad_norm", [0.5, 1e6])
def test_adam_is_optax_adam_after_clipping_by_global_norm(max_grad_norm):
    optimizer = optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(0.1, eps=1e-5))
    params = tree(0)
    state = optimizer.init(params)
    for step in range(5):
        updates, state = optimizer.update(tree(1 + step, 10.0**-step), state, params)
        params = optax.apply_updates(params, updates)
    assert_close(descend(0.1, 1e-5, max_grad_norm), params)


def test_its_numbers_can_be_vmapped_over():
    numbers = jnp.array([0.1, 0.01]), jnp.array([1e-5, 1e-1]), jnp.array([0.5, 5.0])
    population = jax.jit(jax.vmap(descend))(*numbers)
    for member in range(2):
        alone = descend(*(float(x[member]) for x in numbers))
        assert_close(jax.tree.map(lambda x, m=member: x[m], population), alone)


def test_parameters_keep_their_dtype():
    params = {"a": jnp.ones(2, jnp.bfloat16)}
    stepped = optim.apply_updates(params, {"a": jnp.ones(2, jnp.float32)}, jnp.float32(0.5))
    assert stepped["a"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(stepped["a"].astype(jnp.float32), [0.5, 0.5])


@pytest.mark.parametrize(
    ("num_updates", "decay_updates", "expected"),
    [(0, 10, 2.0), (1, 10, 1.8), (5, 10, 1.0), (10, 10, 0.0), (25, 10, 0.0), (25, 0, 2.0)],
)
def test_linear_decay_falls_to_0_and_stays(num_updates, decay_updates, expected):
    for function in (optim.linear_decay, jax.jit(optim.linear_decay)):
        rate = function(2.0, jnp.int32(num_updates), decay_updates)
        np.testing.assert_allclose(rate, expected, rtol=1e-6)
