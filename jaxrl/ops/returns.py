"""Returns and advantages: batched, time-major, exact at truncations.

All take the transitions of a `Trajectory`, `[T, N]`. Row t's `values_next` is the value of the
state that the transition led to, which next-step autoreset always shows, so a truncated episode
bootstraps from its true last observation and no time limit is mistaken for a death. Rows that
only lead to a new episode (`valid` false) give numbers without meaning: weigh by `valid`.
"""

from __future__ import annotations

from typing import NamedTuple

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


class VTrace(NamedTuple):
    """What `vtrace` returns; leaves `[T, N]`."""

    targets: Array  # v_s, the regression targets of the critic
    advantages: Array  # of the policy gradient, weighed by the clipped importance ratio


def vtrace(
    log_ratios: Array,
    rewards: Array,
    values: Array,
    last_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    trace_lambda: Array | float = 1.0,
    rho_bar: Array | float = 1.0,
    c_bar: Array | float = 1.0,
    policy_rho_bar: Array | float = 1.0,
) -> VTrace:
    """V-trace (Espeholt et al. 2018, arXiv 1802.01561, eq. 1 and section 4.2).

    With `rho_t = min(rho_bar, pi / mu)` and `c_t = lambda min(c_bar, pi / mu)`,
    `v_t = V_t + rho_t delta_t + gamma c_t (v_{t+1} - V_{t+1})`, and the advantages are
    `min(policy_rho_bar, pi / mu) (r_t + gamma q_{t+1} - V_t)`, `q = lambda v + (1 - lambda) V`.
    Traces end with episodes: a truncated one bootstraps from V of its true last state.

    Args:
      log_ratios: `[T, N]`, log pi(a|s) - log mu(a|s), learner over behaviour.
      rewards, values, terminated, truncated: `[T, N]`; `last_value`: `[N]`.
    """
    chex.assert_rank([log_ratios, rewards, values, last_value], [2, 2, 2, 1])
    chex.assert_equal_shape([log_ratios, rewards, values, terminated, truncated])
    ratios = jnp.exp(log_ratios)
    values_next = jnp.concatenate([values[1:], last_value[None]])
    discounts = gamma * ~terminated
    deltas = jnp.minimum(rho_bar, ratios) * (rewards + discounts * values_next - values)
    ended = terminated | truncated
    decays = gamma * trace_lambda * jnp.minimum(c_bar, ratios) * ~ended

    def accumulate(excess: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, decay = row
        excess = delta + decay * excess
        return excess, excess

    start = jnp.zeros_like(last_value)
    _, excess = jax.lax.scan(accumulate, start, (deltas, decays), reverse=True, unroll=16)
    excess_next = jnp.concatenate([excess[1:], start[None]])
    bootstraps = values_next + jnp.where(ended, 0.0, trace_lambda * excess_next)
    advantages = rewards + discounts * bootstraps - values
    return VTrace(values + excess, jnp.minimum(policy_rho_bar, ratios) * advantages)


def n_step_returns(
    rewards: Array,
    values_next: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    num_steps: int,
) -> Array:
    """Discounted sums of `num_steps` rewards and the value of the state after them.

    Sums are cut at the end of an episode (a truncated one bootstraps from its true last state)
    and at the last row, after which they bootstrap from fewer steps.

    Args:
      rewards, terminated, truncated: `[T, N]`.
      values_next: `[T, N]`, the value of the state that each transition led to.

    Returns:
      `[T, N]`.
    """
    chex.assert_rank(rewards, 2)
    chex.assert_equal_shape([rewards, values_next, terminated, truncated])
    one_step = rewards + gamma * jnp.where(terminated, 0.0, values_next)
    ended = terminated | truncated
    total = one_step
    for _ in range(num_steps - 1):
        # Row t of the sums of n + 1 steps: its reward, and the sum of n steps from row t + 1.
        further = rewards[:-1] + gamma * total[1:]
        total = jnp.concatenate([jnp.where(ended[:-1], one_step[:-1], further), one_step[-1:]])
    return total


def rescale_value(x: Array, eps: float = 1e-3) -> Array:
    """`h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x` (Pohlen et al. 2018, arXiv 1805.11593)."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1) - 1) + eps * x


def unscale_value(x: Array, eps: float = 1e-3) -> Array:
    """The inverse of `rescale_value`."""
    root = jnp.sqrt(1 + 4 * eps * (jnp.abs(x) + 1 + eps))
    # (root - 1) / (2 eps), without the cancellation.
    z = 2 * (jnp.abs(x) + 1 + eps) / (root + 1)
    return jnp.sign(x) * (z**2 - 1)
