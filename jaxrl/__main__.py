"""The `jaxrl` command, also as `python -m jaxrl`: a subcommand and its flags."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "train": "train one agent from a preset and flags",
    "play": "evaluate a trained agent and film an episode",
    "sweep": "search hyperparameters",
    "report": "name the winner of a study, and show its trials on one HTML page",
    "compare": "compare runs on one HTML page",
    "reproduce": "repeat a recorded result and compare",
    "submit": "submit a command to a cluster",
    "doctor": "check whether this machine can train",
    "envs": "list environments with their spaces",
}
"""Subcommands, each a module `jaxrl.cli.<name>` with a function `main(argv, prog)`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit status."""
    try:
        try:
            return run(list(sys.argv[1:] if argv is None else argv) or ["--help"])
        finally:
            if sys.stdout is not None:  # None: it was closed
                sys.stdout.flush()
    except OSError as error:  # stdout cannot be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(end := error.__context__, SystemExit) and end.code:
            raise end from None  # the command's own error, which came first
        if not isinstance(error, BrokenPipeError):  # as in `jaxrl envs | head`
            print(f"error: stdout: {error}", file=sys.stderr)
        return 1


def run(words: Sequence[str]) -> int:
    """Run the subcommand that the words of a command line name; return the exit status."""
    name, *rest = words
    if name in ("-h", "--help"):
        print("usage: jaxrl COMMAND [flags]; jaxrl COMMAND --help lists its flags\n")
        print("\n".join(f"  {command:9} {purpose}" for command, purpose in COMMANDS.items()))
        return 0
    if name == "--version":
        print(f"jaxrl {importlib.metadata.version('jaxrl')}")
        return 0
    if name not in COMMANDS:
        sys.exit(f"error: jaxrl has no command {name!r}; it has {', '.join(COMMANDS)}")
    from jaxrl.cli.flags.arguments import exit_with_message

    command = importlib.import_module(f"jaxrl.cli.{name}")
    with exit_with_message():
        return command.main(rest, prog=f"jaxrl {name}")


if __name__ == "__main__":
    sys.exit(main())
