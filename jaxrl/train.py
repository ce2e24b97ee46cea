"""Training as a pure function: a `lax.scan` over updates."""

from __future__ import annotations

from typing import Any

import jax

from jaxrl.types import Algorithm, Array, Metrics


def train(
    algo: Algorithm, config: Any, key: Array, num_updates: int
) -> tuple[Any, Metrics]:
    """Train from scratch for `num_updates` updates.

    Pure, so `jit` it (`static_argnums=(0, 3)`), `vmap` it over keys and config leaves, `pmap` it.

    Returns:
      The final state, and metrics whose leaves are `[num_updates]`.
    """

    def step(state: Any, _: None) -> tuple[Any, Metrics]:
        return algo.update(config, state)

    return jax.lax.scan(step, algo.init(config, key), length=num_updates)
