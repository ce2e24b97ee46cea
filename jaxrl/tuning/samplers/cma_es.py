"""CMA-ES (Hansen 2016, arXiv 1604.00772), told of trials that have ended, in any process.

Each new trial rebuilds the optimizer from those trials, so a study stores nothing of it but the
generation of each trial. Numbers are searched as places on an axis from 0 to 1, which is
logarithmic if their distribution is; choices have no order, so CMA-ES cannot search them.
"""

from __future__ import annotations

import collections
import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.tuning.spaces import distributions
from jaxrl.tuning.spaces import space as spaces

SIGMA = 1 / 6
"""Standard deviation of the first generation, whose mean is the middle of the space."""


class Solution(NamedTuple):
    """A trial that has ended."""

    generation: Any
    """That it was drawn for; anything but an integer for a trial of another sampler."""
    values: Mapping[str, Any]
    score: float


def searchable(space: spaces.Space) -> dict[str, Any]:
    """Return the distributions that CMA-ES searches, sorted by name."""
    return {name: space[name] for name in sorted(space) if not _is_choice(space[name])}


def draw(
    space: spaces.Space, ended: Sequence[Solution], seed: int
) -> tuple[int, dict[str, int | float]]:
    """Draw values for a trial.

    Args:
      space: without choices, from `searchable`.
      ended: trials in the order in which they ended, since the optimizer learns from the first
        ones of each generation. Those that lack a value are left out.

    Returns:
      The generation that the trial belongs to, and its values.
    """
    generations: dict[Any, list[tuple[np.ndarray, float]]] = collections.defaultdict(list)
    for generation, values, score in ended:
        if type(generation) is int and set(space) <= set(values):
            place = np.array([to_place(space[name], values[name]) for name in space])
            generations[generation].append((place, -score))
    dimensions = len(space)
    optimizer = importlib.import_module("cmaes").CMA(
        mean=np.full(dimensions, 0.5),
        sigma=SIGMA,
        bounds=np.tile([0.0, 1.0], (dimensions, 1)),
        n_max_resampling=10 * dimensions,
        seed=seed,
    )
    size = optimizer.population_size
    while len(solutions := generations[optimizer.generation]) >= size:
        optimizer.tell(solutions[:size])
    places = optimizer.ask()
    drawn = {name: at_place(space[name], x) for name, x in zip(space, places, strict=True)}
    return optimizer.generation, drawn


def to_place(part: Any, value: float) -> float:
    """Return where on its axis a value is, from 0 to 1."""
    low, high, value = (_scaled(part, x) for x in (part.low, part.high, value))
    return min(max((value - low) / (high - low), 0.0), 1.0)


def at_place(part: Any, place: float) -> int | float:
    """Return the value at a place of an axis: the nearest one that the distribution has."""
    low, high = _scaled(part, part.low), _scaled(part, part.high)
    scaled = low + float(place) * (high - low)
    value = math.exp(scaled) if _is_log(part) else scaled
    if isinstance(part, distributions.QLogUniform) and part.rungs is not None:
        return min(part.ladder, key=lambda rung: abs(math.log(rung) - scaled))
    if isinstance(part, distributions.QLogUniform):
        value = round(value / part.q) * part.q
    elif isinstance(part, distributions.Integer):
        value = round(value)
    return min(max(value, part.low), part.high)


def _scaled(part: Any, value: float) -> float:
    return math.log(value) if _is_log(part) else value


def _is_log(part: Any) -> bool:
    return isinstance(part, distributions.LogUniform | distributions.QLogUniform)


def _is_choice(part: spaces.Distribution) -> bool:
    return isinstance(part, distributions.Choice)
