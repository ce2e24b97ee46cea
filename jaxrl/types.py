"""The contracts that every part of jaxrl is built on: `TimeStep`, `Env`, `Algorithm`.

Shapes: N is the number of environments stepped together, T the number of steps of a rollout; arrays
of a rollout are time-major, `[T, N, ...]`.

The docstring of a class lists its fields under "Attributes:", with shapes and units, so that `help`
shows them. Configs (`jaxrl.config`, which adds the list), the command line's arguments and classes
with many fields have a string after each field instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.spaces import ActionSpace, ObservationSpace

Array = jax.Array
PyTree = Any
Metrics = dict[str, Array]
"""Reduced scalars of one update, with the same keys at every update."""


def is_key(x: Any) -> bool:
    """Return whether an array holds typed random keys."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


class TimeStep(NamedTuple):
    """A step of N environments as they report it, after dm_env; leaves lead with `[N]`.

    All environments reset in the *next step* after an end: that step ignores its action, pays
    reward 0, returns the first observation of the next episode and sets `first`. So a trajectory
    always contains the observation that follows a truncation, and a transition t -> t+1 is *valid*
    if and only if not `first[t+1]`.

    Attributes:
      obs: observations, `[N, *observation_space.shape]`; finite, also at the end of an episode,
        since gradients pass through all of them (0 times NaN is NaN).
      reward: `[N]` float32, of the transition into this step.
      terminated: `[N]` bool, whether the episode ended in a state of value 0.
      truncated: `[N]` bool, whether the episode was cut, for instance by a time limit; its last
        state keeps its value.
      first: `[N]` bool, whether `obs` is the first observation of an episode.
      raw_reward: `[N]` float32, reward of the score that people report, if learning uses another
        one (Atari with clipped rewards); None for `reward`.
      game_over: `[N]` bool, whether the reported score is complete, if episodes end earlier (Atari
        with episodic life); None for `terminated | truncated`.
    """

    obs: PyTree
    reward: Array
    terminated: Array
    truncated: Array
    first: Array
    raw_reward: Array | None = None
    game_over: Array | None = None


class Inputs(NamedTuple):
    """The inputs of an agent when it acts; leaves `[T, N, ...]`, or `[N, ...]` for one step.

    Networks without memory use `obs` alone.

    Attributes:
      obs: observations.
      first: bool, whether `obs` is the first observation of an episode; the last action and reward
        are then of the previous episode.
      last_action: the action before `obs`.
      last_reward: float32, the reward of that action.
    """

    obs: PyTree
    first: Array
    last_action: Array
    last_reward: Array


Policy = Callable[[PyTree, Inputs, PyTree], tuple[PyTree, Array, PyTree]]
"""`policy(core, inputs, noise) -> (core, action, extras)`, leaves `[N, ...]`: a function of the
memory, the inputs and the random numbers of any N environments."""


class Memory(NamedTuple):
    """The memory of an agent between two steps of N episodes; leaves `[N, ...]`.

    Attributes:
      core: state of the network's recurrent core; `()` without one.
      last_action: the action just taken.
      last_reward: float32, its reward.
      first: bool, whether the next observation begins an episode; the other fields are then
        ignored.
    """

    core: PyTree
    last_action: Array
    last_reward: Array
    first: Array


class Trajectory(NamedTuple):
    """T transitions of N environments, time-major; row t holds the transition t -> t+1.

    Attributes:
      inputs: inputs of the policy before the action, leaves `[T, N, ...]`.
      action: `[T, N, *action_space.shape]`.
      reward: `[T, N]` float32, paid by the transition.
      terminated: `[T, N]` bool, whether the transition ended its episode by termination.
      truncated: `[T, N]` bool, whether the transition ended its episode by truncation.
      valid: `[T, N]` bool, false for the step that only resets an ended episode.
      extras: what the policy returned with the action, leaves `[T, N, ...]`.
    """

    inputs: Inputs
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    extras: PyTree

    @property
    def obs(self) -> PyTree:
        """The observations before the actions, `[T, N, ...]`."""
        return self.inputs.obs


@runtime_checkable
class Env(Protocol):
    """N environments that are stepped together.

    Objects are frozen and hashable, so that `jit` takes them as static arguments. `init` and `step`
    are pure for JAX environments. The state of host environments is linear: it orders the calls and
    cannot be copied; using one state twice raises an error.
    """

    @property
    def id(self) -> str:
        """The full id with its backend, as `jaxrl.make(id, num_envs, **options)` takes it."""
        ...

    @property
    def num_envs(self) -> int:
        """The number of environments, N."""
        ...

    @property
    def options(self) -> dict[str, Any]:
        """The backend's options that `jaxrl.make` was given."""
        ...

    @property
    def observation_space(self) -> ObservationSpace:
        """The space of one environment's observations."""
        ...

    @property
    def action_space(self) -> ActionSpace:
        """The space of one environment's actions."""
        ...

    @property
    def checkpointable(self) -> bool:
        """True if states can be saved and copied (JAX), False for environments on the host."""
        ...

    def init(self, key: Array) -> tuple[PyTree, TimeStep]:
        """Start N episodes and return `(state, timestep)`.

        Args:
          key: typed random key, the only source of the environments' randomness.
        """
        ...

    def step(self, key: Array, state: PyTree, action: Array) -> tuple[PyTree, TimeStep]:
        """Step all environments once and return `(state, timestep)`.

        Args:
          key: typed random key of this step.
          state: what `init` or the last `step` returned.
          action: `[N, *action_space.shape]`. Agents' actions of a Box come clipped to its bounds;
            environments of `jaxrl.make` clip those of others too.
        """
        ...

    def for_evaluation(self, num_envs: int) -> Env:
        """Return `num_envs` environments of the same task, scored as people report it."""
        ...


class DrawableEnv(Env, Protocol):
    """N environments that can be filmed, as those of `jaxrl.make`."""

    def for_rendering(self) -> DrawableEnv:
        """Return one environment as for evaluation, whose states `render` accepts."""
        ...

    def render(self, state: PyTree) -> np.ndarray:
        """Draw the first environment, uint8 RGB `[H, W, 3]`; outside `jit` only."""
        ...


@runtime_checkable
class HostEnv(Env, Protocol):
    """N environments on the host, outside the compiled program, split into k pools of `N / k`.

    Their state is linear: it orders the calls and cannot be copied.
    """

    @property
    def num_pools(self) -> int:
        """The number of pools, k."""
        ...

    @property
    def asynchronous(self) -> bool:
        """True if a rollout awaits the pool that is ready first, False if pools take turns."""
        ...

    @property
    def send_ahead(self) -> bool:
        """True if a rollout ends by sending actions, so that pools simulate during learning."""
        ...

    def send_and_receive(
        self, state: PyTree, sent: Array | int, action: Array, awaited: Array | int
    ) -> tuple[PyTree, Array, TimeStep]:
        """Send actions to one pool, wait for another, and return `(state, pool, timestep)`.

        Args:
          state: what the last call returned.
          sent: index of the pool that begins a step.
          action: `[N / k, ...]` for that pool.
          awaited: index of the pool whose step is received; `jaxrl.envs.host.pools` has the
            numbers for "none" and "any".
        """
        ...

    def restart(self, state: PyTree, timestep: TimeStep, where: Array) -> tuple[PyTree, TimeStep]:
        """Begin new episodes where `where` `[N]` is true, and return `(state, timestep)`.

        The other environments keep their rows of `timestep`.
        """
        ...


class Algorithm(NamedTuple):
    """A reinforcement learning algorithm as pure functions, in the manner of optax.

    `jaxrl.ppo(env)` and its like return one. Each function takes the config as an argument and the
    state stores none, so a scheduler may change the config at any update. The state holds arrays
    only, in a NamedTuple; its field `simulation` belongs to the environments, the other fields to
    the learner.

    Attributes:
      init: `init(config, key, simulation=None) -> state`. With a `simulation` the agent takes over
        its environments, whose episodes must have just begun, instead of making new ones.
      update: `update(config, state) -> (state, metrics)`: one rollout and learning from it. The
        metrics are scalars by name, with those of `jaxrl.rollouts.rollout.episode_metrics`.
      act: `act(config, state, memory, obs, key, greedy) -> (memory, action)`, leaves `[B, ...]` for
        any B, since evaluations and loaded policies have other numbers of environments. `memory` is
        a `Memory`; `()` at the start of B episodes and for agents without memory.
      env: the `Env` that the algorithm was made for.
      network: the network that the caller passed; None if the config describes it.
      name: public name, such as "ppo".
      config_class: class of the configs, such as `PPOConfig`.
      initial_core: `initial_core(config, num_envs) -> Memory.core` at the start of episodes.
      num_steps: `num_steps(config) -> int`, steps of each environment in one update.
      make: `make(env, network) -> Algorithm`, the same algorithm on other environments; None if it
        cannot be made again. `spread` and searches of `num_envs` call it, so an algorithm of which
        you replace a function needs another `make`, too.
      lane_axis: name of the mesh axis over which `jax.vmap(..., spmd_axis_name=lane_axis)` spreads
        the members of a population, set by `jaxrl.distributed.spread.spread`; None otherwise.
      num_devices: how many devices `spread` uses for an agent and for the members of a population.
    """

    init: Callable[..., Any]
    update: Callable[..., tuple[Any, Metrics]]
    act: Callable[..., tuple[Any, Array]]
    env: Any = None
    network: Any = None
    name: str = ""
    config_class: Any = None
    initial_core: Callable[..., PyTree] = lambda config, num_envs: ()
    num_steps: Callable[[Any], int] = lambda config: config.num_steps
    make: Callable[..., Algorithm] | None = None
    lane_axis: str | None = None
    num_devices: int = 1


def remake(algo: Algorithm, env: Any) -> Algorithm:
    """Return an algorithm with a `make` on other environments.

    Raises:
      ValueError: if a function was replaced that `make` does not make.
    """
    assert algo.make is not None
    made = algo.make(env, algo.network)
    for name in ("init", "update", "act"):
        own, other = (getattr(getattr(a, name), "__code__", None) for a in (algo, made))
        if own is not other:
            raise ValueError(
                f"the {name} of {algo.name!r} was replaced, but its `make`, which makes it for "
                f"other environments, has another {name}: replace `make` too"
            )
    return made


def check_environments(env: Any) -> None:
    """Raise `ValueError` unless `env` is environments, not a class or an id."""
    names = ("num_envs", "observation_space", "action_space", "init", "step")
    if isinstance(env, type) or not all(hasattr(env, name) for name in names):
        raise checks.refuse("env", "environments, such as jaxrl.make(id, num_envs)", env)


def check_agent(algo: Any, config: Any, has_lanes: bool = False) -> None:
    """Raise `ValueError` unless `algo` is an algorithm with this config, or of lanes."""
    checks.instance("algo", algo, Algorithm, "an algorithm, such as jaxrl.ppo(env)")
    if algo.config_class is not None:
        kind = algo.config_class.__name__
        if type(config).__name__ == kind:  # such as that of a copied file
            kind = f"{algo.config_class.__module__}.{kind}"
        name = "configs" if has_lanes else "config"
        checks.instance(name, config, algo.config_class, f"a config of {algo.name}, a {kind}")
    if not has_lanes:
        checks.one_agent(config)
        try:
            num_steps = algo.num_steps(config)
        except AttributeError as error:
            raise ValueError(
                f"the num_steps of {algo.name!r} fails ({error}): give the Algorithm one that "
                "returns the steps of each environment in an update"
            ) from error
        checks.integer("the config's number of steps", num_steps)
