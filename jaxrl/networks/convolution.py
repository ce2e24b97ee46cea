"""Convolution and max pooling whose gradients are fast inside ``jax.lax.scan`` on a CPU.

A learner made of one compiled program takes its gradient steps in a loop. On GPU and TPU the
gradient of a convolution is fast anywhere. On CPU it is slow in a loop: of the Nature CNN's
three layers two cores then train on 100 images/s (84x84x4, batches of 32), and pooling suffers
from ``select_and_scatter`` in the same way. So either operation has two ways here, picked when a
program is lowered for its platform: the native one, and on CPU one made of matrix products and
elementwise loops, which XLA compiles well anywhere. It trains the whole network on 2160 images/s,
where PyTorch reaches 2030 and plain im2col 1310, and pools with gradient four times as fast.

The CPU way is built to move as few bytes as it can, and to keep the products fast:

* Strides are folded into channels (space to depth) wherever they divide the kernel: an 8x8 kernel
  of stride 4 on 4 channels becomes a 2x2 kernel of stride 1 on 64, with 4 slices instead of 64.
* Patches are gathered along the width only. The rows of the kernel become further output columns
  of the same product, and the results are added up, each shifted by its row. Compared with whole
  patches (im2col) this writes ``kw * C + kh * F`` instead of ``kh * kw * C + F`` numbers per
  position, and the wider product runs faster. For few input channels, where whole patches are the
  smaller, they are used.
* Integer images are gathered as they are and become floating point last.
* A large batch is cut into blocks (`blocks`), whose patches stay in the caches until the next
  convolution has used them.
* Where products are deep or wide, the channels come first in memory. The gradient of a kernel is a
  sum over all positions, and with the positions last its product runs up to twice as fast.
  Activations keep that layout from one convolution to the next.

Patches are never residuals: they are marked for recomputation. Where the gradient is taken within
a loop body, as in a learner, XLA finds the forward pass's patches and recomputes nothing. Where
it is taken of a loop, as in backpropagation through time, only the inputs of each step are kept.

Everything is ordinary differentiable JAX, so ``vmap`` over kernels (training a population) gives
batched matrix products, and forward-mode and higher derivatives work.
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
"""`[B, H, W, C]` that lie in memory as `[C, B, H, W]`."""
WIDE = 128
"""Products with so many numbers a position, before or after, run faster with channels first."""
MAX_BLOCKS = 4
"""More gain little, and take longer to compile."""
BLOCK_SIZE = 400_000
"""Numbers that the images of a block have at least, as 15 of Atari's."""


def blocks(images: jax.Array) -> list[jax.Array]:
    """Parts of a batch to take through several convolutions one after another.

    On a CPU a gradient takes up to a fifth less time for it; elsewhere the batch remains whole.

    Args:
        images: ``[B, H, W, C]``.

    Returns:
        At most `MAX_BLOCKS` arrays ``[b, H, W, C]``, of nearly equal sizes ``b``.
    """
    if jax.default_backend() != "cpu":
        return [images]
    number = min(images.size // BLOCK_SIZE, MAX_BLOCKS, len(images))
    return jnp.array_split(images, max(number, 1))


# So that it is traced once for all blocks of a batch.
@functools.partial(jax.jit, static_argnames=("strides", "padding"))
def convolve(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, int], padding: Padding
) -> jax.Array:
    """Convolve images with a kernel, as ``jax.lax.conv_general_dilated`` does.

    Args:
        x: Images ``[B, H, W, C]`` of any type. They are converted to the kernel's type, on CPU
            late, so that ``uint8`` frames are cheap to move; whether the caller scales them
            before, or the kernel instead, makes no measurable difference.
        kernel: ``[kh, kw, C, F]``; its type is that of the computation and of the result.
        strides: Steps along height and width.
        padding: ``"VALID"`` or ``"SAME"``, the latter as XLA and TensorFlow define it.

    Returns:
        ``[B, OH, OW, F]``.
    """
    _check(x, kernel.shape[:2], strides, padding)
    if kernel.ndim != 4 or x.shape[3] != kernel.shape[2]:
        raise ValueError(f"kernel {kernel.shape} does not fit images {x.shape}")
    options = {"strides": strides, "padding": padding}
    return _platform_dependent(
        functools.partial(_convolve_by_products, **options),
        functools.partial(_convolve_natively, **options),
        x,
        kernel,
    )


def max_pool(
    x: jax.Array, window: tuple[int, int], strides: tuple[int, int], padding: Padding = "SAME"
) -> jax.Array:
    """Take the maximum over windows of floating-point images, as ``flax.linen.max_pool`` does.

    Args:
        x: Images ``[B, H, W, C]``.
        window: Height and width of a window.
        strides: Steps along height and width.
        padding: ``"VALID"`` or ``"SAME"``, the latter as XLA and TensorFlow define it.

    Returns:
        ``[B, OH, OW, C]``. The gradient of a window goes to the first of its maxima.
    """
    _check(x, window, strides, padding)
    options = {"strides": strides, "padding": padding}
    return _platform_dependent(
        functools.partial(_max_pool_by_slices, window=window, **options),
        functools.partial(nn.max_pool, window_shape=window, **options),
        x,
    )


class Conv(nn.Module):
    """Two-dimensional convolution with the parameters of ``flax.linen.Conv``.

    Attributes:
        features: Number of output channels.
        kernel_size: Height and width of the kernel.
        strides: Steps along height and width.
        padding: ``"VALID"`` or ``"SAME"``.
        kernel_init: Initializer of ``kernel``, ``[kh, kw, C, features]``.
        bias_init: Initializer of ``bias``, ``[features]``.
        dtype: Type of the computation; by default that of the inputs, if it is floating point
            and no narrower than the parameters, which are always ``float32``.
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
        """Map ``[B, H, W, C]`` to ``[B, OH, OW, features]``."""
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
        bias = self.param("bias", self.bias_init, (self.features,), jnp.float32)
        dtype = self.dtype or jnp.promote_types(x.dtype, jnp.float32)
        return convolve(x, kernel.astype(dtype), self.strides, self.padding) + bias.astype(dtype)


def _platform_dependent(
    on_cpu: Callable[..., jax.Array], elsewhere: Callable[..., jax.Array], *args: jax.Array
) -> jax.Array:
    # The residuals of both alternatives become residuals of the choice, on every platform. Without
    # recomputation a GPU would hold room for the patches of the CPU in backpropagation through
    # time. Common subexpressions may be shared: that is what makes recomputation free in a body.
    on_cpu = jax.checkpoint(on_cpu, prevent_cse=False)
    return lax.platform_dependent(*args, cpu=on_cpu, default=elsewhere)


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


def _convolve_natively(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, int], padding: Padding
) -> jax.Array:
    return lax.conv_general_dilated(
        x.astype(kernel.dtype), kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _convolve_by_products(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, int], padding: Padding
) -> jax.Array:
    pads = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    x, kernel, (sh, sw) = _fold_strides(x, kernel, strides)
    kh, kw, c, f = kernel.shape
    oh, ow = (x.shape[1] - kh) // sh + 1, (x.shape[2] - kw) // sw + 1

    # Shifted addition needs the results of all rows of the image, so it excludes a stride.
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
    # The transpose of a split is one concatenation, that of indexing a sum of padded arrays.
    rows = jnp.split(products, added_rows, channels)
    y = functools.reduce(
        operator.add,
        (lax.slice_in_dim(row, i, i + oh, axis=height) for i, row in enumerate(rows)),
    )
    return with_layout_constraint(y.transpose(1, 2, 3, 0), CHANNELS_FIRST) if channels_first else y


def _multiply_last(patches: jax.Array, kernel: jax.Array) -> jax.Array:
    """`[B, H, W, D]` times `[R, D, F]` is `[B, H, W, R * F]`."""
    r, d, f = kernel.shape
    products = patches.reshape(-1, d) @ kernel.transpose(1, 0, 2).reshape(d, r * f)
    return products.reshape(*patches.shape[:3], r * f)


def _multiply_first(patches: jax.Array, kernel: jax.Array) -> jax.Array:
    """`[D, B, H, W]` times `[R, D, F]` is `[R * F, B, H, W]`."""
    r, d, f = kernel.shape
    products = kernel.transpose(0, 2, 1).reshape(r * f, d) @ patches.reshape(d, -1)
    return products.reshape(r * f, *patches.shape[1:])


def _fold_strides(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, int]
) -> tuple[jax.Array, jax.Array, tuple[int, int]]:
    """Move the strides which divide the kernel from space to channels, and return the others.

    A stride which does not divide would need a kernel padded by zeros: more work, not less.
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
    # Width before height: the first maximum is then the same as in the native order.
    for axis in (2, 1):
        x = _max_pool_axis(x, axis, window[axis - 1], strides[axis - 1], pads[axis - 1])
    return x


def _max_pool_axis(
    x: jax.Array, axis: int, window: int, stride: int, pads: tuple[int, int]
) -> jax.Array:
    size, (low, high) = x.shape[axis], pads
    out = (size + low + high - window) // stride + 1
    # The elements of every stride are split off by position, which transposes to a concatenation,
    # so that all slices are dense. Padding may be negative, where windows leave elements out.
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
