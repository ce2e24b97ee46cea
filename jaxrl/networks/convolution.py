"""Convolution and max pooling whose gradients are fast inside `jax.lax.scan` on a CPU.

Each operation has two versions, chosen when a program is lowered for its platform: XLA's own, and
for CPUs one made of matrix products and elementwise operations, which convolves small images
(`SMALL_IMAGE`) everywhere. docs/explanation/convolutions.md says why and how. Images are
`[B, H, W, C]`. All derivatives, and `vmap` over kernels (a population), work.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike

Padding = Literal["VALID", "SAME"]
CHANNELS_FIRST = Layout((3, 0, 1, 2))
"""The memory layout `[C, B, H, W]` of images `[B, H, W, C]`."""
WIDE = 128
"""Least width of a product, in input or output numbers a position, at which channels first is
faster. Narrower networks are slower with it: IMPALA's by 13%, MinAtar's by 36%."""
MAX_BLOCKS = 4
"""Most blocks of a batch. Each is compiled by itself, and 8 are only 1 to 5% faster than 4."""
BLOCK_SIZE = 400_000
"""Least size of a block, in numbers: 15 images of Atari."""
SMALL_IMAGE = 1_024
"""Most pixels of an image that is convolved by products on every platform. On an H200 PPO on
MinAtar is 1.5 times as fast with them for one agent, and 5 times for a population of ten."""

SMALL_BLOCK = 30_000
"""Size of a small block, in pixels: 4 images of Atari."""


def blocks(images: jax.Array) -> list[jax.Array]:
    """Split a batch into parts that each go through several convolutions one after another.

    On a CPU the patches of a part stay in its caches: a gradient step of the Nature CNN takes 8%
    less time for 256 images and 22% less for 1,024. On other platforms the batch remains whole.

    Returns:
      At most `MAX_BLOCKS` arrays `[b, H, W, C]`, of nearly equal sizes b.
    """
    if jax.default_backend() != "cpu":
        return [images]
    number = min(images.size // BLOCK_SIZE, MAX_BLOCKS, len(images))
    return jnp.array_split(images, max(number, 1))


def small_block(images: jax.Array) -> int:
    """Return how many images pass together through a deep network.

    On a CPU these are so few that their activations stay in its caches; elsewhere all of them.
    """
    if jax.default_backend() != "cpu":
        return len(images)
    return max(1, SMALL_BLOCK // math.prod(images.shape[1:3]))


class Conv(nn.Module):
    """A two-dimensional convolution with the attributes and parameters of `flax.linen.Conv`.

    Parameters are float32; without a `dtype` it computes in the inputs' type, at least float32.
    """

    features: int
    kernel_size: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: Padding = "VALID"
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()
    bias_init: nn.initializers.Initializer = nn.initializers.zeros_init()
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, H, W, C]` to `[B, OH, OW, features]`."""
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        bias = self.param("bias", self.bias_init, (self.features,), jnp.float32)
        dtype = self.dtype or jnp.promote_types(x.dtype, jnp.float32)
        return convolve(x, kernel.astype(dtype), self.strides, self.padding) + bias.astype(dtype)


# Jitted so that all blocks of a batch share one trace.
@functools.partial(jax.jit, static_argnames=("strides", "padding"))
def convolve(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, int], padding: Padding
) -> jax.Array:
    """Convolve images with a kernel, as `jax.lax.conv_general_dilated` does.

    Args:
      x: images `[B, H, W, C]` of any type, converted to the kernel's type. On a CPU the conversion
        comes last, since uint8 images are cheaper to move.
      kernel: `[kh, kw, C, F]`, of the type of the computation and the result.

    Returns:
      `[B, OH, OW, F]`.

    Raises:
      ValueError: if shapes do not fit.
    """
    _check(x, kernel.shape[:2], strides, padding)
    if kernel.ndim != 4 or x.shape[3] != kernel.shape[2]:
        raise ValueError(f"kernel {kernel.shape} does not fit images {x.shape}")
    options = {"strides": strides, "padding": padding}
    by_products = _recomputed(functools.partial(_convolve_by_products, **options))
    if math.prod(x.shape[1:3]) <= SMALL_IMAGE:
        return by_products(x, kernel)
    natively = functools.partial(_convolve_natively, **options)
    return lax.platform_dependent(x, kernel, cpu=by_products, default=natively)


def max_pool(
    x: jax.Array, window: tuple[int, int], strides: tuple[int, int], padding: Padding = "SAME"
) -> jax.Array:
    """Take the maximum over windows of floating-point images, as `flax.linen.max_pool` does.

    Returns:
      `[B, OH, OW, C]`, given images `[B, H, W, C]`. A window's gradient goes to the first of its
      maxima.

    Raises:
      ValueError: if shapes do not fit.
    """
    _check(x, window, strides, padding)
    options = {"strides": strides, "padding": padding}
    by_slices = _recomputed(functools.partial(_max_pool_by_slices, window=window, **options))
    natively = functools.partial(nn.max_pool, window_shape=window, **options)
    return lax.platform_dependent(x, cpu=by_slices, default=natively)


def _check(
    x: jax.Array, window: tuple[int, ...], strides: tuple[int, int], padding: Padding
) -> None:
    if x.ndim != 4:
        raise ValueError(f"images must be [B, H, W, C], not {x.shape}")
    if padding not in ("VALID", "SAME"):
        raise ValueError(f"padding must be 'VALID' or 'SAME', not {padding!r}")
    if min(strides) < 1:
        raise ValueError(f"strides must be positive, not {strides}")
    if padding == "VALID" and any(n < k for n, k in zip(x.shape[1:3], window, strict=True)):
        raise ValueError(f"images {x.shape} are smaller than the window {tuple(window)}")


def _recomputed(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return the function with a gradient that computes its patches or slices again.

    Backpropagation through time would keep them for all steps, on a GPU those of the version for a
    CPU too: the residuals of both versions are kept on every platform. Within a learner's loop body
    the recomputation costs nothing, since XLA merges it with the forward pass (prevent_cse=False).
    """
    return jax.checkpoint(function, prevent_cse=False)


def _convolve_natively(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, int], padding: Padding
) -> jax.Array:
    return lax.conv_general_dilated(
        x.astype(kernel.dtype), kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _convolve_by_products(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, int], padding: Padding
) -> jax.Array:
    """Convolve by slices and one matrix product, as the module's docstring explains."""
    pads = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    x, kernel, (sh, sw) = _fold_strides(x, kernel, strides)
    kh, kw, c, f = kernel.shape
    oh, ow = (x.shape[1] - kh) // sh + 1, (x.shape[2] - kw) // sw + 1

    # Adding shifted rows needs products for every row of the image, so it excludes a stride.
    added_rows = kh if sh == 1 and kw * c > f else 1
    gathered_rows = kh // added_rows
    kernel = kernel.reshape(added_rows, gathered_rows * kw * c, f)
    channels_first = max(gathered_rows * kw * c, added_rows * f) >= WIDE
    channels, height, width = (0, 2, 3) if channels_first else (3, 1, 2)
    if channels_first:
        x = with_layout_constraint(x, CHANNELS_FIRST).transpose(3, 0, 1, 2)

    def window(i: int, j: int) -> jax.Array:
        h = oh + added_rows - 1
        rows = lax.slice_in_dim(x, i, i + sh * (h - 1) + 1, sh, height)
        return lax.slice_in_dim(rows, j, j + sw * (ow - 1) + 1, sw, width)

    windows = [window(i, j) for i in range(gathered_rows) for j in range(kw)]
    patches = jnp.concatenate(windows, channels).astype(kernel.dtype)
    products = (_multiply_first if channels_first else _multiply_last)(patches, kernel)
    # The gradient of a split is one concatenation, that of indexing a sum of padded arrays.
    rows = jnp.split(products, added_rows, channels)
    y = functools.reduce(
        operator.add,
        (lax.slice_in_dim(row, i, i + oh, axis=height) for i, row in enumerate(rows)),
    )
    # The next convolution finds channels first in memory, and nothing is transposed between.
    return with_layout_constraint(y.transpose(1, 2, 3, 0), CHANNELS_FIRST) if channels_first else y


def _multiply_last(patches: jax.Array, kernel: jax.Array) -> jax.Array:
    """Multiply `[B, H, W, D]` by `[R, D, F]` to `[B, H, W, R * F]`."""
    r, d, f = kernel.shape
    products = patches.reshape(-1, d) @ kernel.transpose(1, 0, 2).reshape(d, r * f)
    return products.reshape(*patches.shape[:3], r * f)


def _multiply_first(patches: jax.Array, kernel: jax.Array) -> jax.Array:
    """Multiply `[D, B, H, W]` by `[R, D, F]` to `[R * F, B, H, W]`."""
    r, d, f = kernel.shape
    products = kernel.transpose(0, 2, 1).reshape(r * f, d) @ patches.reshape(d, -1)
    return products.reshape(r * f, *patches.shape[1:])


def _fold_strides(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, int]
) -> tuple[jax.Array, jax.Array, tuple[int, int]]:
    """Move strides that divide the kernel from space to channels; return the other strides too.

    A stride that does not divide the kernel would need a kernel padded by zeros: more work.
    """
    kh, kw, c, f = kernel.shape
    sh, sw = (s if k % s == 0 else 1 for s, k in zip(strides, (kh, kw), strict=True))
    left = (strides[0] // sh, strides[1] // sw)
    if sh == sw == 1:
        return x, kernel, left
    b, h, w, _ = x.shape
    h, w = h // sh, w // sw
    x = x[:, : h * sh, : w * sw].reshape(b, h, sh, w, sw, c)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(b, h, w, sh * sw * c)
    kernel = kernel.reshape(kh // sh, sh, kw // sw, sw, c, f)
    kernel = kernel.transpose(0, 2, 1, 3, 4, 5).reshape(kh // sh, kw // sw, sh * sw * c, f)
    return x, kernel, left


def _max_pool_by_slices(
    x: jax.Array, window: tuple[int, int], strides: tuple[int, int], padding: Padding
) -> jax.Array:
    pads = lax.padtype_to_pads(x.shape[1:3], window, strides, padding)
    # Width before height, so that the first of equal maxima is the one XLA finds.
    for axis in (2, 1):
        x = _max_pool_axis(x, axis, window[axis - 1], strides[axis - 1], pads[axis - 1])
    return x


def _max_pool_axis(
    x: jax.Array, axis: int, window: int, stride: int, pads: tuple[int, int]
) -> jax.Array:
    """Take the maximum over windows along one axis."""
    size, (low, high) = x.shape[axis], pads
    out = (size + low + high - window) // stride + 1
    # Split the axis into strides and positions within a stride: then all slices are dense, and the
    # gradient of the split is a concatenation. Windows that leave out elements make the padding
    # negative.
    strides = out + (window - 1) // stride
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (low, strides * stride - size - low, 0)
    x = lax.pad(x, jnp.array(-math.inf, x.dtype), config)
    x = x.reshape(*x.shape[:axis], strides, stride, *x.shape[axis + 1 :])
    positions = [p.squeeze(axis + 1) for p in jnp.split(x, stride, axis=axis + 1)]
    return functools.reduce(
        _first_maximum,
        (
            lax.slice_in_dim(positions[i % stride], i // stride, i // stride + out, axis=axis)
            for i in range(window)
        ),
    )


def _first_maximum(a: jax.Array, b: jax.Array) -> jax.Array:
    # jnp.maximum would divide the gradient of equal arguments between both. NaN is kept.
    return jnp.where((a >= b) | jnp.isnan(a), a, b)
