"""List environments with their spaces: one a line, id, observations, actions.

jaxrl envs
jaxrl envs pong
jaxrl envs 'envpool/*Maze*'
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxrl.envs import ids, make
from jaxrl.envs.host.errors import SimulatorError
from jaxrl.spaces import Box, Dict, Discrete, Space


def main(argv: Sequence[str], prog: str | None = None) -> int:
    """Print the environments that match a pattern; return the exit status."""
    return tyro.cli(list_environments, args=argv, prog=prog)


def list_environments(pattern: Annotated[str, tyro.conf.Positional] = "*") -> int:
    """List environments by backend with their spaces: id, observations, actions.

    Args:
      pattern: Pattern of ids, as in shells. Without *, ? or [ it matches every id that contains it.
    """
    wanted = pattern if any(c in pattern for c in "*?[") else f"*{pattern}*"
    found = [id for id in ids() if fnmatch.fnmatch(id.lower(), wanted.lower())]
    if not found:
        raise ValueError(f"no environment id matches {pattern!r}; `jaxrl envs` lists all")
    for id in found:
        try:
            with warnings.catch_warnings(action="ignore"):  # gymnasium's about rounded bounds
                env = make(id)
            print(id, describe(env.observation_space), describe(env.action_space), sep="  ")
        except (ValueError, ImportError, SimulatorError) as error:
            print(id, f"cannot be made here: {str(error).splitlines()[0]}", sep="  ")
    return 0


def describe(space: Space) -> str:
    """Return a space's dtype and shape, or its number of actions, in a few characters."""
    if isinstance(space, Discrete):
        return f"Discrete({space.n})"
    if isinstance(space, Dict):
        return "{" + ", ".join(f"{name}: {describe(part)}" for name, part in space.parts) + "}"
    if isinstance(space, Box):
        return f"{space.dtype.name}{list(space.shape)}"
    return f"MultiDiscrete{list(space.sizes)}"
