"""Configs of algorithms: a decorator, and conversion to JSON.

A config is a frozen dataclass and a pytree. Numbers that can be traced are leaves; fields made by
`static`, which change a shape or the program, are part of the tree's structure. So `jit` retraces
only when the program changes, and a config with `[P]` leaves under `vmap` is a population of P.

A string after a field documents it. The command line shows it as the flag's help text, and `config`
adds it to the class docstring, for `help`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from typing import Any, Self, TypeVar, dataclass_transform

import jax
import numpy as np

RENAMED_FIELDS = {"sees_last": "use_last_action_reward"}
"""Current names of fields by the names in files that older versions wrote."""
REMOVED_FIELDS = {"min_training_batch": 1}
"""The values of removed fields with which older versions did what the current one does."""
ADDED_FIELDS: dict[str, dict[str, Any]] = {
    "a2c": {"layer_norm": False, "num_minibatches": 1, "initial_std": 1.0},
    "dqn": {"layer_norm": False, "huber": True},
    "impala": {
        "layer_norm": False,
        "num_minibatches": 1,
        "eps_inside_root": True,
        "rmsprop_initial": 0.0,
        "initial_std": 1.0,
    },
    "ppo": {"layer_norm": False, "initial_std": 1.0},
    "r2d2": {"layer_norm": False},
}
"""By algorithm, the values of fields that older versions did not have: what these versions did."""


@dataclasses.dataclass(frozen=True)
class Config:
    """The base class of every algorithm's config."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values, checked as a new config is."""
        return dataclasses.replace(self, **changes)


C = TypeVar("C", bound=Config)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def config(cls: type[C]) -> type[C]:
    """Make a class a frozen dataclass and a pytree.

    The class' `__post_init__` checks the values of a constructed config. It does not run for
    unflattened trees, as `flax.struct.dataclass` would do: trees in the shape of a config, such as
    gradients and `in_axes`, need not be valid configs.

    Raises:
      ValueError: if the default of a traced field is no number.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    for field in dataclasses.fields(cls):
        if not is_static(field) and isinstance(field.default, str | tuple):
            raise ValueError(
                f"{cls.__name__}.{field.name} must be a number, which can be traced, or be "
                f"declared by jaxrl.config.static({field.default!r})"
            )
    cls.__doc__ = _DocstringWithFields(cls.__doc__)  # pyrefly: ignore[bad-assignment]
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


class _DocstringWithFields:
    """A class docstring that lists the class' fields when it is read.

    Reading the source files takes longer than a program that asks for no help should wait.
    """

    def __init__(self, text: str | None) -> None:
        self.text = text or ""

    def __get__(self, instance: Any, cls: type[Config]) -> str:
        return f"{self.text.rstrip()}\n\nAttributes:\n{_field_list(cls)}"


@functools.cache
def _field_list(cls: type[Config]) -> str:
    """Return a line for each field of a config: name, type, default and documentation."""
    from docstring_parser.attrdoc import AttributeDocstrings

    documentation = {}
    for base in reversed(cls.__mro__[:-1]):
        with contextlib.suppress(TypeError):  # a class without a file, typed at a prompt
            documentation |= AttributeDocstrings().get_attr_docs(base)
    lines = []
    for field in dataclasses.fields(cls):
        kind = "static" if is_static(field) else "traced"
        text = " ".join(documentation.get(field.name, ("",))[0].split())
        # On one line, since tyro reads this list too, and keeps some line breaks.
        lines.append(f"  {field.name} ({field.type} = {field.default!r}, {kind}): {text}")
    return "\n".join(lines)


def static(default: Any) -> Any:
    """Declare a field that is part of the program instead of a traced leaf."""
    return dataclasses.field(default=default, metadata={"static": True})


def is_static(field: dataclasses.Field[Any]) -> bool:
    """Return whether a config's field is part of the program."""
    return field.metadata.get("static", False)


def is_zero(value: Any) -> bool:
    """Return whether a field's value is known to be 0; that of a tracer is not known."""
    if isinstance(value, jax.core.Tracer | jax.ShapeDtypeStruct):
        return False
    return bool(np.all(np.asarray(value) == 0))


_INFINITY = "inf"  # JSON has no number for it


def to_dict(config: Any) -> dict[str, Any]:
    """Return a config's fields as plain numbers, strings and lists, for JSON."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    arrays = (np.generic, np.ndarray, jax.Array)
    values = {
        name: np.asarray(value).tolist() if isinstance(value, arrays) else value
        for name, value in values.items()
    }
    return {name: _INFINITY if value == math.inf else value for name, value in values.items()}


def from_dict(config_class: type[Any], values: dict[str, Any]) -> Any:
    """Return the config of which `to_dict`, here or in an older version, made `values`.

    Raises:
      ValueError: for fields that the config does not have.
    """
    values = with_current_names(values)
    known = {f.name for f in dataclasses.fields(config_class)}
    if unknown := sorted(set(values) - known):
        raise ValueError(
            f"{config_class.__name__} has no fields {unknown}; they come from another version of "
            "jaxrl, or from a config class of your own, which the algorithm must then have: "
            "algo._replace(config_class=...)"
        )

    return config_class(**{name: from_json(value) for name, value in values.items()})


def from_json(value: Any) -> Any:
    """Return the value of a field that `to_dict` wrote as JSON can hold it."""
    if isinstance(value, list):
        return tuple(value)
    return math.inf if value == _INFINITY else value


def with_current_names(saved: Any) -> Any:
    """Return JSON data with the current names of renamed fields, and without removed ones.

    Configs get the fields that they had not yet. A removed field stays if its value asks for what
    only an older version can do.
    """
    if isinstance(saved, list):
        return [with_current_names(value) for value in saved]
    if not isinstance(saved, dict):
        return saved
    saved = {
        RENAMED_FIELDS.get(name, name): with_current_names(value)
        for name, value in saved.items()
        if (name, value) not in REMOVED_FIELDS.items()
    }
    if isinstance(saved.get("config"), dict) and isinstance(saved.get("algorithm"), str):
        saved["config"] = ADDED_FIELDS.get(saved["algorithm"], {}) | saved["config"]
    return saved
