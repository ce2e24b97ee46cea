"""Distributions: the values that one hyperparameter may take, and how likely each is.

A drawn value depends on its key only. It is the same inside a jitted search, on the host and on
another machine.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.types import Array

# Values are single precision, which holds 1e-38 to 3e38.
REAL = checks.Range("a number between -1e38 and 1e38", lambda x: abs(x) <= 1e38)
POSITIVE = checks.Range("a number between 1e-37 and 1e38", lambda x: (x >= 1e-37) & (x <= 1e38))


@dataclass(frozen=True)
class Uniform:
    """Real numbers from `low` to `high`, within -1e38 and 1e38."""

    low: float
    high: float

    def __post_init__(self) -> None:
        use_plain_numbers(self)
        _check_bounds(self, checks.number, allowed=REAL)

    def draw(self, key: Array) -> Array:
        """Draw a traced value."""
        return jax.random.uniform(key, (), minval=float(self.low), maxval=float(self.high))

    def at(self, unit: Array) -> Array:
        """Return the traced values at places `[...]` in the unit interval.

        At uniformly drawn places the values are distributed as `draw` returns them.
        """
        return _between(self.low, self.high, unit)

    def unit(self, drawn: Array) -> Array:
        """Return the places in the unit interval of traced values, which `at` gives back."""
        return _place(self.low, self.high, drawn)

    def move(self, drawn: Array, factor: Array) -> Array:
        """Return a traced value times `factor`, within the bounds.

        Distributions of few values move to another value at least one step away, if there is one.
        """
        return jnp.clip(drawn * factor, float(self.low), float(self.high))

    def value(self, drawn: Any) -> float:
        """Return what was drawn as a plain Python value."""
        return _within(self.low, self.high, drawn)


@dataclass(frozen=True)
class _Logarithmic(abc.ABC):
    """A distribution that is uniform in the logarithm of its values."""

    low: float
    high: float

    @abc.abstractmethod
    def _exp(self, exponent: Array) -> Array:
        """Return the value with a logarithm, as close as the distribution has one."""

    @property
    def _logs(self) -> tuple[float, float]:
        return math.log(self.low), math.log(self.high)

    def draw(self, key: Array) -> Array:
        low, high = self._logs
        return self._exp(jax.random.uniform(key, (), minval=low, maxval=high))

    def at(self, unit: Array) -> Array:
        return self._exp(_between(*self._logs, unit))

    def unit(self, drawn: Array) -> Array:
        return _place(*self._logs, jnp.log(drawn))


@dataclass(frozen=True)
class LogUniform(_Logarithmic):
    """Positive real numbers within 1e-37 and 1e38, uniform in their logarithm."""

    def __post_init__(self) -> None:
        use_plain_numbers(self)
        _check_bounds(self, checks.number, allowed=POSITIVE)

    def _exp(self, exponent: Array) -> Array:
        return jnp.clip(jnp.exp(exponent), float(self.low), float(self.high))

    def move(self, drawn: Array, factor: Array) -> Array:
        return jnp.clip(drawn * factor, float(self.low), float(self.high))

    def value(self, drawn: Any) -> float:
        return _within(self.low, self.high, drawn)


@dataclass(frozen=True)
class Integer:
    """Integers from `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        use_plain_numbers(self)
        _check_bounds(self, checks.integer, least=-(2**31), most=2**31 - 2)

    def draw(self, key: Array) -> Array:
        return jax.random.randint(key, (), self.low, self.high + 1)

    def at(self, unit: Array) -> Array:
        step = jnp.floor(unit * float(self._count)) + float(self.low)
        return jnp.clip(step.astype(jnp.int32), self.low, self.high)

    def unit(self, drawn: Array) -> Array:
        middle = (drawn.astype(jnp.float32) - float(self.low) + 0.5) / float(self._count)
        return jnp.clip(middle, 0.0, 1.0)

    @property
    def _count(self) -> int:
        return self.high - self.low + 1

    def move(self, drawn: Array, factor: Array) -> Array:
        steps = jnp.round(jnp.abs(drawn * (factor - 1))).astype(jnp.int32)
        return _stepped(self, drawn, jnp.maximum(steps, 1), (factor > 1) == (drawn >= 0))

    def value(self, drawn: Any) -> int:
        return int(drawn)


@dataclass(frozen=True)
class QLogUniform(_Logarithmic):
    """Multiples of `q` from `low` to `high`, uniform in their logarithm.

    With `rungs`, each value is moved to the nearest one of at most `rungs` values that are evenly
    spaced in the logarithm. Use it for static fields: each of their values is compiled.
    """

    low: int
    high: int
    q: int = 1
    rungs: int | None = None

    def __post_init__(self) -> None:
        use_plain_numbers(self)
        _check_bounds(self, checks.integer, most=2**31 - 2)
        checks.fields(self, checks.integer, "q")
        if self.low % self.q or self.high % self.q:
            raise ValueError(f"{self}: low and high must be multiples of q")
        if self.rungs is not None:
            checks.fields(self, checks.integer, "rungs", least=2)

    @property
    def ladder(self) -> tuple[int, ...]:
        """All values that can be drawn, ascending."""
        if self.rungs is None:
            return tuple(range(self.low, self.high + 1, self.q))
        exact = np.geomspace(self.low, self.high, self.rungs)
        return tuple(sorted({round(x / self.q) * self.q for x in exact}))

    def _exp(self, exponent: Array) -> Array:
        if self.rungs is None:
            value = jnp.round(jnp.exp(exponent) / self.q).astype(jnp.int32) * self.q
            return jnp.clip(value, self.low, self.high)
        ladder = jnp.asarray(self.ladder, jnp.int32)
        return ladder[jnp.argmin(jnp.abs(jnp.log(ladder) - exponent[..., None]), axis=-1)]

    def move(self, drawn: Array, factor: Array) -> Array:
        if self.rungs is not None:
            return _next_value(jnp.asarray(self.ladder, jnp.int32), drawn, factor)
        steps = jnp.round(jnp.abs(drawn * (factor - 1)) / self.q).astype(jnp.int32)
        steps = jnp.clip(steps, 1, (self.high - self.low) // self.q)
        return _stepped(self, drawn, self.q * steps, factor > 1)

    def value(self, drawn: Any) -> int:
        """Return the drawn value, exactly one of the ladder if there are rungs."""
        if self.rungs is None:
            return int(drawn)
        return min(self.ladder, key=lambda rung: abs(math.log(rung / float(drawn))))


@dataclass(frozen=True)
class Choice:
    """One of several equally likely values."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        use_plain_numbers(self)
        if not isinstance(self.values, tuple) or not self.values:
            raise ValueError(f"Choice takes a tuple of values, got {self.values!r}")
        try:
            hash(self.values)
        except TypeError as error:
            raise ValueError(
                f"Choice takes values that can be hashed, such as tuples in place of lists, got "
                f"{self.values!r}"
            ) from error
        if self.are_numbers and any(isinstance(value, float) for value in self.values):
            # One dtype, so that agents with different values share a program.
            object.__setattr__(self, "values", tuple(map(float, self.values)))

    def draw(self, key: Array) -> Array:
        """Return one of the values if all are numbers, else the index of one."""
        index = jax.random.randint(key, (), 0, len(self.values))
        return self._numbers()[index] if self.are_numbers else index

    def drawn(self, value: Any) -> Array:
        """Return what `draw` returns for one of the values."""
        index = jnp.int32(self.values.index(value))
        return self._numbers()[index] if self.are_numbers else index

    def at(self, unit: Array) -> Array:
        """Return the traced values at places `[...]`: numbers have theirs in ascending order."""
        place = jnp.floor(unit * float(len(self.values))).astype(jnp.int32)
        return self._ordered()[jnp.clip(place, 0, len(self.values) - 1)]

    def unit(self, drawn: Array) -> Array:
        place = jnp.argmin(jnp.abs(self._ordered() - drawn[..., None]), axis=-1)
        return (place.astype(jnp.float32) + 0.5) / float(len(self.values))

    def move(self, drawn: Array, factor: Array) -> Array:
        return _next_value(self._ordered(), drawn, factor)

    def _ordered(self) -> Array:
        """Return what may be drawn, in ascending order."""
        return jnp.sort(self._numbers()) if self.are_numbers else jnp.arange(len(self.values))

    def _numbers(self) -> Array:
        # Arrays hold integers of 32 bits.
        return jnp.asarray([x if abs(x) < 2**31 else float(x) for x in self.values])

    def value(self, drawn: Any) -> Any:
        if not self.are_numbers:
            return self.values[int(drawn)]
        drawn = float(drawn)
        # Single precision may have rounded it. The comparison is for infinity: inf - inf is NaN.
        return min(self.values, key=lambda value: value != drawn and abs(value - drawn))

    @property
    def are_numbers(self) -> bool:
        """True if all values are numbers, which a traced field can take."""
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.values)


def _between(low: float, high: float, unit: Array) -> Array:
    """Return the value at a place in the unit interval."""
    start, stop = jnp.float32(low), jnp.float32(high)
    return jnp.clip(unit * (stop - start) + start, start, stop)


def _within(low: float, high: float, drawn: Any) -> float:
    """Return a drawn number, or the bound that single precision rounded it beyond."""
    return min(max(float(drawn), float(low)), float(high))


def _place(low: float, high: float, value: Array) -> Array:
    """Return the place of a value between `low` and `high` in the unit interval."""
    return jnp.clip((value - float(low)) / float(high - low), 0.0, 1.0)


def _next_value(values: Array, drawn: Array, factor: Array) -> Array:
    """Return the value next to the drawn one, upwards if `factor` > 1; at an end the same."""
    own = jnp.argmin(jnp.abs(values - drawn))  # the first of equal values
    above = jnp.searchsorted(values, values[own], side="right")
    place = jnp.where(factor > 1, above, own - 1)
    return values[jnp.clip(place, 0, len(values) - 1)]


def _stepped(bounds: Integer | QLogUniform, drawn: Array, step: Array, is_up: Array) -> Array:
    """Return an integer that is moved by a positive step, within the bounds."""
    moved = drawn + jnp.where(is_up, step, -step)
    beyond = jnp.where(is_up, bounds.high, bounds.low)
    has_wrapped = (moved > drawn) != is_up  # integers of 32 bits do
    return jnp.where(has_wrapped, beyond, jnp.clip(moved, bounds.low, bounds.high))


Numeric = Uniform | LogUniform | Integer | QLogUniform
"""Distributions over an interval of numbers."""


def contains(distribution: Numeric | Choice, x: np.ndarray) -> np.ndarray:
    """Return which values, as they were drawn or moved, are within the distribution."""
    match distribution:
        case Uniform(low, high) | LogUniform(low, high):
            return (x >= np.float32(low)) & (x <= np.float32(high))
        case Integer(low, high):
            return (x >= low) & (x <= high)
        case QLogUniform():
            return np.isin(x, distribution.ladder)
    return np.isin(x, np.asarray(distribution.values).astype(x.dtype))


def use_plain_numbers(distribution: Any) -> None:
    """Replace NumPy's numbers in a distribution's fields: JSON and databases refuse them."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        return value.item() if isinstance(value, np.generic) else value

    for field in dataclasses.fields(distribution):
        object.__setattr__(distribution, field.name, plain(getattr(distribution, field.name)))


def _check_bounds(distribution: Any, rule: Callable[..., Any], **limits: Any) -> None:
    """Check `low` and `high` by a rule of `checks`, and that they are in order."""
    checks.fields(distribution, rule, "low", "high", **limits)
    if not distribution.low < distribution.high:
        raise ValueError(f"{distribution}: low must be less than high")
