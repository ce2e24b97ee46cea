"""Images a second when a convolutional network is trained in a `lax.scan`, as learners do.

    python experiments/benchmarks/convolution.py

It trains the Nature CNN (Mnih et al. 2015) on 84x84x4 uint8 frames: forward pass, gradient, Adam.
Compared in one run and in turn: `jaxrl.networks.convolution` with and without blocks, plain im2col
(strided slices, one product), XLA's native convolution in the scan and outside of any loop, and
PyTorch (eager, channels_last, its best number of threads). Also max pooling (3x3, stride 2) with
its gradient in the scan.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import tyro
from rich.console import Console
from rich.table import Table

from jaxrl.distributed.spread import num_cores
from jaxrl.networks import convolution, torsos
from jaxrl.ops import optimizers
from timing import RESULTS, Samples, alternate, seconds_of, summaries, write_results

FRAME = (84, 84, 4)
NUM_ACTIONS = 6
Rate = Callable[[], float]
"""A function that measures once."""
Convolve = Callable[..., jax.Array]
Cut = Callable[[jax.Array], list[jax.Array]]
"""A function that splits a batch of images into blocks."""


@dataclass
class Args:
    """Rates of the Nature CNN and of max pooling."""

    batch: int = 256
    steps: int = 4
    """Gradient steps a measurement."""
    repeats: int = 7
    native: bool = True
    """Also measure XLA's native convolution in the scan, which takes seconds a step on a CPU."""
    output: Path | None = RESULTS / "convolution.json"


def im2col(x: jax.Array, kernel: jax.Array, strides: tuple[int, int], padding: str) -> jax.Array:
    """Convolve without padding, by whole patches and one matrix product."""
    assert padding == "VALID"
    kh, kw, channels, features = kernel.shape
    height = (x.shape[1] - kh) // strides[0] + 1
    width = (x.shape[2] - kw) // strides[1] + 1
    slices = [
        x[:, i : i + strides[0] * height : strides[0], j : j + strides[1] * width : strides[1]][
            :, :height, :width
        ]
        for i in range(kh)
        for j in range(kw)
    ]
    patches = jnp.concatenate(slices, axis=-1).astype(kernel.dtype)
    return patches @ kernel.reshape(kh * kw * channels, features)


def native(x: jax.Array, kernel: jax.Array, strides: tuple[int, int], padding: str) -> jax.Array:
    """Convolve by XLA's own operation."""
    return jax.lax.conv_general_dilated(
        x.astype(kernel.dtype), kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def whole(images: jax.Array) -> list[jax.Array]:
    """Return all images as one block."""
    return [images]


class NatureCNN(nn.Module):
    """The Nature CNN with policy and value heads over a given convolution."""

    convolve: Convolve
    cut: Cut

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        layers, channels = [], FRAME[2]
        for i, (features, size, stride) in enumerate(torsos.NATURE_CONVOLUTIONS):
            shape = (size, size, channels, features)
            kernel = self.param(f"kernel{i}", nn.initializers.lecun_normal(), shape)
            bias = self.param(f"bias{i}", nn.initializers.zeros, (features,))
            layers.append((kernel, bias, (stride, stride)))
            channels = features

        def convolved(images: jax.Array) -> jax.Array:
            x = images.astype(jnp.float32) / 255
            for kernel, bias, strides in layers:
                x = nn.relu(self.convolve(x, kernel, strides, "VALID") + bias)
            return x

        x = jnp.concatenate([convolved(images) for images in self.cut(obs)])
        x = nn.relu(nn.Dense(512)(x.reshape(x.shape[0], -1)))
        return nn.Dense(NUM_ACTIONS)(x), nn.Dense(1)(x)[:, 0]


def training_rate(
    convolve: Convolve, batch: int, steps: int, scan: bool = True, cut: Cut = whole
) -> Rate:
    """Return a function that trains for `steps` and returns images a second; compile it first."""
    network = NatureCNN(convolve, cut)
    # Other frames at each step, so that XLA cannot move work on them out of the loop.
    frames = jax.random.randint(jax.random.key(0), (steps, batch, *FRAME), 0, 256, jnp.uint8)
    params = network.init(jax.random.key(1), frames[0, :1])
    optimizer = optimizers.adam(1e-4, 1e-5, 0.5)

    def loss(params: Any, frames: jax.Array) -> jax.Array:
        outputs: Any = network.apply(params, frames)
        logits, value = outputs
        return (jax.nn.logsumexp(logits, axis=-1) + value**2).mean()

    def learn(learner: Any, frames: jax.Array) -> tuple[Any, None]:
        params, opt_state = learner
        updates, opt_state = optimizer.update(jax.grad(loss)(params, frames), opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), None

    step = jax.jit(lambda learner, frames: learn(learner, frames)[0])
    loop = jax.jit(lambda learner, frames: jax.lax.scan(learn, learner, frames)[0])
    learner = (params, optimizer.init(params))
    batches = list(frames)

    def train() -> Any:
        return loop(learner, frames) if scan else functools.reduce(step, batches, learner)

    jax.block_until_ready(train())
    return lambda: batch * steps / seconds_of(train)


def pooling_rate(pool: Callable[..., jax.Array], batch: int, steps: int) -> Rate:
    """Return a function that pools with gradient in a scan; it returns 84x84x16 images a second."""
    images = jax.random.normal(jax.random.key(0), (batch, 84, 84, 16))

    def loss(images: jax.Array) -> jax.Array:
        return (pool(images, (3, 3), (2, 2), "SAME") ** 2).sum()

    def step(images: jax.Array, _: None) -> tuple[jax.Array, None]:
        return images - 1e-3 * jax.grad(loss)(images), None

    loop = jax.jit(lambda images: jax.lax.scan(step, images, length=steps)[0])
    jax.block_until_ready(loop(images))
    return lambda: batch * steps / seconds_of(lambda: loop(images))


def torch_training_rate(batch: int, steps: int) -> Rate | None:
    """Return PyTorch's rate with its best number of threads; None without PyTorch."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None
    # The module needs PyTorch.
    network = importlib.import_module("torch_ppo").ActorCritic("nature_cnn", NUM_ACTIONS, True)
    parameters = [*network.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-4, eps=1e-5)
    shape = (batch, FRAME[2], FRAME[0], FRAME[1])
    frames = torch.randint(0, 256, shape, dtype=torch.uint8)
    frames = frames.contiguous(memory_format=torch.channels_last)

    def train() -> None:
        for _ in range(steps):
            distribution, value = network(frames)
            loss = (distribution.logits[:, 0] + value**2).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()

    def rate_with(threads: int) -> float:
        torch.set_num_threads(threads)
        return batch * steps / seconds_of(train)

    settings = sorted({1, num_cores()})
    train()
    # Both in each round, since other load on the machine decides which is best.
    return lambda: max(rate_with(threads) for threads in settings)


def measure(args: Args) -> tuple[dict[str, Samples], dict[str, Samples]]:
    """Measure the rates of the network and of pooling."""
    candidates = {
        "jaxrl, in a scan": training_rate(
            convolution.convolve, args.batch, args.steps, cut=convolution.blocks
        ),
        "jaxrl, without blocks": training_rate(convolution.convolve, args.batch, args.steps),
        "im2col, in a scan": training_rate(im2col, args.batch, args.steps),
        "native, outside a loop": training_rate(native, args.batch, args.steps, scan=False),
    }
    if args.native:
        candidates["native, in a scan"] = training_rate(native, args.batch // 8, 1)
    torch_rate = torch_training_rate(args.batch, args.steps)
    if torch_rate is not None:
        candidates["PyTorch, channels_last"] = torch_rate
    pools = {
        "jaxrl, in a scan": pooling_rate(convolution.max_pool, args.batch // 4, args.steps),
        "native, in a scan": pooling_rate(nn.max_pool, args.batch // 4, args.steps),
    }
    return alternate(candidates, args.repeats), alternate(pools, args.repeats)


def table(title: str, rates: dict[str, Samples]) -> Table:
    """Return a table of rates and their ratios to jaxrl's."""
    result = Table("way", "images/s: median (min-max)", "of jaxrl's", title=title)
    ours = next(iter(rates.values())).median
    for name, samples in rates.items():
        result.add_row(name, samples.text(), f"{samples.median / ours:.2f}")
    return result


def main(args: Args) -> None:
    """Measure, print and write."""
    training, pooling = measure(args)
    console = Console()
    console.print(table(f"Nature CNN: training, batch {args.batch}", training))
    if "PyTorch, channels_last" not in training:
        console.print("PyTorch is not installed: pip install torch")
    console.print(table("Max pooling with gradient, 84x84x16", pooling))
    rates = {"training": summaries(training), "pooling": summaries(pooling)}
    write_results(args.output, {"images_per_second": rates})


if __name__ == "__main__":
    main(tyro.cli(Args))
