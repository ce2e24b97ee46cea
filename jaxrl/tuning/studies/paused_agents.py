"""The agents of paused trials, in a folder that all workers of a study see.

A trial that pauses leaves its lane, and any worker may continue it. So its agent is written as a
checkpoint before the trial returns to the queue. The folder is named by a text that the study
stores: a worker that does not find it looks at another file system, or in another place. Workers
that begin a study at the same moment may each make a folder; all look into all of them.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.files.paths import check_path
from jaxrl.files.urls import redact_url, storage_file
from jaxrl.files.whole import sync
from jaxrl.training.run_dir.checkpoint import Checkpoints
from jaxrl.tuning.studies.damage import DamagedStudyError
from jaxrl.types import PyTree

TOKEN = "agents"
"""Begins the names of a study's user attributes that hold the names of its folders."""
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
      folder: of this study alone; new agents are saved there.
      find_folders: returns all folders of the study.
    """

    def __init__(self, folder: Path, find_folders: Callable[[], Iterable[Path]] = tuple):
        self._folder = folder
        self._find_folders = find_folders

    def save(self, trial: int, phases: int, state: PyTree, num_updates: int) -> None:
        """Store an agent, as a whole or not at all; keep the one that is there already.

        It is not stored if another worker removes the trial's agents meanwhile.
        """
        path = self._folder / _name(trial, phases)
        if path.exists():
            return
        unfinished = self._folder / f"unfinished-{uuid.uuid4().hex}-{path.name}"
        unfinished.mkdir(parents=True)
        (unfinished / _SAVING).touch()
        try:
            with _open(unfinished) as checkpoints:
                checkpoints.save(phases, state, {"num_updates": num_updates}, whole=True)
            (unfinished / _SAVING).unlink()
            unfinished.rename(path)
            sync(self._folder)  # before the study says that the trial pauses
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
        name = _name(trial, phases)
        path = next((x for x in self._folders() if (x / name).exists()), self._folder) / name
        try:
            if not path.exists():
                raise FileNotFoundError("there is no such folder")
            with _open(path) as checkpoints:
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
        for path in (path for folder in self._folders() for path in folder.glob("*trial-*")):
            found = _NAME.fullmatch(path.name)
            if found is not None and is_over(int(found[1])):
                (path / _SAVING).unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)

    def _folders(self) -> set[Path]:
        return {self._folder, *self._find_folders()}


def _name(trial: int, phases: int) -> str:
    """Return the name of the folder of an agent."""
    return f"trial-{trial}-phases-{phases}"


def _open(path: Path) -> Any:
    """Open the checkpoint of an agent."""
    identity = {"run_id": path.parent.name}
    return contextlib.closing(Checkpoints(path, identity, keep=1, repair=False))


def default_folder(url: str, run_dir: Path) -> Path:
    """Return where paused agents are kept: beside a storage that is a file, or in `run_dir`."""
    file = storage_file(url)
    if not file or file.startswith((":memory:", "file:")):
        return run_dir / "paused"
    return Path(file).with_name(f"{Path(file).stem}-paused")


def open_agents(study: Any, url: str, parent: Path) -> PausedAgents:
    """Return the paused agents of a study; its first worker makes their folder.

    Args:
      url: of the study's storage, for errors.
      parent: holds the folders of the study.

    Raises:
      ValueError: if another worker made a folder, and it is not in `parent`.
    """
    check_path(parent, "agents_dir")
    if not _tokens(study):
        token = uuid.uuid4().hex
        (parent / token).mkdir(parents=True)
        # Under one name for all, the worker that stores last would hide what others have stored.
        study.set_user_attr(f"{TOKEN} {token}", token)
    names = _tokens(study)
    for name in names:
        if not (parent / name).is_dir():
            raise ValueError(
                f"the workers of the study {study.study_name!r} at {redact_url(url)} keep paused "
                f"agents in a folder {name}, which is not in {parent}: start all workers with the "
                "same folder, which all their machines see (agents_dir, --agents-dir)"
            )
    return PausedAgents(parent / names[0], lambda: (parent / name for name in _tokens(study)))


def _tokens(study: Any) -> list[str]:
    """Return the names of the folders of a study's paused agents."""
    stored = [x for key, x in sorted(study.user_attrs.items()) if key.split(" ")[0] == TOKEN]
    for token in stored:
        if not isinstance(token, str) or not re.fullmatch("[0-9a-f]{32}", token):
            raise DamagedStudyError(f"the name of its folder of paused agents is {token!r}")
    return stored
