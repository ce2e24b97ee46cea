"""Running statistics against NumPy over everything seen."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.ops import normalization
from jaxrl.spaces import Box, Dict
from jaxrl.types import Inputs, Trajectory

update = jax.jit(normalization.update)
discounted_sums = jax.jit(normalization.discounted_sums)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_statistics_are_those_of_all_valid_data(shape, offset):
    generator = np.random.default_rng(0)
    statistics, seen = normalization.start(shape), []
    for t in range(8):
        batch = generator.normal(t + offset, 1 + t, (16, 5, *shape)).astype(np.float32)
        valid = generator.random((16, 5)) < 0.7
        batch[~valid] = 1e6  # what does not count must not show
        statistics = update(statistics, batch, valid)
        seen.append(batch[valid])
    seen = np.concatenate(seen).astype(np.float64)
    np.testing.assert_allclose(statistics.count, len(seen), rtol=1e-6)
    np.testing.assert_allclose(statistics.mean, seen.mean(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(statistics.variance, seen.var(0), rtol=2e-3)


def test_parts_have_statistics_of_their_own_and_action_masks_have_none():
    def vector(size: int) -> Box:
        return Box.of((size,), np.float32)

    space = Dict.of(position=vector(3), inner=Dict.of(x=vector(1)), action_mask=vector(2))
    start = normalization.start_obs_statistics(space)
    rows, no = np.random.default_rng(0).normal(50, 4, (40, 5, 6)), jnp.zeros((40, 5), bool)
    obs = {
        "position": rows[..., :3], "inner": {"x": rows[..., 3:4]},
        "action_mask": (rows[..., 4:] > 50).astype(np.float32),
    }  # fmt: skip
    obs = jax.tree.map(jnp.asarray, obs)
    inputs = Inputs(obs, no, no, no)
    trajectory: Any = Trajectory(inputs, no, no * 1.0, no, no, valid=~no, extras=None)
    statistics: Any = normalization.update_obs_statistics(start, trajectory)
    for part, x in ((statistics["position"], obs["position"]),
                    (statistics["inner"]["x"], obs["inner"]["x"])):  # fmt: skip
        alone = update(normalization.start(x.shape[-1:]), x, ~no)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), part, alone)
    assert statistics["action_mask"] is None
    z = normalization.standardize(statistics, obs)
    np.testing.assert_array_equal(z["action_mask"], obs["action_mask"])
    for x in (z["position"], z["inner"]["x"]):
        np.testing.assert_allclose([x.mean(), x.std()], [0, 1], atol=0.2)


def test_a_batch_without_valid_rows_changes_nothing():
    statistics = update(normalization.start((2,)), jnp.ones((3, 2)), jnp.ones(3, bool))
    after = update(statistics, jnp.full((3, 2), 9.0), jnp.zeros(3, bool))
    jax.tree.map(np.testing.assert_array_equal, after, statistics)


def test_integers_are_counted_as_numbers():
    batch = np.array([[0, 255], [255, 255]], np.uint8)
    statistics = update(normalization.start((2,)), batch, np.ones(2, bool))
    np.testing.assert_allclose(statistics.mean, [127.5, 255], rtol=1e-3)


def test_standardized_data_has_mean_0_and_deviation_1():
    batch = np.random.default_rng(0).normal(7, 3, (1000, 2)).astype(np.float32)
    statistics = update(normalization.start((2,)), batch, np.ones(1000, bool))
    z = normalization.standardize(statistics, jnp.asarray(batch))
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(z.std(0), 1, rtol=1e-3)


def test_rescaling_keeps_signs_and_both_clip_at_10():
    statistics = normalization.RunningStatistics(jnp.float32(100), jnp.float32(5), jnp.float32(4))
    x = jnp.array([-1.0, 0.0, 2.0, 1e6, -1e6])
    np.testing.assert_allclose(
        normalization.rescale(statistics, x), [-0.5, 0, 1, 10, -10], rtol=1e-5
    )
    np.testing.assert_allclose(
        normalization.standardize(statistics, x), [-3, -2.5, -1.5, 10, -10], rtol=1e-5
    )


def test_discounted_sums_restart_after_an_end_and_go_on_across_rollouts():
    generator = np.random.default_rng(0)
    rewards = generator.normal(size=(40, 3)).astype(np.float32)
    ended = generator.random((40, 3)) < 0.2
    expected, running = [], np.zeros(3)
    for reward, end in zip(rewards, ended, strict=True):
        running = 0.9 * running + reward
        expected.append(running)
        running = np.where(end, 0, running)

    middle, first = discounted_sums(rewards[:25], ended[:25], jnp.zeros(3), 0.9)
    last, second = discounted_sums(rewards[25:], ended[25:], middle, 0.9)
    np.testing.assert_allclose(np.concatenate([first, second]), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last, running, rtol=1e-4, atol=1e-5)


def test_rewards_are_divided_by_the_deviation_of_the_discounted_sums_before_them():
    """The sums of episodes that were left, here of the first environment, do not go on."""
    first = jnp.array([[True, False], [False, False]])
    no = jnp.zeros_like(first)
    nothing: Any = None
    trajectory = Trajectory(
        inputs=Inputs(nothing, first, nothing, nothing), action=nothing,
        reward=jnp.array([[1.0, 1.0], [1.0, -1.0]]),
        terminated=no, truncated=no, valid=~no, extras=None,
    )  # fmt: skip
    scale: Any = normalization.start_reward_scale(num_envs=2)
    scale = scale._replace(running=jnp.array([60.0, 60.0]))
    after, scaled = normalization.update_reward_scale(scale, trajectory, 0.5)
    assert after is not None
    sums = [1, 31, 1.5, 14.5]
    np.testing.assert_allclose(after.running, sums[2:])
    np.testing.assert_allclose(scaled.reward, trajectory.reward / np.std(sums), rtol=1e-3)
