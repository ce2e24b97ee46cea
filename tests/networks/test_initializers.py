"""Initial weights: Flax's own, drawn for one member of a population after another."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.networks.initializers import orthogonal


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 5)])
def test_weights_are_those_of_flax(shape):
    key = jax.random.key(0)
    expected = nn.initializers.orthogonal(2.0)(key, shape, jnp.float32)
    np.testing.assert_array_equal(orthogonal(2.0)(key, shape), expected)


def test_each_member_of_a_population_has_its_own_weights():
    keys = jax.random.split(jax.random.key(0), 6)
    draw = jax.jit(lambda key: orthogonal(1.0)(key, (8, 8)))
    alone = jnp.stack([draw(key) for key in keys])
    population = jax.jit(jax.vmap(draw))(keys)
    nested = jax.jit(jax.vmap(jax.vmap(draw)))(keys.reshape(2, 3)).reshape(6, 8, 8)
    np.testing.assert_array_equal(population, alone)
    np.testing.assert_array_equal(nested, alone)
    np.testing.assert_allclose(
        population @ population.mT, jnp.tile(jnp.eye(8), (6, 1, 1)), atol=1e-6
    )


def test_no_batch_of_qr_decompositions_is_compiled():
    """On a CPU two batches at a time can wait for each other forever."""
    keys = jax.random.split(jax.random.key(0), 6)
    program = jax.jit(jax.vmap(lambda key: orthogonal(1.0)(key, (8, 4)))).lower(keys).as_text()
    assert "tensor<8x4xf32>" in program
    assert "tensor<6x8x4xf32>, tensor<6x4xf32>" not in program
