"""Conversions of every kind of Gymnasium space, observation and action."""

import jax
import numpy as np
import pytest
import simulators
from gymnasium.spaces import Box as GymBox
from gymnasium.spaces import Dict as GymDict
from gymnasium.spaces import Discrete as GymDiscrete
from gymnasium.spaces import MultiBinary as GymMultiBinary
from gymnasium.spaces import MultiDiscrete as GymMultiDiscrete

import jaxrl
from jaxrl.envs.check import jit_play
from jaxrl.envs.host import conversions, step_checks
from jaxrl.spaces import Box, Dict, Discrete, MultiDiscrete

N = 2
SHOWN = {
    "discrete": [0, 1, 0],
    "multi-discrete": [0, 1, 1, 0, 0],
    "grid": [0, 1, 1, 0, 0, 1, 1, 0],
    "long": [4, 1],
    "longer": [2**33],
    "multi-binary": [1, 0, 1],
    "double": [0.5, -0.5],
    "bool": [1, 0],
    "image": np.arange(60).reshape(5, 4, 3),
    "stack": np.arange(120).reshape(2, 5, 4, 3).transpose(1, 2, 0, 3).reshape(5, 4, 6),
    "planes": np.arange(120).reshape(2, 3, 5, 4).transpose(2, 3, 0, 1).reshape(5, 4, 6),
}


@pytest.mark.parametrize("kind", SHOWN)
def test_observations_of_every_kind(kind):
    env = jaxrl.make(simulators.Spaced, N, kind=kind, vectorization_mode="sync")
    steps = jit_play(env, jax.random.key(0), np.array([[0, 1]], np.int32))
    assert isinstance(env.observation_space, Box)
    dtypes = {"long": np.int32} | dict.fromkeys(("image", "stack", "planes"), np.uint8)
    assert steps.obs.dtype == dtypes.get(kind, np.float32)
    np.testing.assert_array_equal(steps.obs[1], [SHOWN[kind]] * N)
    np.testing.assert_array_equal(steps.reward[1], [3, 4])  # the simulator's actions begin at 3


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (GymDiscrete(3), 3),
        (GymDiscrete(3, start=1), 0),
        (GymMultiDiscrete([3, 2]), np.array([0, 2])),
        (GymMultiDiscrete([3, 2]), np.array([-1, 0])),
        (GymMultiBinary(2), np.array([7, 0], np.int8)),
    ],
)
def test_integers_out_of_range_are_refused(space, obs):
    with pytest.raises(ValueError, match="obs must be of "):
        step_checks.check(space, obs, "obs")


@pytest.mark.parametrize(
    ("dtype", "number"), [(np.float32, np.inf), (np.float64, 1e39), (np.float64, -np.inf)]
)
def test_numbers_that_single_precision_does_not_hold_are_refused(dtype, number):
    space = GymBox(-np.inf, np.inf, (2,), dtype)
    step_checks.check(space, np.array([1e38, 0], dtype), "obs")
    with pytest.raises(ValueError, match="obs has numbers that are not finite float32"):
        step_checks.check(space, np.array([0, number], dtype), "obs")


def test_integers_that_the_dtype_does_not_hold_are_refused():
    space = GymBox(-(2**31), 2**31 - 1, (2,), np.int32)
    step_checks.check(space, np.array([0, -(2**31)]), "obs")
    with pytest.raises(ValueError, match="obs has integers that int32 does not hold"):
        step_checks.check(space, np.array([0, 2**31]), "obs")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [((3, 5, 4), (5, 4, 3)), ((5, 4, 3), (5, 4, 3)), ((7, 7, 20), (7, 7, 20))],
)
def test_images_end_with_their_channels(raw, shown):
    space = GymBox(0, 255, raw, np.uint8)
    arrays = conversions.raw_observation(space)
    assert conversions.observation_space(space, arrays) == Box.of(shown, np.uint8, 0, 255)
    assert conversions.arrange(Box.of(shown, np.uint8), arrays, np.zeros((N, *raw))).shape == (
        N,
        *shown,
    )


def test_integers_are_one_hot_in_single_precision():
    with jax.enable_x64(True):
        shown = conversions.arrange(
            Box.of((4,), np.float32), jax.ShapeDtypeStruct((), np.int32), np.array([0, 3])
        )
    assert (shown.dtype, shown.tolist()) == (np.float32, [[1, 0, 0, 0], [0, 0, 0, 1]])


@pytest.mark.parametrize("kind", ["text", "empty", "one-of"])
def test_observations_without_a_fixed_shape_are_refused(kind):
    with pytest.raises(ValueError, match="Spaced cannot be run: the observation space "):
        jaxrl.make(simulators.Spaced, N, kind=kind)


def test_names_of_parts_may_be_numbers():
    env = jaxrl.make(simulators.Spaced, N, kind="numbered", vectorization_mode="sync")
    steps = jit_play(env, jax.random.key(0), np.array([[0, 1]], np.int32))
    np.testing.assert_array_equal(steps.obs["1"][1], [[0, 1]] * N)
    np.testing.assert_array_equal(steps.obs["2"][1], [[0, 0, 1]] * N)


def test_parts_without_an_element_are_left_out():
    env = jaxrl.make(simulators.Spaced, N, kind="parts", vectorization_mode="sync")
    assert env.observation_space == Dict.of(some=Box.of((2,), np.float32, 0, 1))
    steps = jit_play(env, jax.random.key(0), np.array([[0, 1]], np.int32))
    assert list(steps.obs) == ["some"]
    np.testing.assert_array_equal(steps.obs["some"][1], [[0, 1]] * N)


@pytest.mark.parametrize(
    ("space", "ours", "action", "sent"),
    [
        (GymDiscrete(3, start=2), Discrete(3), [0, 2], [2, 4]),
        (GymMultiDiscrete([2, 3]), MultiDiscrete((2, 3)), [[0, 1]], [[0, 1]]),
        (
            GymMultiDiscrete(np.array([[2, 3], [1, 2]]), start=np.array([[4, 0], [0, -1]])),
            MultiDiscrete((2, 3, 1, 2)),
            [[1, 0, 0, 1]],
            [[[5, 0], [0, 0]]],
        ),
        (GymMultiBinary(2), MultiDiscrete((2, 2)), [[0, 1]], [[0, 1]]),
        (GymMultiBinary((2, 1)), MultiDiscrete((2, 2)), [[0, 1]], [[[0], [1]]]),
        (GymBox(-1, 2, ()), Box.of((1,), np.float32, -1, 2), [[0.5]], [0.5]),
        (
            GymBox(np.array([[0, 1]], np.float32), np.array([[2, 3]], np.float32)),
            Box.of((2,), np.float32, [0, 1], [2, 3]),
            [[0.5, 1.5]],
            [[[0.5, 1.5]]],
        ),
        (GymBox(1, 3, (2, 1), np.int64), MultiDiscrete((3, 3)), [[0, 2]], [[[1], [3]]]),
        (GymBox(-1, 1, (1,), np.float64), Box.of((1,), np.float32, -1, 1), [[0.5]], [[0.5]]),
    ],
)
def test_actions_of_every_kind(space, ours, action, sent):
    assert conversions.action_space("x", space) == ours
    result = conversions.to_simulator(space, np.asarray(action, ours.dtype))
    np.testing.assert_array_equal(result, sent)
    assert result.dtype == space.dtype
    assert space.contains(np.asarray(result[0]))


@pytest.mark.parametrize(
    "space",
    [
        GymBox(-0.1, 0.1, (1,), np.float64),
        GymBox(-0.1, 0.1, (), np.float64),
        GymBox(np.array([-1e-300, 0.3]), np.array([1e300, 0.7]), dtype=np.float64),
        GymBox(-np.inf, np.inf, (2,), np.float64),
    ],
)
def test_clipped_actions_keep_bounds_of_double_precision(space):
    actions = conversions.action_space("x", space)
    assert isinstance(actions, Box)
    for bound in actions.bounds():
        batch = conversions.to_simulator(space, np.nan_to_num(bound)[np.newaxis])
        assert space.contains(np.asarray(batch[0]))


def test_actions_without_a_distribution_are_refused():
    with pytest.raises(ValueError, match=r"x has the actions Dict.*which jaxrl does not run"):
        conversions.action_space("x", GymDict({"a": GymDiscrete(2)}))
    limits = np.iinfo(np.int64)
    with pytest.raises(ValueError, match=r"integers of 18446744073709551616 values"):
        conversions.action_space("x", GymBox(limits.min, limits.max, (1,), np.int64))


def test_extremes_of_the_dtype_are_no_bounds():
    limits = np.finfo(np.float64)
    space = conversions.observation_space(
        GymBox(limits.tiny, limits.max, (2,), np.float64), jax.ShapeDtypeStruct((2,), np.float32)
    )
    assert space == Box.of((2,), np.float32)
