"""Convolution and pooling for CPUs against the operations of XLA and Flax."""

import contextlib
import functools
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.test_util import check_grads

from jaxrl.networks import convolution
from jaxrl.networks.convolution import Conv, convolve, max_pool

NATURE = [((8, 8), (4, 4)), ((4, 4), (2, 2)), ((3, 3), (1, 1))]


def native(x, kernel, strides, padding):
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def normal(seed, *shape):
    # Drawn by NumPy, since JAX would compile a generator for every shape.
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def with_gradients(function, *args):
    """Return the value of `function` and its gradients along a fixed direction."""

    # Most of the time is compilation: leave out what only makes a program faster.
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def run(*args):
        y, vjp = jax.vjp(function, *args)
        direction = np.random.default_rng(9).standard_normal(y.shape, np.float32)
        return y, *vjp(jnp.asarray(direction, y.dtype))

    return run(*args)


def assert_all_close(actual, desired, tolerance=1e-4):
    assert jax.tree.structure(actual) == jax.tree.structure(desired)
    for a, d in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
        assert a.shape == d.shape
        assert a.dtype == d.dtype
        a, d = np.asarray(a, np.float64), np.asarray(d, np.float64)
        np.testing.assert_allclose(a, d, rtol=tolerance, atol=tolerance * max(1, abs(d).max()))


@contextlib.contextmanager
def products_are_wide_from(wide):
    """Force a layout, which is otherwise chosen by a kernel's sizes: with 1, channels first."""
    traced = cast(Any, convolve)
    traced.clear_cache()  # traces with the old number
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "WIDE", wide)
        yield
    traced.clear_cache()


SIDES = st.tuples(st.integers(5, 13), st.integers(5, 13))
WINDOWS = st.tuples(st.integers(1, 5), st.integers(1, 5))
STRIDES = st.tuples(st.integers(1, 4), st.integers(1, 4))
PADDINGS = st.sampled_from(["VALID", "SAME"])
FEATURES = st.sampled_from([1, 2, 8])


@settings(max_examples=4, deadline=None, derandomize=True)
@given(SIDES, WINDOWS, STRIDES, PADDINGS, st.integers(1, 3), FEATURES, st.sampled_from([1, 128]))
@example((20, 20), (8, 8), (4, 4), "VALID", 4, 8, 128)  # both strides folded
@example((20, 20), (8, 8), (4, 4), "VALID", 4, 8, 1)  # the same, channels first
@example((11, 10), (4, 4), (2, 2), "SAME", 3, 2, 128)  # folded and padded, with rows added
@example((11, 10), (4, 4), (2, 2), "SAME", 3, 2, 1)
@example((9, 9), (3, 3), (1, 1), "VALID", 2, 8, 128)  # whole patches
@example((9, 9), (3, 3), (1, 1), "VALID", 2, 8, 1)
@example((9, 8), (1, 1), (2, 3), "SAME", 3, 2, 128)  # kernel smaller than the stride
@example((9, 8), (3, 4), (2, 2), "VALID", 3, 2, 1)  # one stride divides, one does not
@example((2, 3), (5, 4), (1, 2), "SAME", 3, 2, 1)  # kernel larger than the image
def test_convolve_and_gradients(sides, window, strides, padding, channels, features, wide):
    x, kernel = normal(0, 2, *sides, channels), normal(1, *window, channels, features)
    with products_are_wide_from(wide):
        actual = with_gradients(lambda x, k: convolve(x, k, strides, padding), x, kernel)
    desired = with_gradients(lambda x, k: native(x, k, strides, padding), x, kernel)
    assert_all_close(actual, desired)


@settings(max_examples=3, deadline=None, derandomize=True)
@given(SIDES, WINDOWS, STRIDES, PADDINGS, st.booleans())
@example((10, 9), (3, 3), (2, 2), "SAME", True)
def test_max_pool_and_gradient(sides, window, strides, padding, ties):
    x = normal(0, 2, *sides, 3)
    if ties:
        x = jnp.round(x)
    actual = with_gradients(lambda x: max_pool(x, window, strides, padding), x)
    desired = with_gradients(lambda x: nn.max_pool(x, window, strides, padding), x)
    assert_all_close(actual, desired)


def test_max_pool_keeps_nan():
    x = jnp.zeros((1, 4, 4, 1)).at[0, 1, 1, 0].set(jnp.nan)
    y = max_pool(x, (2, 2), (2, 2), "VALID")[0, :, :, 0]
    np.testing.assert_array_equal(y, [[jnp.nan, 0], [0, 0]])


def test_images_of_integers():
    x = jnp.asarray(np.random.default_rng(0).integers(0, 255, (2, 12, 12, 3), np.uint8))
    kernel = normal(1, 4, 4, 3, 5)
    assert_all_close(
        with_gradients(lambda k: convolve(x, k, (2, 2), "VALID"), kernel),
        with_gradients(lambda k: native(x.astype(jnp.float32), k, (2, 2), "VALID"), kernel),
    )


@pytest.mark.parametrize(
    ("in_axes", "wide"), [((0, 0), 1), ((0, 0), 10**6), ((None, 0), 1), ((0, None), 10**6)]
)
def test_vmap_is_a_loop(in_axes, wide):
    n = 2
    x = normal(0, n, 2, 10, 10, 3) if in_axes[0] == 0 else normal(0, 2, 10, 10, 3)
    kernel = normal(1, n, 4, 4, 3, 2) if in_axes[1] == 0 else normal(1, 4, 4, 3, 2)

    def run(x, kernel):
        y, vjp = jax.vjp(lambda x, k: convolve(x, k, (2, 2), "SAME"), x, kernel)
        return y, *vjp(y)

    def pick(i):
        return (x if in_axes[0] is None else x[i], kernel if in_axes[1] is None else kernel[i])

    with products_are_wide_from(wide):
        run_alone = jax.jit(run)
        loop = jax.tree.map(lambda *y: jnp.stack(y), *(run_alone(*pick(i)) for i in range(n)))
        assert_all_close(jax.jit(jax.vmap(run, in_axes))(x, kernel), loop)


@pytest.mark.parametrize("wide", [1, 10**6])
def test_forward_and_second_derivatives(wide):
    x, kernel = normal(0, 1, 5, 5, 2), normal(1, 2, 2, 2, 2)

    def run(x, kernel):
        return max_pool(convolve(x, kernel, (1, 1), "VALID"), (2, 2), (2, 2)) ** 2

    with products_are_wide_from(wide):
        check_grads(jax.jit(run), (x, kernel), order=2, atol=0.05, rtol=0.05, eps=1e-3)


def nature_loss(kernels, x):
    for kernel, (_, strides) in zip(kernels, NATURE, strict=True):
        x = nn.relu(convolve(x, kernel, strides, "VALID"))
    return (max_pool(x, (3, 3), (2, 2)) ** 2).mean()


def nature_kernels(*leading):
    channels = [(4, 8), (8, 16), (16, 16)]
    return [
        normal(i, *leading, *size, c, f)
        for i, ((c, f), (size, _)) in enumerate(zip(channels, NATURE, strict=True))
    ]


def lowered(function, *args, platform):
    traced = jax.jit(function).trace(*args)
    return traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("population", [False, True])
def test_a_gradient_on_a_cpu_has_neither_convolution_nor_scatter(population):
    """Check the program for a CPU, whichever platform the test itself runs on."""
    leading = (2,) if population else ()
    kernels, x = nature_kernels(*leading), jnp.zeros((3, *leading, 2, 84, 84, 4), jnp.uint8)
    gradient = jax.grad(nature_loss)
    gradient = jax.vmap(gradient) if population else gradient

    def train(kernels, x):
        def step(kernels, x):
            return jax.tree.map(jnp.subtract, kernels, gradient(kernels, x)), None

        return lax.scan(step, kernels, x)[0]

    cpu = lowered(train, kernels, x, platform="cpu")
    assert "stablehlo.dot_general" in cpu
    for operation in ("convolution", "reduce_window", "scatter"):
        assert f"stablehlo.{operation}" not in cpu
    assert "stablehlo.convolution" in lowered(train, kernels, x, platform="cuda")


def test_small_images_are_multiplied_on_every_platform():
    kernel = normal(0, 3, 3, 4, 8)

    def program(side):
        x = jnp.zeros((2, side, side, 4))
        return lowered(lambda x: convolve(x, kernel, (1, 1), "SAME"), x, platform="cuda")

    assert "stablehlo.convolution" not in program(32)
    assert "stablehlo.convolution" in program(33)


def test_integer_images_cost_no_gradient():
    """Count the products of a linear loss' gradient: one for the kernel, none for the images."""
    x, kernel = jnp.zeros((2, 84, 84, 4), jnp.uint8), normal(0, 8, 8, 4, 8)
    gradient = jax.grad(lambda k: convolve(x, k, (4, 4), "VALID").sum())
    assert str(jax.jit(gradient).lower(kernel).compile().as_text()).count(" dot(") == 1


def test_backpropagation_through_time_keeps_no_patches():
    """Check that no residual of the loop is larger than the images of all steps."""
    x, kernel = normal(0, 3, 2, 12, 12, 4), normal(1, 4, 4, 4, 2)

    def unroll(kernel):
        def step(total, x):
            return total + (convolve(x, kernel, (2, 2), "VALID") ** 2).sum(), None

        return lax.scan(step, 0.0, x)[0]

    scans = [e for e in jax.make_jaxpr(jax.grad(unroll))(kernel).eqns if e.primitive.name == "scan"]
    assert scans
    assert max(v.aval.size for e in scans for v in e.outvars) <= x.size


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_module_has_the_parameters_and_results_of_flax(dtype):
    x = normal(0, 2, 11, 10, 3)
    ours, theirs = (
        module(5, (4, 3), (2, 1), "SAME", bias_init=nn.initializers.normal(), dtype=dtype)
        for module in (Conv, nn.Conv)
    )
    variables = ours.init(jax.random.key(1), x)
    assert_all_close(variables, theirs.init(jax.random.key(1), x))
    assert {p.dtype for p in jax.tree.leaves(variables)} == {jnp.dtype(jnp.float32)}
    assert jnp.asarray(ours.apply(variables, x)).dtype == dtype
    assert_all_close(
        with_gradients(lambda v: ours.apply(v, x), variables),
        with_gradients(lambda v: theirs.apply(v, x), variables),
        tolerance=3e-2 if dtype == jnp.bfloat16 else 1e-4,
    )


@pytest.mark.parametrize(
    ("x", "kernel", "padding", "message"),
    [
        ((8, 8, 3), (3, 3, 3, 2), "VALID", r"images must be \[B, H, W, C\]"),
        ((1, 8, 8, 3), (3, 3, 4, 2), "VALID", "kernel .* does not fit images"),
        ((1, 2, 8, 3), (3, 3, 3, 2), "VALID", "smaller than the window"),
        ((1, 8, 8, 3), (3, 3, 3, 2), "FULL", "padding must be"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(x, kernel, padding, message):
    with pytest.raises(ValueError, match=message):
        convolve(jnp.zeros(x), jnp.zeros(kernel), (1, 1), padding)


@pytest.mark.parametrize(("number", "sizes"), [(1, [1]), (3, [3]), (5, [3, 2]), (9, [3, 2, 2, 2])])
def test_blocks_have_nearly_equal_sizes(monkeypatch, number, sizes):
    monkeypatch.setattr(convolution, "BLOCK_SIZE", 2 * 5 * 5 * 3)
    images = normal(0, number, 5, 5, 3)
    blocks = convolution.blocks(images)
    assert [len(block) for block in blocks] == sizes
    np.testing.assert_array_equal(jnp.concatenate(blocks), images)
    monkeypatch.setattr(convolution, "BLOCK_SIZE", 1)
    assert len(convolution.blocks(images)) == min(number, convolution.MAX_BLOCKS)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert len(convolution.blocks(images)) == 1


def test_small_blocks_depend_on_the_size_of_images(monkeypatch):
    assert convolution.small_block(jnp.zeros((9, 84, 84, 4))) == 4
    assert convolution.small_block(jnp.zeros((9, 1000, 1000, 1))) == 1
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert convolution.small_block(jnp.zeros((9, 84, 84, 4))) == 9
