"""Prioritized draws against their priorities, and importance weights against the paper."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.replay import priorities as priorities_module
from jaxrl.replay.priorities import importance_weights

seeds = st.integers(0, 2**32 - 1)
draw_proportionally = jax.jit(priorities_module.draw_proportionally, static_argnums=2)


def random_priorities(seed: int, size: int, zeros: float, decades: float) -> np.ndarray:
    generator = np.random.default_rng(seed)
    priorities = 10.0 ** generator.uniform(-decades, decades, size)
    priorities[generator.random(size) < zeros] = 0
    priorities[generator.integers(size)] = 10.0 ** generator.uniform(-decades, decades)
    return priorities.astype(np.float32)


sizes = st.sampled_from([1, 2, 16, 35, 200])
priority_arrays = st.builds(
    random_priorities,
    seeds,
    sizes,
    zeros=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    decades=st.sampled_from([0.1, 3.0, 15.0]),
)


def test_draws_come_as_often_as_their_priorities_say():
    priorities = random_priorities(0, 50, 0.3, 1.0)
    keys = jax.random.split(jax.random.key(0), 8000)
    index = jax.vmap(lambda key: draw_proportionally(key, jnp.asarray(priorities), 8).index)(keys)
    p = priorities / priorities.sum()
    frequencies = np.bincount(np.ravel(index), minlength=50) / index.size
    assert (abs(frequencies - p) <= 5.5 * np.sqrt(p * (1 - p) / index.size)).all()


@settings(deadline=None, max_examples=30)
@given(priority_arrays, seeds)
def test_each_draw_comes_from_its_part_of_the_total(priorities, seed):
    batch_size = 16
    draws = draw_proportionally(jax.random.key(seed), jnp.asarray(priorities), batch_size)
    index = np.asarray(draws.index)
    assert (priorities[index] > 0).all()
    shares = priorities.astype(np.float64) / priorities.sum(dtype=np.float64)
    np.testing.assert_allclose(draws.probability, shares[index], rtol=1e-5)
    ends = np.cumsum(shares)
    parts = np.arange(batch_size) / batch_size
    assert (ends[index] >= parts - 1e-5).all()
    assert ((ends - shares)[index] <= parts + 1 / batch_size + 1e-5).all()


def drawn_at(uniforms: np.ndarray, priorities: np.ndarray, monkeypatch) -> np.ndarray:
    """Return the indices that single draws give for these uniform numbers."""
    monkeypatch.setattr(jax.random, "uniform", jnp.broadcast_to)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def draw(uniform, priorities):
        return priorities_module.draw_proportionally(uniform, priorities, 1).index[0]

    return np.asarray(draw(jnp.asarray(uniforms, jnp.float32), jnp.asarray(priorities)))


def numbers_around(shares: np.ndarray) -> np.ndarray:
    """Return uniform numbers, as `jax.random` gives them, around the edges between indices."""
    steps = 2**23
    edges = np.floor(np.concatenate([[0.0], np.cumsum(shares), [1.0]]) * steps)
    return np.unique(np.clip(edges[:, None] + np.arange(-3, 4), 0, steps - 1)) / steps


@pytest.mark.parametrize("zeros", [0.5, 1.0])
@pytest.mark.parametrize("size", [3, 200])
@pytest.mark.parametrize("decades", [0.1, 15.0])
def test_no_uniform_number_draws_a_priority_of_zero(size, zeros, decades, monkeypatch):
    priorities = random_priorities(size, size, zeros, decades)
    uniforms = numbers_around(priorities.astype(np.float64) / priorities.sum(dtype=np.float64))
    assert (priorities[drawn_at(uniforms, priorities, monkeypatch)] > 0).all()


def test_no_uniform_number_draws_a_priority_of_zero_from_a_replay_that_is_filling(monkeypatch):
    # Prefix sums of long rows are summed in an order that depends on the place: they need not
    # ascend, nor stay where nothing is added.
    priorities = np.zeros(1_000_000, np.float32)
    priorities[:1000] = random_priorities(0, 1000, 0.5, 0.1)
    uniforms = numbers_around(priorities[:1000].astype(np.float64) / priorities.sum(dtype=float))
    index = drawn_at(uniforms, priorities, monkeypatch)
    wrong = priorities[index] == 0
    assert not wrong.any(), f"indices {np.unique(index[wrong])[:5]} ... have priority 0"


def test_importance_weights_follow_the_paper():
    generator = np.random.default_rng(0)
    probability = generator.uniform(1e-6, 0.3, 32).astype(np.float32)
    for count, beta in [(100, 0.4), (1_000_000, 0.6), (7, 1.0), (32, 0.0)]:
        expected = (1 / (count * probability.astype(np.float64))) ** beta
        weights = importance_weights(jnp.asarray(probability), beta)
        np.testing.assert_allclose(weights / weights.max(), expected / expected.max(), rtol=1e-5)
