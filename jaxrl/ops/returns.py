"""Returns and advantages of time-major batches `[T, N]`, exact at truncations.

Row t is a transition of a `jaxrl.types.Trajectory`; `values_next[t]` is the value of the state that
it led to. Next-step autoreset keeps that state's observation in the trajectory, so a truncated
episode bootstraps from its own last state, and a time limit does not count as a termination. Rows
that only reset an episode (`valid` false) hold meaningless numbers: weigh losses by `valid`. Flags
are booleans. Arrays of other shapes or types are a `ValueError` that names them.
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
    """Return GAE(lambda) advantages (Schulman et al. 2016, arXiv 1506.02438, eq. 16).

    With `ended = terminated or truncated`,

        delta_t = r_t + gamma (1 - terminated_t) V_{t+1} - V_t
        A_t = delta_t + gamma lambda (1 - ended_t) A_{t+1}

    Args:
      rewards, values, terminated, truncated: `[T, N]`.
      last_value: `[N]`, the value of the observation after the last transition.
      gamma, gae_lambda: scalars in [0, 1].

    Returns:
      Advantages `[T, N]`. The critic's regression targets are `advantages + values`.
    """
    _check_rows(rewards, last_value, values=values)
    ended = _ended(rewards, terminated=terminated, truncated=truncated)
    values_next = jnp.concatenate([values[1:], last_value[None]])
    deltas = rewards + gamma * jnp.where(terminated, 0.0, values_next) - values
    decays = jnp.where(ended, 0.0, gamma * gae_lambda)
    return _decayed_sums(deltas, decays, ended)  # eq. 16, as a recursion


class VTrace(NamedTuple):
    """The result of `vtrace`; leaves `[T, N]`.

    Attributes:
      targets: v_t, the critic's regression targets.
      advantages: factors of the policy gradient, importance ratio included.
    """

    targets: Array
    advantages: Array


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
    """Return V-trace targets and advantages (Espeholt et al. 2018, arXiv 1802.01561).

    With `rho_t = min(rho_bar, pi / mu)`, `c_t = lambda min(c_bar, pi / mu)` and the delta of GAE,

        v_t = V_t + rho_t delta_t + gamma c_t (v_{t+1} - V_{t+1})         (eq. 1, as in remark 1)
        A_t = min(policy_rho_bar, pi / mu) (r_t + gamma q_{t+1} - V_t)    (section 4.2)

    where `q = lambda v + (1 - lambda) V`. Traces end with episodes, and a truncated episode
    bootstraps from V of its last state.

    Args:
      log_ratios: `[T, N]`, log pi(a|s) - log mu(a|s), learner over behaviour.
      rewards, values, terminated, truncated: `[T, N]`.
      last_value: `[N]`, the value of the observation after the last transition.
      gamma, trace_lambda: scalars in [0, 1].
      rho_bar, c_bar, policy_rho_bar: bounds of the importance ratio in deltas, traces and
        advantages.
    """
    _check_rows(rewards, last_value, values=values, log_ratios=log_ratios)
    ended = _ended(rewards, terminated=terminated, truncated=truncated)
    ratios = jnp.exp(log_ratios)
    values_next = jnp.concatenate([values[1:], last_value[None]])
    values_next = jnp.where(terminated, 0.0, values_next)
    deltas = jnp.minimum(rho_bar, ratios) * (rewards + gamma * values_next - values)
    decays = jnp.where(ended, 0.0, gamma * trace_lambda * jnp.minimum(c_bar, ratios))
    excess = _decayed_sums(deltas, decays, ended)  # v_t - V_t, remark 1
    excess_next = jnp.concatenate([excess[1:], jnp.zeros_like(last_value)[None]])
    bootstraps = values_next + jnp.where(ended, 0.0, trace_lambda * excess_next)
    advantages = rewards + gamma * bootstraps - values  # section 4.2, with q_{t+1}
    return VTrace(values + excess, jnp.minimum(policy_rho_bar, ratios) * advantages)


def _check_rows(rewards: Array, last_value: Array | None = None, **others: Array) -> None:
    """Raise `ValueError` unless the arrays are `[T, N]` as the rewards, and `last_value` `[N]`."""
    text = "rewards must be [T, N]; for a single environment give rewards[:, None]"
    chex.assert_rank(rewards, 2, custom_message=text, exception_type=ValueError)
    for name, x in others.items():
        text = f"{name} must have the shape of rewards, [T, N]"
        chex.assert_shape(x, rewards.shape, custom_message=text, exception_type=ValueError)
    if last_value is not None:
        text = "last_value must be [N], where rewards are [T, N]"
        shape = rewards.shape[1:]
        chex.assert_shape(last_value, shape, custom_message=text, exception_type=ValueError)


def _ended(rewards: Array, **flags: Array) -> Array:
    """Return where episodes end.

    Raises:
      ValueError: unless the flags are booleans in the shape of the rewards.
    """
    _check_rows(rewards, **flags)
    for name, flag in flags.items():
        text = f"{name} must be booleans, such as {name} != 0"
        chex.assert_type(flag, bool, custom_message=text, exception_type=ValueError)
    return flags["terminated"] | flags["truncated"]


def _decayed_sums(deltas: Array, decays: Array, ended: Array) -> Array:
    """Return `x_t = delta_t + decay_t x_{t+1}`, `[T, N]`, with 0 after ends and the last row.

    The row after an end is masked, and may hold anything.
    """

    def accumulate(x: Array, row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        delta, decay, is_end = row
        x = delta + decay * jnp.where(is_end, 0.0, x)
        return x, x

    start = jnp.zeros_like(deltas[0])
    return jax.lax.scan(accumulate, start, (deltas, decays, ended), reverse=True, unroll=16)[1]


def n_step_returns(
    rewards: Array,
    values_next: Array,
    terminated: Array,
    truncated: Array,
    gamma: Array | float,
    num_steps: int,
) -> Array:
    """Return n-step returns (Sutton & Barto 2018, eq. 7.1).

        G_t = r_t + gamma r_{t+1} + ... + gamma^(n-1) r_{t+n-1} + gamma^n V(s_{t+n})

    A sum stops early at the end of an episode, where a truncated one bootstraps from its last
    state, and after the last row, where it bootstraps after fewer steps.

    Args:
      rewards, terminated, truncated: `[T, N]`.
      values_next: `[T, N]`, the value of the state that each transition led to.
      gamma: scalar in [0, 1].
      num_steps: n, in environment steps.

    Returns:
      `[T, N]`.
    """
    _check_rows(rewards, values_next=values_next)
    ended = _ended(rewards, terminated=terminated, truncated=truncated)
    one_step = rewards + gamma * jnp.where(terminated, 0.0, values_next)
    total = one_step
    for _ in range(num_steps - 1):
        # G of k + 1 steps from G of k: G_t = r_t + gamma G_{t+1}.
        further = rewards[:-1] + gamma * total[1:]
        total = jnp.concatenate([jnp.where(ended[:-1], one_step[:-1], further), one_step[-1:]])
    return total


def rescale_value(x: Array, eps: float = 1e-3) -> Array:
    """Return h(x), which shrinks large values (Pohlen et al. 2018, arXiv 1805.11593).

    h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x
    """
    # sqrt(|x| + 1) - 1, without its loss of digits where x is small.
    return x / (jnp.sqrt(jnp.abs(x) + 1) + 1) + eps * x


def unscale_value(x: Array, eps: float = 1e-3) -> Array:
    """Return h^-1(x), the inverse of `rescale_value` (Pohlen et al. 2018, proposition A.2).

    h^-1(x) = sign(x) (((sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / (2 eps))^2 - 1)
    """
    root = jnp.sqrt(1 + 4 * eps * (jnp.abs(x) + 1 + eps))
    # z = (root - 1) / (2 eps) is near 1 where x is small. So that no digits are lost, z - 1 is
    # written out, and z^2 - 1 is (z - 1) (z - 1 + 2).
    z_minus_1 = 2 * x / (root + 1 + 2 * eps)
    return z_minus_1 * (jnp.abs(z_minus_1) + 2)
