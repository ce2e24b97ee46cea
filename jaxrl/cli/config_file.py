"""Files of flags (`--config`), for the commands that train."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from jaxrl import config as fields
from jaxrl.envs.trust import code_named_by
from jaxrl.files import schema


def parse_with_file(
    argv: Sequence[str],
    parse: Callable[[Sequence[str]], Any],
    read_options: Callable[[Any], dict[str, Any]],
    algorithm: str | None = None,
) -> Any:
    """Return the arguments of the flags in the file of `--config` and of `argv`, which change them.

    Args:
      argv: a command line, with or without `--config FILE`.
      parse: the parser of command lines without it.
      read_options: returns the environment's options that arguments name.
      algorithm: as for `read_config_file`.

    Raises:
      ValueError: if the file's environment runs code that it names: a file is data.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", type=Path)
    if (file := finder.parse_known_args(argv)[0].config) is None:
        return parse(argv)
    at = next(i for i, word in enumerate(argv) if word.partition("=")[0] == "--config")
    flags = [*argv[:at], *argv[at + (1 if "=" in argv[at] else 2) :]]
    words = read_config_file(file, algorithm)
    if any(word.partition("=")[0] == "--config" for word in [*words, *flags]):
        raise ValueError("--config can be given once, and not within its file")
    args = parse([*words, *flags])
    if found := code_named_by(args.env_id, read_options(args)):
        own = parse(flags)
        if (own.env_id, own.env_options) != (args.env_id, args.env_options):
            raise ValueError(
                f"--config: the environment of {file} {found}; if you trust that, leave env_id "
                "and env_options out of the file and give them as flags"
            )
    return args


def read_config_file(path: Path, algorithm: str | None) -> list[str]:
    """Return the words of a command line that a file stands for.

    Args:
      path: of a YAML file that gives flags their values (`env_id: Pong-v5`), or of a run's
        `manifest.json`.
      algorithm: of the command; a manifest's must be the same. None if it takes no manifests.

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
        content = _flags_of_manifest(path, algorithm)
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
            value = [f"{key}={text(part)}" for key, part in value.items()]
        words += [f"--{flag}", *map(str, value if isinstance(value, list) else [value])]
    return words


def _flags_of_manifest(path: Path, algorithm: str) -> dict[str, Any]:
    """Return the flags that repeat a run, by name."""
    manifest = schema.read(path, schema.MANIFEST, fields.with_current_names)
    if manifest["algorithm"] != algorithm:
        raise ValueError(
            f"--config: {path} is of {manifest['algorithm']}, not of {algorithm}; use jaxrl train "
            f"{manifest['algorithm']}"
        )
    names = ("seed", "total_steps", "num_evaluations", "eval_episodes", "log_every", "label")
    config = dict(manifest["config"])
    anneals = bool(config.pop("anneal_updates", 0))  # the number follows from --total-steps
    return {
        "env_id": manifest["env"]["id"],
        "num_envs": manifest["env"]["num_envs"],
        "env_options": manifest["env"]["options"],
        **{name: manifest[name] for name in names if manifest.get(name) is not None},
        "anneal": anneals,
        **config,
    }
