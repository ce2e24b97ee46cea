"""The ring against a list, stacks against what environments showed, draws against priorities."""

import collections
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl
from jaxrl.replay import ring

N = 2
seeds = st.integers(0, 2**32 - 1)
add = jax.jit(ring.add)
uniform_slots = jax.jit(ring.uniform_slots, static_argnums=(2, 3, 4, 5))
restack = jax.jit(ring.restack, static_argnums=3)
proportional = jax.jit(ring.proportional, static_argnums=2)


def numbered(times: np.ndarray) -> dict[str, Any]:
    """Rows that tell their time and environment."""
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


# --- the ring ------------------------------------------------------------------------------------


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
    slots, envs = uniform_slots(jax.random.key(0), memory, N, 20_000, before, after)
    numbers = np.asarray(memory.rows["number"])[slots, envs]
    newest = 3 * num_blocks - 1
    oldest = max(0, newest - 11)
    allowed = np.arange((oldest + before) * N, (newest - after + 1) * N)
    values, counts = np.unique(numbers, return_counts=True)
    np.testing.assert_array_equal(values, allowed)
    p = 1 / len(allowed)
    assert abs(counts / 20_000 - p).max() < 5.5 * np.sqrt(p * (1 - p) / 20_000)


# --- frame stacks --------------------------------------------------------------------------------


def stacks_as_shown(images: np.ndarray, restarts: np.ndarray, num_frames: int) -> np.ndarray:
    """`[T, N, H, W, num_frames]`: copies of an image that restarts a stack, else the last ones."""
    shown = np.zeros((*images.shape, num_frames), images.dtype)
    for n in range(images.shape[1]):
        stack = collections.deque(maxlen=num_frames)
        for t in range(len(images)):
            copies = num_frames if restarts[t, n] or t == 0 else 1
            stack.extend([images[t, n]] * copies)
            shown[t, n] = np.stack(stack, -1)
    return shown


def assert_restacks(memory: ring.Replay, shown: np.ndarray, num_frames: int):
    """Compare all rows that have enough older ones with what was shown, `[T, N, ...]`."""
    kept = np.arange(len(shown))[-memory.capacity :][num_frames - 1 :]
    assert len(kept) > 0
    slots = jnp.broadcast_to((kept % memory.capacity)[:, None], (len(kept), N))
    envs = jnp.broadcast_to(jnp.arange(N), slots.shape)
    stacks = np.asarray(restack(memory.rows, slots, envs, num_frames))
    wrong = (stacks != shown[kept]).any((-3, -2, -1))
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} stacks differ"


@settings(deadline=None, max_examples=40)
@given(seeds, st.sampled_from([1, 2, 4]), st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from([1, 9]))
def test_stacks_are_rebuilt_from_their_newest_frames(seed, num_frames, share, shades):
    # With few shades an image often equals those before it, and looks like a restart.
    generator = np.random.default_rng(seed)
    images = generator.integers(0, shades + 1, (30, N, 1, 2)).astype(np.uint8)
    shown = stacks_as_shown(images, generator.random((30, N)) < share, num_frames)
    frames = ring.newest_frame(jnp.asarray(shown))
    memory = ring.start(jax.tree.map(lambda x: x[0], frames), 16, 6)
    for i in range(0, 30, 6):
        memory = add(memory, jax.tree.map(lambda x, i=i: x[i : i + 6], frames))
    assert_restacks(memory, shown, num_frames)


def play(env: Any, capacity: int, block: int, num_blocks: int) -> Any:
    """Play at random; what was shown, `[T, N, ...]`, and a ring of its newest frames."""

    def step(carry: Any, key: jax.Array) -> Any:
        state, timestep = carry
        action = jax.random.randint(key, (N,), 0, env.action_space.n)
        return env.step(key, state, action), timestep

    def play_block(carry: Any, key: jax.Array) -> Any:
        simulation, memory = carry
        simulation, timesteps = jax.lax.scan(step, simulation, jax.random.split(key, block))
        memory = ring.add(memory, ring.newest_frame(timesteps.obs))
        return (simulation, memory), timesteps

    def run(key: jax.Array) -> Any:
        simulation = env.init(key)
        memory = ring.start(ring.newest_frame(simulation[1].obs), capacity, block)
        keys = jax.random.split(key, num_blocks)
        (_, memory), timesteps = jax.lax.scan(play_block, (simulation, memory), keys)
        return memory, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), timesteps)

    return jax.tree.map(np.asarray, jax.jit(run)(jax.random.key(0)))


SMALL = {"img_height": 36, "img_width": 36, "episodic_life": True}


def test_stacks_of_games_cut_short_are_what_the_environment_showed():
    env = jaxrl.make("envpool/Pong-v5", N, max_episode_steps=20, **SMALL)
    memory, timesteps = play(env, 60, 20, 4)
    assert timesteps.truncated[-50:].sum() >= 2 * N
    assert_restacks(memory, timesteps.obs, 4)


def test_stacks_go_on_over_a_lost_life_as_the_environment_showed_them():
    env = jaxrl.make("envpool/Breakout-v5", N, **SMALL)
    memory, timesteps = play(env, 200, 40, 6)
    ends, games = timesteps.terminated[-190:], timesteps.game_over[-190:]
    assert games.any()
    assert (ends & ~games).sum() >= 4
    assert_restacks(memory, timesteps.obs, 4)
    # The point of the test: a stack does hold frames of the life before.
    (lost, n), *_ = np.argwhere(timesteps.terminated & ~timesteps.game_over)
    np.testing.assert_array_equal(
        timesteps.obs[lost + 1, n, ..., :3], timesteps.obs[lost, n, ..., 1:]
    )


# --- prioritized sampling ------------------------------------------------------------------------


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
    index = jax.vmap(lambda key: proportional(key, jnp.asarray(priorities), 8).index)(keys)
    p = priorities / priorities.sum()
    frequencies = np.bincount(np.ravel(index), minlength=50) / index.size
    assert (abs(frequencies - p) <= 5.5 * np.sqrt(p * (1 - p) / index.size)).all()


def test_draws_of_nothing_have_no_probability():
    draws = proportional(jax.random.key(0), jnp.zeros(10), 4)
    np.testing.assert_array_equal(draws.probability, 0)


@settings(deadline=None, max_examples=30)
@given(priority_arrays, seeds)
def test_each_draw_comes_from_its_part_of_the_total(priorities, seed):
    batch_size = 16
    draws = proportional(jax.random.key(seed), jnp.asarray(priorities), batch_size)
    index = np.asarray(draws.index)
    assert (priorities[index] > 0).all()
    shares = priorities.astype(np.float64) / priorities.sum(dtype=np.float64)
    np.testing.assert_allclose(draws.probability, shares[index], rtol=1e-5)
    ends = np.cumsum(shares)
    parts = np.arange(batch_size) / batch_size
    assert (ends[index] >= parts - 1e-5).all()
    assert ((ends - shares)[index] <= parts + 1 / batch_size + 1e-5).all()


def drawn_at(uniforms: np.ndarray, priorities: np.ndarray, monkeypatch) -> np.ndarray:
    """Indices that single draws give for these uniform numbers."""
    monkeypatch.setattr(jax.random, "uniform", jnp.broadcast_to)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def draw(uniform, priorities):
        return ring.proportional(uniform, priorities, 1).index[0]

    return np.asarray(draw(jnp.asarray(uniforms, jnp.float32), jnp.asarray(priorities)))


def numbers_around(shares: np.ndarray) -> np.ndarray:
    """Uniform numbers, as `jax.random` has them, next to where one index gives way to another."""
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
    for count, beta in [(100, 0.4), (1_000_000, 0.6), (7, 1.0)]:
        expected = (1 / (count * probability.astype(np.float64))) ** beta
        weights = ring.importance_weights(jnp.asarray(probability), jnp.int32(count), beta)
        np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_importance_weights_are_1_for_uniform_draws_and_for_an_exponent_of_0():
    draws = proportional(jax.random.key(0), jnp.full(30, 0.2), 8)
    count = jnp.int32(30)
    weights = ring.importance_weights(draws.probability, count, 0.7)
    np.testing.assert_allclose(weights, 1.0, rtol=1e-5)
    uneven = jnp.array([0.5, 0.1, 1e-9])
    np.testing.assert_array_equal(ring.importance_weights(uneven, count, 0.0), 1.0)
