"""Gymnasium environments, on the host, batched in worker processes.

Every id of Gymnasium's registry runs; for `"module:Name-v0"` the module is imported first. A
function that returns a `gymnasium.Env` runs, too. The option `vectorization_mode` says how N
environments are stepped together, by Gymnasium's names: "async" (the default) in one worker process
each, "sync" one after another in this process, "vector_entry_point" by the environment's own
batched simulator. Atari through ale-py has such a simulator, in C++ threads, and uses it.

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
import multiprocessing
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from jaxrl import checks
from jaxrl.envs.adapter import Keywords
from jaxrl.envs.host import conversions, worker
from jaxrl.envs.host.ale_pool import AtariPool
from jaxrl.envs.host.errors import SimulatorError, error_of_closing
from jaxrl.envs.host.pools import Pool
from jaxrl.envs.host.vector_pool import Numbered, VectorPool, close
from jaxrl.envs.host.worker_pool import WorkerPool
from jaxrl.envs.host.worker_processes import read_spaces
from jaxrl.envs.host_adapter import POOL_OPTIONS, HostAdapter, HostSpec

ALE = "ALE/"
ATARI_OPTIONS = ("episodic_life", "reward_clip")
ALE_REFUSED = ("continuous", "batch_size", "autoreset_mode", "reward_clipping", "life_loss_info")
"""Keywords of ale-py that `AtariPool` sets itself, or that it cannot step."""
TIMEOUT = checks.Range("a number of seconds > 0, at most 10^6", lambda x: (x > 0) & (x <= 1e6))
MODES = ("async", "sync", "vector_entry_point")


def ids() -> list[str]:
    """Return all registered ids, without prefix; each Atari game once, with `ALE/`."""
    with contextlib.suppress(ImportError):
        import ale_py  # noqa: F401  (registers its games)
    return [
        name
        for name, spec in gymnasium.registry.items()
        if name.startswith(ALE) or not str(spec.entry_point).startswith("ale_py")
    ]


@dataclass(frozen=True)
class GymnasiumEnv(HostAdapter):
    """N environments of Gymnasium; make it with `jaxrl.make("gymnasium/LunarLander-v3", num_envs)`
    or `jaxrl.make(function, num_envs)`.

    The options are those of `HostAdapter`, `vectorization_mode`, `timeout` (seconds within which
    each call of an environment in a worker process must answer, its constructor included), and the
    keywords of the environment itself. Atari has `episodic_life` and `reward_clip` as envpool has
    them, and ale-py's keywords.
    """

    make: Callable[..., Any] | None = dataclasses.field(default=None, kw_only=True)
    """The function that makes an environment, if `name` is not an id of the registry."""

    backend: ClassVar[str] = "gymnasium"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("vectorization_mode", self._mode, MODES)
        checks.number("timeout", self._timeout, TIMEOUT)
        if self.is_atari:
            for name in ATARI_OPTIONS:
                checks.flag(name, self.options.get(name, False))
            if refused := [name for name in ALE_REFUSED if name in self.options]:
                raise ValueError(
                    f"{self.id} does not take {', '.join(refused)}; of ale-py's keywords these "
                    f"are not supported: {', '.join(ALE_REFUSED)}"
                )
        elif self._mode == "vector_entry_point" and self.num_pools > 1:
            raise ValueError(
                f"num_pools must be 1 for {self.id} with vectorization_mode='vector_entry_point', "
                f"got {self.num_pools}: its simulator is seeded as a whole, and overlaps nothing"
            )
        # The main script is run again where workers start. What it makes outside of functions was
        # checked in the trainer, and a process may not be started yet.
        if not getattr(multiprocessing.current_process(), "_inheriting", False):
            _ = self._spec  # raises an error for bad options

    @property
    def is_atari(self) -> bool:
        return self.name.startswith(ALE) and self._mode == "vector_entry_point"

    @property
    def render_fps(self) -> int:
        """Frames a second at which people watch the environment."""
        if self.is_atari:
            return max(1, round(60 / self.options.get("frameskip", 4)))
        return self._spec.render_fps

    def for_rendering(self) -> Self:
        """Return one environment that draws; Atari's batched simulator shows its observations."""
        env = self.for_evaluation(1)
        if self.is_atari:
            return env
        has_single = self.make is None and _find_function(self.name) is None
        mode = "sync" if self._mode == "vector_entry_point" and has_single else self._mode
        return env.with_options(render_mode="rgb_array", vectorization_mode=mode)

    @property
    def _mode(self) -> str:
        processes = "async" if hasattr(os, "fork") else "sync"
        default = "vector_entry_point" if self.name.startswith(ALE) else processes
        return self.options.get("vectorization_mode", default)

    @property
    def _timeout(self) -> float:
        return self.options.get("timeout", 300.0)

    @property
    def _spec(self) -> GymnasiumSpec:
        own = {*POOL_OPTIONS, "timeout", "vectorization_mode"}
        own |= {*ATARI_OPTIONS} if self.is_atari else set()
        keywords = tuple(pair for pair in self.keywords if pair[0] not in own)
        return _spec(self.name, self.make, keywords, self._mode, self._timeout)

    def _make_pool(self, seeds: np.ndarray) -> Pool:
        spec = self._spec
        if self.is_atari:
            episodic_life, reward_clip = (self.options.get(name, False) for name in ATARI_OPTIONS)
            envs = spec.make_batch(len(seeds), reward_clipping=False, life_loss_info=episodic_life)
            return AtariPool(envs, spec.raw_obs, seeds, reward_clip, self.options)
        if self._mode == "async":
            return WorkerPool(spec.make, spec.spaces, spec.raw_obs, seeds, self.id, self._timeout)
        return VectorPool(spec.make_batch(len(seeds)), spec.raw_obs, seeds)


def of_function(make: Callable[..., Any], num_envs: int, keywords: Keywords) -> GymnasiumEnv:
    """Return environments that a function makes; the id is the function's name."""
    return GymnasiumEnv(_name_of(make), num_envs, keywords, make=make)


def _name_of(make: Any) -> str:
    """Return a name that is the same in each process: `module:function`.

    Partial functions are named with their arguments, and objects by their class.
    """
    if isinstance(make, functools.partial):
        named = [f"{name}={_text_of(value)}" for name, value in make.keywords.items()]
        return f"{_name_of(make.func)}({', '.join([*map(_text_of, make.args), *named])})"
    if not hasattr(make, "__qualname__"):
        return f"{_name_of(type(make))}()"
    return f"{make.__module__}:{make.__qualname__}"


def _text_of(argument: Any) -> str:
    """Return an argument as text without addresses in memory."""
    is_plain = isinstance(argument, str | int | float | None)
    return repr(argument) if is_plain else type(argument).__qualname__


# --- specifications ------------------------------------------------------------------------------


@dataclass(frozen=True)
class GymnasiumSpec(HostSpec):
    """A `HostSpec` with the functions that make environments."""

    render_fps: int
    spaces: worker.Spaces
    make: Callable[[], gymnasium.Env]
    make_batch: Callable[..., VectorEnv]
    """`make_batch(num_envs)`, in this process"""


@functools.lru_cache(maxsize=256)
def _spec(
    name: str,
    function: Callable[..., Any] | None,
    keywords: Keywords,
    mode: str,
    timeout: float,
) -> GymnasiumSpec:
    """Make one environment, read its specification and close it."""
    id, options = f"gymnasium/{name}", dict(keywords)
    make, make_batch = _makers(name, function, options, mode)
    try:
        if mode == "async":
            spaces = read_spaces(make, id, timeout)
        else:
            batch = make_batch(1)
            try:
                spaces = worker.read_spaces(batch, "single_")
            finally:
                error_of_closing(functools.partial(close, batch))  # that of the pools is shown
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a simulator may raise anything, such as SystemExit
        raise _explain(id, options, error) from error
    try:
        raw_obs = conversions.raw_observation(spaces.observation)
        space = conversions.observation_space(spaces.observation, raw_obs)
    except ValueError as error:
        raise ValueError(f"{id} cannot be run: {error}") from error
    action_space = conversions.action_space(id, spaces.action)
    fps, num_frames = max(1, round(spaces.render_fps)), None
    return GymnasiumSpec(space, action_space, raw_obs, num_frames, fps, spaces, make, make_batch)


def _explain(id: str, options: dict[str, Any], error: BaseException) -> BaseException:
    """Return the error for an environment that cannot be made."""
    if isinstance(error, SimulatorError):
        kind, summary = error.kind, error.summary
    else:
        kind, summary = worker.classify(error)
    match kind:
        case worker.MISSING:
            return ImportError(f"{id} cannot run on this machine: {summary}")
        case worker.REFUSED if "unexpected keyword argument 'render_mode'" in summary:
            return ValueError(
                f"{id} draws no pictures: let the function that makes it take render_mode and hand "
                f"it on ({summary})"
            )
        case worker.REFUSED:
            refused = f"refuses the options {options}" if options else "cannot be made"
            return ValueError(f"{id} {refused}: {summary}")
        case worker.OTHER:
            return ValueError(f"{id} cannot be made: {summary}")
    return error  # no answer, or a process that died


def _makers(
    name: str, function: Callable[..., Any] | None, options: dict[str, Any], mode: str
) -> tuple[Callable[[], gymnasium.Env], Callable[..., VectorEnv]]:
    """Return a function that makes one environment, and one that makes a batch."""
    function = function or _find_function(name)
    id = f"ale_py:{name}" if name.startswith(ALE) else name  # also imports ale_py in workers
    # A worker lacks what the main script has registered, so it gets the specification.
    make_one = function or functools.partial(gymnasium.make, _find_spec(id))
    make = functools.partial(make_one, **options)
    if mode != "vector_entry_point":
        id = f"gymnasium/{name}"
        return make, lambda num_envs: SyncVectorEnv(
            [functools.partial(Numbered, make, id, slot) for slot in range(num_envs)]
        )
    if function is not None:
        return make, lambda num_envs: function(num_envs=num_envs, **options)
    return make, lambda num_envs, **more: gymnasium.make_vec(
        id, num_envs, vectorization_mode=mode, **options, **more
    )


def _find_spec(id: str) -> Any:
    """Return Gymnasium's specification, or the id itself for which `make` will raise the error."""
    try:
        return gymnasium.spec(id)
    except (ImportError, gymnasium.error.Error):
        return id


def _find_function(name: str) -> Callable[..., Any] | None:
    """Return the function that `"module:function"` names; None for an id of the same form."""
    module, _, function = name.partition(":")
    if not function:
        return None
    if not module or module.startswith("."):
        raise ValueError(
            f"gymnasium/{name} must be an id or module:function, but {module!r} is no module's name"
        )
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise ImportError(f"gymnasium/{name}: there is no module {module!r}: {error}") from error
    if found is None and not re.search(r"-v\d+$", function):  # else an id that the module registers
        advice = " (the script that made it; move it to a module)" if module == "__main__" else ""
        raise ValueError(
            f"gymnasium/{name}: module {module!r}{advice} has no function {function!r}"
        )
    if found is not None and not callable(found):
        raise ValueError(f"gymnasium/{name} must name a function, but it is {found!r:.200}")
    return found
