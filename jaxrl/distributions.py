"""Action distributions: small NamedTuples of arrays with `sample`, `mode`, `log_prob`, `entropy`.

Leading axes are the batch's; `log_prob` and `entropy` sum over the action's own axes.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxrl.types import Array


class Distribution(Protocol):
    """What a policy network returns."""

    def sample(self, key: Array) -> Array: ...
    def mode(self) -> Array: ...
    def log_prob(self, action: Array) -> Array: ...
    def entropy(self) -> Array: ...


class Categorical(NamedTuple):
    """Integers with probabilities `softmax(logits)`; logits `[..., n]`."""

    logits: Array

    def sample(self, key: Array) -> Array:
        return jax.random.categorical(key, self.logits).astype(jnp.int32)

    def mode(self) -> Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: Array) -> Array:
        # A one-hot product, not a gather: its gradient is a product too, no scatter.
        chosen = jax.nn.one_hot(action, self.logits.shape[-1], dtype=self.logits.dtype)
        return (jax.nn.log_softmax(self.logits) * chosen).sum(-1)

    def entropy(self) -> Array:
        log_probs = jax.nn.log_softmax(self.logits)
        return -(jnp.exp(log_probs) * log_probs).sum(-1)


class DiagonalNormal(NamedTuple):
    """Independent normals; loc and log_scale `[..., d]` (log_scale may lack leading axes)."""

    loc: Array
    log_scale: Array

    def sample(self, key: Array) -> Array:
        noise = jax.random.normal(key, self.loc.shape, self.loc.dtype)
        return self.loc + jnp.exp(self.log_scale) * noise

    def mode(self) -> Array:
        return self.loc

    def log_prob(self, action: Array) -> Array:
        z = (action - self.loc) * jnp.exp(-self.log_scale)
        return (-0.5 * z**2 - self.log_scale - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Array:
        entropies = 0.5 + 0.5 * math.log(2 * math.pi) + self.log_scale
        return jnp.broadcast_to(entropies, self.loc.shape).sum(-1)
