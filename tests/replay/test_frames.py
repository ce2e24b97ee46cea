"""Frame stacks rebuilt from a ring of single frames, against the stacks that environments gave."""

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl
from jaxrl.replay import frames, ring

N = 2
add = jax.jit(ring.add)
restack = jax.jit(frames.restack, static_argnums=3)


def stacks_as_shown(images: np.ndarray, restarts: np.ndarray, num_frames: int) -> np.ndarray:
    """Return stacks `[T, N, H, W, num_frames]`: copies after a restart, else the last images."""
    shown = np.zeros((*images.shape, num_frames), images.dtype)
    for n in range(images.shape[1]):
        stack = collections.deque(maxlen=num_frames)
        for t in range(len(images)):
            copies = num_frames if restarts[t, n] or t == 0 else 1
            stack.extend([images[t, n]] * copies)
            shown[t, n] = np.stack(stack, -1)
    return shown


def assert_restacks(memory: ring.Replay, shown: np.ndarray, num_frames: int):
    """Compare all rows that have enough older ones with the stacks `[T, N, ...]` as shown."""
    kept = np.arange(len(shown))[-memory.capacity :][num_frames - 1 :]
    assert len(kept) > 0
    slots = jnp.broadcast_to((kept % memory.capacity)[:, None], (len(kept), N))
    envs = jnp.broadcast_to(jnp.arange(N), slots.shape)
    stacks = np.asarray(restack(memory.rows, slots, envs, num_frames))
    wrong = (stacks != shown[kept]).any((-3, -2, -1))
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} stacks differ"


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([1, 9]),
)
def test_stacks_are_rebuilt_from_their_newest_frames(seed, num_frames, share, shades):
    # With few shades an image often equals those before it, and looks like a restart.
    generator = np.random.default_rng(seed)
    images = generator.integers(0, shades + 1, (30, N, 1, 2)).astype(np.uint8)
    shown = stacks_as_shown(images, generator.random((30, N)) < share, num_frames)
    newest = frames.newest_frame(jnp.asarray(shown))
    memory = ring.start(jax.tree.map(lambda x: x[0], newest), 16, 6)
    for i in range(0, 30, 6):
        memory = add(memory, jax.tree.map(lambda x, i=i: x[i : i + 6], newest))
    assert_restacks(memory, shown, num_frames)


def play(env: Any, capacity: int, block: int, num_blocks: int) -> Any:
    """Play at random; return a ring of the newest frames, and the time steps `[T, N, ...]`."""

    def step(carry: Any, key: jax.Array) -> Any:
        state, timestep = carry
        action = jax.random.randint(key, (N,), 0, env.action_space.n)
        return env.step(key, state, action), timestep

    def play_block(carry: Any, key: jax.Array) -> Any:
        simulation, memory = carry
        simulation, timesteps = jax.lax.scan(step, simulation, jax.random.split(key, block))
        memory = ring.add(memory, frames.newest_frame(timesteps.obs))
        return (simulation, memory), timesteps

    def run(key: jax.Array) -> Any:
        simulation = env.init(key)
        memory = ring.start(frames.newest_frame(simulation[1].obs), capacity, block)
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
    # Otherwise the test shows nothing: a stack does hold frames of the life before.
    (lost, n), *_ = np.argwhere(timesteps.terminated & ~timesteps.game_over)
    np.testing.assert_array_equal(
        timesteps.obs[lost + 1, n, ..., :3], timesteps.obs[lost, n, ..., 1:]
    )
