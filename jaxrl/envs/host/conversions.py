"""Conversions of Gymnasium's spaces, observations and actions, which envpool also uses.

Integer observations become one-hot, images channels-last with stacked frames as further channels,
tuples dictionaries, and 64-bit numbers 32-bit ones. Integer actions count from 0. A *raw*
observation is what a pool on the host returns, before `arrange`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.spaces import ActionSpace, Box, Dict, Discrete, MultiDiscrete, ObservationSpace
from jaxrl.types import PyTree

MAX_ACTION_VALUES = 2**16
"""The largest number of values that an integer action may have."""


def arrange(space: ObservationSpace, raw: PyTree, obs: PyTree) -> PyTree:
    """Convert raw observations to those of a jaxrl space, inside the compiled program.

    Args:
      space: the observation space, from `observation_space`.
      raw: shapes and dtypes of one raw observation.
      obs: raw observations `[N, ...]`.
    """
    if isinstance(space, Dict):
        return {name: arrange(part, raw[name], obs[name]) for name, part in space.parts}
    if raw.shape == () and space.shape != ():
        return jax.nn.one_hot(obs, space.shape[0], dtype=jnp.float32)
    if _is_stack(raw):
        stack = jnp.moveaxis(obs, 2, -1) if _has_channels_first(raw.shape[1:]) else obs
        return jnp.moveaxis(stack, 1, 3).reshape(len(obs), *space.shape)
    return jnp.moveaxis(obs, -3, -1) if _is_channels_first(raw) else obs


def gather(space: Any, raw: PyTree, obs: PyTree) -> PyTree:
    """Convert a batch of a Gymnasium `space` to raw observations, on the host.

    Args:
      raw: shapes and dtypes of one raw observation.
      obs: observations `[N, ...]`, as the simulator returns them.
    """
    if isinstance(raw, dict):
        items = obs.items() if isinstance(obs, dict) else enumerate(obs)
        given = {str(name): part for name, part in items}
        return {name: gather(part, raw[name], given[name]) for name, part in _parts(space).items()}
    obs = np.asarray(obs)
    if hasattr(space, "start"):
        obs = obs - space.start
    if hasattr(space, "nvec"):
        columns = obs.reshape(len(obs), -1, 1).swapaxes(0, 1)
        one_hot = [x == np.arange(n) for n, x in zip(space.nvec.flat, columns, strict=True)]
        return np.concatenate(one_hot, axis=-1).astype(raw.dtype)
    return obs.astype(raw.dtype, copy=False)


def raw_observation(space: Any) -> PyTree:
    """Return shapes and dtypes of one raw observation, given its Gymnasium space.

    Raises:
      ValueError: for spaces without arrays of a fixed shape (texts, graphs, sequences), and for
        arrays without an element.
    """
    if parts := _parts(space):
        return {name: raw_observation(part) for name, part in parts.items()}
    if hasattr(space, "nvec"):
        return jax.ShapeDtypeStruct((int(np.sum(space.nvec)),), np.dtype(np.float32))
    if hasattr(space, "n") and not space.shape:
        return jax.ShapeDtypeStruct((), np.dtype(np.int32))
    is_numeric = space.dtype == bool or np.issubdtype(space.dtype, np.number)
    if space.shape is None or not is_numeric or _is_empty(space):
        raise ValueError(f"the observation space {space} has no arrays of a fixed, positive size")
    return jax.ShapeDtypeStruct(space.shape, _dtype(space))


def _dtype(space: Any) -> np.dtype:
    """Return a 32-bit dtype for a space; integers that need more bits become floats."""
    if not hasattr(space, "low") or space.dtype in (np.float64, bool):
        return np.dtype(np.float32)
    if space.dtype.itemsize < 8:
        return np.dtype(space.dtype)
    limits = np.iinfo(np.int32)
    fits = (space.low >= limits.min).all() and (space.high <= limits.max).all()
    return np.dtype(np.int32 if fits else np.float32)


def observation_space(space: Any, raw: PyTree) -> ObservationSpace:
    """Convert a Gymnasium space of observations.

    Args:
      raw: shapes and dtypes of one raw observation, from `raw_observation`.
    """
    if isinstance(raw, dict):
        parts = _parts(space)
        return Dict.of(**{k: observation_space(parts[k], part) for k, part in raw.items()})
    if not hasattr(space, "low"):
        return Box.of((int(space.n),) if not raw.shape else raw.shape, np.float32, 0.0, 1.0)
    shape = (*raw.shape[1:], raw.shape[0]) if _is_channels_first(raw) else raw.shape
    if _is_stack(raw):
        frames, *image = raw.shape
        if _has_channels_first(image):
            image = [*image[1:], image[0]]
        shape = (*image[:2], frames * image[2])
    low, high = _bounds(space)
    if shape == raw.shape:
        return Box.of(shape, raw.dtype, low, high)
    if (low != low.flat[0]).any() or (high != high.flat[0]).any():
        raise ValueError(f"the bounds of images must be the same for all pixels, got {space}")
    return Box.of(shape, raw.dtype, low.flat[0], high.flat[0])


def action_space(id: str, space: Any) -> ActionSpace:
    """Convert the actions of environment `id`, to integers from 0 or to a vector of float32.

    Bounds of float64 are rounded inwards, so that clipped actions keep them.

    Raises:
      ValueError: for dictionaries and other spaces that policies have no distribution for.
    """
    if hasattr(space, "nvec"):
        return MultiDiscrete(tuple(int(n) for n in space.nvec.flat))
    if hasattr(space, "n"):
        number = math.prod(space.shape)
        return MultiDiscrete((2,) * number) if space.shape else Discrete(int(space.n))
    if not hasattr(space, "low"):
        raise ValueError(
            f"{id} has the actions {space}, which jaxrl does not run; wrap it such that they are "
            "Discrete, MultiDiscrete or Box"
        )
    if np.issubdtype(space.dtype, np.integer):
        low, high = (bound.reshape(-1).tolist() for bound in (space.low, space.high))
        sizes = tuple(b - a + 1 for a, b in zip(low, high, strict=True))
        if max(sizes) > MAX_ACTION_VALUES:
            raise ValueError(
                f"{id} has the actions {space}, integers of {max(sizes)} values, more than "
                f"{MAX_ACTION_VALUES}; wrap it such that they are Box of floats, or fewer"
            )
        return MultiDiscrete(sizes)
    low, high = (bound.reshape(-1) for bound in _bounds(space))
    return Box.of(low.shape, np.float32, -_round_down(-low), _round_down(high))


def _round_down(x: np.ndarray) -> np.ndarray:
    """Return the largest float32 numbers that are not above x."""
    with np.errstate(over="ignore"):
        nearest = x.astype(np.float32)
    return np.where(nearest > x, np.nextafter(nearest, np.float32(-np.inf)), nearest)


def to_simulator(space: Any, action: np.ndarray) -> np.ndarray:
    """Convert a batch of jaxrl's actions to those of a Gymnasium `space`."""
    action = action.reshape(-1, *space.shape)
    if hasattr(space, "low") and np.issubdtype(space.dtype, np.integer):
        action = action + space.low
    return (action + getattr(space, "start", 0)).astype(space.dtype)


def _bounds(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return a Box's bounds, with infinity for dtype extremes and envpool's `finfo.tiny`."""
    if not np.issubdtype(space.dtype, np.floating):
        return space.low, space.high
    limits = np.finfo(space.dtype)
    return (
        np.where((space.low == limits.tiny) | (space.low == -limits.max), -np.inf, space.low),
        np.where(space.high == limits.max, np.inf, space.high),
    )


def _parts(space: Any) -> dict[str, Any]:
    """Return the named parts of a Dict or Tuple space that have elements; none for other spaces."""
    is_one_of_them = type(space).__name__ == "OneOf"
    parts = {} if is_one_of_them else getattr(space, "spaces", {})
    named = dict(enumerate(parts) if isinstance(parts, tuple) else parts)
    return {str(name): part for name, part in named.items() if not _is_empty(part)}


def _is_empty(space: Any) -> bool:
    """Return True for arrays without an element; some robots of dm_control lack a sensor."""
    return space.shape is not None and math.prod(space.shape) == 0


def _is_channels_first(obs: jax.ShapeDtypeStruct) -> bool:
    """Return True for images `[C, H, W]`; most simulators have these, a few have `[H, W, C]`."""
    return len(obs.shape) == 3 and obs.dtype == np.uint8 and _has_channels_first(obs.shape)


def _has_channels_first(shape: Sequence[int]) -> bool:
    return shape[0] < min(shape[1:])


def _is_stack(obs: jax.ShapeDtypeStruct) -> bool:
    """Return True for stacked images `[S, H, W, C]` or `[S, C, H, W]`."""
    return len(obs.shape) == 4 and obs.dtype == np.uint8
