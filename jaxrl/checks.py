"""Checks of arguments: one rule for each kind of value, and one form of error.

A rule takes an argument's name and value. It returns the value, NumPy's numbers as Python's, or
raises a `ValueError` such as "num_envs must be an integer >= 1, got 0".
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")
LONGEST_NAME = 255
"""Bytes of the name of a file or folder, at most, on common file systems."""
MAX_COUNT = 2**31 - 1
"""The largest size or count: programs hold them in 32 bits."""
MAX_LONG = 2**63 - 1
"""The largest integer of 64 bits."""
MAX_SEED = 2**32 - 1
"""The largest seed: of more than 32 bits `jax.random.key` would ignore the upper ones."""


class Range(NamedTuple):
    """A set of real numbers."""

    text: str
    holds: Callable[[Any], Any]
    """`holds(x)`: whether numbers or the elements of an array are in the set."""


FINITE = Range("a finite number", np.isfinite)
POSITIVE = Range("a number > 0", lambda x: np.isfinite(x) & (x > 0))
NOT_NEGATIVE = Range("a number >= 0", lambda x: np.isfinite(x) & (x >= 0))
BOUND = Range("a number > 0, or inf for no bound", lambda x: x > 0)
DELAY = Range("a number >= 0, or inf for never", lambda x: x >= 0)
UNIT_INTERVAL = Range("within [0, 1]", lambda x: (x >= 0) & (x <= 1))
BELOW_ONE = Range("in [0, 1)", lambda x: (x >= 0) & (x < 1))


def refuse(name: str, requirement: str, value: Any) -> ValueError:
    """Return the error of a bad value; a tuple with named fields is shown by its type."""
    shown = f"a {type(value).__name__}" if hasattr(value, "_fields") else f"{value!r:.200}"
    return ValueError(f"{name} must be {requirement}, got {shown}")


def integer(
    name: str, value: Any, least: int = 1, most: int = MAX_COUNT, whole_floats: bool = False
) -> int:
    """Return an integer from `least` to `most`; with `whole_floats`, also from one such as 1e6."""
    number = None
    if whole_floats and isinstance(value, float) and value.is_integer():
        number = int(value)
    elif not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            number = operator.index(value)
    if number is None or not least <= number <= most:
        has_limit = most != MAX_COUNT or (number is not None and number > most)
        limits = f"from {least} to {_power(most)}" if has_limit else f">= {least}"
        raise refuse(name, f"an integer {limits}" + _static(value), value)
    return number


def _static(value: Any) -> str:
    """Return what to add to a requirement if `jit` or `vmap` traces the value."""
    return " that jit and vmap do not trace" if isinstance(value, jax.core.Tracer) else ""


def _power(most: int) -> str:
    """Return a limit as text."""
    powers = {MAX_COUNT: "2^31 - 1", MAX_SEED: "2^32 - 1", MAX_LONG: "2^63 - 1"}
    return powers.get(most, f"{most:,}")


def number(name: str, value: Any, allowed: Range = FINITE) -> float:
    """Return a real number within a range."""
    array = None if isinstance(value, jax.core.Tracer) else _real_array(value)
    if array is None or array.ndim or not allowed.holds(array):
        raise refuse(name, allowed.text, value)
    return value.item() if hasattr(value, "item") else value


def traced_number(name: str, value: Any, allowed: Range = FINITE) -> Any:
    """Return a number, or an array of numbers, that programs take in single precision.

    Tracers have no value to check. Integers that need more than 32 bits become real numbers, and
    NumPy's numbers of double precision such that jax_enable_x64 does not spread to the state.
    """
    if isinstance(value, jax.core.Tracer | jax.ShapeDtypeStruct):
        return value
    array = _real_array(value)
    if array is None or not np.all(allowed.holds(array)):
        raise refuse(name, allowed.text, value)
    with np.errstate(over="ignore", under="ignore"):
        single = array.astype(np.float32)
    if not np.all(allowed.holds(single)):
        raise refuse(name, f"{allowed.text} in single precision", value)
    kind = getattr(value, "dtype", type(value))
    is_long = jnp.issubdtype(kind, jnp.integer) and np.any(np.abs(array) > MAX_COUNT)
    if is_long or kind == np.float64:
        return single if array.ndim else float(array)
    return value


def _real_array(value: Any) -> np.ndarray | None:
    """Return numbers as a float64 array; None for other values."""
    if isinstance(value, bool) or not isinstance(
        value, int | float | np.ndarray | np.generic | jax.Array
    ):
        return None
    if isinstance(value, int):
        return np.array(float(value) if abs(value) < 2**1023 else math.inf)
    dtype = value.dtype if hasattr(value, "dtype") else np.dtype(float)
    is_real = jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)
    return np.asarray(value).astype(np.float64) if is_real else None


def array(
    name: str, value: Any, shape: tuple[int, ...], allowed: Range | None = None
) -> np.ndarray:
    """Return an array `shape` of real numbers within a range, of any if `allowed` is None."""
    try:
        found = _real_array(np.asarray(value))
    except ValueError:  # rows of several lengths
        found = None
    if found is None or found.shape != shape or (allowed and not np.all(allowed.holds(found))):
        kind = "numbers" if allowed is None else f"elements, each {allowed.text}"
        raise refuse(name, f"an array {list(shape)} of {kind}", value)
    return found


def flag(name: str, value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, bool | np.bool_):
        raise refuse(name, "True or False" + _static(value), value)
    return bool(value)


def choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """Return one of the texts or None in `choices`."""
    if not (value is None or isinstance(value, str)) or value not in choices:
        raise refuse(name, f"one of {choices}", value)
    return value


def text(name: str, value: Any) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise refuse(name, "a string that is not empty", value)
    return value


def path(name: str, value: Any) -> Path:
    """Return a path from a text or a path."""
    if not isinstance(value, str | os.PathLike) or not str(value) or "\0" in str(value):
        raise refuse(name, "a path", value)
    if any(len(part.encode("utf-8", "surrogatepass")) > LONGEST_NAME for part in Path(value).parts):
        raise refuse(name, f"a path whose names have at most {LONGEST_NAME} bytes", value)
    return Path(value)


def sizes(name: str, value: Any, least: int = 1) -> tuple[int, ...]:
    """Return a tuple of integers >= `least`."""
    try:
        return tuple(integer(name, size, least) for size in instance(name, value, tuple, ""))
    except ValueError:
        raise refuse(name, f"a tuple of integers >= {least}", value) from None


def dtype(name: str, value: Any) -> np.dtype:
    """Return a type of array elements."""
    with contextlib.suppress(TypeError):
        if value is not None:  # NumPy's float64
            return np.dtype(value)
    raise refuse(name, "a type of NumPy", value)


def random_key(name: str, value: Any) -> Any:
    """Return one of JAX's random keys, which may be a tracer."""
    if not isinstance(value, jax.Array | np.ndarray) or not (
        jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        or (value.dtype == np.uint32 and value.ndim)
    ):
        raise refuse(name, "a random key, such as jax.random.key(0)", value)
    return value


def step(name: str, value: Any) -> int:
    """Return a number of updates or steps of a run, counted from 0."""
    return integer(name, value, 0, MAX_LONG)


def seed(value: Any) -> int:
    """Return a seed, of which `jax.random.key` makes a key."""
    return integer("seed", value, 0, MAX_SEED)


def index(name: str, value: Any) -> Any:
    """Return an integer >= 0, or an array that holds one, which may be a tracer."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.integer):
        return value
    return integer(name, value, 0)


def function(name: str, value: Callable[..., T]) -> Callable[..., T]:
    """Return something that can be called."""
    if not callable(value):
        raise refuse(name, "a function", value)
    return value


def instance(name: str, value: Any, kind: Any, text: str) -> Any:
    """Return an instance of a class, or of one of several; `text` says in an error of which."""
    if not isinstance(value, kind):
        raise refuse(name, text, value)
    return value


def optional(rule: Callable[..., T], name: str, value: Any, *arguments: Any) -> T | None:
    """Return None, or a value that a rule accepts."""
    return None if value is None else rule(name, value, *arguments)


def fields(owner: Any, rule: Callable[..., Any], *names: str, **arguments: Any) -> None:
    """Check fields of a dataclass by a rule, and keep the plain values that it returns."""
    for name in names:
        value = rule(f"{type(owner).__name__}.{name}", getattr(owner, name), **arguments)
        object.__setattr__(owner, name, value)


def traced_fields(owner: Any, allowed: Range, *names: str) -> None:
    """Check traced fields of a config: numbers within a range, arrays of them, or tracers."""
    fields(owner, traced_number, *names, allowed=allowed)


def one_agent(config: Any) -> None:
    """Check that a config is a pytree whose leaves are numbers, not arrays of a population."""
    if jax.tree_util.all_leaves([config]):
        raise refuse("config", "a pytree: decorate its class with jaxrl.config.config", config)
    for path, value in jax.tree_util.tree_leaves_with_path(config):
        has_numbers = len(path) == 1 and not isinstance(value, str)
        if not has_numbers or getattr(value, "shape", ()):
            requirement = "one number for one agent (jax.vmap gives each of a population its own)"
            if not has_numbers:
                requirement = "a number, or a field that jaxrl.config.static declares"
            name = jax.tree_util.keystr(path[:1], simple=True)
            raise refuse(f"{type(config).__name__}.{name}", requirement, getattr(config, name))
