"""Gymnasium environments under the `Env` contract: on the host, any number, batched in processes.

Every id of Gymnasium's registry runs, `"module:Name-v0"` is imported first, and so does a function
that gives a `gymnasium.Env`. How N of them are stepped together is the option
`vectorization_mode`, named as in Gymnasium: "async" in a worker process each (the default), "sync"
one after another in this process, "vector_entry_point" by the environment's own batched
simulator. Atari through ale-py has such a one, in C++ threads, and uses it.

Environments of OpenAI's Gym run through shimmy, in such a function:

    def make():
        from shimmy.openai_gym_compatibility import GymV21CompatibilityV0
        return GymV21CompatibilityV0(env=an_old_environment)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from jaxrl.envs import conversions
from jaxrl.envs.host import worker
from jaxrl.envs.host.base import OVERLAPPING, HostedEnv
from jaxrl.envs.host.pools import Pool, RawStep
from jaxrl.envs.host.vector_pool import VectorPool, Workers
from jaxrl.types import ActionSpace, ObservationSpace, PyTree

ALE = "ALE/"
ATARI_OPTIONS = ("episodic_life", "reward_clip")
MODES = ("async", "sync", "vector_entry_point")
Keywords = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class GymnasiumEnv(HostedEnv):
    """N environments of Gymnasium; make it with `jaxrl.make("gymnasium/LunarLander-v3", num_envs)`
    or `jaxrl.make(function, num_envs)`.

    Keywords are those of `HostedEnv`, `vectorization_mode`, `timeout` (seconds within which worker
    processes must answer), and what the environment itself takes. Atari has `episodic_life` and
    `reward_clip` as envpool has them, and ale-py's own. Spaces: `jaxrl.envs.conversions`.
    """

    make: Callable[..., Any] | None = dataclasses.field(default=None, kw_only=True)
    """The function that gives an environment, if it is no id of the registry."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._mode not in MODES:
            raise ValueError(f"vectorization_mode must be one of {MODES}, got {self._mode!r}")
        timeout = self._timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise ValueError(f"timeout must be a number of seconds > 0, got {timeout!r}")
        _ = self._facts

    @property
    def id(self) -> str:
        return f"gymnasium/{self.name}"

    @property
    def is_atari(self) -> bool:
        """Whether this is ale-py's simulator, whose reward may differ from the score."""
        return self.name.startswith(ALE) and self._mode == "vector_entry_point"

    @property
    def observation_space(self) -> ObservationSpace:
        return self._facts.observation_space

    @property
    def action_space(self) -> ActionSpace:
        return self._facts.action_space

    @property
    def render_fps(self) -> int:
        """The speed at which people watch it."""
        if self.is_atari:
            return max(1, round(60 / self.options.get("frameskip", 4)))
        return self._facts.render_fps

    def for_rendering(self) -> Self:
        """Of Atari's batched simulator there are no pictures but the observations."""
        env = self.for_evaluation(1)
        if self.is_atari:
            return env
        return env._with(render_mode="rgb_array", vectorization_mode="sync")

    @property
    def _mode(self) -> str:
        default = "vector_entry_point" if self.name.startswith(ALE) else "async"
        return self.options.get("vectorization_mode", default)

    @property
    def _timeout(self) -> float:
        return self.options.get("timeout", 300.0)

    @property
    def _facts(self) -> Facts:
        own = {*OVERLAPPING, "timeout", "vectorization_mode"}
        own |= {*ATARI_OPTIONS} if self.is_atari else set()
        keywords = tuple(pair for pair in self.keywords if pair[0] not in own)
        return _facts(self.name, self.make, keywords, self._mode)

    @property
    def _raw_obs(self) -> PyTree:
        return self._facts.raw_obs

    def _make_pool(self, seeds: np.ndarray) -> Pool:
        facts = self._facts
        if self.is_atari:
            episodic_life, reward_clip = (self.options.get(name, False) for name in ATARI_OPTIONS)
            envs = facts.make_batch(len(seeds), reward_clipping=False, life_loss_info=episodic_life)
            return AtariPool(envs, facts.raw_obs, seeds, reward_clip)
        if self._mode == "async":
            envs = Workers(facts.make, len(seeds), self._timeout)
        else:
            envs = facts.make_batch(len(seeds))
        return VectorPool(envs, facts.raw_obs, seeds)

    def _observe(self, raw_obs: PyTree) -> PyTree:
        return conversions.arrange(self._facts.observation_space, self._facts.raw_obs, raw_obs)


def of_function(make: Callable[..., Any], num_envs: int, keywords: Keywords) -> GymnasiumEnv:
    """Environments that a function gives; the id names it."""
    name = f"{getattr(make, '__module__', '?')}:{getattr(make, '__qualname__', repr(make))}"
    return GymnasiumEnv(name, num_envs, keywords, make=make)


def ids() -> list[str]:
    """All registered ids, without prefix; of Atari's many names for a game, the namespaced one."""
    with contextlib.suppress(ImportError):
        import ale_py  # noqa: F401  (registers its games)
    return [
        name
        for name, spec in gymnasium.registry.items()
        if name.startswith(ALE) or not str(spec.entry_point).startswith("ale_py")
    ]


class AtariPool(VectorPool):
    """ale-py's simulator: lost lives as ends and clipped rewards for the learner, scores of games.

    Its threads simulate from when a step is begun. A game goes on when a life is lost, as in
    envpool: a step of FIRE, or of nothing in games without, leads to the new episode's first
    observation. If it is paid, that belongs to the score alone.
    """

    envs: Any

    def __init__(self, envs: Any, raw: PyTree, seeds: np.ndarray, reward_clip: bool):
        super().__init__(envs, raw, seeds)
        self._reward_clip = reward_clip
        self._lives = np.zeros(len(seeds), int)
        self._picture = np.zeros(raw.shape[1:], np.uint8)
        actions = [action.name for action in envs.ale.get_action_set()]
        self._first_action = actions.index("FIRE") if "FIRE" in actions else 0

    def reset(self) -> RawStep:
        step = super().reset()
        self._picture = step.obs[0, -1]
        return step

    def send(self, action: np.ndarray) -> None:
        super().send(np.where(self.ended, self._first_action, action))

    def _send(self, action: np.ndarray) -> None:
        self.envs.send(action)

    def _recv(self) -> tuple[Any, ...]:
        return self.envs.recv()

    def _next(
        self, obs: PyTree, reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> RawStep:
        step = super()._next(obs, reward, terminated, truncated, info)
        self._picture = step.obs[0, -1]
        lives, before = info["lives"], self._lives
        self._lives = lives
        only_a_life = (lives > 0) & (lives < before)
        return step._replace(
            reward=np.sign(step.reward) if self._reward_clip else step.reward,
            raw_reward=reward.astype(np.float32),
            game_over=truncated | (terminated & ~only_a_life),
        )

    def render(self) -> np.ndarray:
        """The latest frame that the first environment's agent sees."""
        picture = self._picture.repeat(3, 0).repeat(3, 1)
        return picture if picture.ndim == 3 else np.stack([picture] * 3, -1)

    @property
    def _is_of_single(self) -> bool:
        return True

    def _seeds_for_reset(self) -> np.ndarray:
        return self._seeds


# --- what is known before a pool is made ---------------------------------------------------------


class Facts(NamedTuple):
    """Of one environment, and how it is made."""

    observation_space: ObservationSpace
    action_space: ActionSpace
    raw_obs: PyTree  # of jax.ShapeDtypeStruct
    render_fps: int
    make: Callable[[], gymnasium.Env]
    make_batch: Callable[..., VectorEnv]
    """`make_batch(num_envs)`, in this process"""


@functools.lru_cache(maxsize=256)
def _facts(name: str, function: Callable[..., Any] | None, keywords: Keywords, mode: str) -> Facts:
    """Make one environment and look at it."""
    id, options = f"gymnasium/{name}", dict(keywords)
    make, make_batch = _makers(name, function, options, mode)
    try:
        with contextlib.closing(make_batch(1)) as batch:
            observations, actions = batch.single_observation_space, batch.single_action_space
            fps = batch.metadata.get("render_fps", 30)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise ImportError(f"{id} cannot run on this machine: {error}") from error
    except (TypeError, ValueError, AssertionError, gymnasium.error.Error) as error:
        refused = f"refuses the options {options}" if options else "cannot be made"
        raise ValueError(f"{id} {refused}: {error}") from error
    except Exception as error:  # whatever a simulator raises
        raise ValueError(f"{id} cannot be made: {type(error).__name__}: {error}") from error
    try:
        raw_obs = conversions.raw_observation(observations)
        space = conversions.observation_space(observations, raw_obs)
    except ValueError as error:
        raise ValueError(f"{id} cannot be run: {error}") from error
    return Facts(
        space, conversions.action_space(id, actions), raw_obs, max(1, round(fps)), make, make_batch
    )


def _makers(
    name: str, function: Callable[..., Any] | None, options: dict[str, Any], mode: str
) -> tuple[Callable[[], gymnasium.Env], Callable[..., VectorEnv]]:
    """What makes one environment, and what a batch of them."""
    function = function or _function_named(name)
    id = f"ale_py:{name}" if name.startswith(ALE) else name  # imports it, in workers too
    # Workers do not know what the main script has registered, unless they are told.
    known = function or functools.partial(gymnasium.make, _spec(id))
    make = functools.partial(known, **options)
    if mode != "vector_entry_point":
        start = functools.partial(worker.start, make, os.getpid())
        return make, lambda num_envs: SyncVectorEnv([start] * num_envs)
    if function is not None:
        return make, lambda num_envs: function(num_envs=num_envs, **options)
    return make, lambda num_envs, **more: gymnasium.make_vec(
        id, num_envs, vectorization_mode=mode, **options, **more
    )


def _spec(id: str) -> Any:
    """The id itself, if making it will say what is wrong."""
    try:
        return gymnasium.spec(id)
    except (ImportError, gymnasium.error.Error):
        return id


def _function_named(name: str) -> Callable[..., Any] | None:
    """`"module:function"`, if there is such a one; Gymnasium has ids of that form too."""
    module, _, function = name.partition(":")
    if not function:
        return None
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise ImportError(f"gymnasium/{name}: there is no module {module!r}: {error}") from error
    if found is not None and not callable(found):
        raise ValueError(f"gymnasium/{name}: it is no function, but {found!r:.200}")
    return found
