"""A study's journal: open the file, refuse what is no journal, and mend its end.

Optuna appends a line of JSON to it for each change of a study.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jaxrl.tuning.samplers.optional_optuna import import_optuna
from jaxrl.tuning.studies.damage import DamagedStudyError

JOURNAL_BEGINS = b'{"op_code":'
"""The first bytes of each line of Optuna's journals."""


def open_journal(path: Path, read_only: bool) -> Any:
    """Return Optuna's storage of the journal in a file, which is made if it is not there.

    Args:
      read_only: do not mend it.

    Raises:
      OSError: if its folder cannot be written to.
      DamagedStudyError: if the file is no journal.
    """
    if not (read_only or os.access(path.parent, os.W_OK)):
        # Optuna would wait without end for the lock that a killed process left.
        raise OSError(
            f"the study's journal {path} cannot be written: its folder is read-only; make it "
            "writable, or use another storage"
        )
    check_journal(path)
    journal = import_optuna().storages.journal
    backend = journal.JournalFileBackend(str(path))
    if not read_only:
        cut_unfinished_line(path)
    return journal.JournalStorage(backend)


def check_journal(path: Path) -> None:
    """Raise ValueError if a file holds something else than a journal, which must not be changed."""
    if path.exists():
        with path.open("rb") as file:
            first = file.read(len(JOURNAL_BEGINS))
        if not JOURNAL_BEGINS.startswith(first):
            raise DamagedStudyError(f"{path} is no journal of a study: it begins with {first!r}")


def cut_unfinished_line(path: Path) -> None:
    """Remove the beginning of a line at a journal's end, which a full disk or a kill left.

    Optuna would append the next line to it.
    """

    def whole_lines() -> int:
        return path.read_bytes().rfind(b"\n") + 1

    if whole_lines() == path.stat().st_size:
        return
    lock = import_optuna().storages.journal.JournalFileSymlinkLock(str(path))
    lock.acquire()  # what is unfinished may be what another process writes now
    try:
        os.truncate(path, whole_lines())
    finally:
        lock.release()
