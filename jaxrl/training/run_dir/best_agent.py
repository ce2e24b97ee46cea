"""The agent of a run that was evaluated best."""

from __future__ import annotations

import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.config import with_current_names
from jaxrl.files import intact
from jaxrl.training.run_dir.checkpoint import Checkpoints

BEST = "best"
"""Folder of a run with the agent that was evaluated best."""


class BestAgent:
    """The agent of a run that was evaluated best; of equal ones the last.

    It is written right before the run's checkpoints. So if the run is killed and goes on from one,
    the folder has the best agent of all updates before it. Agents of updates after `update`, the
    newest that may have been evaluated, are deleted. Damaged ones are named by a warning and
    moved into `damaged-best`.

    Args:
      identity: of the run, as `jaxrl.training.run_dir.manifest.identity` returns it.

    Raises:
      ValueError: if the agent in the folder belongs to another run.
    """

    def __init__(self, run_dir: Path, identity: dict[str, Any], update: int):
        directory = run_dir / BEST
        for number in intact.numbers(directory):
            if number > update:
                shutil.rmtree(directory / str(number))
        try:
            intact.newest_intact(directory, identity, with_current_names)
        except intact.ForeignError:
            raise
        except ValueError as error:
            moved = [intact.move_aside(directory / str(n)) for n in intact.numbers(directory)]
            warnings.warn(
                f"the best agent is lost: {error}. Moved to {moved[0].parent}", stacklevel=2
            )
        self._checkpoints = Checkpoints(directory, identity)
        self._score = -math.inf
        self._unsaved: tuple[int, Any] | None = None
        if self._checkpoints.latest() is not None:
            self._score = self._checkpoints.progress()["eval_return"]

    def offer(self, update: int, agent: Any, score: float) -> None:
        """Copy an agent that `agent_on_one_device` returned, unless a better one was offered."""
        if score >= self._score:
            self._score = score
            self._unsaved = update, jax.tree.map(jnp.copy, agent)  # training goes on in its arrays

    def save(self) -> None:
        """Write the best agent, unless it is written.

        Raises:
          OSError: if it cannot be written.
        """
        if self._unsaved is not None:
            update, agent = self._unsaved
            self._checkpoints.save(update, agent, {"eval_return": self._score}, whole=False)
            self._checkpoints.latest()  # waits for its seal, which the run's checkpoint comes after
            self._unsaved = None

    def close(self) -> None:
        """Wait until the agent is written."""
        self._checkpoints.close()
