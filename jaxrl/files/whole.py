"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text to a file, whole or not at all."""
    new = unfinished(path)
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def unfinished(path: Path) -> Path:
    """Return the file that `write_whole` fills first; a kill or a full disk may leave it behind."""
    return path.with_name(f".{path.name}")
