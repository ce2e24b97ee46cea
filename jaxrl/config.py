"""What the algorithms' configs share: fields, and checks that name the bad value.

A config is a frozen `flax.struct.dataclass`. Numbers that can be traced are leaves; what changes
a shape or the program is static, so `jit` retraces exactly when it must, and `vmap` over a config
with `[P]` leaves is a population.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import struct


def static(default: Any) -> Any:
    """A field that is part of the program, not a leaf."""
    return struct.field(pytree_node=False, default=default)


def is_static(field: dataclasses.Field[Any]) -> bool:
    """Whether a config's field is part of the program."""
    return not field.metadata.get("pytree_node", True)


def check(config: Any, name: str, holds: Callable[[Any], Any], requirement: str) -> None:
    """Raise `ValueError` unless `holds(value)` for the field's value.

    Flattened configs are rebuilt with tracers and placeholders, so only concrete numbers are
    checked; arrays must satisfy it everywhere.
    """
    value = getattr(config, name)
    if isinstance(value, jax.core.Tracer) or not isinstance(
        value, (numbers.Number, str, np.ndarray, np.generic, jax.Array)
    ):
        return
    if not np.all(holds(value)):
        raise ValueError(f"{type(config).__name__}.{name} must be {requirement}, got {value!r}")


def check_positive(config: Any, *names: str) -> None:
    for name in names:
        check(config, name, lambda v: np.isfinite(v) & (np.asarray(v) > 0), "a number > 0")


def check_not_negative(config: Any, *names: str) -> None:
    for name in names:
        check(config, name, lambda v: np.isfinite(v) & (np.asarray(v) >= 0), "a number >= 0")


def check_unit_interval(config: Any, *names: str) -> None:
    for name in names:
        check(
            config, name, lambda v: (np.asarray(v) >= 0) & (np.asarray(v) <= 1), "within [0, 1]"
        )


def check_count(config: Any, *names: str) -> None:
    """Static sizes: integers >= 1."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"{type(config).__name__}.{name} must be an integer >= 1, got {value!r}"
            )


def check_choice(config: Any, name: str, choices: tuple[Any, ...]) -> None:
    value = getattr(config, name)
    if value not in choices:
        raise ValueError(
            f"{type(config).__name__}.{name} must be one of {choices}, got {value!r}"
        )


def to_dict(config: Any) -> dict[str, Any]:
    """Plain numbers, strings and lists, for JSON."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return {
        name: np.asarray(value).tolist() if isinstance(value, (np.generic, jax.Array)) else value
        for name, value in values.items()
    }


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
    return config_class(
        **{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    )
