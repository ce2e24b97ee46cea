"""Environments: one adapter a file, all under the `Env` contract, found by `make`."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from jaxrl.envs.lazy_imports import defer_import
from jaxrl.types import Env

# gymnax computes when it is imported, and that starts JAX's backend, after which nobody can choose
# its devices. It also imports what draws its games, which takes more than a second. Gymnasium takes
# a fifth of a second.
defer_import("gymnax", ("seaborn", "matplotlib", "matplotlib.colors", "matplotlib.pyplot"))
defer_import("jaxrl.envs.gymnasium")
from jaxrl.envs import envpool, gymnasium, gymnax, maze, probes  # noqa: E402

_BACKENDS: dict[str, tuple[ModuleType, str]] = {
    "gymnax": (gymnax, "GymnaxEnv"),
    "envpool": (envpool, "EnvpoolEnv"),
    "gymnasium": (gymnasium, "GymnasiumEnv"),
    "maze": (maze, "MazeEnv"),
    "probe": (probes, "ProbeEnv"),
}
BARE_IDS = ("gymnax", "envpool", "gymnasium")
"""Where ids without a prefix are looked up, in this order."""


def ids() -> list[str]:
    """All ids with their prefix, by backend."""
    return [f"{name}/{id}" for name, (module, _) in _BACKENDS.items() for id in module.ids()]


def make(id: str | Callable[..., Any], num_envs: int = 1, **options: Any) -> Env:
    """Make N environments of one id.

    Args:
      id: `"CartPole-v1"` looks in gymnax, then in envpool, then in Gymnasium; `"gymnax/..."`,
        `"envpool/..."`, `"gymnasium/..."`, `"maze/..."` and `"probe/..."` force the backend. Or a
        function that gives a `gymnasium.Env`. One of gymnax's kind of your own gets an id by
        `gymnax.register`.
      num_envs: how many are stepped together (N).
      **options: go to the backend, such as `max_episode_steps=1000` or `episodic_life=True`.

    Raises:
      ValueError: for an unknown id (near matches are named), bad options, or `num_envs < 1`.
    """
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise ValueError(f"num_envs must be an integer >= 1, got {num_envs!r}")
    for key, value in options.items():
        try:
            hash(value)
        except TypeError as error:
            raise ValueError(
                f"option {key}={value!r} of {id} must be hashable; pass a tuple, not a list"
            ) from error
    options = {k: v.item() if isinstance(v, np.generic) else v for k, v in options.items()}
    keywords = tuple(sorted(options.items()))
    if callable(id):
        return gymnasium.of_function(id, num_envs, keywords)
    if not isinstance(id, str):
        raise ValueError(
            f"an id or a function that makes a gymnasium.Env, got {id!r}; an environment of "
            "gymnax's kind gets an id by gymnax.register(id, factory)"
        )
    backend, _, name = id.partition("/")
    candidates = [backend] if backend in _BACKENDS else BARE_IDS
    name = name if backend in _BACKENDS else id
    for candidate in candidates:
        module, env_class = _BACKENDS[candidate]
        if name in module.ids() or (candidate == "gymnasium" and ":" in name):
            return getattr(module, env_class)(name, num_envs, keywords)
    known = {n: f"{c}/{n}" for c in reversed(candidates) for n in _BACKENDS[c][0].ids()}
    near = [known[n] for n in difflib.get_close_matches(name, known, 5, 0.5)]
    raise ValueError(
        f"unknown environment id {id!r} among {' and '.join(candidates)}; "
        + (f"did you mean {', '.join(near)}?" if near else "no id comes near it")
    )
