"""Environments by id: the backends, their ids, and `make`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl import checks
from jaxrl.types import DrawableEnv

BACKENDS = {
    "gymnax": ("jaxrl.envs.gymnax", "GymnaxEnv"),
    "envpool": ("jaxrl.envs.envpool", "EnvpoolEnv"),
    "gymnasium": ("jaxrl.envs.gymnasium", "GymnasiumEnv"),
    "maze": ("jaxrl.envs.maze", "MazeEnv"),
    "probe": ("jaxrl.envs.probes", "ProbeEnv"),
}
"""By id prefix: the adapter's module, which has a function `ids()`, and its class. A module is
imported when its ids are used: gymnax starts JAX's backend, whose devices cannot be chosen later,
and importing all simulators takes a second."""
DEFAULT_BACKENDS = ("gymnax", "envpool", "gymnasium")
"""The backends that are searched, in this order, for an id without a prefix."""


def ids() -> list[str]:
    """Return all ids with their prefix, by backend; a warning names a backend that is absent."""
    found = []
    for backend in BACKENDS:
        try:
            found += [f"{backend}/{name}" for name in _module(backend).ids()]
        except ImportError as error:
            warnings.warn(f"no ids of {backend}: {error}", stacklevel=2)
    return found


def make(id: str | Callable[..., Any], num_envs: int = 1, **options: Any) -> DrawableEnv:
    """Make N environments of one id.

    Args:
      id: `"CartPole-v1"` is searched in gymnax, then in envpool, then in Gymnasium; `"gymnax/..."`,
        `"envpool/..."`, `"gymnasium/..."`, `"maze/..."` and `"probe/..."` choose the backend. Or a
        function that returns a `gymnasium.Env`. An environment with gymnax's interface gets an id
        by `gymnax.register`.
      num_envs: how many are stepped together (N).
      **options: options of the backend, such as `max_steps_in_episode=1000` for gymnax,
        `max_episode_steps=1000` for envpool, or `episodic_life=True` for Atari. Lists become
        tuples.

    Raises:
      ValueError: for an unknown id (near matches are named), bad options, or `num_envs < 1`.
      ImportError: if the id is of a package that is not installed.
    """
    num_envs = checks.integer("num_envs", num_envs)
    keywords = tuple(sorted((key, _hashable(id, key, x)) for key, x in options.items()))
    if callable(id):
        return _module("gymnasium").of_function(id, num_envs, keywords)
    if hasattr(id, "num_envs") and hasattr(id, "init"):
        raise ValueError(
            f"id must be a string or a function, got environments, {id!r:.200}: give them to an "
            "algorithm as they are, such as jaxrl.ppo(env)"
        )
    if not isinstance(id, str):
        raise ValueError(
            f"id must be a string or a function that returns a gymnasium.Env, got {id!r}; in place "
            "of an environment give a function that makes it (lambda: gymnasium.make(...)), and "
            "register one with gymnax's interface by gymnax.register(id, factory)"
        )
    prefix, _, rest = id.partition("/")
    backends, name = ((prefix,), rest) if prefix in BACKENDS else (DEFAULT_BACKENDS, id)
    for backend in backends:
        module = _module(backend)
        if name in module.ids() or (backend == "gymnasium" and ":" in name):
            return getattr(module, BACKENDS[backend][1])(name, num_envs, keywords)
    if name.startswith("ALE/") and importlib.util.find_spec("ale_py") is None:
        raise ImportError(f"{id} needs ale-py: pip install 'jaxrl[gymnasium]'")
    known = {name: f"{b}/{name}" for b in reversed(backends) for name in _module(b).ids()}
    near = [known[match] for match in difflib.get_close_matches(name, known, 5, 0.5)]
    own = "" if prefix in BACKENDS else f"; of your module: 'gymnasium/your_module:{name}'"
    raise ValueError(
        f"unknown environment id {id!r} among {' and '.join(backends)}; "
        + (f"did you mean {', '.join(near)}?" if near else "no id comes near it")
        + own
    )


def _module(backend: str) -> Any:
    return importlib.import_module(BACKENDS[backend][0])


def _hashable(id: Any, key: str, value: Any) -> Any:
    """Return an option's value as a plain hashable one, lists as tuples, or raise a ValueError."""
    if isinstance(value, list | tuple):
        return tuple(_hashable(id, key, part) for part in value)
    try:
        hash(value)
    except TypeError as error:
        raise ValueError(
            f"option {key}={value!r} of {id} must be hashable; put it into a function that makes "
            "the environment"
        ) from error
    return value.item() if isinstance(value, np.generic) else value
