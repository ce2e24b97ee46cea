"""gymnax environments (>= 1.0.1) under the `Env` contract: pure, on the device.

gymnax resets in the same step and then shows the new episode's observation in place of the last
one. The adapter is built on `step_env` and `reset_env` instead and resets in the next step. The
reset runs under a `cond` on "did any environment end", so that most steps draw no random numbers
for states nobody needs (under `vmap` both branches run, as they do in gymnax).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.device_axis import SINGLE_DEVICE, Axis
from jaxrl.envs import rendering
from jaxrl.types import Array, Box, Discrete, PyTree, TimeStep


class GymnaxState(NamedTuple):
    """State of N gymnax environments."""

    inner: PyTree
    ended: Array  # [N] bool: the next step begins a new episode


@functools.lru_cache(maxsize=256)
def _backend(name: str, options: tuple[tuple[str, Any], ...]) -> tuple[Any, Any]:
    """gymnax's environment and parameters; each option goes to whichever of the two knows it."""
    keywords = dict(options)
    try:
        params_fields = {f.name for f in dataclasses.fields(gymnax.make(name)[1])}
    except OSError as error:  # some download what they show
        raise ImportError(f"gymnax/{name} cannot run on this machine: {error}") from error
    for_params = {k: keywords.pop(k) for k in list(keywords) if k in params_fields}
    try:
        env, params = gymnax.make(name, **keywords)
    except TypeError as error:
        raise ValueError(
            f"gymnax/{name} does not take the options {sorted(keywords)}; "
            f"its parameters are {sorted(params_fields)}"
        ) from error
    for key, value in for_params.items():
        usual = getattr(params, key)
        is_switch = isinstance(usual, bool)
        if isinstance(value, bool) != is_switch or not isinstance(value, (int, float)):
            kind = "True or False" if is_switch else "a number"
            raise ValueError(f"option {key} of gymnax/{name} must be {kind}, got {value!r}")
        if isinstance(usual, float):  # a count too, in some environments
            for_params[key] = float(value)
    return env, params.replace(**for_params)


def ids() -> list[str]:
    """All registered ids, without prefix."""
    return list(gymnax.registered_envs)


@dataclass(frozen=True)
class GymnaxEnv:
    """N gymnax environments; make it with `jaxrl.make("gymnax/CartPole-v1", num_envs)`."""

    name: str
    num_envs: int
    keywords: tuple[tuple[str, Any], ...] = ()
    axis: Axis = SINGLE_DEVICE
    checkpointable: bool = dataclasses.field(default=True, init=False)

    def __post_init__(self) -> None:
        if self.name not in gymnax.registered_envs:
            near = difflib.get_close_matches(self.name, gymnax.registered_envs, 3, 0.4)
            raise ValueError(f"unknown gymnax id {self.name!r}; near matches: {near}")
        _backend(self.name, self.keywords)

    @property
    def id(self) -> str:
        return f"gymnax/{self.name}"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.keywords)

    @property
    def observation_space(self) -> Box:
        return _spaces(self.name, self.keywords)[0]

    @property
    def action_space(self) -> Discrete | Box:
        return _spaces(self.name, self.keywords)[1]

    def init(self, key: Array) -> tuple[GymnaxState, TimeStep]:
        inner, obs = self._reset(key)
        no = jnp.zeros(self.num_envs, bool)
        reward = jnp.zeros(self.num_envs, jnp.float32)
        return GymnaxState(inner, no), TimeStep(obs, reward, no, no, ~no)

    def step(self, key: Array, state: GymnaxState, action: Array) -> tuple[GymnaxState, TimeStep]:
        env, params = _backend(self.name, self.keywords)
        if isinstance(self.action_space, Box):
            action = jnp.clip(action, *self.action_space.bounds())

        def step_one(key: Array, inner: PyTree, action: Array) -> tuple[PyTree, ...]:
            obs, inner, reward, terminated, _ = env.step_env(key, inner, action, params)
            truncated = env.is_truncated(inner, params)
            reward = jnp.asarray(reward, jnp.float32).reshape(())
            return obs, inner, reward, jnp.asarray(terminated), jnp.asarray(truncated)

        keys = self.axis.split_key(key, self.num_envs)
        obs, inner, reward, terminated, truncated = jax.vmap(step_one)(keys, state.inner, action)
        obs = self._observe(obs)
        first = state.ended

        def reset_ended(stepped: PyTree) -> PyTree:
            return jax.tree.map(
                lambda new, old: jnp.where(
                    first.reshape(-1, *(1,) * (old.ndim - 1)), new.astype(old.dtype), old
                ),
                # Drawn in here: no randomness is computed for steps that end nothing.
                self._reset(jax.random.fold_in(key, self.num_envs * self.axis.size)),
                stepped,
            )

        inner, obs = jax.lax.cond(first.any(), reset_ended, lambda stepped: stepped, (inner, obs))
        terminated = terminated.astype(bool) & ~first
        truncated = truncated.astype(bool) & ~first & ~terminated
        timestep = TimeStep(obs, jnp.where(first, 0.0, reward), terminated, truncated, first)
        return GymnaxState(inner, terminated | truncated), timestep

    def spread(self, axis: Axis) -> GymnaxEnv:
        return dataclasses.replace(self, num_envs=self.num_envs // axis.size, axis=axis)

    def for_evaluation(self, num_envs: int) -> GymnaxEnv:
        return GymnaxEnv(self.name, num_envs, self.keywords)

    def for_rendering(self) -> GymnaxEnv:
        return self.for_evaluation(1)

    def render(self, state: GymnaxState) -> np.ndarray:
        first = jax.tree.map(lambda x: np.asarray(x[0]), state.inner)
        return rendering.draw(self.name, first, _backend(self.name, self.keywords))

    def _reset(self, key: Array) -> tuple[PyTree, Array]:
        env, params = _backend(self.name, self.keywords)
        keys = self.axis.split_key(key, self.num_envs)
        obs, inner = jax.vmap(lambda key: env.reset_env(key, params))(keys)
        # Python numbers in gymnax's states are weakly typed; one dtype from the first step on
        # keeps `jit` from tracing twice.
        return jax.tree.map(lambda x: jnp.asarray(x).astype(x.dtype), inner), self._observe(obs)

    def _observe(self, obs: Array) -> Array:
        env, params = _backend(self.name, self.keywords)
        space = env.observation_space(params)
        if hasattr(space, "n"):
            return jax.nn.one_hot(obs, space.n)
        if self.name.endswith("-MinAtar"):
            return obs.astype(bool)  # zeros and ones: a byte each in rollouts and replay, not four
        return obs


@functools.lru_cache(maxsize=256)
def _spaces(name: str, options: tuple[tuple[str, Any], ...]) -> tuple[Box, Discrete | Box]:
    env, params = _backend(name, options)
    probe = GymnaxEnv(name, 1, options)
    with jax.ensure_compile_time_eval():  # gymnax builds bounds with jax.numpy
        _, obs = jax.eval_shape(probe._reset, jax.random.key(0))
        declared, action = env.observation_space(params), env.action_space(params)
        low, high = (0.0, 1.0) if hasattr(declared, "n") else (declared.low, declared.high)
        observation_space = Box.of(obs.shape[1:], obs.dtype, low, high)
        if hasattr(action, "n"):
            return observation_space, Discrete(int(action.n))
        return observation_space, Box.of(action.shape, np.float32, action.low, action.high)
