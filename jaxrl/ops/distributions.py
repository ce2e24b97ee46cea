"""Distributions of actions: small trees of arrays with `sample`, `mode`, `log_prob` and `entropy`.

Leading axes are the batch's; `log_prob` and `entropy` sum over the action's own axes. A sample is a
function of the parameters and of noise whose law does not depend on them, so the noise of a whole
rollout can be drawn at once: `d.sample(key) = d.from_noise(d.noise(key))`.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.types import Array, PyTree


class Distribution(Protocol):
    """A distribution over actions `[..., *shape]`; all leaves have the batch's leading axes."""

    def noise(self, key: Array) -> PyTree:
        """Draw the random numbers of a sample, given the shapes of the parameters only."""
        ...

    def from_noise(self, noise: PyTree) -> Array:
        """Return the sample that these random numbers make, `[..., *shape]`."""
        ...

    def sample(self, key: Array) -> Array:
        """Draw an action, `[..., *shape]`."""
        ...

    def mode(self) -> Array:
        """Return the most probable action, `[..., *shape]`."""
        ...

    def log_prob(self, action: Array) -> Array:
        """Return the log probability (density) of `action` `[..., *shape]`, in nats, `[...]`."""
        ...

    def entropy(self) -> Array:
        """Return the (differential) entropy in nats, `[...]`."""
        ...


class Categorical(NamedTuple):
    """A distribution over integers `0 .. n - 1` with probabilities `softmax(logits)`.

    Attributes:
      logits: `[..., n]`, unnormalized log probabilities; -inf for probability 0.
    """

    logits: Array

    def noise(self, key: Array) -> Array:
        # With less than 32 bits, rare actions would be drawn too rarely.
        dtype = jnp.promote_types(self.logits.dtype, jnp.float32)
        return jax.random.gumbel(key, self.logits.shape, dtype)

    def from_noise(self, noise: Array) -> Array:
        # The Gumbel-max trick: argmax(logits + Gumbel noise) is a sample (Maddison et al. 2014,
        # arXiv 1411.0030, section 2).
        return jnp.argmax(self.logits + noise, axis=-1).astype(jnp.int32)

    def sample(self, key: Array) -> Array:
        return self.from_noise(self.noise(key))

    def mode(self) -> Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: Array) -> Array:
        # A one-hot product instead of a gather, whose gradient would be a scatter.
        log_probs = self.log_probs()
        chosen = jax.nn.one_hot(action, log_probs.shape[-1], dtype=log_probs.dtype)
        return (log_probs * chosen).sum(-1)

    def entropy(self) -> Array:
        log_probs = self.log_probs()
        return -(jnp.exp(log_probs) * log_probs).sum(-1)

    def log_probs(self) -> Array:
        """Return the log probabilities of all integers, `[..., n]`, finite for logits of -inf."""
        dtype = jnp.promote_types(self.logits.dtype, jnp.float32)
        log_probs = jax.nn.log_softmax(self.logits.astype(dtype))
        return jnp.maximum(log_probs, jnp.finfo(log_probs.dtype).min)


class MultiCategorical(NamedTuple):
    """A distribution over k independent integers; actions `[..., k]`.

    Attributes:
      parts: the distribution of each integer.
    """

    parts: tuple[Categorical, ...]

    def noise(self, key: Array) -> tuple[Array, ...]:
        keys = jax.random.split(key, len(self.parts))
        return tuple(part.noise(k) for part, k in zip(self.parts, keys, strict=True))

    def from_noise(self, noise: tuple[Array, ...]) -> Array:
        pairs = zip(self.parts, noise, strict=True)
        return jnp.stack([part.from_noise(n) for part, n in pairs], -1)

    def sample(self, key: Array) -> Array:
        return self.from_noise(self.noise(key))

    def mode(self) -> Array:
        return jnp.stack([part.mode() for part in self.parts], -1)

    def log_prob(self, action: Array) -> Array:
        return sum(
            (part.log_prob(action[..., i]) for i, part in enumerate(self.parts)), jnp.float32(0)
        )

    def entropy(self) -> Array:
        return sum((part.entropy() for part in self.parts), jnp.float32(0))


@struct.dataclass
class JointCategorical:
    """A distribution over k integers with a probability for each combination; actions `[..., k]`.

    Attributes:
      logits: `[..., prod(sizes)]`; the last integer changes fastest.
      sizes: number of values of each integer, k numbers.
    """

    logits: Array
    sizes: tuple[int, ...] = struct.field(pytree_node=False)

    def noise(self, key: Array) -> Array:
        return Categorical(self.logits).noise(key)

    def from_noise(self, noise: Array) -> Array:
        return self._to_integers(Categorical(self.logits).from_noise(noise))

    def sample(self, key: Array) -> Array:
        return self.from_noise(self.noise(key))

    def mode(self) -> Array:
        return self._to_integers(Categorical(self.logits).mode())

    def log_prob(self, action: Array) -> Array:
        combination = jnp.zeros_like(action[..., 0])
        for i, size in enumerate(self.sizes):
            combination = combination * size + action[..., i]
        return Categorical(self.logits).log_prob(combination)

    def entropy(self) -> Array:
        return Categorical(self.logits).entropy()

    def _to_integers(self, combination: Array) -> Array:
        return jnp.stack(jnp.unravel_index(combination, self.sizes), -1).astype(jnp.int32)


class DiagonalNormal(NamedTuple):
    """A distribution over vectors of independent normal numbers; actions `[..., d]`.

    Attributes:
      loc: `[..., d]`, means.
      log_scale: `[..., d]`, logarithms of the standard deviations.
    """

    loc: Array
    log_scale: Array

    def noise(self, key: Array) -> Array:
        return jax.random.normal(key, self.loc.shape, self.loc.dtype)

    def from_noise(self, noise: Array) -> Array:
        return self.loc + jnp.exp(self.log_scale) * noise

    def sample(self, key: Array) -> Array:
        return self.from_noise(self.noise(key))

    def mode(self) -> Array:
        return self.loc

    def log_prob(self, action: Array) -> Array:
        z = (action - self.loc) * jnp.exp(-self.log_scale)
        return (-0.5 * z**2 - self.log_scale - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Array:
        entropies = 0.5 + 0.5 * math.log(2 * math.pi) + self.log_scale
        return jnp.broadcast_to(entropies, self.loc.shape).sum(-1)
