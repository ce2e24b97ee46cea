"""Heads: from features `[B, F]` to what an algorithm needs, with optional action masks.

`ActorCriticHead` returns a distribution over actions and a value, `QHead` one value for each
discrete action. Their weights are orthogonal (Saxe et al. 2014, arXiv 1312.6120), scaled by 0.01
for the policy and by 1 for values, and they compute in float32.
"""

from __future__ import annotations

import math

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.networks.initializers import orthogonal
from jaxrl.ops.distributions import (
    Categorical,
    DiagonalNormal,
    Distribution,
    JointCategorical,
    MultiCategorical,
)
from jaxrl.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from jaxrl.types import Array

MASKED_LOGIT = -1e9
"""The logit, or the action value, of an action that the action mask forbids."""


class ActorCriticHead(nn.Module):
    """A head that returns `(distribution over actions, value [B])`.

    Masked actions (0 in `jaxrl.spaces.ACTION_MASK`) are never chosen; an all-zero mask is ignored.
    If the mask of MultiDiscrete actions has an entry for each combination, the distribution is over
    combinations instead of over independent integers.

    Attributes:
      action_space: the actions of the environment; a Box must have shape `[d]`.
      initial_std: standard deviation of Box actions before training.
    """

    action_space: ActionSpace
    initial_std: float = 1.0

    def __post_init__(self) -> None:
        checks.fields(self, checks.instance, "action_space", kind=ActionSpace, text="a space")
        checks.fields(self, checks.number, "initial_std", allowed=checks.POSITIVE)
        super().__post_init__()

    @nn.compact
    def __call__(
        self,
        features: Array,
        critic_features: Array | None = None,
        *,
        action_mask: Array | None = None,
    ) -> tuple[Distribution, Array]:
        """Map features `[B, F]` to a distribution and a value.

        Args:
          critic_features: `[B, F]` for the value; None for the same `features`.
          action_mask: `[B, n]`, `[B, k, n]` or `[B, *sizes]` (see `jaxrl.spaces.ACTION_MASK`).
        """
        space = self.action_space
        if isinstance(space, MultiDiscrete):
            sizes = space.sizes
        else:
            sizes = (space.n if isinstance(space, Discrete) else math.prod(space.shape),)
        is_joint = action_mask is not None and action_mask.shape[1:] == sizes
        num_logits = math.prod(sizes) if is_joint else sum(sizes)
        out = nn.Dense(num_logits, kernel_init=orthogonal(0.01), name="policy")(features)
        value = nn.Dense(1, kernel_init=orthogonal(1.0), name="value")(
            features if critic_features is None else critic_features
        )[..., 0]
        if isinstance(space, Box):
            initial = nn.initializers.constant(math.log(self.initial_std))
            log_scale = self.param("log_scale", initial, (sum(sizes),))
            return DiagonalNormal(out, jnp.broadcast_to(log_scale, out.shape)), value
        allowed = None if action_mask is None else _allowed(action_mask, out)
        parts = _masked_parts(out, allowed, (num_logits,) if is_joint else sizes)
        if isinstance(space, Discrete):
            return Categorical(parts[0]), value
        if is_joint:
            return JointCategorical(parts[0], space.sizes), value
        return MultiCategorical(tuple(map(Categorical, parts))), value


class QHead(nn.Module):
    """A head that returns values of discrete actions, `[B, num_actions]`.

    Masked actions (0 in `jaxrl.spaces.ACTION_MASK`) have the value `MASKED_LOGIT`; an all-zero mask
    is ignored.

    Attributes:
      num_actions: number of actions.
      dueling: return V(s) + A(s, a) - mean A(s, .) (Wang et al. 2016, arXiv 1511.06581, eq. 9).
    """

    num_actions: int
    dueling: bool = False

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "num_actions")
        checks.fields(self, checks.flag, "dueling")
        super().__post_init__()

    @nn.compact
    def __call__(self, features: Array, *, action_mask: Array | None = None) -> Array:
        """Map features `[B, F]`, and a mask `[B, num_actions]` or None, to action values."""

        def dense(size: int, name: str) -> Array:
            return nn.Dense(size, kernel_init=orthogonal(1.0), name=name)(features)

        values = dense(self.num_actions, "advantages" if self.dueling else "values")
        if self.dueling:
            values = dense(1, "value") + values - values.mean(-1, keepdims=True)
        return values if action_mask is None else _mask(values, _allowed(action_mask, values))


def _allowed(action_mask: Array, scores: Array) -> Array:
    """Return where a mask is not 0, in the shape of the scores.

    Raises:
      ValueError: if it has another number of actions.
    """
    if action_mask.size != scores.size:
        raise ValueError(
            f"action_mask must have a number for each of {scores.shape[-1]} actions of "
            f"{len(scores)} environments, got shape {action_mask.shape}"
        )
    return action_mask.reshape(scores.shape) != 0


def _masked_parts(logits: Array, allowed: Array | None, sizes: tuple[int, ...]) -> list[Array]:
    """Split logits `[B, sum(sizes)]` into one array for each size, and mask each by itself."""
    ends = np.cumsum(sizes)[:-1]
    parts = jnp.split(logits, ends, axis=-1)
    if allowed is None:
        return parts
    masks = jnp.split(allowed, ends, axis=-1)
    return [_mask(part, mask) for part, mask in zip(parts, masks, strict=True)]


def _mask(scores: Array, allowed: Array) -> Array:
    """Set the scores of forbidden actions to `MASKED_LOGIT`, unless all are forbidden."""
    return jnp.where(allowed | ~allowed.any(-1, keepdims=True), scores, MASKED_LOGIT)
