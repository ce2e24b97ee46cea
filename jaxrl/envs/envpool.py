"""envpool environments (Atari, MuJoCo, ViZDoom, ...) under the `Env` contract: host, batched.

The C++ pool is reached through `jaxrl.envs.host.callback`, a callback, and not by envpool's own XLA custom
call, which has the pool's address in the program: see there for what that buys, and
experiments/benchmarks/NOTES.md for what it costs.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from jaxrl.envs import conversions
from jaxrl.envs.host.base import OVERLAPPING, HostedEnv
from jaxrl.envs.host.callback import HostState
from jaxrl.envs.host.pools import RawStep
from jaxrl.envs.lazy_imports import set_aside
from jaxrl.types import ActionSpace, ObservationSpace, PyTree

ATARI_IMPORT_PATH = "envpool.atari"
DEFAULTS = {"envpool.vizdoom": {"use_combined_action": True}}
"""Options of a family that jaxrl sets unless told otherwise: Doom's buttons are one choice among
the combinations that make sense, not a number each."""


@dataclass(frozen=True)
class EnvpoolEnv(HostedEnv):
    """N environments of envpool; make it with `jaxrl.make("envpool/Pong-v5", num_envs)`.

    Keywords are those of `HostedEnv` and `envpool.make` (`num_threads` of each pool,
    `max_episode_steps`, and for Atari `episodic_life`, `reward_clip`, `repeat_action_probability`,
    ...). Images become channels-last, float64 becomes float32, integer observations one-hot,
    integer Box actions `MultiDiscrete`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _facts(self.name, self.keywords)

    @property
    def id(self) -> str:
        return f"envpool/{self.name}"

    @property
    def is_atari(self) -> bool:
        """Whether the score that people report may differ from the reward."""
        return self._facts.is_atari

    @property
    def observation_space(self) -> ObservationSpace:
        return self._facts.observation_space

    @property
    def action_space(self) -> ActionSpace:
        return self._facts.action_space

    def for_rendering(self) -> Self:
        return self.for_evaluation(1)._with(render_mode="rgb_array")

    def render(self, state: HostState) -> np.ndarray:
        if "render_mode" not in self.options:
            raise ValueError("this environment was made without pictures; use env.for_rendering()")
        return super().render(state)

    @property
    def _facts(self) -> Facts:
        return _facts(self.name, self.keywords)

    @property
    def _raw_obs(self) -> PyTree:
        return self._facts.raw_obs

    def _make_pool(self, seeds: np.ndarray) -> Pool:
        return Pool(self.name, self.keywords, seeds)

    def _observe(self, raw_obs: PyTree) -> PyTree:
        return conversions.arrange(self._facts.observation_space, self._facts.raw_obs, raw_obs)


class Facts(NamedTuple):
    """What is known of an id before a pool is made."""

    observation_space: ObservationSpace
    action_space: ActionSpace
    raw_obs: PyTree  # of jax.ShapeDtypeStruct, for one environment
    raw_actions: Any  # envpool's space
    is_atari: bool


def ids() -> list[str]:
    """All registered ids, without prefix."""
    return list(_envpool().list_all_envs())


@functools.cache
def _envpool() -> Any:
    try:
        with set_aside(*_families()):
            import envpool
    except ImportError as error:
        raise ImportError(
            "envpool is not installed on this platform (it has wheels for Linux, macOS and "
            "Windows on x86-64 and arm64): pip install envpool, or use a gymnax id"
        ) from error
    return envpool


def _families() -> list[str]:
    """Packages of simulators, which are loaded when one of their ids is used.

    All together take a third of a second; their ids are registered without them.
    """
    spec = importlib.util.find_spec("envpool")
    roots = [] if spec is None else [Path(path) for path in spec.submodule_search_locations or ()]
    return [
        ".".join(("envpool", *found.parent.relative_to(root).parts))
        for root in roots
        for pattern in ("*/registration.py", "*/*/registration.py")
        for found in root.glob(pattern)
    ]


@functools.lru_cache(maxsize=256)
def _facts(name: str, keywords: tuple[tuple[str, Any], ...]) -> Facts:
    from envpool.registration import registry

    taken = sorted({key for key, _ in keywords} & _NOT_OPTIONS)
    if taken:
        raise ValueError(
            f"envpool/{name} does not take the options {taken}: num_envs is an argument of "
            "jaxrl.make, seeds come from the key of `init`, and all environments step together"
        )
    _check_options(name, dict(keywords))
    try:
        spec = _envpool().make_spec(name, **_spec_keywords(name, keywords))
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"envpool/{name} refuses the options {dict(keywords)}: {error}") from error
    except ImportError as error:
        raise ImportError(f"envpool/{name} cannot run on this machine: {error}") from error
    if spec.config.max_num_players != 1:
        raise ValueError(f"envpool/{name} is a multi-player environment, which jaxrl does not run")
    raw_obs = conversions.raw_observation(spec.observation_space)
    return Facts(
        observation_space=conversions.observation_space(spec.observation_space, raw_obs),
        action_space=conversions.action_space(f"envpool/{name}", spec.action_space),
        raw_obs=raw_obs,
        raw_actions=spec.action_space,
        is_atari=registry.specs[name][0] == ATARI_IMPORT_PATH,
    )


def _check_options(name: str, options: dict[str, Any]) -> None:
    """envpool would take them, and crash later or not at all."""
    for option, least in _LEAST.items():
        value = options.get(option, least)
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise ValueError(f"{option} of envpool/{name} must be an integer >= {least}: {value!r}")
    if not 0 <= options.get("repeat_action_probability", 0) <= 1:
        value = options["repeat_action_probability"]
        raise ValueError(f"repeat_action_probability must be within [0, 1], got {value!r}")
    for option in ("episodic_life", "reward_clip"):
        if not isinstance(options.get(option, False), bool):
            raise ValueError(f"{option} must be True or False, got {options[option]!r}")


_LEAST = {"num_threads": 0, "frame_skip": 1, "stack_num": 1, "img_height": 1, "img_width": 1,
          "max_episode_steps": 1}  # fmt: skip
_NOT_OPTIONS = {"seed", "env_seed", "num_envs", "batch_size", "env_type", "gym_reset_return_info"}


def _spec_keywords(name: str, keywords: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """`render_mode` belongs to the pool, not to its specification."""
    pool_keywords = _pool_keywords(name, keywords)
    return {key: value for key, value in pool_keywords.items() if key != "render_mode"}


def _pool_keywords(name: str, keywords: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    from envpool.registration import registry

    own = {key: value for key, value in keywords if key not in OVERLAPPING}
    return DEFAULTS.get(registry.specs[name][0], {}) | own


class Pool:
    """An envpool on the host, which `jaxrl.envs.host.callback` steps."""

    def __init__(self, name: str, keywords: tuple[tuple[str, Any], ...], seeds: np.ndarray):
        self._facts = _facts(name, keywords)
        self._envs = _envpool().make(
            name,
            env_type="gymnasium",
            num_envs=len(seeds),
            seed=[int(seed) for seed in seeds],
            **_pool_keywords(name, keywords),
        )
        self._ended = np.zeros(len(seeds), bool)
        self._is_football = name.startswith("gfootball/")
        self._obs: PyTree = None  # the latest

    def reset(self) -> RawStep:
        obs, _ = self._envs.reset()
        self._obs = self._cast(obs)
        no = np.zeros_like(self._ended)
        zeros = np.zeros(len(no), np.float32)
        return RawStep(self._obs, zeros, no, no, no, zeros, no)

    def send(self, action: np.ndarray) -> None:
        self._envs.send(conversions.to_simulator(self._facts.raw_actions, action))

    def recv(self) -> RawStep:
        obs, reward, terminated, truncated, info = self._envs.recv()
        first, self._ended = self._ended, terminated | truncated
        reward = reward.astype(np.float32)
        raw_reward, game_over = reward, self._ended
        if self._facts.is_atari:
            raw_reward = info["reward"].astype(np.float32)
            game_over = (info["terminated"] != 0) | truncated
        self._obs = self._cast(obs)
        return RawStep(
            self._obs, reward * ~first, self._ended, truncated, first, raw_reward, game_over
        )

    def restart(self, where: np.ndarray) -> RawStep:
        size = len(self._ended)
        obs = jax.tree.map(lambda raw: np.zeros((size, *raw.shape), raw.dtype), self._facts.raw_obs)
        no, zeros = np.zeros(size, bool), np.zeros(size, np.float32)
        if where.any():
            new, info = self._envs.reset(np.flatnonzero(where).astype(np.int32))
            for all_rows, rows in zip(
                jax.tree.leaves(obs), jax.tree.leaves(self._cast(new)), strict=True
            ):
                all_rows[info["env_id"]] = rows
            self._ended = self._ended & ~where
        return RawStep(obs, zeros, no, no, no, zeros, no)

    def render(self) -> np.ndarray:
        """The first environment, uint8 `[H, W, 3]`; football's as the players see its map."""
        if self._is_football:
            # Of a player's map the planes of both teams and of the ball; envpool draws nothing.
            return self._obs[0, ..., :3].repeat(4, 0).repeat(4, 1)
        return np.asarray(self._envs.render()[0])

    def close(self) -> None:
        self._envs.close()

    def _cast(self, obs: PyTree) -> PyTree:
        raw = self._facts.raw_obs
        return jax.tree.map(lambda raw, x: np.asarray(x).astype(raw.dtype, copy=False), raw, obs)
