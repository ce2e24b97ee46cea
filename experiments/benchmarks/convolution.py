"""Images a second when a convolutional network is trained in a `lax.scan`, as learners do.

    python experiments/benchmarks/convolution.py

It trains the Nature CNN (Mnih et al. 2015) on 84x84x4 uint8 frames: forward pass, gradient, Adam.
Compared in one run and in turn: jaxrl's network (`jaxrl.networks.convolution`) and Flax's layers,
which are XLA's native operations. Also max pooling (3x3, stride 2) with its gradient.
"""

from __future__ import annotations

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

from jaxrl import checks
from jaxrl.networks import convolution, torsos
from jaxrl.ops import optimizers
from timing import RESULTS, Summary, alternate, median_and_range, seconds_of, write_results

FRAME = (84, 84, 4)
Rate = Callable[[], float]
"""A function that measures once."""


@dataclass
class Args:
    """Rates of the Nature CNN and of max pooling."""

    batch: int = 256
    steps: int = 4
    """Gradient steps a measurement."""
    repeats: int = 7
    output: Path | None = RESULTS / "convolution.json"


class NativeNatureCNN(nn.Module):
    """The torso of the Nature CNN in Flax's layers."""

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        x = obs.astype(jnp.float32) / 255
        for features, size, stride in torsos.NATURE_CONVOLUTIONS:
            x = nn.relu(nn.Conv(features, (size, size), stride, padding="VALID")(x))
        return nn.relu(nn.Dense(512)(x.reshape(x.shape[0], -1)))


def training_rate(network: nn.Module, batch: int, steps: int) -> Rate:
    """Return a function that trains for `steps` and returns images a second."""
    # Other frames at each step, so that XLA cannot move work on them out of the loop.
    frames = jax.random.randint(jax.random.key(0), (steps, batch, *FRAME), 0, 256, jnp.uint8)
    params = network.init(jax.random.key(1), frames[0, :1])
    optimizer = optimizers.adam(1e-4, 1e-5, 0.5)

    def loss(params: Any, frames: jax.Array) -> jax.Array:
        features: Any = network.apply(params, frames)
        return (features**2).mean()

    def learn(learner: Any, frames: jax.Array) -> tuple[Any, None]:
        params, opt_state = learner
        updates, opt_state = optimizer.update(jax.grad(loss)(params, frames), opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), None

    loop = jax.jit(lambda learner, frames: jax.lax.scan(learn, learner, frames)[0])
    learner = (params, optimizer.init(params))
    return lambda: batch * steps / seconds_of(lambda: loop(learner, frames))


def pooling_rate(pool: Callable[..., jax.Array], batch: int, steps: int) -> Rate:
    """Return a function that pools with gradient in a scan; it returns 84x84x16 images a second."""
    images = jax.random.normal(jax.random.key(0), (batch, 84, 84, 16))

    def loss(images: jax.Array) -> jax.Array:
        return (pool(images, (3, 3), (2, 2), "SAME") ** 2).sum()

    def step(images: jax.Array, _: None) -> tuple[jax.Array, None]:
        return images - 1e-3 * jax.grad(loss)(images), None

    loop = jax.jit(lambda images: jax.lax.scan(step, images, length=steps)[0])
    return lambda: batch * steps / seconds_of(lambda: loop(images))


def table(title: str, rates: dict[str, Summary]) -> Table:
    """Return a table of rates and their ratios to jaxrl's."""
    result = Table("way", "images/s: median (min-max)", "of jaxrl's", title=title)
    ours = rates["jaxrl, in a scan"]["median"]
    for name, rate in rates.items():
        result.add_row(name, median_and_range(rate), f"{rate['median'] / ours:.2f}")
    return result


def main(args: Args) -> None:
    """Measure, print and write."""
    checks.integer("--repeats", args.repeats)
    batch, steps = args.batch, args.steps
    network = torsos.ConvNet(torsos.NATURE_CONVOLUTIONS, (512,))
    training = {
        "jaxrl, in a scan": training_rate(network, batch, steps),
        # It takes seconds a step on a CPU, so it has fewer images and steps; one is no loop to XLA.
        f"native, in a scan, batches of {batch // 8}": training_rate(
            NativeNatureCNN(), batch // 8, 2
        ),
    }
    pooling = {
        "jaxrl, in a scan": pooling_rate(convolution.max_pool, batch // 4, steps),
        "native, in a scan": pooling_rate(nn.max_pool, batch // 4, steps),
    }
    rates = {
        "training": alternate(training, args.repeats),
        "pooling": alternate(pooling, args.repeats),
    }
    console = Console()
    console.print(table(f"Nature CNN: training, batch {batch}", rates["training"]))
    console.print(table("Max pooling with gradient, 84x84x16", rates["pooling"]))
    write_results(args.output, {"images_per_second": rates})


if __name__ == "__main__":
    main(tyro.cli(Args))
