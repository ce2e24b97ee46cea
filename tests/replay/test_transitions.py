"""n-step transitions out of the replay, against rows walked one by one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.replay import ring, transitions
from jaxrl.replay.transitions import Layout, Row

CAPACITY, N = 24, 2
add = jax.jit(ring.add)
read = jax.jit(transitions.read, static_argnums=0)


def random_memory(seed: int) -> tuple[ring.Replay, dict[str, np.ndarray]]:
    """Return a ring that has wrapped, and the rows of all episodes.

    Some episodes stop without an end, as those before a resumed run do.
    """
    rng = np.random.default_rng(seed)
    total = 36
    rows = {
        "obs": np.arange(total * N, dtype=np.float32).reshape(total, N, 1),
        "first": np.zeros((total, N), bool),
        "action": rng.integers(0, 2, (total, N)).astype(np.int32),
        "reward": rng.normal(size=(total, N)).astype(np.float32),
        "terminated": np.zeros((total, N), bool),
        "ended": np.zeros((total, N), bool),
    }
    for n in range(N):
        t = 0
        while t < total:
            rows["first"][t, n] = True
            length = int(rng.integers(1, 7))
            if t + length < total and rng.random() < 0.8:  # else no end before the next `first`
                rows["ended"][t + length - 1, n] = True
                rows["terminated"][t + length - 1, n] = rng.random() < 0.5
            t += length + 1
    memory = ring.start(Row(*(jnp.asarray(x[0]) for x in rows.values())), CAPACITY, 4)
    for block in range(0, total, 4):
        memory = add(memory, Row(*(jnp.asarray(x[block : block + 4]) for x in rows.values())))
    return memory, rows


def walked(rows: dict[str, np.ndarray], t: int, n: int, n_step: int, gamma: float) -> Any:
    """Return reward sum, discount and row of the bootstrap; None if it is no transition."""
    total, discount = 0.0, 1.0
    for k in range(n_step):
        if rows["first"][t + k + 1, n]:
            return None
        total += discount * rows["reward"][t + k, n]
        discount *= gamma
        if rows["ended"][t + k, n]:
            return total, 0.0 if rows["terminated"][t + k, n] else discount, t + k + 1
    return total, discount, t + n_step


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), n_step=st.integers(1, 4))
def test_transitions_are_those_of_rows_walked_one_by_one(seed, n_step):
    memory, rows = random_memory(seed)
    layout = Layout(n_step, num_steps=4, frame_stack=1)
    times = np.arange(12, 36 - n_step)
    ts, ns = (x.ravel() for x in np.meshgrid(times, np.arange(N), indexing="ij"))
    batch = jax.device_get(read(layout, memory, ts % CAPACITY, ns, 0.9))
    np.testing.assert_array_equal(batch.obs, rows["obs"][ts, ns])
    for i, (t, n) in enumerate(zip(ts, ns, strict=True)):
        expected = walked(rows, int(t), int(n), n_step, 0.9)
        assert bool(batch.valid[i]) == (expected is not None)
        if expected is not None:
            total, discount, last = expected
            assert float(batch.reward[i]) == pytest.approx(total, abs=1e-5)
            assert float(batch.discount[i]) == pytest.approx(discount, abs=1e-6)
            if discount > 0:
                assert batch.last_obs[i] == rows["obs"][last, n]
