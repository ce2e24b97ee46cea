"""Shuffling: every index once, and no place, pair or neighbour favoured."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.ops.minibatches import learn_in_epochs, shuffled_indices

shuffle = jax.jit(shuffled_indices, static_argnums=(1, 2))


# A few shapes: each compiles.
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), split=st.sampled_from([(1, 1), (1, 70), (5, 1), (4, 37)]))
def test_each_index_is_used_once(seed, split):
    parts, per_minibatch = split
    size = parts * per_minibatch
    indices = shuffle(jax.random.key(seed), parts, size)
    assert indices.shape == (parts, per_minibatch)
    assert sorted(np.asarray(indices).ravel().tolist()) == list(range(size))


@pytest.mark.parametrize("size", [2, 8, 12, 32, 100])
def test_each_index_is_as_likely_at_each_place(size):
    keys = jax.random.split(jax.random.key(0), 4000)
    places = np.asarray(jax.jit(jax.vmap(lambda key: shuffled_indices(key, 1, size)[0]))(keys))
    counts = np.stack([np.bincount(places[:, i], minlength=size) for i in range(size)])
    p = 1 / size
    sigma = np.sqrt(p * (1 - p) / 4000)
    assert abs(counts / 4000 - p).max() < 5.5 * sigma


@pytest.mark.parametrize(("size", "num_minibatches"), [(6, 3), (8, 2), (16, 4), (32, 4), (64, 4)])
def test_any_two_indices_share_a_minibatch_as_often(size, num_minibatches):
    num_keys = 100_000 if size < 10 else 4000
    keys = jax.random.split(jax.random.key(1), num_keys)
    indices = jax.jit(jax.vmap(lambda key: shuffled_indices(key, num_minibatches, size)))(keys)
    first = (np.asarray(indices[:, 0, :, None]) == np.arange(size)).any(1)  # [keys, size]
    together = first[:, :, None] & first[:, None, :]
    n = size // num_minibatches
    p = n * (n - 1) / (size * (size - 1))
    off_diagonal = ~np.eye(size, dtype=bool)
    sigma = np.sqrt(p * (1 - p) / num_keys)
    assert abs(together.mean(0)[off_diagonal] - p).max() < 5.5 * sigma


def test_orders_of_a_handful_are_all_reached():
    keys = jax.random.split(jax.random.key(2), 2400)
    places = np.asarray(jax.jit(jax.vmap(lambda key: shuffled_indices(key, 1, 4)[0]))(keys))
    orders, counts = np.unique(places, axis=0, return_counts=True)
    assert len(orders) == 24
    assert abs(counts - 100).max() < 60


def test_sizes_that_do_not_split_are_refused():
    with pytest.raises(ValueError, match="10 rows do not split into 4"):
        shuffled_indices(jax.random.key(0), 4, 10)


@pytest.mark.parametrize(
    ("batch", "shown"),
    [
        ({"x": jnp.ones((1, 8)), "y": jnp.ones((1, 4))}, r"batch\['x'\] \[1, 8\].*\[1, 4\]"),
        ({"x": jnp.ones((1, 8)), "y": jnp.ones(8)}, r"batch\['y'\] \[8\]"),
        ({}, "with the same B, got"),
    ],
)
def test_leaves_of_different_rows_are_refused(batch, shown):
    with pytest.raises(ValueError, match=shown):
        learn_in_epochs(
            lambda params, _: (params, {"loss": params}), optax.sgd(1.0), (1.0, ()), batch,
            jax.random.key(0), 1, 2,
        )  # fmt: skip


def test_losses_that_are_not_named_are_refused():
    def objective(params, batch):
        return params, {"loss": params, "entropy": params}

    with pytest.raises(ValueError, match=r"losses \['entropy', 'loss'\], but losses=\('loss',\)"):
        learn_in_epochs(
            objective, optax.sgd(1.0), (jnp.ones(()), optax.sgd(1.0).init(jnp.ones(()))),
            jnp.ones((1, 8)), jax.random.key(0), 1, 2,
        )  # fmt: skip


def test_each_epoch_learns_from_every_sequence_once_and_from_none_in_part():
    """Mark every sequence and the memory before it with its number."""
    marks = jnp.broadcast_to(jnp.arange(6.0), (4, 6))
    batch = {"rows": marks, "core": marks[:1]}

    def objective(seen, minibatch):
        is_whole = (minibatch["rows"] == minibatch["core"]).all()
        is_whole &= minibatch["rows"].shape == (4, 2)
        loss = -seen[minibatch["core"][0].astype(int)].sum()
        return loss, {"is_whole": is_whole.astype(float)}

    sgd, seen = optax.sgd(1.0), jnp.zeros(6)

    def learn(stop):
        return learn_in_epochs(
            objective, sgd, (seen, sgd.init(seen)), batch, jax.random.key(0), 5, 3,
            ("is_whole",), stop,
        )  # fmt: skip

    (seen_in_all, _), epochs, losses = learn(None)
    assert (seen_in_all.tolist(), int(epochs), float(losses["is_whole"])) == ([5.0] * 6, 5, 1.0)
    (seen_in_one, _), epochs, _ = learn(lambda means: means["is_whole"] > 0.5)
    assert (seen_in_one.tolist(), int(epochs)) == ([1.0] * 6, 1)
