"""Find the newest intact checkpoint of a run: sealed, undamaged, and of that run.

The identity of a run is an object of settings. Its entry `versions` is never compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.files import seal as seals
from jaxrl.files.changes import changed_settings


class ForeignError(ValueError):
    """The error for a checkpoint of another run."""


class Newest(NamedTuple):
    """The newest checkpoint that may be used."""

    update: int | None
    """Its number; None if there is none."""
    damaged: dict[int, str]
    """Newer ones that are damaged or unfinished, with a line for the user."""
    versions: str
    """The versions that it was saved with, where they are not this process's."""
    seal: dict[str, Any]
    """What its seal holds; empty if there is none."""


def newest_intact(
    directory: Path, identity: dict[str, Any], rename: Callable[[Any], Any] = lambda value: value
) -> Newest:
    """Verify the checkpoints of a directory, the newest first, until one is intact.

    Args:
      directory: holds folders whose names are numbers of updates.
      identity: of the run.
      rename: gives settings that older versions saved their current names.

    Raises:
      ForeignError: if the newest intact one belongs to another run.
      ValueError: if there are checkpoints but none is intact.
    """
    updates, damaged = numbers(directory), {}
    for update in updates:
        folder = directory / str(update)
        try:
            record = seals.verify(folder)
            if record["update"] != update:
                raise seals.DamagedError(f"its files are those of checkpoint {record['update']}")
            versions = _compare(folder, rename(record["identity"]), identity)
            return Newest(update, damaged, versions, record)
        except seals.UnsealedError as error:
            why = f"{error}; perhaps the process was killed while it saved"
        except seals.DamagedError as error:
            why = str(error)
        damaged[update] = f"checkpoint {folder} is damaged: {why}"
    # A run may be killed before its first checkpoint is sealed; then it begins again.
    is_unfinished = len(updates) == 1 and not (directory / str(updates[0]) / seals.NAME).exists()
    if damaged and not is_unfinished:
        raise ValueError(
            f"no checkpoint in {directory} is intact: {'; '.join(damaged.values())}. Copy an "
            "intact one back, or delete the folder to begin again"
        )
    return Newest(None, damaged, "", {})


def _compare(folder: Path, saved: dict[str, Any], identity: dict[str, Any]) -> str:
    """Raise unless a checkpoint is of this run; return the versions that differ."""
    names = sorted({*saved, *identity} - {"versions"})
    if changes := changed_settings(identity, saved, names):
        raise ForeignError(
            f"checkpoint {folder} belongs to another run; this run's settings -> its settings: "
            f"{'; '.join(changes)}. Copy this run's own checkpoint back, or delete that folder to "
            "fall back on an earlier one"
        )
    return ", ".join(changed_settings(saved, identity, ["versions"]))


def newest_seal(directory: Path) -> dict[str, Any]:
    """Return the newest seal of a directory that can be read; empty if there is none.

    The files of the checkpoint itself are not verified.
    """
    for update in numbers(directory):
        with contextlib.suppress(ValueError, OSError):
            return seals.read(directory / str(update) / seals.NAME)
    return {}


def changed_since_sealed(directory: Path) -> list[str]:
    """Return a line for each checkpoint of a directory that is not as it was sealed."""
    lines = []
    for update in numbers(directory):
        try:
            seals.verify(directory / str(update))
        except seals.UnsealedError:
            pass
        except seals.DamagedError as error:
            lines.append(f"{update}: {error}")
    return lines


def numbers(directory: Path) -> list[int]:
    """Return the numbers of the checkpoints in a directory, the newest first."""
    names = (path.name for path in directory.glob("[0-9]*") if path.is_dir())
    return sorted(
        (int(name) for name in names if name.isdecimal() and name == str(int(name))), reverse=True
    )


def move_aside(folder: Path) -> Path:
    """Move a damaged folder to `damaged-...` beside its parent; return its new path."""
    aside = folder.parent.with_name(f"damaged-{folder.parent.name}")
    aside.mkdir(exist_ok=True)
    number = 1
    while (path := aside / f"{folder.name}-{number}").exists():
        number += 1
    return folder.rename(path)
