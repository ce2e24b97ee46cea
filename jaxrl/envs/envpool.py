"""envpool environments (Atari, MuJoCo, ViZDoom, ...), batched on the host.

The C++ pool is called by `jaxrl.envs.host.callback`, which says why. envpool's own XLA custom call
has the pool's address in the program; docs/explanation/benchmark-notes.md compares the speed of
both.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import numpy as np

from jaxrl import checks
from jaxrl.envs.adapter import Keywords
from jaxrl.envs.host import conversions
from jaxrl.envs.host.callback import HostState
from jaxrl.envs.host.errors import lacks_pictures
from jaxrl.envs.host.pools import RawStep, first_step
from jaxrl.envs.host_adapter import POOL_OPTIONS, HostAdapter, HostSpec
from jaxrl.types import PyTree

ATARI_IMPORT_PATH = "envpool.atari"
DEFAULTS = {"envpool.vizdoom": {"use_combined_action": True}}
"""Options that jaxrl sets for a family unless the user does. ViZDoom's buttons become one choice
among the combinations that make sense, instead of one number each."""
FORBIDDEN_OPTIONS = {
    "seed", "env_seed", "num_envs", "batch_size", "env_type", "gym_reset_return_info"
}  # fmt: skip
LEAST_VALUES = {
    "num_threads": 0, "frame_skip": 1, "stack_num": 1, "img_height": 1, "img_width": 1,
    "max_episode_steps": 1, "noop_max": 1,
}  # fmt: skip


def ids() -> list[str]:
    """Return all registered ids, without prefix."""
    return list(_envpool().list_all_envs())


@dataclass(frozen=True)
class EnvpoolEnv(HostAdapter):
    """N environments of envpool; make it with `jaxrl.make("envpool/Pong-v5", num_envs)`.

    The options are those of `HostAdapter` and `envpool.make` (`num_threads` of each pool,
    `max_episode_steps`, and for Atari `episodic_life`, `reward_clip`, `repeat_action_probability`,
    ...). `jaxrl.envs.host.conversions` says what observations and actions become.
    """

    backend: ClassVar[str] = "envpool"

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._spec  # raises an error for bad options

    @property
    def is_atari(self) -> bool:
        return _family(self.name) == ATARI_IMPORT_PATH

    @property
    def _spec(self) -> HostSpec:
        return _spec(self.name, self.keywords)

    def _make_pool(self, seeds: np.ndarray) -> EnvpoolPool:
        return EnvpoolPool(self.name, self.keywords, seeds)

    def for_rendering(self) -> Self:
        return self.for_evaluation(1).with_options(render_mode="rgb_array")

    def render(self, state: HostState) -> np.ndarray:
        if "render_mode" not in self.options:
            raise lacks_pictures()
        return super().render(state)


class EnvpoolPool:
    """A `jaxrl.envs.host.pools.Pool` of envpool."""

    def __init__(self, name: str, keywords: Keywords, seeds: np.ndarray):
        options = _pool_options(name, keywords)
        # Threads beyond one for each environment only wait, and very many end the process.
        options["num_threads"] = min(options.get("num_threads", 0), len(seeds))
        self._envs = _envpool().make(
            name,
            env_type="gymnasium",
            num_envs=len(seeds),
            seed=[int(seed) for seed in seeds],
            **options,
        )
        self._raw = _spec(name, keywords).raw_obs
        self._ended = np.zeros(len(seeds), bool)
        self._is_atari = _family(name) == ATARI_IMPORT_PATH
        self._is_football = name.startswith("gfootball/")
        self._obs: PyTree = None  # the latest

    def reset(self) -> RawStep:
        self._obs = _cast(self._raw, self._envs.reset()[0])
        return first_step(self._obs)

    def send(self, action: np.ndarray) -> None:
        self._envs.send(conversions.to_simulator(self._envs.single_action_space, action))

    def recv(self) -> RawStep:
        obs, reward, terminated, truncated, info = self._envs.recv()
        first, self._ended = self._ended, terminated | truncated
        reward = np.where(first, np.float32(0), reward.astype(np.float32))
        raw_reward, game_over = reward, self._ended
        if self._is_atari:
            raw_reward = info["reward"].astype(np.float32)
            game_over = (info["terminated"] != 0) | truncated
        self._obs = _cast(self._raw, obs)
        truncated = truncated & ~terminated  # some families report both: the last state is terminal
        return RawStep(self._obs, reward, self._ended, truncated, first, raw_reward, game_over)

    def restart(self, where: np.ndarray) -> RawStep:
        fresh, info = self._envs.reset(np.flatnonzero(where).astype(np.int32))
        self._ended = self._ended & ~where

        def replace_rows(all_rows: np.ndarray, rows: np.ndarray) -> np.ndarray:
            all_rows = all_rows.copy()
            all_rows[info["env_id"]] = rows
            return all_rows

        self._obs = jax.tree.map(replace_rows, self._obs, _cast(self._raw, fresh))
        return first_step(self._obs)

    def render(self) -> np.ndarray:
        """Draw the first environment, uint8 `[H, W, 3]`; football as the map its players see."""
        if self._is_football:
            # envpool draws no football. The planes show both teams and the ball.
            return self._obs[0, ..., :3].repeat(4, 0).repeat(4, 1)
        return np.asarray(self._envs.render()[0])

    def close(self) -> None:
        self._envs.close()


def _cast(raw: PyTree, obs: PyTree) -> PyTree:
    """Return a batch of envpool's observations in the types, and with the parts, of raw ones."""
    if isinstance(raw, dict):
        return {name: _cast(part, obs[name]) for name, part in raw.items()}
    return np.asarray(obs).astype(raw.dtype, copy=False)


@functools.cache
def _envpool() -> Any:
    try:
        import envpool
    except ModuleNotFoundError as error:
        raise ImportError(
            "envpool is not installed on this platform (it has wheels for Linux, macOS and "
            "Windows on x86-64 and arm64): pip install envpool, or use another backend's id with "
            "its prefix, such as gymnasium/CartPole-v1"
        ) from error
    except ImportError as error:  # its modules for MuJoCo and football link to OpenGL
        raise ImportError(
            f"envpool is installed, but a library that it needs is not: {error}; for libEGL and "
            "libOpenGL on Debian and Ubuntu: apt-get install libegl1 libopengl0. Ids of other "
            "backends need their prefix meanwhile, such as gymnasium/CartPole-v1"
        ) from error
    return envpool


def _family(name: str) -> str:
    """Return the package of an id's simulator, such as `envpool.atari`."""
    from envpool.registration import registry

    return registry.specs[name][0]


def _pool_options(name: str, keywords: Keywords) -> dict[str, Any]:
    """Return the options for envpool, with jaxrl's defaults."""
    own = {key: value for key, value in keywords if key not in POOL_OPTIONS}
    return DEFAULTS.get(_family(name), {}) | own


@functools.lru_cache(maxsize=256)
def _spec(name: str, keywords: Keywords) -> HostSpec:
    """Check the options and return the spaces, without making a pool."""
    _check_options(name, dict(keywords))
    options = _pool_options(name, keywords)
    options.pop("render_mode", None)  # an option of pools, not of specifications
    try:
        spec = _envpool().make_spec(name, **options)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise ValueError(f"envpool/{name} refuses the options {dict(keywords)}: {error}") from error
    except ImportError as error:
        raise ImportError(f"envpool/{name} cannot run on this machine: {error}") from error
    if spec.config.max_num_players != 1:
        raise ValueError(f"envpool/{name} is a multi-player environment, which jaxrl does not run")
    raw_obs = conversions.raw_observation(spec.observation_space)
    observation_space = conversions.observation_space(spec.observation_space, raw_obs)
    action_space = conversions.action_space(f"envpool/{name}", spec.action_space)
    num_frames = getattr(spec.config, "stack_num", 1)
    return HostSpec(observation_space, action_space, raw_obs, num_frames)


def _check_options(name: str, options: dict[str, Any]) -> None:
    """Raise a ValueError for options that envpool would take, and then crash or ignore them."""
    if forbidden := sorted(options.keys() & FORBIDDEN_OPTIONS):
        raise ValueError(
            f"envpool/{name} does not take the options {forbidden}: num_envs is an argument of "
            "jaxrl.make, seeds come from the key of `init`, and all environments step together"
        )
    for option, least in LEAST_VALUES.items():
        checks.integer(f"{option} of envpool/{name}", options.get(option, least), least)
    option = "repeat_action_probability"
    checks.number(f"{option} of envpool/{name}", options.get(option, 0), checks.UNIT_INTERVAL)
    for option in ("episodic_life", "reward_clip"):
        checks.flag(f"{option} of envpool/{name}", options.get(option, False))
