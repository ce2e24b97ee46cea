"""Frame stacks rebuilt from a ring of single frames, against the stacks that environments gave."""

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from env_cases import played
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl
from jaxrl.envs.check import random_actions
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


def ring_of(shown: Any, capacity: int, block: int) -> ring.Replay:
    """Return a ring to which the newest frames of stacks `[T, N, ...]` were added in blocks."""
    image, alone = frames.newest_frame(jnp.asarray(shown))
    memory = ring.start(frames.Frame(image[0], alone[0]), capacity, block)
    for i in range(0, len(shown), block):
        memory = add(memory, frames.Frame(image[i : i + block], alone[i : i + block]))
    return memory


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
    assert_restacks(ring_of(shown, 16, 6), shown, num_frames)


SMALL = {"img_height": 36, "img_width": 36, "episodic_life": True}


@pytest.mark.parametrize(
    ("id", "options"),
    [
        ("envpool/Pong-v5", {"max_episode_steps": 20}),
        ("gymnasium/ALE/Pong-v5", {"max_num_frames_per_episode": 80}),
    ],
)
def test_stacks_of_games_cut_short_are_what_the_environment_showed(id, options):
    env = jaxrl.make(id, N, **SMALL, **options)
    timesteps = played(env, random_actions(env, 0, 79))
    assert timesteps.truncated[-50:].sum() >= 2 * N
    assert_restacks(ring_of(timesteps.obs, 60, 20), timesteps.obs, 4)


def test_stacks_go_on_over_a_lost_life_as_the_environment_showed_them():
    env = jaxrl.make("envpool/Breakout-v5", N, **SMALL)
    timesteps = played(env, random_actions(env, 0, 239))
    ends, games = timesteps.terminated[-190:], timesteps.game_over[-190:]
    assert games.any()
    assert (ends & ~games).sum() >= 4
    assert_restacks(ring_of(timesteps.obs, 200, 40), timesteps.obs, 4)
    # Otherwise the test shows nothing: a stack does hold frames of the life before.
    (lost, n), *_ = np.argwhere(timesteps.terminated & ~timesteps.game_over)
    np.testing.assert_array_equal(
        timesteps.obs[lost + 1, n, ..., :3], timesteps.obs[lost, n, ..., 1:]
    )
