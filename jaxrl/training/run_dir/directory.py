"""The directory of a run: opened by one process at a time, never written over another run."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxrl.distributed import processes
from jaxrl.files import intact, schema
from jaxrl.files.paths import check_path
from jaxrl.files.whole import left_behind
from jaxrl.training.run_dir import first_agent
from jaxrl.training.run_dir import manifest as manifests

SUMMARY = "summary.json"


@contextlib.contextmanager
def open_run_dir(
    directory: Path, manifest: dict[str, Any], resume: bool, num_updates: int
) -> Iterator[None]:
    """Make a run's directory and write its manifest; lock the directory until the block ends.

    The first of several processes does it, and all check that they see the same directory.

    Args:
      num_updates: after which the run is to end.

    Raises:
      OSError: if the disk is full, also within the block.
      ValueError: if the directory holds a run and `resume` is False, a run with other settings or
        of more updates, one whose learning rate has fallen to 0 before, one that has ended but left
        no checkpoint, or files of something else; or if another process works in it.
    """
    with explain_full_disk(directory), contextlib.ExitStack() as stack:
        prepared = _prepared(directory, manifest, resume, num_updates)
        processes.call_on_first(lambda: stack.enter_context(prepared))
        processes.check_shared_file(directory / manifests.NAME)
        yield


@contextlib.contextmanager
def _prepared(
    directory: Path, manifest: dict[str, Any], resume: bool, num_updates: int
) -> Iterator[None]:
    """Do on this process what `open_run_dir` says."""
    check_path(directory)
    check_unused(directory, resume)
    if (directory / manifests.NAME).exists():
        saved = manifests.read(directory, manifests.TO_RESUME)
        if has_checkpoint(directory):
            changes = manifests.differences(saved, manifest)
            if changes:
                raise ValueError(
                    f"cannot resume {directory}: these settings changed since the run began; undo "
                    "the changes or choose another directory, in which a new run may begin from "
                    "this agent (docs/how-to/questions.md):\n  " + "\n  ".join(changes)
                )
            check_length(directory, manifest["total_steps"], num_updates)
            if manifest["total_steps"] > saved["total_steps"]:
                check_annealing(directory, manifest, num_updates)
            manifest = manifests.resumed(saved, manifest)
        else:  # it begins now, with whatever settings
            check_can_begin(directory)
            began = saved.get("init_from")
            if resume and began is not None and manifest.get("init_from") is None:
                raise first_agent.lacks_agent(began, f"the run in {directory}")
            if resume:
                manifest["label"] = manifest.get("label") or saved.get("label")
    directory.mkdir(parents=True, exist_ok=True)
    with directory_lock(directory):
        manifests.write(directory, manifest)
        yield


def check_unused(directory: Path, resume: bool) -> None:
    """Raise `ValueError` if a directory holds a run that is not to be resumed, or other files.

    Another process that works in it is named first, since it may be the one that makes the run.
    """
    if directory.exists():
        with directory_lock(directory):
            pass
    if (directory / manifests.NAME).exists():
        if not resume and has_begun(directory):
            raise ValueError(
                f"{directory} already holds a run; resume it (resume=True, --resume; without a "
                "checkpoint it begins anew) or choose another directory"
            )
    elif directory.exists() and {*directory.iterdir()} - left_behind(directory / manifests.NAME):
        raise ValueError(f"{directory} is not empty and holds no run; choose another directory")


def has_begun(directory: Path) -> bool:
    """Return whether a run in a directory has rows, a checkpoint or a summary.

    One that ended in an error before its first row has none.
    """
    rows = directory / "metrics.jsonl"
    has_rows = rows.exists() and rows.stat().st_size > 0
    return has_rows or has_checkpoint(directory) or (directory / SUMMARY).exists()


def check_can_begin(directory: Path) -> None:
    """Raise `ValueError` if a run without a checkpoint has ended: its results would be lost."""
    if (directory / SUMMARY).exists():
        raise ValueError(
            f"{directory} holds the results of a run that has ended, but no checkpoint to go on "
            "from; choose another directory, or delete this one to begin again"
        )


def check_length(directory: Path, total_steps: int, num_updates: int) -> None:
    """Raise `ValueError` if a run would be resumed to end before its newest checkpoint."""
    newest = max(intact.numbers(directory / "checkpoints"), default=0)
    if newest > num_updates:
        raise ValueError(
            f"total_steps must be more: {total_steps:,} are {num_updates:,} updates, and the run "
            f"in {directory} has done {newest:,}"
        )


def check_annealing(directory: Path, manifest: dict[str, Any], num_updates: int) -> None:
    """Raise `ValueError` if a longer run would go on with a learning rate that has fallen to 0."""
    annealed = manifest["config"].get("anneal_updates", 0)
    if 0 < annealed < num_updates:
        raise ValueError(
            f"total_steps must stay: {manifest['total_steps']:,} are {num_updates:,} updates, but "
            f"the learning rate of the run in {directory} falls to 0 over anneal_updates = "
            f"{annealed:,.12g}; start a run of that length in another directory, or one without "
            "annealing, which can be extended"
        )


def read_summary(run_dir: Path) -> dict[str, Any]:
    """Return the summary of a run.

    Raises:
      FileNotFoundError: if the run has not come to an end yet.
      ValueError: if the summary is damaged.
    """
    return schema.read(run_dir / SUMMARY, schema.SUMMARY)


def has_checkpoint(directory: Path) -> bool:
    """Return whether a run's directory has a checkpoint, intact or not."""
    return bool(intact.numbers(directory / "checkpoints"))


@contextlib.contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Keep other processes out of a directory until the block ends or this process dies.

    The lock is on the directory itself, so no lock file is left behind. Systems and file systems
    without such locks (Windows, some network drives) keep nobody out.

    Raises:
      ValueError: if another process, or another block of this one, has the lock.
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
                f"another process works in {directory}; wait until it has ended, or choose "
                "another directory"
            ) from error
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explain_full_disk(directory: Path) -> Iterator[None]:
    """Turn the error of a full disk into one that names the directory and says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f"cannot write to {directory}: {error}. Everything saved there so far is intact; free "
            "some space and resume"
        ) from error
