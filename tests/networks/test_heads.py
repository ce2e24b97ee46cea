"""Heads: distributions and values that fit the action space, and action masks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.networks.heads import MASKED_LOGIT, ActorCriticHead, QHead
from jaxrl.ops.distributions import Categorical, DiagonalNormal, JointCategorical, MultiCategorical
from jaxrl.spaces import ActionSpace, Box, Discrete, MultiDiscrete

KEY = jax.random.key(0)
FEATURES = jnp.ones((7, 3))
ROWS = 1000


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (Discrete(5), Categorical),
        (MultiDiscrete((2, 3)), MultiCategorical),
        (Box.of((2,), np.float32, -1, 1), DiagonalNormal),
    ],
)
def test_the_distribution_fits_the_action_space(space, expected):
    head = ActorCriticHead(space, initial_std=0.5)
    (distribution, value), _ = head.init_with_output(KEY, FEATURES)
    assert isinstance(distribution, expected)
    assert value.shape == (7,)
    action = distribution.sample(KEY)
    assert (action.shape, action.dtype) == ((7, *space.shape), space.dtype)
    assert distribution.log_prob(action).shape == (7,)
    if isinstance(distribution, DiagonalNormal):
        np.testing.assert_allclose(np.exp(distribution.log_scale), np.full((7, 2), 0.5))


def test_a_dueling_head_adds_the_value_to_centred_advantages():
    head = QHead(3, dueling=True)
    features = jax.random.normal(KEY, (7, 4))
    values, variables = head.init_with_output(KEY, features)
    params: Any = variables["params"]
    value, advantages = (features @ params[name]["kernel"] for name in ("value", "advantages"))
    expected = value + advantages - advantages.mean(-1, keepdims=True)
    np.testing.assert_allclose(values, expected, atol=1e-5)


def masked_actions(space: ActionSpace, mask: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return a head's distribution under a mask, its samples and its modes, `[ROWS, ...]`."""

    @jax.jit
    def act(mask):
        features = jnp.zeros((ROWS, 3))
        (distribution, _), _ = ActorCriticHead(space).init_with_output(
            KEY, features, action_mask=mask
        )
        return distribution, distribution.sample(jax.random.key(1)), distribution.mode()

    return act(mask)


@pytest.mark.parametrize(
    ("space", "expected"),
    [(Discrete(6), Categorical), (MultiDiscrete((2, 3)), JointCategorical)],
)
def test_masked_combinations_are_never_chosen(space, expected):
    mask = np.zeros((ROWS, 6), np.float32)
    mask[np.arange(ROWS), np.random.default_rng(0).integers(0, 6, ROWS)] = 1
    mask[:500, 4] = 1
    mask = mask.reshape(-1, *getattr(space, "sizes", (6,)))
    distribution, *choices = masked_actions(space, mask)
    assert isinstance(distribution, expected)
    for actions in choices:
        assert (mask[(np.arange(ROWS), *np.asarray(actions).reshape(ROWS, -1).T)] == 1).all()


def test_a_mask_of_each_integer_holds_for_it_alone():
    mask = (np.random.default_rng(0).random((ROWS, 2, 3)) < 0.5).astype(np.float32)
    mask[..., 1] = 1
    distribution, actions, _ = masked_actions(MultiDiscrete((3, 3)), mask)
    assert isinstance(distribution, MultiCategorical)
    assert np.take_along_axis(mask, np.asarray(actions)[..., None], 2).all()
    for part in range(2):
        assert set(np.asarray(actions[:, part])) == {0, 1, 2}


@pytest.mark.parametrize("head", [ActorCriticHead(Discrete(3)), QHead(3)], ids=["policy", "q"])
def test_a_mask_of_other_actions_is_refused(head):
    with pytest.raises(
        ValueError, match=r"for each of 3 actions of 4 environments, got .*\(4, 2\)"
    ):
        head.init(KEY, jnp.ones((4, 5)), action_mask=jnp.ones((4, 2)))
    with pytest.raises(TypeError):  # where critic_features stand, too
        head.init(KEY, jnp.ones((4, 5)), None, jnp.ones((4, 3)))


def test_an_all_zero_mask_is_ignored():
    mask = np.ones((ROWS, 2, 3), np.float32)
    mask[:, 0] = 0
    mask[:, 1, 0] = 0
    _, actions, _ = masked_actions(MultiDiscrete((3, 3)), mask)
    assert set(np.asarray(actions[:, 0])) == {0, 1, 2}
    assert set(np.asarray(actions[:, 1])) == {1, 2}


@pytest.mark.parametrize("dueling", [False, True])
def test_masked_actions_have_the_least_value(dueling):
    mask = jnp.array([[1.0, 0, 1], [0, 0, 1], [0, 0, 0], [1, 1, 1]])
    values, _ = QHead(3, dueling).init_with_output(KEY, jnp.ones((4, 3)), action_mask=mask)
    masked = np.array([[0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0]], bool)
    np.testing.assert_array_equal(values == MASKED_LOGIT, masked)
    assert (np.abs(values[~masked]) < 100).all()
