"""Networks built from configs and spaces, and the networks of callers that are refused."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.networks import build, recurrent
from jaxrl.ops.distributions import (
    Categorical,
    DiagonalNormal,
    JointCategorical,
    MultiCategorical,
)
from jaxrl.spaces import Box, Dict, Discrete, MultiDiscrete
from jaxrl.types import Inputs

VECTOR = Box.of((3,), np.float32)
IMAGE = Box.of((20, 20, 2), np.uint8, 0, 255)


def actor_critic(observation_space, action_space, **fields):
    config = build.PolicyConfig(**fields)
    return build.actor_critic(observation_space, action_space, config)


def with_mask(*shape: int) -> Dict:
    return Dict.of(action_mask=Box.of(shape, np.float32, 0, 1), place=VECTOR)


def assert_orthogonal(kernel, scale):
    matrix = np.asarray(kernel, np.float64).reshape(-1, kernel.shape[-1])
    matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    expected = scale**2 * np.eye(matrix.shape[1])
    np.testing.assert_allclose(matrix.T @ matrix, expected, atol=1e-5 * max(1, scale**2))


def test_weights_are_orthogonal_and_biases_0():
    network = actor_critic(IMAGE, Discrete(6), torso="ga3c_cnn", hidden_sizes=(32,))
    obs = jnp.zeros((1, 20, 20, 2), jnp.uint8)
    params = jax.jit(network.init)(jax.random.key(0), obs)["params"]
    assert_orthogonal(params["head"]["policy"]["kernel"], 0.01)
    assert np.abs(params["head"]["policy"]["kernel"]).max() > 1e-4
    assert_orthogonal(params["head"]["value"]["kernel"], 1.0)
    kernels = [x for x in jax.tree.leaves(params["torso"]) if x.ndim > 1]
    assert len(kernels) == 3
    for kernel in kernels:
        assert_orthogonal(kernel, np.sqrt(2))
    for bias in (x for x in jax.tree.leaves(params) if x.ndim == 1):
        assert (bias == 0).all()


@pytest.mark.parametrize(
    ("space", "fields", "torsos"),
    [
        (VECTOR, {}, {"torso", "critic_torso"}),
        (IMAGE, {"torso": "ga3c_cnn"}, {"torso"}),
        (VECTOR, {"core": "gru"}, {"torso"}),
    ],
)
def test_only_feed_forward_mlps_have_a_torso_for_the_critic(space, fields, torsos):
    network: Any = actor_critic(space, Discrete(2), **fields)
    assert build.has_own_critic(network) == ("critic_torso" in torsos)
    zeros = jnp.zeros((1, 1))
    obs = jnp.zeros((1, 1, *space.shape), space.dtype)
    inputs = Inputs(obs, zeros == 0, zeros.astype(jnp.int32), zeros)
    params = jax.eval_shape(lambda: recurrent.init(network, jax.random.key(0), inputs))
    assert {name for name in params["params"] if "torso" in name} == torsos


def test_heads_compute_in_float32_behind_a_torso_in_bfloat16():
    network = actor_critic(VECTOR, Discrete(6), compute_dtype="bfloat16")
    (distribution, value), params = jax.eval_shape(
        network.init_with_output, jax.random.key(0), jnp.zeros((2, 3))
    )
    assert {x.dtype.name for x in jax.tree.leaves((params, distribution, value))} == {"float32"}


def test_spaces_of_actions_are_refused_by_what_cannot_take_them():
    with pytest.raises(ValueError, match=r"shape \(2, 3\), but policies return vectors"):
        actor_critic(VECTOR, Box.of((2, 3), np.float32))
    with pytest.raises(ValueError, match="Q-learning needs Discrete actions, got the space"):
        build.q_network(VECTOR, MultiDiscrete((2, 3)), build.NetworkConfig())


@pytest.mark.parametrize("core", [None, "gru"])
@pytest.mark.parametrize("is_q_network", [False, True])
def test_the_observation_s_mask_reaches_the_head(core, is_q_network):
    space, config = with_mask(3), build.PolicyConfig(core=core, core_size=4, hidden_sizes=(4,))
    network = (
        build.q_network(space, Discrete(3), config)
        if is_q_network
        else build.actor_critic(space, Discrete(3), config)
    )
    mask = jnp.array([[0, 0, 1.0], [0, 1, 0], [1, 0, 0]])
    row = jnp.zeros((1, 3))
    obs = recurrent.one_step({"action_mask": mask, "place": jnp.zeros((3, 3))})
    inputs = Inputs(obs, row == 0, row.astype(jnp.int32), row)

    @jax.jit
    def outputs():
        params = recurrent.init(network, jax.random.key(0), inputs)
        return recurrent.apply(network, params, recurrent.initial_core(network, 3), inputs)[1]

    best = outputs()[0].argmax(-1) if is_q_network else outputs()[0].mode()[0]
    np.testing.assert_array_equal(best, [2, 1, 0])


def test_a_mask_of_several_axes_is_no_image():
    network = actor_critic(with_mask(3, 3, 4), MultiDiscrete((3, 3, 4)))
    obs = {"action_mask": jnp.ones((5, 3, 3, 4)), "place": jnp.zeros((5, 3))}
    (distribution, _), params = jax.eval_shape(network.init_with_output, jax.random.key(0), obs)
    assert jax.eval_shape(type(distribution).mode, distribution).shape == (5, 3)
    assert "Conv" not in str(jax.tree.leaves_with_path(params))


def test_a_mask_is_nothing_that_a_torso_for_images_takes():
    config = build.PolicyConfig(torso="ga3c_cnn")
    for parts in ({"place": VECTOR}, {}):
        space = Dict.of(action_mask=Box.of((20, 20, 2), np.float32), **parts)
        with pytest.raises(ValueError, match="torso 'ga3c_cnn' takes images"):
            config.make_torso(space)
        build.PolicyConfig(torso="mlp").make_torso(space)


def test_the_head_of_a_q_network_is_dueling_if_its_config_says_so():
    for config in (None, jaxrl.PQNConfig(), jaxrl.DQNConfig(dueling=False)):
        assert not build.q_network(VECTOR, Discrete(3), config).head.dueling
    assert build.q_network(VECTOR, Discrete(3), jaxrl.R2D2Config(dueling=True)).head.dueling


class WithLogProb(NamedTuple):
    """A distribution as other libraries have it, without the two steps of a sample."""

    logits: Any

    def sample(self, key):
        return jax.random.categorical(key, self.logits)

    def mode(self):
        return self.logits.argmax(-1)

    def log_prob(self, action):
        return Categorical(self.logits).log_prob(action)


class Given(nn.Module):
    """A network that outputs whatever `make` makes of two numbers."""

    make: Any

    @nn.compact
    def __call__(self, obs):
        return self.make(nn.Dense(2)(obs))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: x, r"must return \(distribution, value\), not ShapeDtypeStruct"),
        (lambda x: (x, x[:, 0]), r"must return \(distribution, value\)"),
        (
            lambda x: (WithLogProb(x), x[:, 0]),
            "its WithLogProb lacks noise, from_noise, entropy of jaxrl.ops.distributions",
        ),
        (lambda x: (Categorical(x), x[:, :1]), r"its values must be \[B\], not .*shape=\(4, 1\)"),
        (lambda x: (Categorical(x[:, :1]), x[:, 0]), "over 1 actions, the environment has 2"),
        (lambda x: (DiagonalNormal(x, x), x[:, 0]), "its policy is over actions"),
        (
            lambda x: (DiagonalNormal(x, jnp.zeros(2)), x[:, 0]),
            r"must lead with the batch, \[28, ...\], but one is \[2\]; broadcast it",
        ),
    ],
)
def test_an_actor_critic_that_does_not_fit_is_refused(make, message):
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", 4), Given(make))
    with pytest.raises(ValueError, match=rf"Given does not fit gymnax/CartPole-v1: .*{message}"):
        jax.eval_shape(algo.init, jaxrl.PPOConfig(), jax.random.key(0))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: MultiCategorical((Categorical(x), Categorical(x[:, :1]))),
        lambda x: JointCategorical(x, (2, 1)),
    ],
)
def test_a_policy_over_other_integers_is_refused(make):
    found = jax.eval_shape(lambda x: (make(x), x[:, 0]), jnp.zeros((4, 2)))
    problem = build.find_actor_critic_problem(jaxrl.MultiDiscrete((2, 3)), found)
    assert problem == "its policy is over 2 x 1 actions, the environment has 2 x 3"
    assert not build.find_actor_critic_problem(jaxrl.MultiDiscrete((2, 1)), found)


def test_action_values_that_do_not_fit_are_refused():
    config = jaxrl.DQNConfig(replay_size=100)
    for make, fits in ((lambda x: x, True), (lambda x: x[:, :1], False), (Categorical, False)):
        algo = jaxrl.dqn(jaxrl.make("CartPole-v1", 4), Given(make))
        if fits:
            jax.eval_shape(algo.init, config, jax.random.key(0))
            continue
        with pytest.raises(ValueError, match=r"must return action values \[B, 2\], not"):
            jax.eval_shape(algo.init, config, jax.random.key(0))


def test_a_network_with_more_than_parameters_is_refused():
    class Normalized(nn.Module):
        @nn.compact
        def __call__(self, obs):
            return nn.Dense(2)(nn.BatchNorm(use_running_average=True)(obs))

    algo = jaxrl.dqn(jaxrl.make("CartPole-v1", 4), Normalized())
    with pytest.raises(ValueError, match=r"Normalized has the collections \['batch_stats'\], but"):
        jax.eval_shape(algo.init, jaxrl.DQNConfig(replay_size=100), jax.random.key(0))


def test_a_memory_that_a_network_of_ones_own_lacks_is_refused():
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", 4), Given(lambda x: (Categorical(x), x[:, 0])))
    with pytest.raises(ValueError, match=r"PPOConfig.core='gru' describes .* Given has no memory"):
        jax.eval_shape(algo.init, jaxrl.PPOConfig(core="gru"), jax.random.key(0))


def test_a_network_that_cannot_be_hashed_is_refused():
    with pytest.raises(ValueError, match=r"fields of the network Given must be hashable.*tuples"):
        jaxrl.ppo(jaxrl.make("CartPole-v1", 4), Given([64, 64]))


@pytest.mark.parametrize("network", [Given, "mlp"])
def test_what_is_no_network_is_refused(network):
    with pytest.raises(ValueError, match=r"an instance of a flax.linen.Module, got"):
        jaxrl.ppo(jaxrl.make("CartPole-v1", 4), network)


def test_what_is_no_environment_is_refused():
    with pytest.raises(ValueError, match=r"such as jaxrl.make\(id, num_envs\), got 'CartPole-v1'"):
        jaxrl.ppo("CartPole-v1")  # pyrefly: ignore[bad-argument-type]
