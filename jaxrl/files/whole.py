"""Files that are written whole or not at all, also if the power fails."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, whole or not at all; of processes that do so at once the last one wins.

    Raises:
      OSError: if the disk is full or fails; the file stays as it was.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        new.write_bytes(content.encode() if isinstance(content, str) else content)
        sync(new)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync(path.parent)


def left_behind(path: Path) -> set[Path]:
    """Return the files that `write_whole` left beside `path` in processes that were killed."""
    return {other for other in path.parent.iterdir() if other.name.startswith(f".{path.name}.")}


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
