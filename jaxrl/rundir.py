"""The directory of a run: one process at a time works in it, and its disk may be full."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Keep other processes out of a directory, as long as the block or this process lasts.

    It is the directory itself that is locked, so nothing is left behind. Where the system or the
    file system has no such locks (Windows, some network drives), nobody is kept out.

    Raises:
      ValueError: if another process, or another block of this one, holds it.
    """
    try:
        fcntl = importlib.import_module("fcntl")
    except ImportError:
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"another process is at work in {directory}; wait until it has ended, or choose "
                "another directory"
            ) from error
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def told_if_full(directory: Path) -> Iterator[None]:
    """A full disk is an `OSError` that says where, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f"{directory} could not be written to: {error}. What was saved there stays; free some "
            "space and resume"
        ) from error
