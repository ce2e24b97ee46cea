"""Trained agents as plain functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import manifest as manifests
from jaxrl.checkpoint import Checkpoints
from jaxrl.types import Algorithm, Array


class LoadedPolicy:
    """`policy(obs, key=None) -> action`, for one observation or a batch `[B, ...]`.

    Without a key it acts greedily, with one it samples. `algo`, `config` and `state` (whose
    `simulation` is None) are there for research code.
    """

    def __init__(self, algo: Algorithm, config: Any, state: Any):
        self.algo, self.config, self.state = algo, config, state
        self._act = jax.jit(algo.act, static_argnums=5)

    def __call__(self, obs: Any, key: Array | None = None) -> Array:
        space = self.algo.env.observation_space
        obs = jnp.asarray(obs, space.dtype)
        if obs.ndim not in (len(space.shape), len(space.shape) + 1) or (
            obs.shape[obs.ndim - len(space.shape) :] != space.shape
        ):
            raise ValueError(
                f"the policy takes observations of shape {space.shape} or [B, *{space.shape}], "
                f"got {obs.shape}"
            )
        single = obs.ndim == len(space.shape)
        sampling_key = jax.random.key(0) if key is None else key
        _, action = self._act(
            self.config, self.state, (), obs[None] if single else obs, sampling_key, key is None
        )
        return action[0] if single else action


def load_policy(run_dir: str | Path, network: nn.Module | None = None) -> LoadedPolicy:
    """The agent in the newest checkpoint of a run.

    Args:
      network: the network that the run was given, if it was given one.

    Raises:
      FileNotFoundError, ValueError: if `run_dir` holds no run, no checkpoint or a damaged one.
    """
    algo, config = manifests.rebuild(manifests.read(run_dir), network)
    like = jax.eval_shape(algo.init, config, jax.random.key(0))
    checkpoints = Checkpoints(Path(run_dir) / "checkpoints")
    try:
        state, _ = checkpoints.restore(like, whole=algo.env.checkpointable)
    finally:
        checkpoints.close()
    return LoadedPolicy(algo, config, state._replace(simulation=None))
