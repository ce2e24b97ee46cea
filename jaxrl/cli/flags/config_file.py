"""Flags from a file, `--config FILE`, which those of the command line change."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import yaml

from jaxrl import config as fields
from jaxrl.cli.flags.arguments import write_pair
from jaxrl.envs.trust import code_named_by
from jaxrl.files import schema

PAIR_FLAGS = ("env_options", "set", "space")
"""Names of the flags that take several `name=value` texts."""
LENGTH_FLAGS = {"anneal", "total_steps", "num_envs", "num_steps", "autotune_also"}
"""Names of the flags on which the number of updates depends, or whether to anneal over them."""


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
    try:
        args = parse(_join_pairs([*words, *flags]))
    except SystemExit as exit:  # tyro has said what is wrong, but not where
        if exit.code:
            print(f"some of these flags are those of {file}", file=sys.stderr)
        raise
    if found := code_named_by(args.env_id, read_options(args)):
        own = parse(_join_pairs(flags))
        if own.env_id != args.env_id or read_options(own) != read_options(args):
            raise ValueError(
                f"--config: the environment of {file} {found}; if you trust that, give its "
                "--env-id and all of its --env-options as flags too"
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
    except OSError as error:
        raise type(error)(f"--config: {path} cannot be read: {error.strerror}") from error
    except Exception as error:  # safe_load raises others too for bad dates, numbers and switches
        raise ValueError(f"--config: {path} is no YAML: {error}") from error
    write = _write_loosely
    if isinstance(content, dict) and isinstance(content.get("config"), dict):
        if algorithm is None or "scheduler" in content:
            raise ValueError(f"--config: {path} is of a run or sweep; give a YAML file of flags")
        content, write = _flags_of_manifest(path, algorithm, given), write_pair
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError(f"--config: {path} must give flags their values, as in `env_id: Pong-v5`")
    words: list[str] = []
    for name, value in content.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
            continue
        if isinstance(value, dict):
            replaced = given if name == "env_options" else ()
            value = [write(key, x) for key, x in value.items() if key not in replaced]
        words += [f"--{flag}", *map(str, value if isinstance(value, list) else [value])]
    return words


def _write_loosely(name: str, value: Any) -> str:
    """Return a pair whose text may stand for another value: YAML takes `3e-4` for a text."""
    return f"{name}={value if isinstance(value, str) else repr(value)}"


def _flags_of_manifest(path: Path, algorithm: str, given: Collection[str]) -> dict[str, Any]:
    """Return the flags that repeat a run, by name."""
    manifest = schema.read(path, schema.MANIFEST, fields.with_current_names)
    if manifest["algorithm"] != algorithm:
        raise ValueError(
            f"--config: {path} is of {manifest['algorithm']}, not of {algorithm}; use jaxrl train "
            f"{manifest['algorithm']}"
        )
    if manifest["custom_network"]:
        raise ValueError(
            f"--config: {path} is of a run with a network of its own; repeat it by "
            "jaxrl.rerun(..., network=...)"
        )
    if manifest.get("init_from") is not None and "init_from" not in given:
        raise ValueError(
            f"--config: {path} is of a run that began from a trained agent; add --init-from with "
            "the directory of that agent's run"
        )
    names = (
        "seed", "total_steps", "num_evaluations", "eval_episodes", "eval_greedy", "log_every",
        "label",
    )  # fmt: skip
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
