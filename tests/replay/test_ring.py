"""The ring of rows against a list, and uniform draws from it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.replay import ring

pytestmark = pytest.mark.smoke

N = 2
add = jax.jit(ring.add)
draw_uniformly = jax.jit(ring.draw_uniformly, static_argnums=(2, 3, 4, 5))


def numbered(times: np.ndarray) -> dict[str, Any]:
    """Return rows that hold the number of their time and environment."""
    number = (times[:, None] * N + np.arange(N)).astype(np.int32)
    return {"number": number, "image": number[..., None] % 251}


def filled(capacity: int, block: int, num_blocks: int) -> ring.Replay:
    row = {
        "number": jax.ShapeDtypeStruct((N,), np.dtype(np.int32)),
        "image": jax.ShapeDtypeStruct((N, 1), np.dtype(np.uint8)),
    }
    memory = ring.start(row, capacity, block)
    for i in range(num_blocks):
        memory = add(memory, numbered(i * block + np.arange(block)))
    return memory


@pytest.mark.parametrize(("capacity", "block"), [(1, 1), (6, 3), (7, 3), (5, 8)])
def test_the_ring_keeps_the_last_rows(capacity, block):
    memory = filled(capacity, block, 0)
    assert memory.capacity % block == 0
    assert capacity <= memory.capacity < capacity + block
    for num_added in range(0, 5 * block, block):
        kept = np.arange(num_added)[-memory.capacity :]
        assert int(memory.size) == len(kept)
        assert int(memory.num_added) % memory.capacity == num_added % memory.capacity
        assert int(memory.num_added) < 2 * memory.capacity  # so it never overflows
        slots = (int(memory.oldest) + np.arange(len(kept))) % memory.capacity
        expected = numbered(kept)
        for name, kept_rows in memory.rows.items():
            np.testing.assert_array_equal(np.asarray(kept_rows)[slots], expected[name])
        memory = add(memory, numbered(num_added + np.arange(block)))
    assert memory.rows["image"].dtype == jnp.uint8


def test_blocks_of_another_size_are_refused():
    replay = ring.start({"x": jnp.zeros((1,))}, 12, 3)
    with pytest.raises(ValueError, match="a ring of 12 rows takes no blocks of 5"):
        ring.add(replay, {"x": jnp.zeros((5, 1))})


def test_windows_go_on_over_the_end_of_the_ring():
    memory = filled(6, 3, 5)  # times 9 to 14, of which 12 to 14 lie in the first slots
    slots, envs = jnp.array([0, 3, 5, 5]), jnp.array([1, 0, 0, 1])
    found = ring.window(memory.rows["number"], slots, envs, 3)
    first_times = np.array([12, 9, 11, 11])
    np.testing.assert_array_equal(found, (first_times + np.arange(3)[:, None]) * N + envs)


@pytest.mark.parametrize("num_blocks", [3, 9])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (3, 0), (3, 2)])
def test_slots_are_uniform_over_the_rows_that_have_enough_older_and_newer_ones(
    num_blocks, before, after
):
    memory = filled(12, 3, num_blocks)
    slots, envs = draw_uniformly(jax.random.key(0), memory, N, 20_000, before, after)
    numbers = np.asarray(memory.rows["number"])[slots, envs]
    newest = 3 * num_blocks - 1
    oldest = max(0, newest - 11)
    allowed = np.arange((oldest + before) * N, (newest - after + 1) * N)
    values, counts = np.unique(numbers, return_counts=True)
    np.testing.assert_array_equal(values, allowed)
    p = 1 / len(allowed)
    assert abs(counts / 20_000 - p).max() < 5.5 * np.sqrt(p * (1 - p) / 20_000)
