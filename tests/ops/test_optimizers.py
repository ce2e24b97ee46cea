"""Optimizers against plain optax and their papers' formulas, their numbers as traced values."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.ops import optimizers


def tree(seed: int, scale: float = 1.0) -> dict[str, jax.Array]:
    generator = np.random.default_rng(seed)
    shapes = {"kernel": (3, 4), "bias": (4,), "scale": ()}
    return {
        k: jnp.asarray(scale * generator.normal(size=s), jnp.float32) for k, s in shapes.items()
    }


def assert_close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


def gradients(num_steps: int) -> list[dict[str, jax.Array]]:
    return [tree(1 + step, 10.0**-step) for step in range(num_steps)]


def descend(optimizer):
    params = tree(0)
    state = optimizer.init(params)
    for grad in gradients(5):
        updates, state = optimizer.update(grad, state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize("max_grad_norm", [0.5, 1e6])
def test_adam_is_optax_adam_after_clipping_by_global_norm(max_grad_norm):
    expected = optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(0.1, eps=1e-5))
    assert_close(descend(optimizers.adam(0.1, 1e-5, max_grad_norm)), descend(expected))


def test_the_numbers_of_adam_can_be_vmapped_over():
    numbers = jnp.array([0.1, 0.01]), jnp.array([1e-5, 1e-1]), jnp.array([0.5, 5.0])
    population = jax.jit(jax.vmap(lambda *x: descend(optimizers.adam(*x))))(*numbers)
    for member in range(2):
        alone = descend(optimizers.adam(*(float(x[member]) for x in numbers)))
        assert_close(jax.tree.map(lambda x, m=member: x[m], population), alone)


def test_a_gradient_step_keeps_the_parameters_dtype():
    params = {"a": jnp.ones(2, jnp.bfloat16)}
    optimizer = optimizers.adam(jnp.float32(0.5), 1e-5, 1e6)
    stepped, _, aux = optimizers.gradient_step(
        optimizer,
        lambda p: (p["a"].astype(jnp.float32).sum(), "aux"),
        params,
        optimizer.init(params),
    )
    assert aux == "aux"
    assert stepped["a"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(stepped["a"].astype(jnp.float32), [0.5, 0.5])


def rmsprop_by_formula(
    grads: list[Any], decay: float, eps: float, max_grad_norm: float, variant: str
) -> list[Any]:
    """Return the steps of PyTorch's, TensorFlow's or A3C's RMSProp in float64, leaf by leaf."""
    mean_square = {
        k: np.full(np.shape(g), 1.0 if variant == "tensorflow" else 0.0)
        for k, g in grads[0].items()
    }
    steps = []
    for grad in grads:
        grad = {k: np.asarray(g, np.float64) for k, g in grad.items()}
        norm = math.sqrt(sum((g**2).sum() for g in grad.values()))
        step = {}
        for k, g in grad.items():
            g = g * min(1.0, max_grad_norm / norm)
            mean_square[k] = decay * mean_square[k] + (1 - decay) * g**2
            if variant == "pytorch":
                step[k] = g / (np.sqrt(mean_square[k]) + eps)
            else:
                step[k] = g / np.sqrt(mean_square[k] + eps)
        steps.append(step)
    return steps


def rmsprop_steps(grads: list[Any], *numbers: Any, **options: Any) -> list[Any]:
    optimizer = optimizers.rmsprop(-1.0, *numbers, **options)
    state = optimizer.init(grads[0])
    steps = []
    for grad in grads:
        step, state = optimizer.update(grad, state)
        steps.append(step)
    return steps


VARIANTS = {
    "pytorch": {"eps_inside_root": False},
    "tensorflow": {"initial": 1.0},
    "a3c": {},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("max_grad_norm", [0.5, math.inf])
@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_rmsprop_follows_the_formulas_of_its_variants(variant, max_grad_norm, eps):
    grads = gradients(4)
    expected = rmsprop_by_formula(grads, 0.9, eps, max_grad_norm, variant)
    assert_close(rmsprop_steps(grads, 0.9, eps, max_grad_norm, **VARIANTS[variant]), expected)


def test_the_variants_of_rmsprop_differ():
    grads = gradients(1)
    steps = [rmsprop_steps(grads, 0.9, 0.1, math.inf, **VARIANTS[name]) for name in VARIANTS]
    kernels = [np.asarray(one["kernel"]) for (one,) in steps]
    for i in range(3):
        assert abs(kernels[i] - kernels[i - 1]).max() > 0.01


def test_the_numbers_of_rmsprop_can_be_vmapped_over():
    grads = gradients(3)
    numbers = jnp.array([0.9, 0.99]), jnp.array([1e-5, 0.1]), jnp.array([0.5, math.inf])
    population = jax.jit(jax.vmap(lambda *x: rmsprop_steps(grads, *x)))(*numbers)
    for member in range(2):
        expected = rmsprop_by_formula(grads, *(float(x[member]) for x in numbers), variant="a3c")
        assert_close(jax.tree.map(lambda x, m=member: x[m], population), expected)


def test_rmsprop_takes_gradients_of_zero():
    grads = [jax.tree.map(jnp.zeros_like, g) for g in gradients(2)]
    for max_grad_norm in (0.5, math.inf):
        steps = rmsprop_steps(grads, 0.9, 1e-5, max_grad_norm)
        assert all((x == 0).all() for x in jax.tree.leaves(steps))


@pytest.mark.parametrize("total_updates", [0, 0.5, 2.5, 10, 1000])
@pytest.mark.parametrize(("start", "end"), [(1.0, 0.1), (0.1, 1.0), (2.0, 0.0), (0.3, 0.3)])
def test_linear_schedule_is_that_of_optax(start, end, total_updates):
    updates = jnp.array([*range(1001), 2_000_000_000])
    expected = optax.linear_schedule(start, end, total_updates)(updates)
    for schedule in (optimizers.linear_schedule, jax.jit(optimizers.linear_schedule)):
        numbers = schedule(start, end, updates, total_updates)
        np.testing.assert_allclose(numbers, jnp.broadcast_to(expected, 1002), rtol=1e-6, atol=2e-7)
