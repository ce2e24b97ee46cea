"""How scripts end that cannot go on: with one line, not with a trace."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def exit_with_message() -> Iterator[None]:
    """Bad values, missing extras, full disks and failed simulators end the program with one line
    and status 1, Ctrl-C ends it with 130."""
    try:
        yield
    except (ValueError, ImportError, OSError, FloatingPointError) as error:
        sys.exit(f"error: {error}")
    except jax.errors.JaxRuntimeError as error:
        sys.exit(f"error: {plain_text(error)}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def plain_text(error: jax.errors.JaxRuntimeError) -> str:
    """What went wrong while a program ran, without the traces of those who passed it on."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" in text:
        return (
            f"{text.splitlines()[0]}; fewer --num-envs or --num-steps, a smaller network or, where "
            "there is one, --replay-size need less"
        )
    _, found, rest = text.rpartition("WorkerError: ")
    return rest if found else text
