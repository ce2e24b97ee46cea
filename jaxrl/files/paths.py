"""Paths in which checkpoints can be kept, and files that are written whole or not at all."""

from __future__ import annotations

import re
from pathlib import Path

UNREADABLE = {
    "a backslash": re.compile(r"\\"),  # a slash to Orbax's storage
    "text in brackets": re.compile(r"\[[^/]+\]"),  # a pattern
    "a folder that ends in gs:": re.compile(r"gs:(/|$)"),  # an address of Google's storage
    "characters that are not UTF-8": re.compile(r"[\ud800-\udfff]"),
}
"""Parts of paths with which Orbax 0.12 cannot write or cannot read checkpoints."""


def check_path(directory: Path, argument: str = "run_dir") -> None:
    """Raise `ValueError` if checkpoints in a directory could not be read again.

    Args:
      argument: the one that names the directory.
    """
    path = str(directory.absolute())
    if found := [part for part, pattern in UNREADABLE.items() if pattern.search(path)]:
        raise ValueError(
            f"checkpoints cannot be kept in {ascii(path)[1:-1]}, whose path has "
            f"{' and '.join(found)}; choose another {argument}"
        )


def write_whole(path: Path, text: str) -> None:
    """Write a text to a file, whole or not at all."""
    new = unfinished(path)
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def unfinished(path: Path) -> Path:
    """Return the file that `write_whole` fills first; a kill or a full disk may leave it behind."""
    return path.with_name(f".{path.name}")
