"""Torsos: the sizes of their papers, the shapes that they take and refuse, and their numbers."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.networks import build, convolution, torsos
from jaxrl.spaces import Box, Dict

KEY = jax.random.key(0)
ATARI, MINATAR = (84, 84, 4), (10, 10, 4)
SMALLEST: dict[str, tuple[int, ...]] = {"mlp": (5,), "minatar_cnn": (3, 3, 1)}
SMALLEST |= {f"ga3c_large_stride{k}": (8 + 9 * k, 8 + 9 * k, 2) for k in (4, 3, 2, 1)}
SMALLEST |= {
    "ga3c_cnn": (20, 20, 2),
    "ga3c_cnn_42": (10, 10, 2),
    "nature_cnn": (36, 36, 2),
    "impala_resnet": (8, 8, 2),
}


def make(name: str, shape: tuple[int, ...], **fields: Any):
    return build.NetworkConfig(torso=name, **fields).make_torso(Box.of(shape, np.float32))


@pytest.mark.parametrize(
    ("shape", "torso"),
    [
        ((), "mlp"),
        ((4,), "mlp"),
        ((8, 8), "mlp"),
        ((10, 10, 4), "minatar_cnn"),
        ((35, 84, 4), "minatar_cnn"),
        ((36, 36, 4), "nature_cnn"),
        ((2, 84, 4), "mlp"),
    ],
)
def test_the_torso_is_chosen_by_the_shape(shape, torso):
    assert torsos.choose_torso(shape) == torso


def dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def conv(size: int, inputs: int, outputs: int) -> int:
    return size * size * inputs * outputs + outputs


RESIDUAL_BLOCKS = [(4, 16), (16, 32), (32, 32)]
PARAMETERS = {  # from the papers' tables
    "mlp": ((3,), dense(3, 64) + dense(64, 64)),
    "minatar_cnn": (MINATAR, conv(3, 4, 16) + dense(8 * 8 * 16, 128)),
    "ga3c_cnn": (ATARI, conv(8, 4, 16) + conv(4, 16, 32) + dense(9 * 9 * 32, 256)),
    "ga3c_cnn_42": ((42, 42, 4), conv(4, 4, 16) + conv(4, 16, 32) + dense(9 * 9 * 32, 256)),
    "nature_cnn": (ATARI, 1_684_128),  # 1,693,362 with the 18-action head of Mnih et al. 2015
    "impala_resnet": (
        ATARI,
        sum(conv(3, i, o) + 4 * conv(3, o, o) for i, o in RESIDUAL_BLOCKS)
        + dense(11 * 11 * 32, 256),
    ),
}
for stride, side in ((4, 3), (3, 5), (2, 8), (1, 17)):  # side of the last layer's output
    convolutions = conv(8, 4, 32) + conv(4, 32, 32) + conv(4, 32, 64)
    PARAMETERS[f"ga3c_large_stride{stride}"] = (ATARI, convolutions + dense(side**2 * 64, 256))


@pytest.mark.parametrize("name", torsos.TORSOS)
def test_torsos_have_the_size_of_their_papers(name):
    shape, expected = PARAMETERS[name]
    params = jax.eval_shape(make(name, shape).init, KEY, jnp.zeros((1, *shape)))
    assert build.num_parameters(params) == expected


@pytest.mark.parametrize("name", torsos.TORSOS)
def test_a_torso_takes_the_smallest_image_and_no_smaller_one(name):
    shape = SMALLEST[name]
    init = functools.partial(make(name, shape).init_with_output, KEY)
    features, params = jax.eval_shape(init, jnp.zeros((7, *shape)))
    assert len(features.shape) == 2
    assert all(x.size for x in jax.tree.leaves(params)), "nothing is left of the image"
    if name == "mlp":
        return
    for smaller in ((shape[0] - 1, *shape[1:]), (99, shape[0] - 1, 2), (4,), (84, 84)):
        with pytest.raises(ValueError, match=f"torso '{name}' takes images") as refusal:
            make(name, smaller)
        assert str(smaller) in str(refusal.value)


@pytest.mark.parametrize("name", ["mlp", "ga3c_cnn", "impala_resnet"])
def test_bfloat16_is_the_type_of_features_but_not_of_parameters(name):
    torso = make(name, SMALLEST[name], compute_dtype="bfloat16")
    init = functools.partial(torso.init_with_output, KEY)
    features, params = jax.eval_shape(init, jnp.zeros((2, *SMALLEST[name])))
    assert features.dtype == jnp.bfloat16
    assert {x.dtype.name for x in jax.tree.leaves(params)} == {"float32"}


def test_bfloat16_gives_nearly_the_same_numbers():
    exact, rough = make("mlp", (3,)), make("mlp", (3,), compute_dtype="bfloat16")
    obs = jax.random.normal(jax.random.key(1), (20, 3))
    expected, params = jax.jit(exact.init_with_output)(KEY, obs)
    actual = jax.jit(rough.apply)(params, obs)
    assert (actual != expected).any()
    np.testing.assert_allclose(actual.astype(jnp.float32), expected, atol=0.1)


def test_hidden_sizes_and_activation_can_be_chosen():
    torso = make("mlp", (3,), hidden_sizes=(8, 7, 6), activation="relu")
    obs = jax.random.normal(jax.random.key(1), (50, 3))
    features, variables = jax.jit(torso.init_with_output)(KEY, obs)
    assert [variables["params"][f"Dense_{i}"]["bias"].size for i in range(3)] == [8, 7, 6]
    assert (features >= 0).all()
    assert (features == 0).any()


def test_features_are_normalized_before_the_activation():
    torso = make("mlp", (3,), hidden_sizes=(8,), activation="relu", layer_norm=True)
    obs = jax.random.normal(jax.random.key(1), (50, 3))
    features, variables = jax.jit(torso.init_with_output)(KEY, obs)
    x = np.asarray(obs @ variables["params"]["Dense_0"]["kernel"])
    x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    np.testing.assert_allclose(features, np.maximum(x, 0), atol=1e-4)


@pytest.mark.parametrize("name", ["ga3c_cnn", "impala_resnet"])
def test_a_convolution_is_normalized_at_each_place_by_itself(name):
    torso = make(name, (20, 20, 2), hidden_sizes=(7,), layer_norm=True)
    shapes = jax.eval_shape(torso.init, KEY, jnp.zeros((1, 20, 20, 2)))["params"]
    sizes = {key: x["bias"].shape[0] for key, x in shapes.items() if "LayerNorm" in key}
    convolutions = [x["bias"].shape[0] for key, x in shapes.items() if "Conv" in key]
    assert sorted(sizes.values()) == sorted(convolutions)
    assert shapes["MLP_0"]["LayerNorm_0"]["scale"].shape == (7,)


@pytest.mark.parametrize(
    ("name", "shape", "layers"), [("mlp", (3,), set()), ("minatar_cnn", MINATAR, {"Conv_0"})]
)
def test_no_hidden_sizes_are_no_hidden_layers(name, shape, layers):
    torso = make(name, shape, hidden_sizes=())
    variables = jax.eval_shape(torso.init, KEY, jnp.zeros((1, *shape)))
    assert set(variables.get("params", ())) == layers


def test_blocks_of_images_give_what_the_whole_batch_does(monkeypatch):
    torso = make("ga3c_cnn", (20, 20, 2), hidden_sizes=(8,))
    images = jnp.asarray(np.random.default_rng(0).integers(0, 256, (7, 20, 20, 2), np.uint8))
    params = jax.jit(torso.init)(KEY, images)

    def total(params, images):
        features: Any = torso.apply(params, images)
        return (features * jnp.arange(7.0)[:, None]).sum(), features

    def with_blocks_of(size):
        monkeypatch.setattr(convolution, "BLOCK_SIZE", size * images[0].size)
        assert len(convolution.blocks(images)) == 7 // size
        return jax.jit(jax.grad(total, has_aux=True))(params, images)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
        with_blocks_of(2),
        with_blocks_of(7),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "population", [True, pytest.param(False, marks=pytest.mark.exhaustive)], ids=["two", "alone"]
)
def test_the_residual_network_gives_the_same_in_small_blocks(monkeypatch, population):
    torso = make("impala_resnet", (9, 8, 2), hidden_sizes=(8,))
    images = jnp.asarray(np.random.default_rng(0).integers(0, 256, (7, 9, 8, 2)), np.uint8)
    keys = jax.random.split(KEY, 2)
    params = jax.vmap(torso.init, (0, None))(keys, images)
    if not population:
        params = jax.tree.map(lambda x: x[0], params)

    def total(params):
        features: Any = torso.apply(params, images)
        return (features * jnp.arange(7.0)[:, None]).sum(), features

    def with_blocks_of(size):
        monkeypatch.setattr(convolution, "SMALL_BLOCK", size * 9 * 8)
        assert convolution.small_block(images) == size
        gradient = jax.grad(total, has_aux=True)
        program = jax.jit(jax.vmap(gradient) if population else gradient)
        assert ("while" in program.lower(params).as_text()) == (size < 7)
        return program(params)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max()),
        with_blocks_of(3),  # the last of three blocks is padded
        with_blocks_of(7),
    )


def test_the_memory_of_a_deep_network_does_not_grow_with_the_batch():
    torso = make("impala_resnet", ATARI)
    params = jax.eval_shape(torso.init, KEY, jnp.zeros((1, *ATARI)))

    def megabytes(number):
        def total(params, images):
            features: Any = torso.apply(params, images)
            return (features**2).sum()

        images = jax.ShapeDtypeStruct((number, *ATARI), np.uint8)
        memory: Any = jax.jit(jax.grad(total)).lower(params, images).compile().memory_analysis()
        return memory.temp_size_in_bytes / 1e6

    assert megabytes(64) < 50  # 378 at once


def test_images_of_bytes_are_scaled_to_the_unit_interval():
    torso = make("mlp", (4, 4, 2))
    image = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 2), np.uint8)
    expected, params = jax.jit(torso.init_with_output)(KEY, (image / 255).astype("f"))
    np.testing.assert_allclose(jax.jit(torso.apply)(params, image), expected, atol=1e-5)


@pytest.mark.parametrize(("high", "highest"), [(1, 1), (np.arange(32) % 5, 4), (np.inf, 255)])
def test_bytes_are_divided_by_their_highest_value(high, highest):
    space = Box.of((4, 4, 2), np.uint8, 0, np.reshape(np.broadcast_to(high, 32), (4, 4, 2)))
    torso = build.NetworkConfig(torso="minatar_cnn").make_torso(space)
    image = np.random.default_rng(0).integers(0, highest + 1, (5, 4, 4, 2), np.uint8)
    expected, params = jax.jit(torso.init_with_output)(KEY, (image / highest).astype("f"))
    np.testing.assert_allclose(jax.jit(torso.apply)(params, image), expected, atol=1e-5)


def test_the_chosen_torso_takes_the_images_among_the_parts():
    mask, place = Box.of((9, 9, 9), bool), Dict.of(map=Box.of((3,), np.float32))
    space = Dict.of(action_mask=mask, image=Box.of(ATARI, np.uint8), place=place)
    torso: Any = build.NetworkConfig(torso="ga3c_cnn").make_torso(space)
    parts = dict(torso.torsos)
    assert parts["image"].convolutions == torsos.GA3C_CONVOLUTIONS
    assert isinstance(parts["action_mask"], torsos.MLP)
    assert isinstance(dict(parts["place"].torsos)["map"], torsos.MLP)
    with pytest.raises(ValueError, match=r"'ga3c_cnn' takes images .* have shape \(3,\)"):
        build.NetworkConfig(torso="ga3c_cnn").make_torso(place)


def test_the_parts_of_a_dict_have_a_torso_each():
    space = Dict.of(image=Box.of(MINATAR, np.float32), place=Box.of((3,), np.float32))
    torso = build.NetworkConfig().make_torso(space)
    obs = {"image": jnp.zeros((2, *MINATAR)), "place": jnp.zeros((2, 3))}
    features = jax.eval_shape(lambda: torso.init_with_output(KEY, obs)[0])
    assert features.shape == (2, 128 + 64)
