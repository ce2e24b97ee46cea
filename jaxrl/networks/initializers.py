"""Initial weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.types import Array


def orthogonal(scale: float) -> Callable[..., Array]:
    """Return an initializer of orthogonal weights (Saxe et al. 2014, arXiv 1312.6120).

    Under `vmap` it draws one member after another. jax 0.10's QR decomposition of a batch waits in
    a thread of XLA's pool for work that it adds to the same pool: on a CPU with two cores, two
    batches at a time wait for each other forever.
    """
    initialize = nn.initializers.orthogonal(scale)

    def draw(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        return jax.custom_batching.sequential_vmap(lambda key: initialize(key, shape, dtype))(key)

    return draw
