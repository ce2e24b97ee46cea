"""The spaces of actions and observations: integers, vectors of integers, arrays, dictionaries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl import checks

BOUND = checks.Range("a number or an infinity", lambda x: ~np.isnan(x))


@dataclass(frozen=True)
class Discrete:
    """A space of integers `0 .. n - 1`.

    Attributes:
      n: number of integers.
    """

    n: int

    def __post_init__(self) -> None:
        checks.fields(self, checks.integer, "n")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one element, `()`."""
        return ()

    @property
    def dtype(self) -> np.dtype:
        """The type of elements, int32."""
        return np.dtype(np.int32)


@dataclass(frozen=True)
class MultiDiscrete:
    """A space of integer vectors `[k]`, whose i-th integer is in `0 .. sizes[i] - 1`.

    Attributes:
      sizes: number of values of each integer, k numbers.
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        checks.fields(self, checks.sizes, "sizes")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one element, `(k,)`."""
        return (len(self.sizes),)

    @property
    def dtype(self) -> np.dtype:
        """The type of elements, int32."""
        return np.dtype(np.int32)


@dataclass(frozen=True)
class Box:
    """A space of arrays with bounds. Images are channels-last.

    A bound is one number for the whole array, or a flat tuple with a number for each element, so
    that spaces are hashable. `Box.of` takes array bounds.

    Attributes:
      shape: shape of one element.
      dtype: type of elements.
      low: lower bound, inclusive; -inf for none.
      high: upper bound, inclusive; inf for none.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    low: float | tuple[float, ...] = -np.inf
    high: float | tuple[float, ...] = np.inf

    def __post_init__(self) -> None:
        checks.fields(self, checks.sizes, "shape", least=0)
        checks.fields(self, checks.dtype, "dtype")
        low, high = (self._bound(name) for name in ("low", "high"))
        if np.any(low > high):
            raise ValueError(f"Box.low must be at most Box.high, got {self.low} and {self.high}")

    def _bound(self, name: str) -> np.ndarray:
        """Return a bound that has been checked as an array."""
        value = getattr(self, name)
        shape = (math.prod(self.shape),) if isinstance(value, tuple) else ()
        return checks.array(f"Box.{name}", value, shape, BOUND)

    @classmethod
    def of(cls, shape: Any, dtype: Any, low: Any = -np.inf, high: Any = np.inf) -> Box:
        """Build a Box from bounds that are numbers or arrays, as in Gymnasium."""
        is_sequence = np.iterable(shape) and not isinstance(shape, str)
        shape = checks.sizes("Box.shape", tuple(shape) if is_sequence else shape, 0)
        low, high = (
            _hashable_bound(f"Box.{name}", bound, shape)
            for name, bound in (("low", low), ("high", high))
        )
        return cls(shape, dtype, low, high)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return `(low, high)` as float32 arrays of `shape`."""
        low, high = (
            np.broadcast_to(np.asarray(bound, np.float32).reshape(-1), (int(np.prod(self.shape)),))
            for bound in (self.low, self.high)
        )
        return low.reshape(self.shape), high.reshape(self.shape)


def _hashable_bound(name: str, bound: Any, shape: tuple[int, ...]) -> float | tuple[float, ...]:
    """Return a bound as `Box` keeps it: one number if all elements share it."""
    try:
        with np.errstate(over="ignore"):
            array = np.asarray(bound).astype(np.float32)  # None becomes NaN
            flat = np.broadcast_to(array, shape).reshape(-1)
        if np.isnan(flat).any():
            raise ValueError
    except (TypeError, ValueError):
        raise checks.refuse(name, f"numbers of shape {shape}", bound) from None
    if flat.size == 0 or (flat == flat[0]).all():
        return float(flat[0]) if flat.size else 0.0
    return tuple(float(x) for x in flat)


@dataclass(frozen=True)
class Dict:
    """A space of observations with several named parts; elements are dictionaries of arrays.

    Build it with `Dict.of(name=space, ...)`.

    Attributes:
      parts: `(name, space)` pairs, sorted by name.
    """

    parts: tuple[tuple[str, ObservationSpace], ...]

    def __post_init__(self) -> None:
        pairs = checks.instance(
            "Dict.parts",
            self.parts,
            tuple,
            "a tuple of (name, space), as Dict.of(name=space) makes",
        )
        for pair in pairs:
            is_pair = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
            if not is_pair or not isinstance(pair[1], Box | Dict):
                raise checks.refuse("Dict.parts", "pairs (name, Box or Dict)", pair)

    @classmethod
    def of(cls, /, **parts: ObservationSpace) -> Dict:
        """Build a Dict from named spaces, sorted by name as JAX flattens dictionaries."""
        return cls(tuple(sorted(parts.items())))


ACTION_MASK = "action_mask"
"""The name of the part of a `Dict` observation that is 0 for actions which are not allowed.

Its shape is `[n]` for Discrete actions. For MultiDiscrete actions it is `[*sizes]`, an entry for
each combination; or, if all k sizes are n, `[k, n]`, a mask for each integer by itself. A mask of
shape (2, 2) for sizes (2, 2) has an entry for each combination."""

ActionSpace = Discrete | MultiDiscrete | Box
ObservationSpace = Box | Dict
Space = ActionSpace | ObservationSpace


def sizes_of(space: Discrete | MultiDiscrete) -> tuple[int, ...]:
    """Return the number of values of each integer of an action."""
    return space.sizes if isinstance(space, MultiDiscrete) else (space.n,)


def has_action_mask(observation_space: ObservationSpace, action_space: ActionSpace) -> bool:
    """Return whether observations have an `ACTION_MASK` for these actions.

    Raises:
      ValueError: if the mask's shape does not fit the actions.
    """
    parts = dict(observation_space.parts) if isinstance(observation_space, Dict) else {}
    if ACTION_MASK not in parts or isinstance(action_space, Box):
        return False
    sizes = sizes_of(action_space)
    shapes = [sizes]
    if isinstance(action_space, MultiDiscrete) and len(set(sizes)) == 1:
        shapes.append((len(sizes), sizes[0]))
    if getattr(parts[ACTION_MASK], "shape", None) not in shapes:
        raise ValueError(
            f"the observation's {ACTION_MASK!r} must be an array of shape "
            f"{' or '.join(map(str, shapes))} for actions {action_space}, got {parts[ACTION_MASK]}"
        )
    return True


def next_allowed(space: ActionSpace, action: Any, mask: Any) -> Any:
    """Return actions `[N, ...]` with the next allowed one in place of each forbidden one.

    Numbers are in a circle: 0 follows the last. A mask without an allowed action changes nothing.

    Args:
      mask: `[N, ...]`, an `ACTION_MASK` of these actions.
    """

    def allowed(action: Any, mask: Any) -> Any:  # [...] and [..., n]
        n = mask.shape[-1]
        distance = (jnp.arange(n) - action[..., None]) % n
        return jnp.argmin(distance + n * (mask == 0), -1).astype(action.dtype)

    if isinstance(space, MultiDiscrete) and mask.shape[1:] == space.sizes:  # of combinations
        number = jnp.ravel_multi_index(tuple(action.T), space.sizes, mode="clip")
        number = allowed(number, mask.reshape(len(mask), -1))
        return jnp.stack(jnp.unravel_index(number, space.sizes), -1).astype(action.dtype)
    return allowed(action, mask)


def zeros(space: Space, *lead: int) -> Any:
    """Return zeros in the shape of elements of `space`, leaves `[*lead, *shape]`."""
    if isinstance(space, Dict):
        return {name: zeros(part, *lead) for name, part in space.parts}
    return jnp.zeros((*lead, *space.shape), space.dtype)
