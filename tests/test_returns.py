"""Returns against a quadratic NumPy reference, rlax, and numbers worked out by hand."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.returns import generalized_advantages

N = 3
jitted_advantages = jax.jit(generalized_advantages)
unit_interval = st.floats(0, 1, width=32)


def random_rollout(seed: int, num_steps: int, truncations: bool = True) -> dict[str, Any]:
    """Transitions of next-step autoreset: each end is followed by a row that only resets."""
    generator = np.random.default_rng(seed)
    shape = (num_steps, N)
    ends = generator.random(shape) < 0.3
    for t in range(1, num_steps):
        ends[t] &= ~ends[t - 1]
    resets = np.zeros(shape, bool)
    resets[1:] = ends[:-1]
    is_truncation = (generator.random(shape) < 0.5) & truncations
    rewards = generator.normal(size=shape) * ~resets
    return {
        "rewards": rewards.astype(np.float32),
        "values": generator.normal(size=shape).astype(np.float32),
        "last_value": generator.normal(size=N).astype(np.float32),
        "terminated": ends & ~is_truncation,
        "truncated": ends & is_truncation,
        "valid": ~resets,
    }


def advantages_by_definition(
    rewards, values, last_value, terminated, truncated, valid, gamma, gae_lambda
):
    """Eq. 16, summed anew for each step; NaN where a row is not valid."""
    num_steps = len(rewards)
    values_next = np.concatenate([values[1:], last_value[None]])
    advantages = np.full(rewards.shape, np.nan)
    for t, n in np.argwhere(valid):
        total = 0.0
        for k in range(t, num_steps):
            target = rewards[k, n]
            if not terminated[k, n]:
                target += gamma * values_next[k, n]
            total += (gamma * gae_lambda) ** (k - t) * (target - values[k, n])
            if terminated[k, n] or truncated[k, n]:
                break
        advantages[t, n] = total
    return advantages


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 20]), unit_interval, unit_interval)
def test_advantages_follow_their_definition(seed, num_steps, gamma, gae_lambda):
    rollout = random_rollout(seed, num_steps)
    expected = advantages_by_definition(**rollout, gamma=gamma, gae_lambda=gae_lambda)
    valid = rollout.pop("valid")
    actual = jitted_advantages(**rollout, gamma=gamma, gae_lambda=gae_lambda)
    np.testing.assert_allclose(actual[valid], expected[valid], rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), unit_interval, unit_interval)
def test_advantages_agree_with_rlax_where_nothing_is_truncated(seed, gamma, gae_lambda):
    rollout = random_rollout(seed, 20, truncations=False)
    del rollout["valid"]
    discounts = gamma * ~rollout["terminated"]
    values = np.concatenate([rollout["values"], rollout["last_value"][None]])
    in_columns = functools.partial(jax.vmap, in_axes=(1, 1, None, 1), out_axes=1)
    expected = jax.jit(in_columns(rlax.truncated_generalized_advantage_estimation))(
        rollout["rewards"], discounts.astype(np.float32), gae_lambda, values
    )
    actual = jitted_advantages(**rollout, gamma=gamma, gae_lambda=gae_lambda)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def column(*numbers):
    return jnp.array(numbers)[:, None]


def test_a_truncated_episode_bootstraps_from_its_last_observation():
    # One reward a step for ever is worth 10 at gamma = 0.9. The critic knows it, so a time limit
    # after two steps teaches nothing. The third row only resets, to a state valued 3.
    rollout = {
        "rewards": column(1.0, 1.0, 0.0),
        "values": column(10.0, 10.0, 10.0),
        "last_value": jnp.array([3.0]),
        "gamma": 0.9,
        "gae_lambda": 1.0,
    }
    limit, never = column(False, True, False), column(False, False, False)
    exact = generalized_advantages(terminated=never, truncated=limit, **rollout)
    np.testing.assert_allclose(exact[:2, 0], [0.0, 0.0], atol=1e-5)
    as_a_death = generalized_advantages(terminated=limit, truncated=never, **rollout)
    np.testing.assert_allclose(as_a_death[:2, 0], [-8.1, -9.0], rtol=1e-5)
    as_nothing = generalized_advantages(terminated=never, truncated=never, **rollout)
    np.testing.assert_allclose(as_nothing[:2, 0], [0.81 * -7.3, 0.9 * -7.3], rtol=1e-5)


def test_nothing_leaks_from_the_next_episode_into_the_last():
    rollout = random_rollout(0, 12) | {"gamma": 0.9, "gae_lambda": 0.9}
    rollout.pop("valid")
    rollout["terminated"][5], rollout["truncated"][5] = [True, False, False], [False, True, False]
    rollout["terminated"][6] = rollout["truncated"][6] = False
    other = rollout | {"rewards": rollout["rewards"].copy(), "values": rollout["values"].copy()}
    other["rewards"][7:] += 1
    other["values"][7:] += 1
    before, after = jitted_advantages(**rollout)[:6], jitted_advantages(**other)[:6]
    np.testing.assert_array_equal(before[:, :2], after[:, :2])
    assert (before[5, 2] != after[5, 2]).all()


def test_wrong_ranks_are_refused():
    rollout = random_rollout(0, 4) | {"gamma": 0.9, "gae_lambda": 0.9}
    rollout.pop("valid")
    with pytest.raises(AssertionError, match="rank"):
        generalized_advantages(**rollout | {"last_value": rollout["values"]})
    with pytest.raises(AssertionError, match="shape"):
        generalized_advantages(**rollout | {"terminated": rollout["terminated"][1:]})
