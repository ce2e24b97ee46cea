"""The agents of paused trials, in a folder that all workers of a study see.

A trial that pauses leaves its lane, and any worker may continue it. So its agent is written as a
checkpoint before the trial returns to the queue. The folder is named by a text that the study
stores: a worker that does not find it looks at another file system, or in another place.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.files.paths import check_path
from jaxrl.files.urls import redact_url, storage_file
from jaxrl.training.checkpoint import Checkpoints
from jaxrl.tuning.studies.damage import DamagedStudyError
from jaxrl.types import PyTree

TOKEN = "agents"
"""User attribute of a study: the name of the folder of its paused agents."""
_NAME = re.compile(r"(?:unfinished-[0-9a-f]{32}-)?trial-([0-9]+)-phases-[0-9]+")
_SAVING = "saving"
"""A file in the folder of an agent that is being saved; `remove` deletes it first."""


class PausedAgent(NamedTuple):
    """An agent as its trial left it."""

    state: PyTree
    num_updates: int


class PausedAgents:
    """The agents of a study's paused trials, by trial and the phases that it had reported.

    Args:
      folder: of this study alone, from `open_folder`.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._identity = {"run_id": folder.name}

    def save(self, trial: int, phases: int, state: PyTree, num_updates: int) -> None:
        """Store an agent, as a whole or not at all; keep the one that is there already.

        It is not stored if another worker removes the trial's agents meanwhile.
        """
        path = self._path(trial, phases)
        if path.exists():
            return
        unfinished = self._folder / f"unfinished-{uuid.uuid4().hex}-{path.name}"
        unfinished.mkdir(parents=True)
        (unfinished / _SAVING).touch()
        try:
            with self._open(unfinished) as checkpoints:
                checkpoints.save(phases, state, {"num_updates": num_updates}, whole=True)
            (unfinished / _SAVING).unlink()
            unfinished.rename(path)
        except (OSError, ValueError):
            if (unfinished / _SAVING).exists():
                raise
            # Another worker has ended the trial, or was faster. One of the two was taken for dead.
            shutil.rmtree(unfinished, ignore_errors=True)

    def load(self, trial: int, phases: int, like: PyTree) -> PausedAgent | None:
        """Return an agent; None, with a warning, if it is damaged or was never stored.

        Args:
          like: shapes of the agent.
        """
        path = self._path(trial, phases)
        try:
            if not path.exists():
                raise FileNotFoundError("there is no such folder")
            with self._open(path) as checkpoints:
                state, progress = checkpoints.restore(like, whole=True)
            return PausedAgent(state, int(progress["num_updates"]))
        except (ValueError, FileNotFoundError) as error:
            warnings.warn(
                f"the agent of trial {trial} in {path} is lost, so the trial trains from its "
                f"beginning again: {error}",
                stacklevel=2,
            )
            return None

    def remove(self, is_over: Callable[[int], bool]) -> None:
        """Delete the agents of the trials that `is_over(trial)` names, also unfinished ones.

        A worker was killed while it saved an unfinished one, or was taken for dead and still does.
        """
        for path in self._folder.glob("*trial-*"):
            found = _NAME.fullmatch(path.name)
            if found is not None and is_over(int(found[1])):
                (path / _SAVING).unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)

    def _path(self, trial: int, phases: int) -> Path:
        return self._folder / f"trial-{trial}-phases-{phases}"

    def _open(self, path: Path) -> Any:
        return contextlib.closing(Checkpoints(path, self._identity, keep=1, repair=False))


def default_folder(url: str, run_dir: Path) -> Path:
    """Return where paused agents are kept: beside a storage that is a file, or in `run_dir`."""
    file = storage_file(url)
    if not file or file.startswith((":memory:", "file:")):
        return run_dir / "paused"
    return Path(file).with_name(f"{Path(file).stem}-paused")


def open_folder(study: Any, url: str, parent: Path) -> Path:
    """Return the folder of a study's paused agents; the study's first worker makes it.

    Args:
      url: of the study's storage, for errors.

    Raises:
      ValueError: if another worker made it, and it is not in `parent`.
    """
    check_path(parent, "agents_dir")
    token = study.user_attrs.get(TOKEN)
    if token is None:
        token = uuid.uuid4().hex
        (parent / token).mkdir(parents=True)
        study.set_user_attr(TOKEN, token)
        token = study.user_attrs[TOKEN]  # that of the last one, if workers begin together
    if not isinstance(token, str) or not re.fullmatch("[0-9a-f]{32}", token):
        raise DamagedStudyError(f"the name of its folder of paused agents is {token!r}")
    if not (parent / token).is_dir():
        raise ValueError(
            f"the workers of the study {study.study_name!r} at {redact_url(url)} keep paused "
            f"agents in a folder {token}, which is not in {parent}: start all workers with the "
            "same folder, which all their machines see (agents_dir, --agents-dir)"
        )
    return parent / token
