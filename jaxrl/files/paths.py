"""Paths in which checkpoints can be kept."""

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
    """Raise `ValueError` if a path is no directory, or checkpoints in it could not be read again.

    Args:
      argument: the one that names the directory.
    """
    taken = next(path for path in (directory, *directory.parents) if path.exists())
    if not taken.is_dir():
        raise ValueError(f"{argument} must be a directory, got {directory}: {taken} is a file")
    path = str(directory.absolute())
    if found := [part for part, pattern in UNREADABLE.items() if pattern.search(path)]:
        raise ValueError(
            f"checkpoints cannot be kept in {ascii(path)[1:-1]}, whose path has "
            f"{' and '.join(found)}; choose another {argument}"
        )
