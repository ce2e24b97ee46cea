"""Policies: trained agents, loaded from a run, as plain functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.envs.host import conversions
from jaxrl.spaces import Box, Dict, ObservationSpace, zeros
from jaxrl.training.evaluate import without_training
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.best_agent import BEST
from jaxrl.training.run_dir.checkpoint import Checkpoints
from jaxrl.types import Algorithm, Array, Env, PyTree, check_agent, check_environments


class LoadedPolicy:
    """A policy: `policy(obs, key=None) -> action`, for one observation or a batch `[B, ...]`.

    Observations and actions are those of `algo.env` (see `jaxrl.envs.host.conversions`): images
    have their channels last, integers are one-hot, Discrete actions count from 0, and actions of a
    Box are vectors within its bounds. Actions are NumPy's. For observations and actions as a
    `gymnasium.Env` has them there is `act_in`.

    Without a key the policy acts greedily; with one it samples. An agent with a memory remembers
    the calls since the last `reset()`. Research code may use `algo`, `config` and `state`.
    `state.simulation` is None; an agent of `best/` has no replay either. Under `jit` or `vmap`,
    where a policy cannot be called, `algo.act` acts, and `jaxrl.evaluate` plays whole episodes.
    `origin` says from which run it was loaded; it is empty for others.
    """

    def __init__(
        self, algo: Algorithm, config: Any, state: Any, origin: dict[str, Any] | None = None
    ):
        check_agent(algo, config)
        self.origin = origin or {}
        self.algo, self.config, self.state = algo, config, state
        self.memory: Any = ()
        self._remembers = bool(jax.tree.leaves(algo.initial_core(config, 1)))
        self._act = jax.jit(algo.act, static_argnums=5)

    def reset(self) -> None:
        """Forget the episodes so far and begin new ones."""
        self.memory = ()

    def observe(self, reward: Any, first: Any) -> None:
        """Give an agent with a memory what the last actions led to.

        Args:
          reward: of the last actions, one number or `[B]`.
          first: whether the next observations begin new episodes, one flag or `[B]`.
        """
        if self.memory:
            shape = self.memory.first.shape
            self.memory = self.memory._replace(
                last_reward=_for_each("reward", reward, jnp.float32, shape),
                first=_for_each("first", first, bool, shape),
            )

    def __call__(self, obs: Any, key: Array | None = None) -> Any:
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((obs, key))):
            raise ValueError(
                "a loaded policy returns NumPy's actions, so jit and vmap cannot trace it; call "
                "policy.algo.act(policy.config, policy.state, memory, obs, key, greedy) there, "
                "with memory = () and obs [B, ...] at the start of episodes"
            )
        obs, single = as_batch(self.algo.env.observation_space, obs)
        batch_size = len(jax.tree.leaves(obs)[0])
        if self.memory and len(self.memory.first) != batch_size:
            raise ValueError(
                f"the policy remembers {len(self.memory.first)} episodes, got observations of "
                f"{batch_size}; call reset() to begin new ones"
            )
        sampling_key = jax.random.key(0) if key is None else checks.random_key("key", key)
        memory, action = self._act(
            self.config, self.state, self.memory, obs, sampling_key, key is None
        )
        if self._remembers:
            self.memory = memory
        if isinstance(self.algo.env.action_space, Box):
            action = jnp.clip(action, *self.algo.env.action_space.bounds())
        action = np.asarray(action)
        return action[0] if single else action

    def act_in(self, env: Any, obs: Any, key: Array | None = None) -> Any:
        """Return the next action for `env.step`, given an observation of a `gymnasium.Env`.

        An agent with a memory needs `reset` and `observe`, as for `policy(obs)`.

        Args:
          env: the environment; only its spaces are read.
          obs: as its `reset` or `step` returned it.
          key: as in `policy(obs, key)`.

        Raises:
          ValueError: if its observations are not those that the policy was trained on.
        """
        space = env.observation_space
        raw = conversions.raw_observation(space)
        batch = jax.tree.map(
            lambda x: np.asarray(x)[None], obs, is_leaf=lambda x: not isinstance(x, dict | tuple)
        )
        batch = conversions.gather(space, raw, batch)
        batch = conversions.arrange(conversions.observation_space(space, raw), raw, batch)
        return conversions.to_simulator(env.action_space, self(batch, key))[0]


def as_batch(space: ObservationSpace, obs: Any) -> tuple[PyTree, bool]:
    """Return observations `[B, ...]`, and whether `obs` was a single one.

    Raises:
      ValueError: if `obs` is neither one observation of the space nor a batch.
    """
    like = zeros(space)
    if jax.tree.structure(obs) == jax.tree.structure(like):
        obs = jax.tree.map(lambda x, like: as_array("obs", x, like.dtype), obs, like)
    elif not isinstance(space, Dict):
        obs = as_array("obs", obs, like.dtype)
    shape, expected = jax.tree.map(jnp.shape, obs), jax.tree.map(jnp.shape, like)
    if shape == expected:
        return jax.tree.map(lambda x: x[None], obs), True
    lead = jnp.shape(jax.tree.leaves(obs)[0])[:1]
    if lead != (0,) and shape == jax.tree.map(jnp.shape, zeros(space, *lead)):
        return obs, False
    raise ValueError(
        f"the policy takes observations of shape {expected} or [B, ...], with integers as one-hot "
        f"vectors, got {shape}"
    )


def _for_each(name: str, value: Any, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Return one value, or one for each episode, as an array `[B]`."""
    array = as_array(name, value, dtype)
    if array.shape not in ((), shape):
        raise checks.refuse(name, f"one value or an array {list(shape)}", value)
    return jnp.broadcast_to(array, shape)


def as_array(name: str, value: Any, dtype: Any) -> Array:
    """Return numbers as an array.

    Raises:
      ValueError: for what is none; for numbers that integers of this type cannot hold, such as
        pictures that were divided by 255.
    """
    try:
        array = jnp.asarray(value, dtype)
        is_float = jnp.issubdtype(dtype, jnp.inexact)
        if is_float or isinstance(array, jax.core.Tracer) or np.array_equal(value, array):
            return array
    except (TypeError, ValueError, OverflowError):
        pass
    raise checks.refuse(name, f"an array of {jnp.dtype(dtype).name}", value)


def state_shapes(algo: Algorithm, config: Any, run_dir: Path | None = None) -> Any:
    """Return the shapes of an agent's state.

    Raises:
      ValueError: if there is no such agent, since the config of a manifest is damaged.
    """
    try:
        return jax.eval_shape(algo.init, config, jax.random.key(0))
    except Exception as error:  # sizes may fail anywhere in JAX and Flax
        raise ValueError(
            f"the agent of {run_dir or 'this run'} cannot be made from {manifests.NAME}: {error}"
        ) from error


def _with_number(env: Any, number: int) -> Any:
    """Return N environments like these: the shapes of a checkpoint depend on their number."""
    if env.num_envs == number:
        return env
    try:
        return dataclasses.replace(env, num_envs=number)
    except TypeError as error:
        text = f"{number} environments, as the run had, or a dataclass with num_envs"
        raise checks.refuse("env", text, env.num_envs) from error


def load_policy(
    run_dir: str | Path,
    network: nn.Module | None = None,
    make_algorithm: Callable[..., Algorithm] | None = None,
    env: Env | None = None,
    trust_imports: bool = False,
    which: str = "newest",
) -> LoadedPolicy:
    """Load the agent of a run's newest checkpoint, or the one that was evaluated best.

    The checkpoint is verified. In place of a damaged one, which a warning names, the one before it
    is loaded.

    Args:
      run_dir: directory of the run.
      network: the run's network, if it was trained with one of your own.
      make_algorithm: a function `(env, network)` that makes the run's algorithm, if jaxrl does not
        have it.
      env: the run's environments, if `jaxrl.make` cannot make them; of a dataclass, as all of
        jaxrl's are, in any number.
      trust_imports: make environments whose id or options name code, such as
        "gymnasium/module:function", which is then imported. Only for directories whose writer you
        trust; `env` needs no trust.
      which: "newest", or "best" for the agent with the highest mean return in an evaluation of the
        run (`num_evaluations` of `jaxrl.run`).

    Raises:
      FileNotFoundError: if `run_dir` holds no run, no checkpoint or no best agent.
      ValueError: if the manifest or all checkpoints are damaged, the newest intact one belongs to
        another run, or one of the arguments is missing; if the environment names code that is not
        trusted.
    """
    run_dir = checks.path("run_dir", run_dir)
    is_best = checks.choice("which", which, ("newest", BEST)) == BEST
    manifest = manifests.read(run_dir)
    if env is not None:
        check_environments(env)
        env = _with_number(env, manifest["env"]["num_envs"])
    algo, config = manifests.rebuild(manifest, network, make_algorithm, env, trust_imports, run_dir)
    like = state_shapes(algo, config, run_dir)
    like = without_training(like) if is_best else like
    directory = run_dir / (BEST if is_best else "checkpoints")
    if is_best and not directory.exists():
        raise FileNotFoundError(
            f"no best agent in {run_dir}: the run was not evaluated; load the newest one"
        )
    checkpoints = Checkpoints(directory, manifests.identity(manifest), repair=False)
    try:
        state, _ = checkpoints.restore(like, whole=algo.env.checkpointable and not is_best)
        update = checkpoints.latest()
    finally:
        checkpoints.close()
    origin = {"run_dir": str(run_dir), "run_id": manifest.get("run_id"), "update": update}
    return LoadedPolicy(algo, config, state._replace(simulation=None), origin)
