"""Initial weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.types import Array


def orthogonal(scale: float) -> Callable[..., Array]:
    """Orthogonal weights (Saxe et al. 2014), of a population one member after another.

    jax 0.10's QR decomposition of a batch waits on a thread of XLA's pool for work that it puts
    into the same pool: on a CPU of two cores, two at a time wait for each other for ever. So `vmap`
    makes a loop of it.
    """
    initialize = nn.initializers.orthogonal(scale)

    def draw(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        return jax.custom_batching.sequential_vmap(lambda key: initialize(key, shape, dtype))(key)

    return draw
