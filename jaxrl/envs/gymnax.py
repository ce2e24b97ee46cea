"""gymnax environments (>= 1.0.1): pure, on the device.

gymnax's own `step` resets in the step that ends an episode and returns the new episode's
observation in place of the last one. This adapter calls `step_env` and `reset_env` instead and
resets in the next step. The reset runs under a `cond` on "did any environment end", so that most
steps do not compute it (under `vmap` both branches run, as they do in gymnax).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.envs import rendering
from jaxrl.envs.adapter import Adapter, Keywords, first_timestep, select_envs
from jaxrl.spaces import Box, Discrete
from jaxrl.types import Array, PyTree, TimeStep


class _LazyModule(ModuleType):
    """A stand-in that imports its module when an attribute is used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


# gymnax imports these for pictures that jaxrl does not draw; they would take most of a second.
_lazy_modules = {
    name: _LazyModule(name) for name in ("seaborn", "matplotlib.pyplot") if name not in sys.modules
}
sys.modules.update(_lazy_modules)
import gymnax  # noqa: E402

for _name in _lazy_modules:
    sys.modules.pop(_name, None)


TIME_LIMIT = "max_steps_in_episode"
"""The parameter that all environments of gymnax have."""
REPEAT = "repeat_action_probability"
"""The option of sticky actions, with envpool's name."""


class GymnaxState(NamedTuple):
    """State of N gymnax environments."""

    inner: PyTree
    ended: Array  # [N] bool: the next step begins a new episode
    last_action: Array | None = None  # [N, ...] with sticky actions


def ids() -> list[str]:
    """Return all registered ids, without prefix."""
    return list(gymnax.registered_envs)


@dataclass(frozen=True)
class GymnaxEnv(Adapter):
    """N gymnax environments; make it with `jaxrl.make("gymnax/CartPole-v1", num_envs)`.

    The options are the fields of gymnax's parameters (`max_steps_in_episode` for one), the keywords
    of its environment classes, and `repeat_action_probability`: the probability that an environment
    repeats its last action instead of the one given (sticky actions; MinAtar's own games have 0.1,
    Young & Tian 2019). As in MinAtar, the last action is kept between episodes and is 0 at first.
    """

    backend: ClassVar[str] = "gymnax"

    def __post_init__(self) -> None:
        _ = self._inner, self._repeat_probability  # raises an error for bad options

    @property
    def observation_space(self) -> Box:
        return _spaces(self.name, self.keywords)[0]

    @property
    def action_space(self) -> Discrete | Box:
        return _spaces(self.name, self.keywords)[1]

    def init(self, key: Array) -> tuple[GymnaxState, TimeStep]:
        inner, obs = self._reset(key)
        timestep = first_timestep(obs, self.num_envs)
        space = self.action_space
        no_action = jnp.zeros((self.num_envs, *space.shape), space.dtype)
        last_action = no_action if self._repeat_probability else None
        return GymnaxState(inner, timestep.terminated, last_action), timestep

    def step(self, key: Array, state: GymnaxState, action: Array) -> tuple[GymnaxState, TimeStep]:
        env, params = self._inner
        if isinstance(self.action_space, Box):
            action = jnp.clip(action, *self.action_space.bounds())
        if state.last_action is not None:
            action = self._repeat_some(key, state, action)

        def step_one(key: Array, inner: PyTree, action: Array) -> tuple[PyTree, ...]:
            outcome = env.step_env(key, inner, action, params)
            if len(outcome) != 5:
                raise ValueError(
                    f"step_env of {self.id} must return (obs, state, reward, terminated, info), as "
                    f"in gymnax 1.0, got {len(outcome)} values; is_truncated tells time limits"
                )
            obs, inner, reward, terminated, _ = outcome
            truncated = env.is_truncated(inner, params)
            reward = jnp.asarray(reward, jnp.float32).reshape(())
            return obs, inner, reward, jnp.asarray(terminated), jnp.asarray(truncated)

        keys = self.axis.split_key(key, self.num_envs)
        obs, inner, reward, terminated, truncated = jax.vmap(step_one)(keys, state.inner, action)
        first = state.ended

        def reset_ended(stepped: PyTree) -> PyTree:
            reset_key = jax.random.fold_in(key, self.num_envs * self.axis.size)
            return select_envs(first, self._reset(reset_key), stepped)

        stepped = (inner, self._observe(obs))
        inner, obs = jax.lax.cond(first.any(), reset_ended, lambda stepped: stepped, stepped)
        terminated = terminated.astype(bool) & ~first
        truncated = truncated.astype(bool) & ~first & ~terminated
        timestep = TimeStep(obs, jnp.where(first, 0.0, reward), terminated, truncated, first)
        last_action = None if state.last_action is None else action
        return GymnaxState(inner, terminated | truncated, last_action), timestep

    def render(self, state: GymnaxState) -> np.ndarray:
        first = jax.tree.map(lambda x: np.asarray(x[0]), state.inner)
        return rendering.draw(self.name, first, *self._inner)

    @property
    def _inner(self) -> tuple[Any, Any]:
        return _inner(self.name, self.keywords)

    @property
    def _repeat_probability(self) -> float:
        label = f"option {REPEAT} of {self.id}"
        return checks.number(label, self.options.get(REPEAT, 0.0), checks.BELOW_ONE)

    def _repeat_some(self, key: Array, state: GymnaxState, action: Array) -> Array:
        """Return the actions `[N, ...]` that are carried out, some of them those before."""
        repeat_key = jax.random.fold_in(key, self.num_envs * self.axis.size + 1)
        follow = functools.partial(jax.random.bernoulli, p=1 - self._repeat_probability)
        followed = jax.vmap(follow)(self.axis.split_key(repeat_key, self.num_envs))
        # The step that begins an episode ignores its action.
        return select_envs(followed & ~state.ended, action, state.last_action)

    def _reset(self, key: Array) -> tuple[PyTree, Array]:
        env, params = self._inner
        keys = self.axis.split_key(key, self.num_envs)
        obs, inner = jax.vmap(lambda key: env.reset_env(key, params))(keys)
        # gymnax's states hold weakly typed Python numbers. With one dtype from the first step on,
        # `jit` does not trace twice.
        return jax.tree.map(lambda x: jnp.asarray(x).astype(x.dtype), inner), self._observe(obs)

    def _observe(self, obs: Array) -> Array:
        env, params = self._inner
        space = env.observation_space(params)
        if hasattr(space, "n"):
            return jax.nn.one_hot(obs, space.n, dtype=jnp.float32)
        if self.name.endswith("-MinAtar"):
            return obs.astype(bool)  # zeros and ones: a byte each in rollouts and replay, not four
        return obs


@functools.lru_cache(maxsize=256)
def _inner(name: str, keywords: Keywords) -> tuple[Any, Any]:
    """Return gymnax's environment and parameters; each option belongs to one of the two."""
    options = {name: value for name, value in keywords if name != REPEAT}
    try:
        params_fields = {f.name for f in dataclasses.fields(gymnax.make(name)[1])}
    except OSError as error:  # some ids download their data
        raise ImportError(f"gymnax/{name} cannot run on this machine: {error}") from error
    except TypeError as error:
        raise ValueError(
            f"gymnax/{name} cannot be made without options: {error}; give its arguments defaults, "
            f"as by gymnax.register({name!r}, functools.partial(Own, size=8))"
        ) from error
    of_params = {key: options.pop(key) for key in list(options) if key in params_fields}
    try:
        env, params = gymnax.make(name, **options)
    except Exception as error:  # an environment may raise anything
        raise ValueError(
            f"gymnax/{name} does not take the options {options}; "
            f"its parameters are {sorted(params_fields)}: {error}"
        ) from error
    for key, value in of_params.items():
        label = f"option {key} of gymnax/{name}"
        of_params[key] = _parameter(label, key, value, getattr(params, key))
    return env, params.replace(**of_params)


def _parameter(label: str, key: str, value: Any, default: Any) -> Any:
    """Return a value of the type that a parameter has by default."""
    if isinstance(default, bool):
        return checks.flag(label, value)
    if key == TIME_LIMIT:  # some environments keep even counts as floats
        return type(default)(checks.integer(label, value, whole_floats=True))
    if isinstance(default, int):
        return checks.integer(label, value, 0, whole_floats=True)
    if isinstance(default, float):
        return float(checks.traced_number(label, checks.number(label, value)))
    return checks.array(label, value, np.shape(default)).astype(default.dtype)


@functools.lru_cache(maxsize=256)
def _spaces(name: str, keywords: Keywords) -> tuple[Box, Discrete | Box]:
    env, params = _inner(name, keywords)
    with jax.ensure_compile_time_eval():  # gymnax builds bounds with jax.numpy
        _, obs = jax.eval_shape(GymnaxEnv(name, 1, keywords)._reset, jax.random.key(0))
        declared, action = env.observation_space(params), env.action_space(params)
        if not hasattr(declared, "n") and not hasattr(declared, "low"):
            raise ValueError(
                f"gymnax/{name} has the observations {type(declared).__name__}; jaxrl takes one "
                "array from gymnax's interface, so concatenate them"
            )
        low, high = (0.0, 1.0) if hasattr(declared, "n") else (declared.low, declared.high)
        observation_space = Box.of(obs.shape[1:], obs.dtype, low, high)
        if hasattr(action, "n"):
            return observation_space, Discrete(int(action.n))
        return observation_space, Box.of(action.shape, np.float32, action.low, action.high)
