"""The device axis: parts, keys and counts of one agent's devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.device_axis import SINGLE_DEVICE, Axis


def test_an_axis_of_one_device_does_nothing():
    x = jnp.arange(6.0)
    for function in (SINGLE_DEVICE.mean, SINGLE_DEVICE.sum, SINGLE_DEVICE.max, SINGLE_DEVICE.shard):
        assert function(x) is x
    assert float(SINGLE_DEVICE.mean_count(x > 2)) == 3
    assert float(SINGLE_DEVICE.mean_count(x > 9)) == 1
    key = jax.random.key(0)
    assert SINGLE_DEVICE.device_key(key) is key
    assert (SINGLE_DEVICE.split_key(key, 4) == jax.random.split(key, 4)).all()


def test_parts_keys_and_counts_of_an_axis():
    axis = Axis("batch", 4)
    x = jnp.arange(8.0)
    key = jax.random.key(0)

    def one(valid):
        return (
            axis.shard(x),
            axis.split_key(key, 2),
            axis.device_key(key),
            axis.mean_count(valid),
            axis.max(valid),
        )

    valid = jnp.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    parts, keys, own, count, largest = jax.vmap(one, axis_name="batch")(valid)
    np.testing.assert_array_equal(parts.reshape(-1), x)
    assert (keys.reshape(-1) == jax.random.split(key, 8)).all()
    assert len(np.unique(jax.random.key_data(own), axis=0)) == 4
    np.testing.assert_array_equal(count, 3 / 4)
    np.testing.assert_array_equal(largest[:, 0], 1.0)


def test_an_axis_of_another_size_than_the_program_s_is_refused():
    axis, key = Axis("batch", 4), jax.random.key(0)
    with pytest.raises(ValueError, match=r"axis must be Axis\('batch', 2\), as in the program"):
        jax.vmap(lambda _: axis.split_key(key, 2), axis_name="batch")(jnp.arange(2))


def test_environments_are_spread_over_an_axis_that_divides_them():
    env: Any = jaxrl.make("CartPole-v1", 4)
    assert env.spread(Axis("batch", 2)).num_envs == 2
    with pytest.raises(ValueError, match="num_envs = 4 is not divisible by 3 devices"):
        env.spread(Axis("batch", 3))
    with pytest.raises(ValueError, match=r"axis must be a jaxrl.device_axis.Axis, got 'batch'"):
        env.spread("batch")
