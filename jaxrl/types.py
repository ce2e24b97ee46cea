"""The contracts that every part of jaxrl is built on: spaces, `TimeStep`, `Env`, `Algorithm`.

Shapes: `N` is the number of environments stepped together, `T` the number of steps of a rollout;
arrays of a rollout are time-major, `[T, N, ...]`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
PyTree = Any
Metrics = dict[str, Array]
"""Reduced scalars of one update, a fixed tree: memory never grows with the number of steps."""


@dataclass(frozen=True)
class Discrete:
    """Integers `0 .. n-1`."""

    n: int

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.int32)


@dataclass(frozen=True)
class MultiDiscrete:
    """Several integers at once, the i-th from `0 .. sizes[i] - 1`."""

    sizes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.sizes),)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.int32)


@dataclass(frozen=True)
class Box:
    """Arrays of one shape and dtype, bounded by `low` and `high`.

    A bound is one number for the whole array, or a flat tuple with one for each element, so that
    spaces stay hashable. Images are channels-last.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    low: float | tuple[float, ...] = -np.inf
    high: float | tuple[float, ...] = np.inf

    @classmethod
    def of(cls, shape: Any, dtype: Any, low: Any = -np.inf, high: Any = np.inf) -> Box:
        """Build from array bounds, as other libraries' spaces hold them."""
        shape = tuple(int(n) for n in shape)
        return cls(
            shape, np.dtype(dtype), _hashable_bound(low, shape), _hashable_bound(high, shape)
        )

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """`(low, high)` as float32 arrays of `shape`."""
        low, high = (
            np.broadcast_to(np.asarray(bound, np.float32).reshape(-1), (int(np.prod(self.shape)),))
            for bound in (self.low, self.high)
        )
        return low.reshape(self.shape), high.reshape(self.shape)


def _hashable_bound(bound: Any, shape: tuple[int, ...]) -> float | tuple[float, ...]:
    with np.errstate(over="ignore"):
        flat = np.broadcast_to(np.asarray(bound), shape).astype(np.float32).reshape(-1)
    if flat.size == 0 or (flat == flat[0]).all():
        return float(flat[0]) if flat.size else 0.0
    return tuple(float(x) for x in flat)


@dataclass(frozen=True)
class Dict:
    """Observations with several named parts, as a dictionary of arrays."""

    parts: tuple[tuple[str, ObservationSpace], ...]

    @classmethod
    def of(cls, **parts: ObservationSpace) -> Dict:
        """In alphabetical order, as JAX flattens dictionaries."""
        return cls(tuple(sorted(parts.items())))


ACTION_MASK = "action_mask"
"""The part of a `Dict` observation that is 0 for actions which an environment does not allow: of
shape `[n]` for Discrete actions; for MultiDiscrete ones `[*sizes]`, for each combination, or, if
all k sizes are n, `[k, n]`, for each part by itself. Of sizes (2, 2) it is for each combination."""

ActionSpace = Discrete | MultiDiscrete | Box
ObservationSpace = Box | Dict
Space = ActionSpace | ObservationSpace


def is_key(x: Any) -> bool:
    """Return True if an array holds typed random keys."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def zeros(space: Space, *lead: int) -> PyTree:
    """An element of `space` made of zeros, for each index of the leading axes."""
    if isinstance(space, Dict):
        return {name: zeros(part, *lead) for name, part in space.parts}
    return jnp.zeros((*lead, *space.shape), space.dtype)


class TimeStep(NamedTuple):
    """What N environments show after a step, as in dm_env; leaves lead with `[N]`.

    Every backend is brought to *next-step* autoreset: the step after an end discards the action,
    pays reward 0, returns the first observation of the next episode and sets `first`. So the
    observation that follows a truncation is always seen, and a transition t -> t+1 is *valid* if
    and only if not `first[t+1]`.

    `raw_reward` and `game_over` are for backends whose learning reward or episode end differs
    from the score that people report (Atari with clipped rewards and episodic life); None means
    `reward` and `terminated | truncated`.
    """

    obs: PyTree  # [N, *observation_space.shape]
    reward: Array  # [N] float32, for the transition into this step
    terminated: Array  # [N] bool: the episode ended in a state of value 0
    truncated: Array  # [N] bool: the episode was cut; the state keeps its value
    first: Array  # [N] bool: the first observation of an episode
    raw_reward: Array | None = None  # [N] float32
    game_over: Array | None = None  # [N] bool


class Inputs(NamedTuple):
    """What an agent may look at when it acts; leaves `[T, N, ...]`, or `[N, ...]` for one step.

    Networks without memory see `obs` alone. Where `first` holds, the last action and reward are
    of another episode.
    """

    obs: PyTree
    first: Array
    last_action: Array
    last_reward: Array


Policy = Callable[[PyTree, Inputs, PyTree], tuple[PyTree, Array, PyTree]]
"""`policy(core, inputs, noise) -> (core, action, extras)`, leaves `[N, ...]`; of any environments,
whose noise and memory it is given."""


class Memory(NamedTuple):
    """What an agent carries from step to step of N episodes, leaves `[N, ...]`."""

    core: PyTree  # the state of the network's recurrent core, () without one
    last_action: Array
    last_reward: Array
    first: Array  # the next observation begins an episode: the rest is to be forgotten


class Trajectory(NamedTuple):
    """T transitions of N environments, time-major; row t holds the transition t -> t+1."""

    inputs: Inputs  # [T, N, ...] before the action
    action: Array  # [T, N, ...]
    reward: Array  # [T, N] paid by the transition
    terminated: Array  # [T, N] the transition ended its episode by termination
    truncated: Array  # [T, N] the transition ended its episode by truncation
    valid: Array  # [T, N] false where the transition only led to a new episode
    extras: PyTree  # what the policy gave with the action, leaves [T, N, ...]

    @property
    def obs(self) -> PyTree:
        """`[T, N, ...]` before the action."""
        return self.inputs.obs


@runtime_checkable
class Env(Protocol):
    """N environments stepped together. Frozen and hashable, so `jit` takes it as static.

    `init` and `step` are pure for JAX environments. For host environments the state is linear: it
    orders the calls, cannot be copied, and using it twice raises an error that says so.
    `checkpointable` tells which of the two it is.
    """

    @property
    def id(self) -> str:
        """The full id, backend included, such that `jaxrl.make(id, num_envs, **options)` works."""
        ...

    @property
    def num_envs(self) -> int: ...

    @property
    def options(self) -> dict[str, Any]:
        """The backend's keywords given to `jaxrl.make`."""
        ...

    @property
    def observation_space(self) -> ObservationSpace: ...

    @property
    def action_space(self) -> ActionSpace: ...

    @property
    def checkpointable(self) -> bool: ...

    def init(self, key: Array) -> tuple[PyTree, TimeStep]:
        """Start N episodes; everything random about the environments comes from `key`."""
        ...

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, TimeStep]:
        """Step once with `action` `[N, *action_space.shape]`; Box actions are clipped to bounds."""
        ...

    def for_evaluation(self, num_envs: int) -> Env:
        """The same task, scored as people report it, over `num_envs` environments."""
        ...

    def for_rendering(self) -> Env:
        """One environment as for evaluation, whose states `render` takes."""
        ...

    def render(self, state: PyTree) -> np.ndarray:
        """The first environment as an RGB picture, uint8 `[H, W, 3]`; outside `jit` only."""
        ...


@runtime_checkable
class HostEnv(Env, Protocol):
    """Environments on the host, whose state is linear; split over k pools of `N / k`."""

    @property
    def num_pools(self) -> int: ...

    @property
    def asynchronous(self) -> bool:
        """Whether the pool that is ready first is awaited, or they take turns."""
        ...

    @property
    def send_ahead(self) -> bool:
        """Whether rollouts end with actions sent, which simulate while the agent learns."""
        ...

    def send_and_receive(
        self, state: PyTree, sent: Array | int, action: Array, awaited: Array | int
    ) -> tuple[PyTree, Array, TimeStep]:
        """Begin a step of a pool with `action` `[N / k, ...]`, and wait for another's.

        As `jaxrl.envs.host.callback.send_and_receive`: the state, the pool that was received, and its step.
        """
        ...

    def restart(self, state: PyTree, timestep: TimeStep, where: Array) -> tuple[PyTree, TimeStep]:
        """Begin new episodes where `where` `[N]` holds; the others stay as `timestep` has them."""
        ...


class Algorithm(NamedTuple):
    """A reinforcement learning algorithm as pure functions, in optax's manner.

    The config is an argument of each and stored in none, so a scheduler may change it at any
    update. The state holds arrays only; its field `simulation` is what belongs to the
    environments, everything else is the learner's.
    """

    init: Callable[..., Any]
    """`init(config, key, simulation=None) -> state`; with a `simulation`, the environments where it
    stands are taken over (their episodes must be new) instead of new ones being made"""
    update: Callable[..., tuple[Any, Metrics]]
    """`update(config, state) -> (state, metrics)`: one rollout and its learning"""
    act: Callable[..., tuple[Any, Array]]
    """`act(config, state, memory, obs, key, greedy) -> (memory, action)`, obs `[N, ...]`; `memory`
    is a `Memory`, or `()` for agents without one and at the start of N episodes"""
    env: Any = None
    """The `Env` it was made for."""
    network: Any = None
    """The network that the caller passed, None if the config chooses."""
    name: str = ""
    """Its public name."""
    config_class: Any = None
    initial_core: Callable[..., PyTree] = lambda config, num_envs: ()
    """`initial_core(config, num_envs) -> Memory.core` at the start of episodes"""
    num_steps: Callable[[Any], int] = lambda config: config.num_steps
    """`num_steps(config)`: steps of each environment in one update"""
    make: Callable[..., Algorithm] | None = None
    """`make(env, network)` gives it on other environments."""
    lane_axis: str | None = None
    """If the environments are spread over devices (`jaxrl.distributed.spread.spread`), the axis of the mesh
    over which `jax.vmap(..., spmd_axis_name=lane_axis)` spreads the members of a population."""
