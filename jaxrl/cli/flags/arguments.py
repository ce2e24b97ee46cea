"""What commands share: types of flags, `name=value` texts, errors of one line."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import math
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import jax
from rich.console import Console
from tyro.constructors import PrimitiveConstructorSpec

from jaxrl import config as fields
from jaxrl.envs.host.errors import SimulatorError, message_in
from jaxrl.training.compilation import is_out_of_memory

WIDE = 200
"""Columns of tables that are not printed to a terminal."""


def table_console() -> Console:
    """Return where tables are printed: as wide as the terminal, or `WIDE` where there is none."""
    return Console(width=None if is_terminal() else WIDE)


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()  # None: it was closed


def find_own_modules() -> None:
    """Let environments be modules of the working directory (`gymnasium/module:function`).

    Only for commands that name or trust such a module: in a stranger's directory, a file could bear
    the name of an optional package, and be imported in its place.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def parse_integer(text: str) -> int:
    """Return an integer, also from the ways in which people write large ones: `10_000_000`, `1e7`.

    Raises:
      ValueError: if the text is not a number, or the number is not whole.
    """
    for kind in (int, float):
        with contextlib.suppress(ValueError, OverflowError):
            if (number := kind(text)) == int(number):
                return int(number)
    raise ValueError(f"{text!r} is not a whole number")


LargeInteger = Annotated[
    int,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: parse_integer(words[0]),
        is_instance=lambda value: type(value) is int,
        str_from_instance=lambda value: [str(value)],
    ),
]
"""The type of a flag that counts steps."""


def split_pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Return the values of `name=value` texts by name.

    Raises:
      ValueError: if a text has no `=`; the message names the flag.
    """
    for text in texts:
        if "=" not in text:
            raise ValueError(f"{flag} takes name=value, got {text!r}")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def parse_pairs(texts: Sequence[str], flag: str) -> dict[str, Any]:
    """Return the values of `name=value` texts by name: Python literals, or else strings.

    Raises:
      ValueError: if a text has no `=`, or a value is nested too deep; the message names the flag.
    """

    def parse(text: str) -> Any:
        try:
            return evaluate_literal(ast.parse(text.lstrip(" \t"), mode="eval").body)
        except (ValueError, SyntaxError, TypeError):
            return text
        except (RecursionError, MemoryError) as error:
            raise ValueError(f"{flag}: {text[:40]!r}... is nested too deep") from error

    return {name: parse(value) for name, value in split_pairs(texts, flag).items()}


def evaluate_literal(node: ast.expr) -> Any:
    """Return the value of a Python literal, in which `inf` is the number.

    Raises:
      ValueError: if it is no literal.
    """
    return ast.literal_eval(_InfinityAsNumber().visit(node))


class _InfinityAsNumber(ast.NodeTransformer):
    """Writes `inf`, for which Python has no literal, as a number that is infinite."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(math.inf) if node.id == "inf" else node


def write_pair(name: str, value: Any) -> str:
    """Return the `name=value` text that `parse_pairs` reads as this value."""
    text = f"{name}={value}"
    return text if repr(parse_pairs([text], "")[name]) == repr(value) else f"{name}={value!r}"


def parse_env_options(texts: Sequence[str]) -> dict[str, Any]:
    """Return the backend's options that `--env-options` gives.

    Raises:
      ValueError: if they include the number of environments, which has a flag of its own.
    """
    options = parse_pairs(texts, "--env-options")
    if "num_envs" in options:
        raise ValueError("--env-options cannot set num_envs; use --num-envs")
    return options


def set_fields(config: Any, texts: Sequence[str]) -> Any:
    """Return a config with the values that `--set name=value` gives.

    Raises:
      ValueError: if the config lacks a field, or refuses a value.
    """
    names = {field.name for field in dataclasses.fields(config)}
    changes = fields.with_current_names(parse_pairs(texts, "--set"))
    if unknown := sorted(set(changes) - names):
        raise ValueError(
            f"--set: {type(config).__name__} has no fields {unknown}; it has {sorted(names)}"
        )
    try:
        return config.replace(**{name: fields.from_json(x) for name, x in changes.items()})
    except ValueError as error:
        raise ValueError(f"--set: {error}") from error


def flags_of(*classes: Any) -> dict[str, str]:
    """Return the flags of dataclasses by the names of their fields."""
    names = [field.name for cls in classes for field in dataclasses.fields(cls)]
    return {name: f"--{name.replace('_', '-')}" for name in names}


@contextlib.contextmanager
def naming_flags(flags: Mapping[str, str]) -> Iterator[None]:
    """Let an error about an argument name its flag: `--gamma must be`, not `PPOConfig.gamma`.

    An error that does not begin with a name is not about a flag, but for instance about a file.

    Args:
      flags: by names of arguments, which may follow the name of a class and a dot.
    """

    def flag(match: re.Match[str]) -> str:
        is_name = match[1] or "_" in match[2] or not match.start()
        return flags.get(match[2], match[0]) if is_name else match[0]

    try:
        yield
    except ValueError as error:
        text = str(error)
        begin = re.match(r"(?:[A-Z]\w*\.)?(\w+)(?: (?:must|\*)|( ?=| of ))", text)
        if begin is None or (begin[2] and begin[1] not in flags):
            raise
        raise ValueError(re.sub(r"(?<!['\"])\b([A-Z]\w*\.)?([a-z]\w*)\b", flag, text)) from error


@contextlib.contextmanager
def exit_with_message() -> Iterator[None]:
    """End the program with one line instead of a traceback; show warnings as one line, too.

    Bad values, missing packages, full disks and failed simulators end it with status 1, Ctrl-C with
    130.
    """
    with_source = warnings.formatwarning

    def format_warning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int,
        line: str | None = None,
    ) -> str:  # fmt: skip
        if category is not UserWarning:  # it is of interest to programmers
            return with_source(message, category, filename, lineno, line)
        return f"warning: {printable(str(message))}\n"

    warnings.formatwarning = format_warning
    try:
        yield
    except BrokenPipeError:  # `jaxrl envs | head` ends quietly: see jaxrl.__main__
        raise
    except (ValueError, ImportError, OSError, FloatingPointError, SimulatorError) as error:
        sys.exit(f"error: {printable(str(error))}")
    except jax.errors.JaxRuntimeError as error:
        sys.exit(f"error: {explain_runtime_error(error)}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception:
        if (problem := explain_missing_devices()) is not None:
            sys.exit(f"error: {problem}")
        raise
    finally:
        warnings.formatwarning = with_source


def printable(text: str) -> str:
    """Return a text with its control characters escaped, but for ends of lines and tabs.

    Texts from files of others could otherwise command the terminal.
    """
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def explain_missing_devices() -> str | None:
    """Return why JAX has no device to compute on; None if it has one."""
    try:
        jax.devices()
    except Exception as error:  # JAX's own are of several types, some without a text
        if not (asked := os.environ.get("JAX_PLATFORMS")):
            return f"JAX finds no device: {error!r}"
        return (
            f"JAX_PLATFORMS={asked}, but JAX finds no such device; unset it, or for an NVIDIA GPU "
            "run pip install -c constraints.txt -e '.[cuda]'"
        )
    return None


def explain_runtime_error(error: jax.errors.JaxRuntimeError) -> str:
    """Return why a compiled program failed, without the tracebacks that XLA adds."""
    text = str(error)
    if is_out_of_memory(error):
        return (
            f"{text.splitlines()[0]}; use less memory: lower --num-envs, --num-steps or "
            "--replay-size, or take a smaller network"
        )
    return message_in(error) or text
