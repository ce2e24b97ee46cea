"""Checkpoints: a state comes back as it was, on any devices, or an error says why not."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.distributed import spread
from jaxrl.training.checkpoint import Checkpoints
from jaxrl.types import is_key

pytestmark = pytest.mark.smoke


@pytest.fixture
def checkpoints(tmp_path):
    opened = Checkpoints(tmp_path / "checkpoints")
    yield opened
    opened.close()


def test_keys_and_arrays_without_elements_are_restored(checkpoints):
    keys = jax.random.split(jax.random.key(0), 3)
    saved = {"x": jnp.arange(3.0), "none": jnp.zeros((4, 0, 3), jnp.int32), "no_keys": keys[:0]}
    checkpoints.save(1, saved | {"keys": keys}, {"steps": 7}, whole=True)
    like = jax.eval_shape(lambda: saved | {"keys": keys})
    restored, progress = checkpoints.restore(like, whole=True)
    assert progress == checkpoints.progress() == {"steps": 7}
    assert (restored.pop("keys") == keys).all()
    assert is_key(restored["no_keys"])
    assert restored["no_keys"].shape == (0,)
    np.testing.assert_array_equal(restored["x"], saved["x"])
    assert restored["none"].shape == (4, 0, 3)
    assert restored["none"].dtype == jnp.int32


def test_a_state_is_restored_onto_the_devices_of_the_state_that_it_replaces(tmp_path):
    algo, key = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4)), jax.random.key(0)
    config = jaxrl.PPOConfig(num_steps=4, num_minibatches=1, hidden_sizes=(8,))
    inits = [algo.init, spread.spread(algo, 2).init]
    states = [jax.jit(init)(config, key) for init in inits]
    for number, saved in enumerate(states):
        checkpoints = Checkpoints(tmp_path / str(number))
        checkpoints.save(1, saved, {}, whole=True)
        for like in states:
            restored, _ = checkpoints.restore(like, whole=True)
            chex.assert_trees_all_equal(restored, like)
            for x, y in zip(jax.tree.leaves(restored), jax.tree.leaves(like), strict=True):
                assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
        checkpoints.close()


def test_a_full_disk_keeps_the_checkpoint_before(checkpoints, monkeypatch):
    state = {"x": jnp.arange(3.0)}
    checkpoints.save(1, state, {}, whole=True)

    def no_space(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints._manager, "save", no_space)
    with pytest.raises(OSError, match=r"No space left.*The one before it, 1, is intact"):
        checkpoints.save(2, state, {}, whole=True)
    np.testing.assert_array_equal(checkpoints.restore(state, whole=True)[0]["x"], state["x"])


def test_a_damaged_checkpoint_is_named(checkpoints):
    state = {"x": jnp.arange(100.0)}
    checkpoints.save(1, state, {}, whole=True)
    for path in checkpoints.directory.rglob("*"):
        if path.is_file() and path.stat().st_size > 200:
            path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"checkpoints/1 is damaged or belongs to another"):
        checkpoints.restore(state, whole=True)


def test_a_checkpoint_of_another_network_is_refused(checkpoints):
    checkpoints.save(1, {"x": jnp.arange(3.0)}, {}, whole=True)
    for other in ({"x": jnp.zeros(4)}, {"y": jnp.zeros(3)}):
        with pytest.raises(ValueError, match="checkpoints/1"):
            checkpoints.restore(other, whole=True)


def test_a_directory_without_checkpoints_is_named(checkpoints):
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        checkpoints.progress()
