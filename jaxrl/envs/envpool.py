"""envpool environments (Atari, MuJoCo, ViZDoom, ...) under the `Env` contract: host, batched.

The C++ pool is stepped by a host callback inside the compiled program. The state is a token: the
number of a pool and how often it has been stepped. It is linear, and the host checks it: a state
used twice, or of a pool that is gone, is an error. That the pool is *data* (and not an address in
the program, as with envpool's own XLA custom call) buys four things: `init(key)` seeds the
environments from the key; a compiled program serves any pool and can be kept in the persistent
compilation cache; every device of a `pmap` or `shard_map` gets a pool of its own; and a copied
state is noticed. It costs some 0.3 ms a step (see experiments/benchmarks/NOTES.md).

Under `jax.vmap` the members of a population share one pool: a `custom_vmap` rule folds seeds and
actions of `[P, N]` to `[P*N]`, calls the pool once, and unfolds. Each member's environments are
seeded from its own key, so a member sees what it would see alone.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

from jaxrl.types import Array, Box, Discrete, PyTree, Space, TimeStep

ATARI_IMPORT_PATH = "envpool.atari"


class HostState(NamedTuple):
    """A linear token for N environments of a pool on the host."""

    pool: Array  # int32 scalar: number of the pool
    steps: Array  # int32 scalar: steps taken so far, modulo 2^31


@dataclass(frozen=True)
class EnvpoolEnv:
    """N environments of envpool; make it with `jaxrl.make("envpool/Pong-v5", num_envs)`.

    Keywords are those of `envpool.make` (`num_threads`, `max_episode_steps`, and for Atari
    `episodic_life`, `reward_clip`, `repeat_action_probability`, ...). Images become channels-last,
    float64 becomes float32, integer observations become one-hot.
    """

    name: str
    num_envs: int
    keywords: tuple[tuple[str, Any], ...] = ()
    checkpointable: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        _facts(self.name, self.keywords)

    @property
    def id(self) -> str:
        return f"envpool/{self.name}"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.keywords)

    @property
    def observation_space(self) -> Space:
        return _facts(self.name, self.keywords).observation_space

    @property
    def action_space(self) -> Space:
        return _facts(self.name, self.keywords).action_space

    def init(self, key: Array) -> tuple[HostState, TimeStep]:
        seeds = jax.random.randint(key, (self.num_envs,), 0, np.iinfo(np.int32).max)
        pool, raw = _fold(functools.partial(_init_on_device, self.name, self.keywords))(
            jnp.zeros(1, jnp.int32), seeds
        )
        ended = jnp.zeros(self.num_envs, bool)
        return HostState(pool[0], jnp.int32(0)), self._timestep(raw, ended, ~ended)

    def step(self, key: Array, state: HostState, action: Array) -> tuple[HostState, TimeStep]:
        del key  # a pool's randomness is fixed by its seeds
        space = self.action_space
        if isinstance(space, Box):
            action = jnp.clip(action, *space.bounds())
        if action.shape != (self.num_envs, *space.shape):
            raise ValueError(
                f"{self.id} takes actions of shape {(self.num_envs, *space.shape)}, "
                f"got {action.shape}"
            )
        steps, raw = _fold(functools.partial(_step_on_device, self.name, self.keywords))(
            state.pool[None], state.steps[None], action.astype(space.dtype)
        )
        return HostState(state.pool, steps[0]), self._timestep(raw, raw.ended, raw.first)

    def for_evaluation(self, num_envs: int) -> EnvpoolEnv:
        """Whole games and raw rewards."""
        keywords = dict(self.keywords)
        if _facts(self.name, self.keywords).is_atari:
            keywords |= {"episodic_life": False, "reward_clip": False}
        return EnvpoolEnv(self.name, num_envs, tuple(sorted(keywords.items())))

    def for_rendering(self) -> EnvpoolEnv:
        keywords = self.for_evaluation(1).options | {"render_mode": "rgb_array"}
        return EnvpoolEnv(self.name, 1, tuple(sorted(keywords.items())))

    def render(self, state: HostState) -> np.ndarray:
        if "render_mode" not in self.options:
            raise ValueError("this environment was made without pictures; use env.for_rendering()")
        frame = _pool_of(np.asarray(state.pool)[None], np.asarray(state.steps)[None]).envs.render()
        assert frame is not None
        return np.asarray(frame[0])

    def _timestep(self, raw: RawStep, ended: Array, first: Array) -> TimeStep:
        facts = _facts(self.name, self.keywords)
        obs = facts.arrange(raw.obs)
        step = TimeStep(obs, raw.reward, ended & ~raw.truncated, raw.truncated, first)
        if not facts.is_atari:
            return step
        return step._replace(raw_reward=raw.raw_reward, game_over=raw.game_over)


class RawStep(NamedTuple):
    """What a pool answers, as the host gives it; leaves `[M, ...]`, M = all slots of the pool."""

    obs: Any
    reward: Any
    ended: Any
    truncated: Any
    first: Any
    raw_reward: Any
    game_over: Any


class Facts(NamedTuple):
    """What is known of an id before a pool is made."""

    observation_space: Box
    action_space: Space
    raw_obs: jax.ShapeDtypeStruct
    action_dtype: np.dtype
    is_atari: bool

    def arrange(self, obs: Array) -> Array:
        """Raw observations `[N, ...]` as the observation space has them."""
        if self.raw_obs.shape == () and self.observation_space.shape != ():
            return jax.nn.one_hot(obs, self.observation_space.shape[0])
        if len(self.raw_obs.shape) == 3 and self.raw_obs.dtype == np.uint8:
            return jnp.moveaxis(obs, -3, -1)
        return obs


def ids() -> list[str]:
    """All registered ids, without prefix."""
    return list(_envpool().list_all_envs())


def _envpool() -> Any:
    try:
        import envpool
    except ImportError as error:
        raise ImportError(
            "envpool is not installed on this platform (it has wheels for Linux, macOS and "
            "Windows on x86-64 and arm64): pip install envpool, or use a gymnax id"
        ) from error
    return envpool


@functools.lru_cache(maxsize=256)
def _facts(name: str, keywords: tuple[tuple[str, Any], ...]) -> Facts:
    from envpool.registration import registry
    from gymnasium import spaces

    taken = sorted({key for key, _ in keywords} & _NOT_OPTIONS)
    if taken:
        raise ValueError(
            f"envpool/{name} does not take the options {taken}: num_envs is an argument of "
            "jaxrl.make, seeds come from the key of `init`, and all environments step together"
        )
    try:
        spec = _envpool().make_spec(name, **_spec_keywords(keywords))
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"envpool/{name} refuses the options {dict(keywords)}: {error}") from error
    except ImportError as error:
        raise ImportError(f"envpool/{name} cannot run on this machine: {error}") from error
    if spec.config.max_num_players != 1:
        raise ValueError(f"envpool/{name} is a multi-player environment, which jaxrl does not run")
    obs, action = spec.observation_space, spec.action_space
    if isinstance(obs, spaces.Discrete):
        raw_obs = jax.ShapeDtypeStruct((), np.dtype(np.int32))
        observation_space = Box.of((int(obs.n),), np.float32, 0.0, 1.0)
    elif isinstance(obs, spaces.Box):
        dtype = np.dtype(np.float32) if obs.dtype == np.float64 else np.dtype(obs.dtype)
        raw_obs = jax.ShapeDtypeStruct(obs.shape, dtype)
        image = len(obs.shape) == 3 and dtype == np.uint8
        shape = (*obs.shape[1:], obs.shape[0]) if image else obs.shape
        same = (obs.low == obs.low.flat[0]).all() and (obs.high == obs.high.flat[0]).all()
        bounds = (obs.low.flat[0], obs.high.flat[0]) if same else (obs.low, obs.high)
        observation_space = Box.of(shape, dtype, *bounds)
    else:
        raise ValueError(
            f"envpool/{name} has {type(obs).__name__} observations; jaxrl runs environments with "
            "array observations"
        )
    if isinstance(action, spaces.Discrete):
        action_space: Space = Discrete(int(action.n))
    elif isinstance(action, spaces.Box):
        action_space = Box.of(action.shape, np.float32, action.low, action.high)
    else:
        raise ValueError(
            f"envpool/{name} has {type(action).__name__} actions; jaxrl runs Discrete and Box"
        )
    is_atari = registry.specs[name][0] == ATARI_IMPORT_PATH
    return Facts(observation_space, action_space, raw_obs, np.dtype(action.dtype), is_atari)


_NOT_OPTIONS = {"seed", "env_seed", "num_envs", "batch_size", "env_type", "gym_reset_return_info"}


def _spec_keywords(keywords: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """`render_mode` belongs to the pool, not to its specification."""
    return {key: value for key, value in keywords if key != "render_mode"}


# --- on the host ---------------------------------------------------------------------------------


class _Pool:
    """A pool and its place in time."""

    def __init__(self, name: str, keywords: tuple[tuple[str, Any], ...], seeds: np.ndarray):
        self.name, self.keywords, self.seeds = name, keywords, seeds
        self.facts = _facts(name, keywords)
        self.envs = _envpool().make(
            name,
            env_type="gymnasium",
            num_envs=len(seeds),
            seed=[int(seed) for seed in seeds],
            **dict(keywords),
        )
        self.steps = 0
        self.ended = np.zeros(len(seeds), bool)

    def reset(self) -> RawStep:
        obs, _ = self.envs.reset()
        no = np.zeros(len(self.seeds), bool)
        zeros = np.zeros(len(self.seeds), np.float32)
        return RawStep(self._cast(obs), zeros, no, no, no, zeros, no)

    def step(self, action: np.ndarray) -> RawStep:
        obs, reward, terminated, truncated, info = self.envs.step(
            action.astype(self.facts.action_dtype)
        )
        first = self.ended
        self.ended = terminated | truncated
        self.steps = (self.steps + 1) & np.iinfo(np.int32).max
        reward = reward.astype(np.float32)
        raw_reward, game_over = reward, self.ended
        if self.facts.is_atari:
            raw_reward = info["reward"].astype(np.float32)
            game_over = (info["terminated"] != 0) | truncated
        return RawStep(
            self._cast(obs), reward * ~first, self.ended, truncated, first, raw_reward, game_over
        )

    def _cast(self, obs: np.ndarray) -> np.ndarray:
        return obs.astype(self.facts.raw_obs.dtype, copy=False)


_pools: OrderedDict[int, _Pool] = OrderedDict()
_numbers = itertools.count(1)
_lock = threading.Lock()


def _max_pools() -> int:
    return max(8, 2 * jax.local_device_count())


def _register(pool: _Pool, number: int | None = None) -> int:
    with _lock:
        number = next(_numbers) if number is None else number
        _pools[number] = pool
        _pools.move_to_end(number)
        while len(_pools) > _max_pools():
            _pools.popitem(last=False)[1].envs.close()
    return number


def _pool_of(numbers: np.ndarray, steps: np.ndarray) -> _Pool:
    """The pool that a token means, if the token is the latest of its pool."""
    number = int(numbers[0])
    if (numbers != number).any():
        raise ValueError(
            "host environment states of different pools were stacked: initialize the members of a "
            "population under the same vmap that steps them"
        )
    with _lock:
        pool = _pools.get(number)
        if pool is not None:
            _pools.move_to_end(number)
    if pool is None:
        raise ValueError(
            f"pool {number} of this host environment state no longer exists: it belongs to another "
            f"process, or more than {_max_pools()} pools were made since; initialize again"
        )
    if (steps != pool.steps).any():
        raise ValueError(
            "a host environment state was used twice (or copied): it had been stepped "
            f"{int(steps.min())} times, its pool {pool.steps} times. Host environments cannot go "
            "back; always continue from the state that the last step returned"
        )
    return pool


def _init_on_host(
    name: str, keywords: tuple[tuple[str, Any], ...], members: np.ndarray, seeds: np.ndarray
) -> tuple[np.ndarray, RawStep]:
    pool = _Pool(name, keywords, np.asarray(seeds))
    return np.full(len(members), _register(pool), np.int32), pool.reset()


def _step_on_host(numbers: Any, steps: Any, action: Any) -> tuple[np.ndarray, RawStep]:
    numbers, steps, action = np.asarray(numbers), np.asarray(steps), np.asarray(action)
    pool = _pool_of(numbers, steps)
    if len(action) != len(pool.seeds):
        pool = _copy_for_members(pool, int(numbers[0]), len(action))
    answer = pool.step(action)
    return np.full(len(numbers), pool.steps, np.int32), answer


def _copy_for_members(pool: _Pool, number: int, size: int) -> _Pool:
    """Grow a pool whose first state `vmap` broadcast to a population (its key was not mapped).

    Until the first step, copies are what the same seeds give.
    """
    if pool.steps != 0 or size % len(pool.seeds) != 0:
        raise ValueError(
            f"a state of {len(pool.seeds)} host environments was stepped with {size} actions: a "
            "running host environment cannot be copied or split; initialize the population under "
            "the same vmap that steps it"
        )
    copied = _Pool(pool.name, pool.keywords, np.tile(pool.seeds, size // len(pool.seeds)))
    copied.reset()
    pool.envs.close()
    _register(copied, number)
    return copied


# --- in the compiled program ---------------------------------------------------------------------


def _raw_shapes(facts: Facts, slots: int) -> RawStep:
    flag = jax.ShapeDtypeStruct((slots,), np.dtype(bool))
    number = jax.ShapeDtypeStruct((slots,), np.dtype(np.float32))
    obs = jax.ShapeDtypeStruct((slots, *facts.raw_obs.shape), facts.raw_obs.dtype)
    return RawStep(obs, number, flag, flag, flag, number, flag)


def _init_on_device(
    name: str, keywords: tuple[tuple[str, Any], ...], members: Array, seeds: Array
) -> tuple[Array, RawStep]:
    shapes = (
        jax.ShapeDtypeStruct(members.shape, np.dtype(np.int32)),
        _raw_shapes(_facts(name, keywords), seeds.shape[0]),
    )
    return io_callback(functools.partial(_init_on_host, name, keywords), shapes, members, seeds)


def _step_on_device(
    name: str, keywords: tuple[tuple[str, Any], ...], numbers: Array, steps: Array, action: Array
) -> tuple[Array, RawStep]:
    shapes = (
        jax.ShapeDtypeStruct(steps.shape, np.dtype(np.int32)),
        _raw_shapes(_facts(name, keywords), action.shape[0]),
    )
    return io_callback(_step_on_host, shapes, numbers, steps, action)


def _fold(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Let `vmap` merge its axis into the leading axis of all arguments, and split the results."""
    folded = custom_vmap(function)

    @folded.def_vmap
    def rule(axis_size: int, in_batched: list[bool], *args: Array) -> tuple[PyTree, PyTree]:
        def merge(x: Array, batched: bool) -> Array:
            x = x if batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            return x.reshape(-1, *x.shape[2:])

        merged = [merge(x, batched) for x, batched in zip(args, in_batched, strict=True)]
        results = _fold(function)(*merged)
        split = jax.tree.map(lambda x: x.reshape(axis_size, -1, *x.shape[1:]), results)
        return split, jax.tree.map(lambda _: True, split)

    return folded
