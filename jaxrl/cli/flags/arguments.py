"""What commands share: types of flags, `name=value` texts, files of flags, errors of one line."""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import itertools
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import yaml
from tyro.constructors import PrimitiveConstructorSpec

from jaxrl import config as fields
from jaxrl.envs.host.errors import SimulatorError, message_in
from jaxrl.envs.trust import code_named_by
from jaxrl.files import schema


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


PAIR_FLAGS = ("env_options", "set", "space")
"""Names of the flags that take several `name=value` texts."""
LENGTH_FLAGS = {"anneal", "total_steps", "num_envs", "num_steps", "min_training_batch"}
"""Names of the flags on which the number of updates depends, or whether to anneal over them."""


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
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError):
            return text
        except (RecursionError, MemoryError) as error:
            raise ValueError(f"{flag}: {text[:40]!r}... is nested too deep") from error

    return {name: parse(value) for name, value in split_pairs(texts, flag).items()}


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
    changes = {name: tuple(x) if isinstance(x, list) else x for name, x in changes.items()}
    try:
        return config.replace(**changes)
    except ValueError as error:
        raise ValueError(f"--set: {error}") from error


def parse_with_file(
    argv: Sequence[str],
    parse: Callable[[Sequence[str]], Any],
    read_options: Callable[[Any], dict[str, Any]],
    algorithm: str | None = None,
) -> Any:
    """Return the arguments of the flags in the file of `--config` and of `argv`, which change them.

    Flags of `name=value` texts may be repeated, and change single names.

    Args:
      argv: a command line, with or without `--config FILE`.
      parse: the parser of command lines without it.
      read_options: returns the environment's options that arguments name.
      algorithm: as for `read_config_file`.

    Raises:
      ValueError: if the file's environment runs code that it names: a file is data.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", type=Path, nargs="?")  # tyro tells of a missing value
    if (file := finder.parse_known_args(argv)[0].config) is None:
        return parse(_join_pairs(argv))
    at = next(i for i, word in enumerate(argv) if word.partition("=")[0] == "--config")
    flags = [*argv[:at], *argv[at + (1 if "=" in argv[at] else 2) :]]
    given = {_flag_in(word).removeprefix("no_") for word in flags}
    words = read_config_file(file, algorithm, given)
    if any(word.partition("=")[0] == "--config" for word in [*words, *flags]):
        raise ValueError("--config can be given once, and not within its file")
    args = parse(_join_pairs([*words, *flags]))
    if found := code_named_by(args.env_id, read_options(args)):
        own = parse(_join_pairs(flags))
        if (own.env_id, own.env_options) != (args.env_id, args.env_options):
            raise ValueError(
                f"--config: the environment of {file} {found}; if you trust that, leave env_id "
                "and env_options out of the file and give them as flags"
            )
    return args


def _flag_in(word: str) -> str:
    """Return the name of the flag that a word of a command line gives; "" for other words."""
    flag = word.partition("=")[0]
    return flag[2:].replace("-", "_") if flag.startswith("--") else ""


def _join_pairs(words: Sequence[str]) -> list[str]:
    """Return a command line with each of `PAIR_FLAGS` once: tyro would take the last one only."""
    others: list[str] = []
    pairs: dict[str, list[str]] = {}
    target = others
    for word in words:
        if (name := _flag_in(word)) in PAIR_FLAGS:
            flag, equals, value = word.partition("=")
            target = pairs.setdefault(name, [flag])
            target += [value] if equals else []
            continue
        target = others if name else target
        target.append(word)
    return [*others, *itertools.chain.from_iterable(pairs.values())]


def read_config_file(path: Path, algorithm: str | None, given: Collection[str] = ()) -> list[str]:
    """Return the words of a command line that a file stands for.

    Args:
      path: of a YAML file that gives flags their values (`env_id: Pong-v5`), or of a run's
        `manifest.json`.
      algorithm: of the command; a manifest's must be the same. None if it takes no manifests.
      given: names of the flags on the command line. They replace options of the environment with
        the same names.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is no such file, or the manifest is another algorithm's.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"--config: {path} is no YAML: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("config"), dict):
        if algorithm is None:
            raise ValueError(f"--config: {path} is of a run or sweep; give a YAML file of flags")
        content = _flags_of_manifest(path, algorithm, given)
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError(f"--config: {path} must give flags their values, as in `env_id: Pong-v5`")
    words: list[str] = []
    for name, value in content.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
            continue
        if isinstance(value, dict):
            # The text of a distribution is code, other texts are literals.
            text = str if name == "space" else repr
            replaced = given if name == "env_options" else ()
            value = [f"{key}={text(x)}" for key, x in value.items() if key not in replaced]
        words += [f"--{flag}", *map(str, value if isinstance(value, list) else [value])]
    return words


def _flags_of_manifest(path: Path, algorithm: str, given: Collection[str]) -> dict[str, Any]:
    """Return the flags that repeat a run, by name."""
    manifest = schema.read(path, schema.MANIFEST, fields.with_current_names)
    if manifest["algorithm"] != algorithm:
        raise ValueError(
            f"--config: {path} is of {manifest['algorithm']}, not of {algorithm}; use jaxrl train "
            f"{manifest['algorithm']}"
        )
    names = ("seed", "total_steps", "num_evaluations", "eval_episodes", "log_every", "label")
    config = dict(manifest["config"])
    anneals = bool(config.get("anneal_updates", 0))
    if not LENGTH_FLAGS.isdisjoint(given):
        config.pop("anneal_updates", None)  # the number follows from the new length
    return {
        "env_id": manifest["env"]["id"],
        "num_envs": manifest["env"]["num_envs"],
        "env_options": manifest["env"]["options"],
        **{name: manifest[name] for name in names if manifest.get(name) is not None},
        "anneal": anneals,
        **config,
    }


def with_current_flags(argv: Sequence[str]) -> list[str]:
    """Return a command line whose flags have the current names of `fields.RENAMED_FIELDS`."""
    renamed = {
        f"--{no}{old}".replace("_", "-"): f"--{no}{new}".replace("_", "-")
        for old, new in fields.RENAMED_FIELDS.items()
        for no in ("", "no-")
    }
    flags = [word.partition("=") for word in argv]
    return [renamed.get(f.replace("_", "-"), f) + equals + value for f, equals, value in flags]


def flags_of(*classes: Any) -> dict[str, str]:
    """Return the flags of dataclasses by the names of their fields."""
    names = [field.name for cls in classes for field in dataclasses.fields(cls)]
    return {name: f"--{name.replace('_', '-')}" for name in names}


@contextlib.contextmanager
def naming_flags(flags: Mapping[str, str]) -> Iterator[None]:
    """Let an error about an argument name its flag: `--gamma must be`, not `PPOConfig.gamma`.

    An error that begins otherwise is not about a flag, but for instance about a file.

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
        if re.match(r"([A-Z]\w*\.)?\w+ (must|\*)", text) is None:
            raise
        raise ValueError(re.sub(r"(?<!['\"])\b([A-Z]\w*\.)?([a-z]\w*)\b", flag, text)) from error


@contextlib.contextmanager
def exit_with_message() -> Iterator[None]:
    """End the program with one line instead of a traceback.

    Bad values, missing packages, full disks and failed simulators end it with status 1, Ctrl-C with
    130.
    """
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


def printable(text: str) -> str:
    """Return a text with its control characters escaped, but for ends of lines and tabs.

    Texts from files of others could otherwise command the terminal.
    """
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def explain_runtime_error(error: jax.errors.JaxRuntimeError) -> str:
    """Return why a compiled program failed, without the tracebacks that XLA adds."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" in text:
        return (
            f"{text.splitlines()[0]}; use less memory: lower --num-envs, --num-steps or "
            "--replay-size, or take a smaller network"
        )
    return message_in(error) or text
