"""Search spaces: a distribution for each hyperparameter that is searched.

Any field of a config can be searched, and `num_envs` as well. Traced fields (learning rate, gamma)
are numbers in one compiled program. Static fields (rollout length, widths) change the program, so
each combination of their values is compiled; `QLogUniform` limits their number by a ladder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import checks
from jaxrl.config import is_static
from jaxrl.tuning.spaces.distributions import (
    Choice,
    Integer,
    LogUniform,
    Numeric,
    QLogUniform,
    Uniform,
    use_plain_numbers,
)
from jaxrl.types import Array


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
        use_plain_numbers(self)
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


def check_numeric(space: Any) -> None:
    """Raise `ValueError` unless a space has distributions, and of numbers only."""
    check_distributions(space)
    for name, distribution in unconditional(space).items():
        if isinstance(distribution, Choice) and not distribution.are_numbers:
            raise ValueError(f"space[{name!r}] must have numbers only, got {distribution}")
    if not space:
        raise checks.refuse("space", "a dictionary with at least one distribution", space)


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
        if name not in static and isinstance(part, When) and getattr(config, name) is None:
            raise ValueError(
                f"{name} is None in the config, so trials in which it is inactive would need "
                f"another program: give the config a number for {name}, or search it without When"
            )
        for value in _tested_values(distribution):
            if name == "num_envs":
                if not isinstance(value, int) or value < 1:
                    raise ValueError(f"num_envs must be an integer >= 1, got {value!r}")
                continue
            try:
                config.replace(**others | condition | {name: value})
            except ValueError as error:
                raise ValueError(f"{error}; {value!r} is a value of {distribution}") from error


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


GA3C_SPACE: Space = {
    "learning_rate": LogUniform(1e-5, 1e-2),
    "num_steps": QLogUniform(2, 100, rungs=10),
    "gamma": Choice((0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999)),
}
"""The space that arXiv 1902.02725 searched for GA3C: learning rate, t_max and gamma.

Here t_max has ten values only."""
