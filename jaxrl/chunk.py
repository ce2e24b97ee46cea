"""A chunk: some updates of one agent in one program, with their metrics in a buffer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.types import Algorithm, Array, Metrics

MAX_CHUNK = 1024
SUMS = (
    "episode_return_sum", "episode_length_sum", "episode_count", "valid_steps", "gradient_steps"
)  # fmt: skip
"""The metrics that are added up over updates; the others are averaged."""


def chunk(
    algo: Algorithm, config: Any, state: Any, num_updates: Array | int, size: int = MAX_CHUNK
) -> tuple[Any, Metrics]:
    """`num_updates` more updates, at most `size`, a number that may be traced.

    Metrics are `[size]`, zeros past the updates done.
    """
    update = jax.jit(algo.update, inline=True)  # so that it is traced only once
    _, metrics = jax.eval_shape(update, config, state)
    rows = jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), metrics)

    def step(i: Array, carry: tuple[Any, Metrics]) -> tuple[Any, Metrics]:
        state, rows = carry
        state, metrics = update(config, state)
        return state, jax.tree.map(lambda all, one: all.at[i].set(one), rows, metrics)

    return jax.lax.fori_loop(0, num_updates, step, (state, rows))


train_chunk = jax.jit(chunk, static_argnums=(0, 4), donate_argnums=2)
"""`chunk`, compiled; the state is donated."""
