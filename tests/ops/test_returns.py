"""Returns against their definitions in NumPy, against rlax, and a case worked out by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.ops.returns import (
    generalized_advantages,
    n_step_returns,
    rescale_value,
    unscale_value,
    vtrace,
)

pytestmark = pytest.mark.smoke

N = 3
jitted_advantages = jax.jit(generalized_advantages)
jitted_vtrace = jax.jit(vtrace)
jitted_n_step = jax.jit(n_step_returns, static_argnames="num_steps")
unit_interval = st.floats(0, 1, width=32)
seeds = st.integers(0, 2**32 - 1)


# rlax's function takes one sequence.
rlax_vtrace = jax.jit(
    jax.vmap(rlax.vtrace_td_error_and_advantage, (1, 1, 1, 1, 1, None, None, None), out_axes=1)
)


def random_rollout(seed: int, num_steps: int, truncations: bool = True) -> dict[str, Any]:
    """Return transitions of next-step autoreset, where a row that only resets follows each end."""
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


def values_after(values: np.ndarray, last_value: np.ndarray) -> np.ndarray:
    return np.concatenate([values[1:], last_value[None]])


def advantages_by_definition(
    rewards, values, last_value, terminated, truncated, valid, gamma, gae_lambda
):
    """Sum eq. 16 anew for each step; NaN where a row is not valid."""
    num_steps = len(rewards)
    values_next = values_after(values, last_value)
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
@given(seeds, st.sampled_from([1, 20]), unit_interval, unit_interval)
def test_advantages_follow_their_definition(seed, num_steps, gamma, gae_lambda):
    rollout = random_rollout(seed, num_steps)
    expected = advantages_by_definition(**rollout, gamma=gamma, gae_lambda=gae_lambda)
    valid = rollout.pop("valid")
    actual = jitted_advantages(**rollout, gamma=gamma, gae_lambda=gae_lambda)
    np.testing.assert_allclose(actual[valid], expected[valid], rtol=1e-4, atol=1e-4)


def column(*numbers):
    return jnp.array(numbers)[:, None]


def test_a_truncated_episode_bootstraps_from_its_last_observation():
    # A reward of 1 at every step is worth 10 at gamma = 0.9, as the critic says. So a time limit
    # after two steps gives advantages of 0. The third row only resets, to a state valued 3.
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
    as_termination = generalized_advantages(terminated=limit, truncated=never, **rollout)
    np.testing.assert_allclose(as_termination[:2, 0], [-8.1, -9.0], rtol=1e-5)
    as_nothing = generalized_advantages(terminated=never, truncated=never, **rollout)
    np.testing.assert_allclose(as_nothing[:2, 0], [0.81 * -7.3, 0.9 * -7.3], rtol=1e-5)


def test_wrong_shapes_are_refused():
    rollout = random_rollout(0, 4) | {"gamma": 0.9, "gae_lambda": 0.9}
    rollout.pop("valid")
    for name, wrong, text in (
        ("last_value", rollout["values"], r"last_value must be \[N\]"),
        ("terminated", rollout["terminated"][1:], "terminated must have the shape of rewards"),
        ("truncated", False, r"has shape \(\) .*truncated must have the shape of rewards"),
        ("values", rollout["values"][:, :1], "values must have the shape of rewards"),
        ("rewards", rollout["rewards"][:, 0], r"rewards must be \[T, N\]; .*rewards\[:, None\]"),
    ):
        with pytest.raises(ValueError, match=text):
            generalized_advantages(**rollout | {name: wrong})


@pytest.mark.parametrize("name", ["terminated", "truncated"])
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_flags_that_are_numbers_are_refused_by_name(name, dtype):
    rollout = random_rollout(0, 4)
    rollout.pop("valid")
    rollout[name] = rollout[name].astype(dtype)
    with pytest.raises(ValueError, match=rf"has type {dtype.__name__} .*{name} must be booleans"):
        generalized_advantages(**rollout, gamma=0.9, gae_lambda=0.9)


def random_log_ratios(seed: int, num_steps: int) -> np.ndarray:
    generator = np.random.default_rng([seed, 1])
    return generator.normal(size=(num_steps, N)).astype(np.float32)


def vtrace_by_definition(
    log_ratios, rewards, values, last_value, terminated, truncated, valid,
    gamma, trace_lambda, rho_bar, c_bar, policy_rho_bar,
):  # fmt: skip
    """Sum eq. 1 anew for each step, and section 4.2's advantages; NaN where not valid."""
    ratios = np.exp(log_ratios.astype(np.float64))
    values_next = values_after(values, last_value)
    ended = terminated | truncated
    targets = np.full(rewards.shape, np.nan)
    for s, n in np.argwhere(valid):
        total, trace = float(values[s, n]), 1.0
        for t in range(s, len(rewards)):
            after = 0.0 if terminated[t, n] else gamma * values_next[t, n]
            delta = min(rho_bar, ratios[t, n]) * (rewards[t, n] + after - values[t, n])
            total += gamma ** (t - s) * trace * delta
            trace *= trace_lambda * min(c_bar, ratios[t, n])
            if ended[t, n]:
                break
        targets[s, n] = total
    advantages = np.full(rewards.shape, np.nan)
    for s, n in np.argwhere(valid):
        after = float(values_next[s, n])
        if s + 1 < len(rewards) and not ended[s, n]:
            after = trace_lambda * targets[s + 1, n] + (1 - trace_lambda) * after
        q = rewards[s, n] + (0.0 if terminated[s, n] else gamma * after)
        advantages[s, n] = min(policy_rho_bar, ratios[s, n]) * (q - values[s, n])
    return targets, advantages


bounds = st.floats(0.125, 4, width=32)


@settings(deadline=None, max_examples=40)
@given(seeds, st.sampled_from([1, 20]), unit_interval, unit_interval, bounds, bounds, bounds)
def test_vtrace_follows_its_definition(
    seed, num_steps, gamma, trace_lambda, rho_bar, c_bar, policy_rho_bar
):
    rollout = random_rollout(seed, num_steps) | {
        "log_ratios": random_log_ratios(seed, num_steps),
        "gamma": gamma,
        "trace_lambda": trace_lambda,
        "rho_bar": rho_bar,
        "c_bar": c_bar,
        "policy_rho_bar": policy_rho_bar,
    }
    targets, advantages = vtrace_by_definition(**rollout)
    valid = rollout.pop("valid")
    actual = jitted_vtrace(**rollout)
    # Where c_bar > 1 the traces grow without bound, and float32's errors with them.
    tolerance = {"rtol": 1e-4, "atol": 1e-5 * max(1.0, np.abs(targets[valid]).max())}
    np.testing.assert_allclose(actual.targets[valid], targets[valid], **tolerance)
    np.testing.assert_allclose(actual.advantages[valid], advantages[valid], **tolerance)


@settings(deadline=None, max_examples=20)
@given(seeds, unit_interval, unit_interval, bounds, bounds)
def test_vtrace_agrees_with_rlax_where_nothing_is_truncated(
    seed, gamma, trace_lambda, rho_bar, policy_rho_bar
):
    rollout = random_rollout(seed, 20, truncations=False)
    log_ratios = random_log_ratios(seed, 20)
    del rollout["valid"]
    values_next = values_after(rollout["values"], rollout["last_value"])
    expected = rlax_vtrace(
        rollout["values"],
        values_next,
        rollout["rewards"],
        (gamma * ~rollout["terminated"]).astype(np.float32),
        np.exp(log_ratios),
        trace_lambda,
        rho_bar,
        policy_rho_bar,
    )
    actual = jitted_vtrace(
        log_ratios,
        **rollout,
        gamma=gamma,
        trace_lambda=trace_lambda,
        rho_bar=rho_bar,
        policy_rho_bar=policy_rho_bar,
    )
    targets = expected.errors + rollout["values"]
    np.testing.assert_allclose(actual.targets, targets, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(actual.advantages, expected.pg_advantage, rtol=1e-4, atol=1e-4)


def n_step_by_definition(
    rewards, values_next, terminated, truncated, gamma, num_steps
) -> np.ndarray:
    """Sum each row on its own, up to `num_steps`, an end or the last row."""
    returns = np.zeros(rewards.shape)
    for t, n in np.ndindex(rewards.shape):
        for k in range(num_steps):
            row = t + k
            returns[t, n] += gamma**k * rewards[row, n]
            if terminated[row, n]:
                break
            if truncated[row, n] or k == num_steps - 1 or row == len(rewards) - 1:
                returns[t, n] += gamma ** (k + 1) * values_next[row, n]
                break
    return returns


@settings(deadline=None, max_examples=40)
@given(seeds, st.sampled_from([1, 12]), unit_interval, st.sampled_from([1, 2, 5, 12, 20]))
def test_n_step_returns_follow_their_definition(seed, num_rows, gamma, num_steps):
    rollout = random_rollout(seed, num_rows) | {"gamma": gamma, "num_steps": num_steps}
    rollout["values_next"] = values_after(rollout.pop("values"), rollout.pop("last_value"))
    valid = rollout.pop("valid")
    expected = n_step_by_definition(**rollout)
    actual = jitted_n_step(**rollout)
    np.testing.assert_allclose(actual[valid], expected[valid], rtol=1e-4, atol=1e-5)


def both_signs() -> np.ndarray:
    """Return numbers of either sign from 1e-12 to 1e6, in ascending order."""
    positive = np.geomspace(1e-12, 1e6, 1000)
    return np.concatenate([-positive[::-1], [0.0], positive]).astype(np.float32)


def test_value_rescaling_and_its_inverse_undo_each_other():
    x = both_signs()
    np.testing.assert_allclose(unscale_value(rescale_value(jnp.asarray(x))), x, rtol=2e-6)
    np.testing.assert_allclose(rescale_value(unscale_value(jnp.asarray(x))), x, rtol=2e-6)


@pytest.mark.parametrize("function", [rescale_value, unscale_value])
def test_value_rescaling_is_odd_and_increasing(function):
    x = both_signs()
    y = np.asarray(function(jnp.asarray(x)))
    np.testing.assert_array_equal(y, -y[::-1])
    assert (np.diff(y) > 0).all()
    assert y[len(y) // 2] == 0


@pytest.mark.parametrize("eps", [1e-3, 1e-2])
def test_value_rescaling_agrees_with_rlax(eps):
    x = both_signs()
    x = x[np.abs(x) > 1e-6]  # rlax loses digits near 0: all in float32, half of them in float64
    with jax.enable_x64(True):
        wide = jnp.asarray(x, jnp.float64)
        scaled = np.asarray(rlax.signed_hyperbolic(wide, eps))
        unscaled = np.asarray(rlax.signed_parabolic(wide, eps))
    np.testing.assert_allclose(rescale_value(jnp.asarray(x), eps), scaled, rtol=1e-6)
    np.testing.assert_allclose(unscale_value(jnp.asarray(x), eps), unscaled, rtol=2e-6)
