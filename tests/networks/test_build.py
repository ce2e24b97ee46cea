"""Networks: the sizes of their papers, the scales of their weights, and what they refuse."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.networks import build as building
from jaxrl.networks import convolution, heads, recurrent, torsos
from jaxrl.ops.distributions import Categorical, DiagonalNormal, MultiCategorical
from jaxrl.types import Box, Dict, Discrete, Inputs, MultiDiscrete

ATARI = Box((84, 84, 4), np.dtype(np.uint8), 0, 255)
MINATAR = Box((10, 10, 4), np.dtype(np.float32), 0, 1)
VECTOR = Box((3,), np.dtype(np.float32))
TORQUES = Box((2,), np.dtype(np.float32), -1, 1)
SMALLEST = {"mlp": (5,), "minatar_cnn": (3, 3, 1), "ga3c_cnn": (20, 20, 2)}
SMALLEST |= {f"ga3c_large_stride{k}": (8 + 9 * k, 8 + 9 * k, 2) for k in (4, 3, 2, 1)}
SMALLEST |= {"nature_cnn": (36, 36, 2), "impala_resnet": (8, 8, 2)}


def spaces(torso: str) -> Box:
    return Box(SMALLEST[torso], np.dtype(np.float32))


def build(observation_space, action_space, **fields):
    config = building.NetworkConfig(**fields)
    return building.actor_critic(observation_space, action_space, config)


def init(network, space: Box):
    obs = jnp.zeros((1, *space.shape), space.dtype)
    return jax.jit(network.init)(jax.random.key(0), obs)


@pytest.mark.parametrize(
    ("shape", "torso"),
    [
        ((), "mlp"),
        ((4,), "mlp"),
        ((8, 8), "mlp"),
        ((10, 10, 4), "minatar_cnn"),
        ((35, 84, 4), "minatar_cnn"),
        ((36, 36, 4), "nature_cnn"),
        ((84, 84, 4), "nature_cnn"),
    ],
)
def test_the_torso_is_chosen_by_the_shape(shape, torso):
    assert torsos.choose_torso(shape) == torso


def dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def conv(size: int, inputs: int, outputs: int) -> int:
    return size * size * inputs * outputs + outputs


RESIDUAL_BLOCKS = [(4, 16), (16, 32), (32, 32)]
PARAMETERS = {  # of the torso, from the papers' tables
    "mlp": (VECTOR, dense(3, 64) + dense(64, 64)),
    "minatar_cnn": (MINATAR, conv(3, 4, 16) + dense(8 * 8 * 16, 128)),
    "ga3c_cnn": (ATARI, conv(8, 4, 16) + conv(4, 16, 32) + dense(9 * 9 * 32, 256)),
    "nature_cnn": (
        ATARI,
        conv(8, 4, 32) + conv(4, 32, 64) + conv(3, 64, 64) + dense(7 * 7 * 64, 512),
    ),
    "impala_resnet": (
        ATARI,
        sum(conv(3, i, o) + 4 * conv(3, o, o) for i, o in RESIDUAL_BLOCKS)
        + dense(11 * 11 * 32, 256),
    ),
}
for stride, side in ((4, 3), (3, 5), (2, 8), (1, 17)):  # of the last layer's output
    convolutions = conv(8, 4, 32) + conv(4, 32, 32) + conv(4, 32, 64)
    PARAMETERS[f"ga3c_large_stride{stride}"] = (ATARI, convolutions + dense(side**2 * 64, 256))


@pytest.mark.parametrize("torso", torsos.TORSOS)
def test_networks_have_the_size_of_their_papers(torso):
    space, expected = PARAMETERS[torso]
    if torso == "nature_cnn":
        assert expected == 1_684_128  # 1,693,362 with the 18-action head of Mnih et al. 2015
    network = build(space, Discrete(6), torso=torso)
    params = jax.eval_shape(lambda: init(network, space))
    width = {"mlp": 64, "minatar_cnn": 128, "nature_cnn": 512}.get(torso, 256)
    num_torsos = 2 if torso == "mlp" else 1  # policy and value share a CNN, but not an MLP
    head_size = dense(width, 6) + dense(width, 1)
    assert building.num_parameters(params) == num_torsos * expected + head_size


def test_hidden_sizes_and_activation_can_be_chosen():
    network = build(VECTOR, Discrete(2), torso="mlp", hidden_sizes=(8, 7, 6), activation="relu")
    params = init(network, VECTOR)["params"]["torso"]
    assert [params[f"Dense_{i}"]["bias"].size for i in range(3)] == [8, 7, 6]
    obs = jax.random.normal(jax.random.key(1), (50, 3))
    features = jax.jit(network.torso.apply)({"params": params}, obs)
    assert (features >= 0).all()
    assert (features == 0).any()


def assert_orthogonal(kernel, scale):
    matrix = np.asarray(kernel, np.float64).reshape(-1, kernel.shape[-1])
    matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    expected = scale**2 * np.eye(matrix.shape[1])
    np.testing.assert_allclose(matrix.T @ matrix, expected, atol=1e-5 * max(1, scale**2))


def test_weights_are_orthogonal_and_biases_0():
    network = build(spaces("ga3c_cnn"), Discrete(6), torso="ga3c_cnn", hidden_sizes=(32,))
    params = init(network, spaces("ga3c_cnn"))["params"]
    head = params["head"]
    assert_orthogonal(head["policy"]["kernel"], 0.01)
    assert np.abs(head["policy"]["kernel"]).max() > 1e-4
    assert_orthogonal(head["value"]["kernel"], 1.0)
    kernels = [x for x in jax.tree.leaves(params["torso"]) if x.ndim > 1]
    assert len(kernels) == 3
    for kernel in kernels:
        assert_orthogonal(kernel, np.sqrt(2))
    for bias in (x for x in jax.tree.leaves(params) if x.ndim == 1):
        assert (bias == 0).all()


@pytest.mark.parametrize("torso", torsos.TORSOS)
def test_bfloat16_is_for_the_torso_only(torso):
    space = spaces(torso)
    network = build(space, Discrete(6), torso=torso, compute_dtype="bfloat16")
    obs = jnp.zeros((2, *space.shape))
    params = jax.eval_shape(lambda: init(network, space))
    assert {x.dtype.name for x in jax.tree.leaves(params)} == {"float32"}
    distribution, value = jax.eval_shape(network.apply, params, obs)
    assert distribution.logits.dtype == value.dtype == jnp.float32
    features = jax.eval_shape(network.torso.apply, {"params": params["params"]["torso"]}, obs)
    assert features.dtype == jnp.bfloat16


def test_bfloat16_gives_nearly_the_same_numbers():
    space, torso = VECTOR, "mlp"
    exact, rough = (
        build(space, Discrete(6), torso=torso, compute_dtype=dtype)
        for dtype in ("float32", "bfloat16")
    )
    params, obs = init(exact, space), jax.random.normal(jax.random.key(1), (20, *space.shape))
    (_, value), (_, rough_value) = (jax.jit(n.apply)(params, obs) for n in (exact, rough))
    assert (value != rough_value).any()
    np.testing.assert_allclose(value, rough_value, atol=0.1)


@pytest.mark.parametrize(
    ("torso", "shape"),
    [(name, shape) for name in torsos.TORSOS if name != "mlp" for shape in [(4,), (2, 99, 4)]]
    + [("nature_cnn", (35, 35, 4)), ("ga3c_cnn", (19, 84, 4)), ("impala_resnet", (84, 84))],
)
def test_a_torso_refuses_shapes_it_cannot_take(torso, shape):
    with pytest.raises(ValueError, match=f"torso '{torso}' takes images") as refusal:
        build(Box(shape, np.dtype(np.float32)), Discrete(2), torso=torso)
    assert str(shape) in str(refusal.value)


@pytest.mark.parametrize("torso", torsos.TORSOS)
def test_a_torso_takes_the_smallest_shape_it_claims_to(torso):
    network = build(spaces(torso), Discrete(2), torso=torso)
    _, value = jax.eval_shape(
        lambda: network.init_with_output(jax.random.key(0), jnp.zeros((7, *SMALLEST[torso])))[0]
    )
    assert value.shape == (7,)
    kernels = jax.eval_shape(lambda: init(network, spaces(torso)))
    assert all(x.size for x in jax.tree.leaves(kernels)), "nothing is left of the image"


def test_an_unknown_torso_is_refused_by_name():
    with pytest.raises(ValueError, match=r"torso must be one of .*'mlp', .* got 'resnet50'"):
        build(VECTOR, Discrete(2), torso="resnet50")


def test_blocks_of_images_give_what_the_whole_batch_does(monkeypatch):
    torso = torsos.make_torso("ga3c_cnn", (20, 20, 2), (8,), None, jnp.float32)
    images = jax.random.randint(jax.random.key(0), (7, 20, 20, 2), 0, 256, jnp.uint8)
    params = torso.init(jax.random.key(1), images)

    def total(params, images):
        features: Any = torso.apply(params, images)
        return (features * jnp.arange(7.0)[:, None]).sum(), features

    def with_blocks_of(size):
        monkeypatch.setattr(convolution, "BLOCK_SIZE", size * images[0].size)
        assert len(convolution.blocks(images)) == 7 // size
        return jax.grad(total, has_aux=True)(params, images)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
        with_blocks_of(2),
        with_blocks_of(7),
    )


def test_images_of_bytes_are_scaled_to_the_unit_interval():
    space = Box((10, 10, 2), np.dtype(np.uint8), 0, 255)
    network = build(space, Discrete(2), torso="mlp")
    image = np.random.default_rng(0).integers(0, 256, (5, *space.shape), np.uint8)
    params = init(network, space)
    (as_bytes, value), (scaled, scaled_value) = (
        jax.jit(network.apply)(params, x) for x in (image, (image / 255).astype(np.float32))
    )
    np.testing.assert_allclose(as_bytes.logits, scaled.logits, atol=1e-6)
    np.testing.assert_allclose(value, scaled_value, atol=1e-5)


@pytest.mark.parametrize("action_space", [Discrete(5), TORQUES], ids=["discrete", "box"])
def test_heads_fit_the_action_space(action_space):
    network = build(VECTOR, action_space)
    params = init(network, VECTOR)
    distribution, value = jax.jit(network.apply)(params, jnp.ones((7, 3)))
    assert value.shape == (7,)
    if isinstance(action_space, Discrete):
        assert isinstance(distribution, Categorical)
        assert distribution.logits.shape == (7, 5)
    else:
        assert isinstance(distribution, DiagonalNormal)
        assert distribution.loc.shape == (7, 2)
        np.testing.assert_array_equal(distribution.log_scale, np.zeros((7, 2)))
    assert distribution.log_prob(distribution.sample(jax.random.key(0))).shape == (7,)


@pytest.mark.parametrize("core", [None, "gru"])
@pytest.mark.parametrize("action_space", [Discrete(6), MultiDiscrete((2, 3))])
def test_actions_that_an_observation_forbids_are_never_taken(action_space, core):
    sizes = getattr(action_space, "sizes", (6,))
    mask = np.zeros((1000, 6), np.float32)
    mask[np.arange(1000), np.random.default_rng(0).integers(0, 6, 1000)] = 1
    mask[:500, 4] = 1
    mask = mask.reshape(-1, *sizes)
    space = Dict.of(action_mask=Box.of(sizes, np.float32, 0, 1), place=VECTOR)
    network = build(space, action_space, core=core)
    obs = {"action_mask": jnp.asarray(mask), "place": jnp.zeros((1000, 3))}
    lead = jnp.zeros((1, 1000))
    inputs = Inputs(recurrent.one_step(obs), lead == 0, lead.astype(jnp.int32), lead)

    @jax.jit
    def act(key):
        params = recurrent.init(network, key, inputs)
        memory = recurrent.initial_core(network, 1000)
        _, (distribution, _) = recurrent.apply(network, params, memory, inputs)
        return distribution.sample(key)[0], distribution.mode()[0]

    for actions in act(jax.random.key(0)):
        chosen = actions.reshape(1000, -1).T
        assert (mask[(np.arange(1000), *chosen)] == 1).all()


def test_what_is_forbidden_in_a_part_is_never_taken_there():
    mask = (np.random.default_rng(0).random((1000, 2, 3)) < 0.5).astype(np.float32)
    mask[..., 1] = 1
    space = Dict.of(action_mask=Box.of((2, 3), np.float32, 0, 1), place=VECTOR)
    network = build(space, MultiDiscrete((3, 3)))
    obs = {"action_mask": jnp.asarray(mask), "place": jnp.zeros((1000, 3))}
    (distribution, _), _ = network.init_with_output(jax.random.key(0), obs)
    assert isinstance(distribution, MultiCategorical)
    actions = distribution.sample(jax.random.key(1))
    assert np.take_along_axis(mask, np.asarray(actions)[..., None], 2).all()
    for part in range(2):
        assert set(np.asarray(actions[:, part])) == {0, 1, 2}


def test_where_all_is_forbidden_all_may_be_taken():
    mask = np.ones((1000, 2, 3), np.float32)
    mask[:, 0] = 0
    mask[:, 1, 0] = 0
    space = Dict.of(action_mask=Box.of((2, 3), np.float32, 0, 1), place=VECTOR)
    network = build(space, MultiDiscrete((3, 3)))
    obs = {"action_mask": jnp.asarray(mask), "place": jnp.zeros((1000, 3))}
    (distribution, _), _ = network.init_with_output(jax.random.key(0), obs)
    actions = np.asarray(distribution.sample(jax.random.key(1)))
    assert set(actions[:, 0]) == {0, 1, 2}
    assert set(actions[:, 1]) == {1, 2}


def test_a_mask_of_several_axes_is_no_image():
    actions = MultiDiscrete((2, 3, 4))
    space = Dict.of(action_mask=Box.of((2, 3, 4), np.float32, 0, 1), place=VECTOR)
    obs = {"action_mask": jnp.ones((5, 2, 3, 4)), "place": jnp.zeros((5, 3))}
    (distribution, _), _ = build(space, actions).init_with_output(jax.random.key(0), obs)
    assert distribution.mode().shape == (5, 3)


@pytest.mark.parametrize("core", [None, "gru"])
@pytest.mark.parametrize("dueling", [False, True])
def test_forbidden_actions_have_the_least_value_unless_all_are(core, dueling):
    mask = jnp.array([[1.0, 0, 1], [0, 0, 1], [0, 0, 0], [1, 1, 1]])
    space = Dict.of(action_mask=Box.of((3,), np.float32, 0, 1), place=VECTOR)
    config = building.NetworkConfig(core=core, core_size=4)
    network = building.q_network(space, Discrete(3), config, dueling)
    obs = {"action_mask": mask, "place": jnp.ones((4, 3))}
    lead = jnp.zeros((1, 4))
    inputs = Inputs(recurrent.one_step(obs), lead == 0, lead.astype(jnp.int32), lead)
    params = recurrent.init(network, jax.random.key(0), inputs)
    memory = recurrent.initial_core(network, 4)
    values = recurrent.apply(network, params, memory, inputs)[1][0]
    forbidden = np.array([[0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0]], bool)
    np.testing.assert_array_equal(values == heads.MASKED_LOGIT, forbidden)
    assert (np.abs(values[~forbidden]) < 100).all()


def test_a_mask_must_fit_the_actions():
    space = Dict.of(action_mask=Box.of((3,), np.float32, 0, 1), place=VECTOR)
    assert building.has_action_mask(space, Discrete(3))
    assert not building.has_action_mask(VECTOR, Discrete(3))
    assert not building.has_action_mask(space, TORQUES)
    for actions, shapes in (
        (Discrete(6), r"\(6,\) for"),
        (MultiDiscrete((3, 3)), r"\(3, 3\) or \(2, 3\) for"),
        (MultiDiscrete((3, 2)), r"\(3, 2\) for"),
    ):
        with pytest.raises(ValueError, match=f"'action_mask' must be an array of shape {shapes}"):
            building.has_action_mask(space, actions)
    named = Dict.of(action_mask=space)
    with pytest.raises(ValueError, match="'action_mask' must be an array of shape"):
        building.has_action_mask(named, Discrete(3))


def test_actions_that_are_no_vectors_are_refused():
    with pytest.raises(ValueError, match=r"shape \(2, 3\), but policies return vectors"):
        build(VECTOR, Box.of((2, 3), np.float32))


def test_no_hidden_sizes_are_no_hidden_layers():
    for torso, shape, layers in (("mlp", (3,), set()), ("minatar_cnn", (10, 10, 4), {"Conv_0"})):
        config = building.NetworkConfig(torso=torso, hidden_sizes=())
        module = config.make_torso(Box.of(shape, np.float32))
        params = module.init(jax.random.key(0), jnp.zeros((1, *shape))).get("params")
        assert set(params or ()) == layers


class Given(nn.Module):
    """Outputs whatever `make` makes of two numbers."""

    make: Any

    @nn.compact
    def __call__(self, obs):
        return self.make(nn.Dense(2)(obs))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: x, r"must return \(distribution, value\), not ShapeDtypeStruct"),
        (lambda x: (x, x[:, 0]), r"must return \(distribution, value\)"),
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


def test_action_values_that_do_not_fit_are_refused():
    config = jaxrl.DQNConfig(replay_size=100)
    for make, fits in ((lambda x: x, True), (lambda x: x[:, :1], False), (Categorical, False)):
        algo = jaxrl.dqn(jaxrl.make("CartPole-v1", 4), Given(make))
        if fits:
            jax.eval_shape(algo.init, config, jax.random.key(0))
            continue
        with pytest.raises(ValueError, match=r"must return action values \[B, 2\], not"):
            jax.eval_shape(algo.init, config, jax.random.key(0))


@pytest.mark.parametrize("network", [Given, "mlp"])
def test_what_is_no_network_is_refused(network):
    with pytest.raises(ValueError, match=r"an instance of a flax.linen.Module, got"):
        jaxrl.ppo(jaxrl.make("CartPole-v1", 4), network)
    with pytest.raises(ValueError, match=r"made by jaxrl.make\(id, num_envs\), got 'CartPole-v1'"):
        jaxrl.ppo("CartPole-v1")  # pyrefly: ignore[bad-argument-type]
