"""Sequences out of the replay: where they may begin."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.replay import ring, sequences
from jaxrl.replay.sequences import Layout


@pytest.mark.parametrize(("frame_stack", "before"), [(1, 0), (4, 1)])
def test_sequences_begin_only_where_they_are_whole(frame_stack, before):
    layout, num_rollouts, num_envs = Layout(8, 3, frame_stack), 7, 2
    assert (layout.rollouts_after, layout.rollouts_before) == (2, before)
    cores = ring.start(jnp.zeros(num_envs), num_rollouts, 1)
    priorities, largest = jnp.zeros((num_rollouts, num_envs)), jnp.float32(5)
    for added in range(1, 16):
        cores = ring.add(cores, jnp.zeros((1, num_envs)))
        priorities = sequences.prioritize(layout, priorities, largest, cores)
        rollouts = added - 1 - np.arange(min(added, num_rollouts))  # the newest first
        by_age = np.asarray(priorities)[rollouts % num_rollouts]
        # Whole sequences have two newer rollouts. Frames of their first stacks, and the oldest
        # rollout once the ring is full, are overwritten next.
        oldest = before if added < num_rollouts else before + 1
        is_drawn = np.arange(len(by_age)) >= 2
        is_drawn &= np.arange(len(by_age)) < len(by_age) - oldest
        np.testing.assert_array_equal(by_age, np.where(is_drawn, 5.0, 0.0)[:, None] * [1, 1])
