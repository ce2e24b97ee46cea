"""Action masks: their shapes, and the next allowed action."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.spaces import Box, Dict, Discrete, MultiDiscrete, has_action_mask, next_allowed

VECTOR = Box.of((4,), np.float32)


def test_a_mask_must_fit_the_actions():
    space = Dict.of(action_mask=Box.of((3,), np.float32), x=VECTOR)
    assert has_action_mask(space, Discrete(3))
    assert not has_action_mask(VECTOR, Discrete(3))
    assert not has_action_mask(space, Box.of((2,), np.float32))
    for observations, actions, shapes in (
        (space, Discrete(6), r"\(6,\) for"),
        (space, MultiDiscrete((3, 3)), r"\(3, 3\) or \(2, 3\) for"),
        (space, MultiDiscrete((3, 2)), r"\(3, 2\) for"),
        (Dict.of(action_mask=space), Discrete(3), r"\(3,\) for"),
    ):
        with pytest.raises(ValueError, match=f"'action_mask' must be an array of shape {shapes}"):
            has_action_mask(observations, actions)


def test_the_next_allowed_action_replaces_a_forbidden_one():
    action = jnp.arange(4, dtype=jnp.int32)
    masks = jnp.array([[1, 1, 0, 0], [1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0]], jnp.float32)
    found = next_allowed(Discrete(4), action, masks)
    np.testing.assert_array_equal(found, [0, 3, 0, 3])
    assert found.dtype == jnp.int32


@pytest.mark.parametrize("shape", [(3, 2), (2, 2, 2), (2, 2)])
def test_the_next_allowed_action_is_that_of_a_search_one_by_one(shape):
    """A mask `[2, 2]` for sizes (2, 2) has an entry for each combination."""
    rng, space = np.random.default_rng(0), MultiDiscrete(shape)
    masks = rng.random((64, *shape)) < 0.3
    actions = rng.integers(0, shape, (64, len(shape))).astype(np.int32)
    found = np.asarray(next_allowed(space, jnp.asarray(actions), jnp.asarray(masks)))
    for action, mask, after in zip(actions, masks, found, strict=True):
        number = np.ravel_multi_index(tuple(action), shape)
        if mask.any():
            while not mask.reshape(-1)[number]:
                number = (number + 1) % mask.size
        assert tuple(after) == np.unravel_index(number, shape)


def test_the_mask_of_each_integer_holds_for_it_alone():
    masks = jnp.array([[[0, 0, 1], [1, 0, 0]]], jnp.float32)
    found = next_allowed(MultiDiscrete((3, 3)), jnp.array([[0, 1]], jnp.int32), masks)
    np.testing.assert_array_equal(found, [[2, 0]])
