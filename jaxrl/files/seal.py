"""Seals: `seal.json` records the digest and size of every file of a folder, and what the folder is.

A folder is sealed after its last file was written, so a folder without a seal is unfinished. The
seal has a digest of itself. A verified folder holds, byte for byte, the files that were sealed.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jaxrl.files.whole import left_behind, sync, write_whole

NAME = "seal.json"
FORMAT = 1
_THREADS = 4  # hashlib releases the GIL


class DamagedError(ValueError):
    """The error for a folder that is not what was sealed; its text names the file."""


class UnsealedError(DamagedError):
    """The error for a folder without a seal."""


def write(folder: Path, entries: dict[str, Any]) -> None:
    """Seal a folder, whole or not at all, once all of its files are on the disk.

    Args:
      entries: what the seal says of the folder, as JSON.

    Raises:
      OSError: if a file cannot be read or the seal not be written.
    """
    record = {"format": FORMAT, **entries, "files": _measure(_files(folder))}
    for path in (*folder.rglob("*"), folder, folder.parent):
        sync(path)
    write_whole(folder / NAME, _text(record | {"digest": _digest(record)}))


def verify(folder: Path) -> dict[str, Any]:
    """Return the seal of a folder whose files are all as they were sealed.

    Raises:
      UnsealedError: if it has no seal.
      DamagedError: if the seal or a file is damaged, missing or added.
      ValueError: if a newer version sealed it.
      PermissionError: if a file may not be read.
    """
    try:
        record = read(folder / NAME)
        files = _files(folder)
        for name in sorted({*files, *record["files"]}):
            if name not in files:
                raise DamagedError(f"its file {name} is missing")
            if name not in record["files"]:
                raise DamagedError(f"its file {name} was added after it was saved")
        for name, measured in _measure(files).items():
            if measured != record["files"][name]:
                raise DamagedError(f"its file {name} has changed since it was saved")
    except PermissionError:
        raise
    except OSError as error:
        raise DamagedError(f"a file of it cannot be read: {error}") from error
    return record


def read(path: Path) -> dict[str, Any]:
    """Return what a seal holds, if it is as it was written, whatever its folder holds.

    Raises:
      UnsealedError, DamagedError, ValueError: as `verify`, of the seal alone.
    """
    if not path.exists():
        raise UnsealedError(f"its file {NAME} is missing")
    try:
        text = path.read_text()
        record = json.loads(text)
        digest = record.pop("digest")
        is_intact = digest == _digest(record) and text == _text(record | {"digest": digest})
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        record, is_intact = {}, False
    if not is_intact:
        raise DamagedError(f"its file {NAME} has changed since it was saved")
    if record["format"] != FORMAT:
        raise ValueError(
            f"{path} has the format {record['format']}, which this version of jaxrl does not know; "
            "use the version that wrote it, or a newer one"
        )
    return record


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder besides its seal, by their paths in it."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir())
    seal = folder / NAME
    others = (path for path in paths if path not in {seal, *left_behind(seal)})
    return {path.relative_to(folder).as_posix(): path for path in others}


def _measure(files: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Return size and digest of files."""
    with ThreadPoolExecutor(_THREADS) as threads:
        return dict(zip(files, threads.map(_measure_file, files.values()), strict=True))


def _measure_file(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"size": file.tell(), "sha256": digest}


def _text(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=1) + "\n"


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(_text(record).encode()).hexdigest()
