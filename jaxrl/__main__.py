"""`python -m jaxrl doctor` and `python -m jaxrl envs [PATTERN]`."""

from __future__ import annotations

import fnmatch
import os
import sys
import warnings
from typing import Annotated

import tyro
from rich.console import Console
from rich.markup import escape

from jaxrl.cli.doctor import Finding, examine
from jaxrl.envs import ids, make
from jaxrl.types import Box, Dict, Discrete, Space


def doctor() -> int:
    """Look whether this machine can train: versions, devices, optional parts, self-tests."""
    console, broken = Console(highlight=False, soft_wrap=True), 0
    for finding in examine():
        broken += finding.mark == "broken"
        console.print(line(finding))
    console.print(f"{broken} to repair" if broken else "everything works")
    return 1 if broken else 0


def line(finding: Finding) -> str:
    """A finding, in rich's markup."""
    color = {"ok": "green", "broken": "red"}.get(finding.mark, "yellow")
    advice = f" -> {finding.advice}" if finding.advice else ""
    return f"[{color}]{finding.mark:>7}[/] [bold]{finding.what}[/] {escape(finding.found + advice)}"


def envs(pattern: Annotated[str, tyro.conf.Positional] = "*") -> int:
    """List environments by backend, with their spaces: one a line, id, observations, actions.

    Args:
      pattern: of ids, as in shells; pong means *pong*.
    """
    wanted = pattern if any(c in pattern for c in "*?[") else f"*{pattern}*"
    found = [id for id in ids() if fnmatch.fnmatch(id.lower(), wanted.lower())]
    if not found:
        print(f"no id matches {pattern!r}", file=sys.stderr)
        return 1
    for id in found:
        try:
            with warnings.catch_warnings(action="ignore"):  # of gymnasium, about rounded bounds
                env = make(id)
            print(id, text(env.observation_space), text(env.action_space), sep="  ")
        except (ValueError, ImportError) as error:
            print(id, f"cannot be made here: {str(error).splitlines()[0]}", sep="  ")
    return 0


def text(space: Space) -> str:
    """A space in a few characters: dtype and shape."""
    if isinstance(space, Discrete):
        return f"Discrete({space.n})"
    if isinstance(space, Dict):
        return "{" + ", ".join(f"{name}: {text(part)}" for name, part in space.parts) + "}"
    if isinstance(space, Box):
        return f"{space.dtype.name}{list(space.shape)}"
    return f"MultiDiscrete{list(space.sizes)}"


def main(argv: list[str] | None = None) -> int:
    """The exit status."""
    commands = {"doctor": doctor, "envs": envs}
    try:
        return tyro.extras.subcommand_cli_from_dict(commands, prog="python -m jaxrl", args=argv)
    except BrokenPipeError:  # as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
