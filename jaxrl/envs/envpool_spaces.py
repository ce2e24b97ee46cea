"""What jaxrl makes of envpool's observations and spaces, which are gymnasium's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.types import ActionSpace, Box, Dict, Discrete, MultiDiscrete, ObservationSpace, PyTree


def arrange(space: ObservationSpace, raw: PyTree, obs: PyTree) -> PyTree:
    """Raw observations `[N, ...]`, each like `raw`, as the observation space has them."""
    if isinstance(space, Dict):
        return {name: arrange(part, raw[name], obs[name]) for name, part in space.parts}
    if raw.shape == () and space.shape != ():
        return jax.nn.one_hot(obs, space.shape[0])
    return jnp.moveaxis(obs, -3, -1) if _is_channels_first(raw) else obs


def raw_observation(space: Any) -> PyTree:
    """Shapes and dtypes of one raw observation, given its gymnasium space."""
    if hasattr(space, "spaces"):
        return {name: raw_observation(part) for name, part in space.spaces.items()}
    if hasattr(space, "n") and not space.shape:
        return jax.ShapeDtypeStruct((), np.dtype(np.int32))
    plain = space.dtype != np.float64 and hasattr(space, "low")
    return jax.ShapeDtypeStruct(space.shape, np.dtype(space.dtype if plain else np.float32))


def observation_space(space: Any, raw: PyTree) -> ObservationSpace:
    """What jaxrl makes of a gymnasium space: Discrete becomes one-hot, images channels-last."""
    if isinstance(raw, dict):
        return Dict.of(**{k: observation_space(space[k], part) for k, part in raw.items()})
    if not hasattr(space, "low"):
        return Box.of((int(space.n),) if not raw.shape else raw.shape, np.float32, 0.0, 1.0)
    shape = (*raw.shape[1:], raw.shape[0]) if _is_channels_first(raw) else raw.shape
    same = (space.low == space.low.flat[0]).all() and (space.high == space.high.flat[0]).all()
    bounds = (space.low.flat[0], space.high.flat[0]) if same else (space.low, space.high)
    return Box.of(shape, raw.dtype, *bounds)


def action_space(name: str, space: Any) -> ActionSpace:
    """What jaxrl makes of the actions of `envpool/{name}`: integers from 0, or a Box of floats."""
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    if np.issubdtype(space.dtype, np.integer):
        if space.low.any():
            raise ValueError(f"envpool/{name} has the actions {space}, which jaxrl does not run")
        return MultiDiscrete(tuple(int(n) + 1 for n in space.high.reshape(-1)))
    return Box.of(space.shape, np.float32, space.low, space.high)


def _is_channels_first(obs: jax.ShapeDtypeStruct) -> bool:
    """Whether these are images `[C, H, W]`, as most families have them; a few are `[H, W, C]`."""
    shape = obs.shape
    return len(shape) == 3 and obs.dtype == np.uint8 and shape[0] < shape[2]
