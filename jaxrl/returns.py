"""Returns and advantages: batched, time-major, exact at truncations.

All take the transitions of a `Trajectory`, `[T, N]`. Row t's `values_next` is the value of the
state that the transition led to, which next-step autoreset always shows, so a truncated episode
bootstraps from its true last observation and no time limit is mistaken for a death. Rows that
only lead to a new episode (`valid` false) give numbers without meaning: weigh by `valid`.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from jaxrl.types import Array


def generalized_advantages(
    rewards: Array,
    values: Array,
    last_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    gae_lambda: Array | float,
) -> Array:
    """Generalized advantage estimation (Schulman et al. 2016, arXiv 1506.02438, eq. 16).

    `delta_t = r_t + gamma (1 - terminated_t) V_{t+1} - V_t` and
    `A_t = delta_t + gamma lambda (1 - ended_t) A_{t+1}`.

    Args:
      rewards, values, terminated, truncated: `[T, N]`.
      last_value: `[N]`, the value of the observation after the last transition.
      gamma, gae_lambda: scalars.

    Returns:
      Advantages `[T, N]`. The regression targets of the critic are `advantages + values`.
    """
    chex.assert_rank([rewards, values, last_value], [2, 2, 1])
    chex.assert_equal_shape([rewards, values, terminated, truncated])
    values_next = jnp.concatenate([values[1:], last_value[None]])
    deltas = rewards + gamma * jnp.where(terminated, 0.0, values_next) - values
    decays = gamma * gae_lambda * ~(terminated | truncated)

    def accumulate(advantage: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, decay = row
        advantage = delta + decay * advantage
        return advantage, advantage

    start = jnp.zeros_like(last_value)
    return jax.lax.scan(accumulate, start, (deltas, decays), reverse=True, unroll=16)[1]
