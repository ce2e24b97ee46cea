"""Stacks of frames, of which a ring stores each frame once."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.types import Array, Env, PyTree


class Frame(NamedTuple):
    """The newest image of a stack; leaves `[..., H, W]` and `[...]`."""

    image: Array
    alone: Array  # bool: all images of the stack are this one, as after a reset


def newest_frame(obs: Array) -> Frame:
    """Return the newest frame of stacked images `[..., H, W, K]`, the newest last."""
    return Frame(obs[..., -1], (obs == obs[..., -1:]).all((-3, -2, -1)))


def restack(frames: Frame, slots: Array, envs: Array, num_frames: int) -> Array:
    """Return the stacks `[..., H, W, num_frames]` that ended with the frames at `slots`, `envs`.

    Exact for environments with stacks that either continue over a reset, as Atari's do when only a
    life is lost, or begin as copies of the first image.

    Args:
      frames: the ring, leaves `[capacity, N, ...]`.
      slots, envs: int32, of shapes that broadcast to the leading axes of the result.
    """
    history = [slots]
    for _ in range(num_frames - 1):
        slot = history[-1]
        older = (slot - 1) % frames.image.shape[0]
        history.append(jnp.where(frames.alone[slot, envs], slot, older))
    # A loop, since XLA would fuse a gather into the convolution that reads it, and so look up slots
    # and frames for each pixel of each patch: a gradient step would take forty times as long.
    stacks = jax.lax.map(lambda slot: frames.image[slot, envs], jnp.stack(history[::-1]))
    return jnp.moveaxis(stacks, 0, -1)


def as_stored(obs: PyTree, num_frames: int) -> PyTree:
    """Return observations as the ring keeps them: of stacks, only the newest frame."""
    return newest_frame(obs) if num_frames > 1 else obs


def observations(ring: PyTree, slots: Array, envs: Array, num_frames: int) -> PyTree:
    """Return the observations at `slots`, `envs` of a ring that holds them `as_stored`."""
    if num_frames > 1:
        return restack(ring, slots, envs, num_frames)
    return jax.tree.map(lambda x: x[slots, envs], ring)


def check_frame_stack(config: Any, env: Env) -> None:
    """Raise unless observations are stacks of `config.frame_stack` gray images.

    Planes of features, such as MinAtar's, and colors are not.
    """
    if config.frame_stack == 1:
        return
    claim = f"{type(config).__name__}.frame_stack = {config.frame_stack}, but observations of"
    shape = getattr(env.observation_space, "shape", ())
    if len(shape) != 3 or shape[-1] != config.frame_stack:
        raise ValueError(
            f"{claim} {env.id} have shape {shape}, not [H, W, {config.frame_stack}], a gray "
            "image a frame"
        )
    if getattr(env, "num_frames", None) not in (None, config.frame_stack):
        raise ValueError(f"{claim} {env.id} have planes that are no frames; leave frame_stack = 1")
    dtype = getattr(env.observation_space, "dtype", None)
    if dtype != np.uint8:
        raise ValueError(
            f"{claim} {env.id} have dtype {dtype}; frames are of dtype uint8, so leave "
            "frame_stack = 1"
        )
