"""Sobol's sequence: settings that cover the space more evenly than random ones."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.tuning.spaces import space as spaces
from jaxrl.types import Array


@dataclass(frozen=True)
class Sobol:
    """Scrambled points of Sobol's sequence (Sobol' 1967), the i-th one for trial i.

    The scrambling is a random digital shift: the bits of each coordinate are flipped by a random
    word. Each point is then uniform in the unit cube, and all of them cover it as evenly as the
    sequence does. They cover it best if their number is a power of 2.
    """

    def plan(self, key: Array, num_trials: int, space: spaces.Space) -> dict[str, Array]:
        """Return the settings of the trials; see `Sampler.plan`."""
        points = jnp.asarray(sobol_points(num_trials, len(space)))
        return spaces.at(space, shifted(points, jax.random.bits(key, (len(space),), jnp.uint32)))


def sobol_points(number: int, dimensions: int) -> np.ndarray:
    """Return the first points of Sobol's sequence, `[number, dimensions]`, times 2^32."""
    from scipy.stats import qmc  # importing it takes long

    sequence = qmc.Sobol(dimensions, scramble=False, bits=32)
    points = sequence.random_base2((number - 1).bit_length())[:number]
    return (points * 2.0**32).astype(np.uint32)


def shifted(points: Array, shift: Array) -> Array:
    """Return points in [0, 1), given points times 2^32 and the bits to flip, `[dimensions]`."""
    return ((points ^ shift) >> 8).astype(jnp.float32) / 2.0**24  # single precision has 24 bits
