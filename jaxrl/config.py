"""What the algorithms' configs share: fields, and checks that name the bad value.

A config is a frozen dataclass and a pytree. Numbers that can be traced are leaves; what changes a
shape or the program is static, so `jit` retraces exactly when it must, and `vmap` over a config
with `[P]` leaves is a population. (`flax.struct.dataclass` would do but for one thing: it runs
`__post_init__` on every unflatten, so a tree of zeros in a config's shape, such as `in_axes`, would
be refused as a bad config.)
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable
from typing import Any, Self, TypeVar, dataclass_transform

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class Config:
    """The base of every algorithm's config."""

    def replace(self, **changes: Any) -> Self:
        """A copy with other values, checked again."""
        return dataclasses.replace(self, **changes)


C = TypeVar("C", bound=Config)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def config(cls: type[C]) -> type[C]:
    """A frozen dataclass and pytree, validated when it is constructed but not when unflattened.

    Trees made from a config (gradients, `in_axes`, differences of two) need not be valid ones.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    leaves = [f.name for f in dataclasses.fields(cls) if not is_static(f)]
    statics = [f.name for f in dataclasses.fields(cls) if is_static(f)]

    def flatten(config: Any) -> Any:
        pairs = [(jax.tree_util.GetAttrKey(n), getattr(config, n)) for n in leaves]
        return pairs, tuple(getattr(config, n) for n in statics)

    def unflatten(aux: Any, values: Any) -> Any:
        config = object.__new__(cls)
        for name, value in (*zip(leaves, values, strict=True), *zip(statics, aux, strict=True)):
            object.__setattr__(config, name, value)
        return config

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls


def static(default: Any) -> Any:
    """A field that is part of the program, not a leaf."""
    return dataclasses.field(default=default, metadata={"static": True})


def is_static(field: dataclasses.Field[Any]) -> bool:
    """Whether a config's field is part of the program."""
    return field.metadata.get("static", False)


def check(config: Any, name: str, holds: Callable[[Any], Any], requirement: str) -> None:
    """Raise `ValueError` unless `holds(value)` for the field's value.

    Flattened configs are rebuilt with tracers and placeholders, so only concrete numbers are
    checked; arrays must satisfy it everywhere.
    """
    value = getattr(config, name)
    if isinstance(value, jax.core.Tracer | jax.ShapeDtypeStruct):
        return
    is_number = isinstance(value, (numbers.Real, np.ndarray, np.generic, jax.Array))
    if not is_number or not np.all(holds(value)):
        raise ValueError(f"{type(config).__name__}.{name} must be {requirement}, got {value!r}")


def is_zero(value: Any) -> bool:
    """Whether a field is 0 for certain; a traced one is not."""
    if isinstance(value, jax.core.Tracer | jax.ShapeDtypeStruct):
        return False
    return bool(np.all(np.asarray(value) == 0))


def check_positive(config: Any, *names: str) -> None:
    for name in names:
        check(config, name, lambda v: np.isfinite(v) & (np.asarray(v) > 0), "a number > 0")


def check_bound(config: Any, *names: str) -> None:
    """Upper bounds, which may be infinite."""
    for name in names:
        check(config, name, lambda v: np.asarray(v) > 0, "a number > 0, or inf for no bound")


def check_not_negative(config: Any, *names: str) -> None:
    for name in names:
        check(config, name, lambda v: np.isfinite(v) & (np.asarray(v) >= 0), "a number >= 0")


def check_unit_interval(config: Any, *names: str) -> None:
    for name in names:
        check(config, name, lambda v: (np.asarray(v) >= 0) & (np.asarray(v) <= 1), "within [0, 1]")


def check_count(config: Any, *names: str, least: int = 1) -> None:
    """Static sizes: integers >= `least`."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(
                f"{type(config).__name__}.{name} must be an integer >= {least}, got {value!r}"
            )


def check_switch(config: Any, *names: str) -> None:
    """Static switches: True or False."""
    for name in names:
        check_choice(config, name, (True, False))


def check_sizes(config: Any, name: str) -> None:
    """A tuple of integers >= 1, or None."""
    value = getattr(config, name)
    if value is not None and not (
        isinstance(value, tuple) and all(type(n) is int and n >= 1 for n in value)
    ):
        raise ValueError(
            f"{type(config).__name__}.{name} must be a tuple of integers >= 1 or None, "
            f"got {value!r}"
        )


def check_choice(config: Any, name: str, choices: tuple[Any, ...]) -> None:
    value = getattr(config, name)
    if not any(value is choice or (type(value) is str and value == choice) for choice in choices):
        raise ValueError(f"{type(config).__name__}.{name} must be one of {choices}, got {value!r}")


_INFINITY = "inf"  # JSON has no number for it


def to_dict(config: Any) -> dict[str, Any]:
    """Plain numbers, strings and lists, for JSON."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    arrays = (np.generic, np.ndarray, jax.Array)
    values = {
        name: np.asarray(value).tolist() if isinstance(value, arrays) else value
        for name, value in values.items()
    }
    return {name: _INFINITY if value == math.inf else value for name, value in values.items()}


def from_dict(config_class: type[Any], values: dict[str, Any]) -> Any:
    """The config that `to_dict` gave.

    Raises:
      ValueError: if the fields are not those of this version's config.
    """
    known = {f.name for f in dataclasses.fields(config_class)}
    if set(values) - known:
        raise ValueError(
            f"{config_class.__name__} has no fields {sorted(set(values) - known)}; "
            "they come from another version of jaxrl"
        )

    def parse(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(value)
        return math.inf if value == _INFINITY else value

    return config_class(**{name: parse(value) for name, value in values.items()})
