"""Trained agents as plain functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl.training import manifest as manifests
from jaxrl.training.checkpoint import Checkpoints
from jaxrl.types import Algorithm, Array, Box, Dict, Env, ObservationSpace, PyTree, zeros


class LoadedPolicy:
    """`policy(obs, key=None) -> action`, for one observation or a batch `[B, ...]`.

    Both are as `algo.env` has them (`jaxrl.envs.conversions`): images channels-last, integers one-hot,
    Discrete actions from 0, those of a Box within its bounds.

    Without a key it acts greedily, with one it samples. An agent with a memory remembers the calls
    since the last `reset()`. `algo`, `config` and `state` (whose `simulation` is None) are there
    for research code.
    """

    def __init__(self, algo: Algorithm, config: Any, state: Any):
        self.algo, self.config, self.state = algo, config, state
        self.memory: Any = ()
        self._remembers = bool(jax.tree.leaves(algo.initial_core(config, 1)))
        self._act = jax.jit(algo.act, static_argnums=5)

    def reset(self) -> None:
        """Begin new episodes: forget everything."""
        self.memory = ()

    def observe(self, reward: Any, first: Any) -> None:
        """Tell an agent with a memory what its last actions were paid, and where the next
        observations begin new episodes; both for one environment or `[B]`."""
        if self.memory:
            shape = self.memory.first.shape
            self.memory = self.memory._replace(
                last_reward=jnp.broadcast_to(jnp.asarray(reward, jnp.float32), shape),
                first=jnp.broadcast_to(jnp.asarray(first, bool), shape),
            )

    def __call__(self, obs: Any, key: Array | None = None) -> Array:
        obs, single = as_batch(self.algo.env.observation_space, obs)
        batch_size = len(jax.tree.leaves(obs)[0])
        if self.memory and len(self.memory.first) != batch_size:
            raise ValueError(
                f"the policy remembers {len(self.memory.first)} episodes, got observations of "
                f"{batch_size}; call reset() to begin others"
            )
        sampling_key = jax.random.key(0) if key is None else key
        memory, action = self._act(
            self.config, self.state, self.memory, obs, sampling_key, key is None
        )
        if self._remembers:
            self.memory = memory
        if isinstance(self.algo.env.action_space, Box):
            action = jnp.clip(action, *self.algo.env.action_space.bounds())
        return action[0] if single else action


def as_batch(space: ObservationSpace, obs: Any) -> tuple[PyTree, bool]:
    """Observations `[B, ...]`, and whether `obs` was a single one.

    Raises:
      ValueError: if it is neither.
    """
    like = zeros(space)
    if jax.tree.structure(obs) == jax.tree.structure(like):
        obs = jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), obs, like)
    elif not isinstance(space, Dict):
        obs = jnp.asarray(obs, like.dtype)
    shape, expected = jax.tree.map(jnp.shape, obs), jax.tree.map(jnp.shape, like)
    if shape == expected:
        return jax.tree.map(lambda x: x[None], obs), True
    if shape == jax.tree.map(jnp.shape, zeros(space, *jnp.shape(jax.tree.leaves(obs)[0])[:1])):
        return obs, False
    raise ValueError(f"the policy takes observations of shape {expected} or [B, ...], got {shape}")


def load_policy(
    run_dir: str | Path,
    network: nn.Module | None = None,
    make_algorithm: Callable[..., Algorithm] | None = None,
    env: Env | None = None,
) -> LoadedPolicy:
    """The agent in the newest checkpoint of a run.

    Args:
      network: the network that the run was given, if it was given one.
      make_algorithm: `make_algorithm(env, network)` gives the run's algorithm, if it is none of
        jaxrl's.
      env: the run's environments, if `jaxrl.make` cannot make them.

    Raises:
      FileNotFoundError, ValueError: if `run_dir` holds no run, no checkpoint or a damaged one.
    """
    algo, config = manifests.rebuild(manifests.read(run_dir), network, make_algorithm, env)
    like = jax.eval_shape(algo.init, config, jax.random.key(0))
    checkpoints = Checkpoints(Path(run_dir) / "checkpoints")
    try:
        state, _ = checkpoints.restore(like, whole=algo.env.checkpointable)
    finally:
        checkpoints.close()
    return LoadedPolicy(algo, config, state._replace(simulation=None))
