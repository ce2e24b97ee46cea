"""Search spaces: a distribution for each hyperparameter that is searched.

Any field of a config can be searched, and `num_envs` as well. Traced fields (learning rate, gamma)
are numbers in one compiled program. Static fields (rollout length, widths) change the program, so
each combination of their values is compiled; `QLogUniform` limits their number by a ladder.

A trial's random values depend on its key only. They are the same inside a jitted search, on the
host and on another machine.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.config import is_static
from jaxrl.types import Array


@dataclass(frozen=True)
class Uniform:
    """Real numbers from `low` to `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _use_plain_numbers(self)
        _check_bounds(self, checks.number)

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
        return float(drawn)


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
    """Positive real numbers, uniform in their logarithm."""

    def __post_init__(self) -> None:
        _use_plain_numbers(self)
        _check_bounds(self, checks.number, allowed=checks.POSITIVE)

    def _exp(self, exponent: Array) -> Array:
        return jnp.clip(jnp.exp(exponent), float(self.low), float(self.high))

    def move(self, drawn: Array, factor: Array) -> Array:
        return jnp.clip(drawn * factor, float(self.low), float(self.high))

    def value(self, drawn: Any) -> float:
        return float(drawn)


@dataclass(frozen=True)
class Integer:
    """Integers from `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _use_plain_numbers(self)
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
        way = jnp.where(factor > 1, 1, -1) * jnp.where(drawn < 0, -1, 1)
        return jnp.clip(drawn + way * jnp.maximum(steps, 1), self.low, self.high)

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
        _use_plain_numbers(self)
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
        way = jnp.where(factor > 1, self.q, -self.q)
        return jnp.clip(drawn + way * jnp.maximum(steps, 1), self.low, self.high)

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
        _use_plain_numbers(self)
        if not isinstance(self.values, tuple) or not self.values:
            raise ValueError(f"Choice takes a tuple of values, got {self.values!r}")

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


def _place(low: float, high: float, value: Array) -> Array:
    """Return the place of a value between `low` and `high` in the unit interval."""
    return jnp.clip((value - float(low)) / float(high - low), 0.0, 1.0)


def _next_value(values: Array, drawn: Array, factor: Array) -> Array:
    """Return the value next to the drawn one, upwards if `factor` > 1; at an end the same."""
    place = jnp.argmin(jnp.abs(values - drawn)) + jnp.where(factor > 1, 1, -1)
    return values[jnp.clip(place, 0, len(values) - 1)]


Numeric = Uniform | LogUniform | Integer | QLogUniform
"""Distributions over an interval of numbers."""


@dataclass(frozen=True)
class When:
    """A distribution of a field that is searched only where another field has a certain value.

    In all other trials the field is inactive: it keeps the config's value.
    """

    name: str
    """The other field, which is searched by a `Choice`."""
    value: Any
    """One of its values."""
    distribution: Numeric | Choice

    def __post_init__(self) -> None:
        _use_plain_numbers(self)
        checks.fields(self, checks.text, "name")
        kinds = "a distribution, such as jaxrl.tuning.Uniform(0, 1)"
        checks.instance("When.distribution", self.distribution, Numeric | Choice, kinds)

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether the field is active in a trial with these plain values."""
        return values[self.name] == self.value


Distribution = Numeric | Choice | When
Space = Mapping[str, Distribution]
"""The distributions by the names of config fields, or `num_envs`."""
PlainSpace = Mapping[str, Numeric | Choice]
"""A space without conditions, whose fields are searched in all trials."""


def draw(space: Space, key: Array) -> dict[str, Array]:
    """Draw one value for each name, as `value` of its distribution takes it.

    The order of the names in the space does not matter. Inactive fields have values too.
    """
    space = unconditional(space)
    keys = jax.random.split(key, len(space))
    return {name: space[name].draw(key) for name, key in zip(sorted(space), keys, strict=True)}


def values(space: Space, drawn: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was drawn as plain Python values, which a config takes."""
    space = unconditional(space)
    return {name: space[name].value(drawn[name]) for name in sorted(space)}


def at(space: Space, places: Array) -> dict[str, Array]:
    """Return the values at places `[..., d]` of the unit cube, whose axes are the sorted names."""
    space = unconditional(space)
    return {name: space[name].at(places[..., axis]) for axis, name in enumerate(sorted(space))}


def places(space: Space, drawn: Mapping[str, Array]) -> Array:
    """Return the places `[..., d]` of values in the unit cube, which `at` gives back.

    Inactive fields are in the middle, since their values make no difference.
    """
    parts = unconditional(space)
    unit = {name: parts[name].unit(drawn[name]) for name in sorted(space)}
    inactive = {name: jnp.where(active, unit[name], 0.5) for name, active in _active(space, drawn)}
    return jnp.stack([*(unit | inactive).values()], axis=-1)


def unconditional(space: Space) -> PlainSpace:
    """Return the space in which all fields are always searched."""
    return {n: part.distribution if isinstance(part, When) else part for n, part in space.items()}


def trained(space: Space, drawn: dict[str, Array], config: Any) -> dict[str, Array]:
    """Return the traced values with which trials train: the config's where fields are inactive."""
    kept = {
        name: jnp.where(active, drawn[name], getattr(config, name))
        for name, active in _active(space, drawn)
    }
    return drawn | kept


def without_inactive(space: Space, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values without those of inactive fields; unknown conditions count as met."""
    is_active = {
        name: not isinstance(part, When) or part.name not in values or part.holds(values)
        for name, part in space.items()
    }
    return {name: value for name, value in values.items() if is_active[name]}


def _active(space: Space, drawn: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """Yield the conditional fields, and where they are active."""
    parts = unconditional(space)
    for name, part in space.items():
        if isinstance(part, When):
            other = parts[part.name]
            assert isinstance(other, Choice)
            yield name, drawn[part.name] == other.drawn(part.value)


def check_distributions(space: Any) -> None:
    """Raise `ValueError` unless `space` is a dictionary of distributions."""
    checks.instance("space", space, Mapping, "a dictionary of distributions by field")
    for name, distribution in space.items():
        kinds = "a distribution, such as jaxrl.tuning.Uniform(0, 1)"
        checks.instance(f"space[{name!r}]", distribution, Distribution, kinds)
    for name, part in space.items():
        if isinstance(part, When):
            other = space.get(part.name)
            if not isinstance(other, Choice) or part.value not in other.values:
                raise ValueError(
                    f"space[{name!r}] depends on {part.name!r}, which must be searched by a Choice "
                    f"that has the value {part.value!r}; the space has {part.name!r}: {other!r}"
                )


def static_names(space: Space, config_class: type[Any]) -> tuple[str, ...]:
    """Return the searched names that change the program, sorted.

    Raises:
      ValueError: for a name that is no field of the config.
    """
    check_distributions(space)
    if not isinstance(config_class, type) or not dataclasses.is_dataclass(config_class):
        raise checks.refuse("config_class", "a class of configs", config_class)
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    unknown = sorted(set(space) - set(fields) - {"num_envs"})
    if unknown:
        raise ValueError(
            f"{config_class.__name__} has no fields {unknown}; its fields are {sorted(fields)}"
        )
    names = [name for name in space if name == "num_envs" or is_static(fields[name])]
    return tuple(sorted(names))


def check(space: Space, config: Any) -> None:
    """Raise `ValueError`, before any work, if the config refuses a value that can be drawn."""
    check_distributions(space)
    others = {
        name: _tested_values(part)[0]
        for name, part in space.items()
        if name != "num_envs" and not isinstance(part, When)
    }
    static = static_names(space, type(config))
    for name, distribution in unconditional(space).items():
        part = space[name]
        condition = {part.name: part.value} if isinstance(part, When) else {}
        condition.pop("num_envs", None)
        if name not in static and isinstance(distribution, Choice) and not distribution.are_numbers:
            raise ValueError(
                f"{name} is traced, so all its values must be numbers, got {distribution}"
            )
        for value in _tested_values(distribution):
            if name == "num_envs":
                if not isinstance(value, int) or value < 1:
                    raise ValueError(f"num_envs must be an integer >= 1, got {value!r}")
            else:
                config.replace(**others | condition | {name: value})


def _tested_values(distribution: Numeric | Choice) -> tuple[Any, ...]:
    """Return all values of a choice; else the extremes, of real numbers after one from within."""
    match distribution:
        case Choice(values):
            return values
        case Uniform(low, high) | LogUniform(low, high):
            return (low + (high - low) / 3, low, high)
    return (distribution.high, distribution.low)


def possible(distribution: Distribution) -> tuple[Any, ...]:
    """Return all values of a distribution over a static field.

    Raises:
      ValueError: if they are real numbers.
    """
    match distribution:
        case Choice(values):
            return values
        case Integer(low, high):
            return tuple(range(low, high + 1))
        case QLogUniform():
            return distribution.ladder
        case When():
            return possible(distribution.distribution)
    raise ValueError(f"{distribution} has infinitely many values, but each must be compiled")


def _use_plain_numbers(distribution: Any) -> None:
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


GA3C_SPACE: Space = {
    "learning_rate": LogUniform(1e-5, 1e-2),
    "num_steps": QLogUniform(2, 100, rungs=10),
    "gamma": Choice((0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999)),
}
"""The space that arXiv 1902.02725 searched for GA3C: learning rate, t_max and gamma.

Here t_max has ten values only."""
