"""Files that are written whole or not at all, also if the power fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text to a file, whole or not at all."""
    new = unfinished(path)
    new.write_text(text, encoding="utf-8")
    sync(new)
    new.replace(path)
    sync(path.parent)


def unfinished(path: Path) -> Path:
    """Return the file that `write_whole` fills first; a kill or a full disk may leave it behind."""
    return path.with_name(f".{path.name}")


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk.

    Windows, which cannot open folders, is left alone.

    Raises:
      OSError: if the disk is full or fails.
    """
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)


def sync_descriptor(descriptor: int) -> None:
    """Wait until what was written to an open file is on the disk, if the file system can do it.

    Raises:
      OSError: if the disk is full or fails.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
