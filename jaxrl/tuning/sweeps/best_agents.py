"""The best agents of a sweep, kept as they were when they scored best, and written to `best/`."""

from __future__ import annotations

import contextlib
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxrl.config import with_current_names
from jaxrl.files.changes import changed_settings
from jaxrl.files.intact import ForeignError, move_aside, newest_intact
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.checkpoint import Checkpoints
from jaxrl.tuning.ranking import best_score, ranked
from jaxrl.types import PyTree

_FOLDER = re.compile(r"trial-(0|[1-9][0-9]*)")


class _Agent(NamedTuple):
    """An agent as it was when it scored best."""

    score: float
    num_updates: int
    state: PyTree


class BestAgents:
    """The best agents of a sweep, written as runs that `jaxrl.load_policy` loads.

    Args:
      keep: how many agents are kept.
      per: a hyperparameter; the best agent of each of its values is kept too.
    """

    def __init__(self, run_dir: Path, keep: int, per: str | None):
        self._directory, self._keep, self._per = run_dir / "best", keep, per
        self._agents: dict[int, _Agent] = {}
        """Those that have not been written."""

    def verify(self, run_id: str) -> None:
        """Verify the agents of a resumed sweep, and move damaged ones into `damaged-best/`.

        A warning names each; the next best agents take their places.

        Args:
          run_id: id of the sweep.

        Raises:
          ForeignError: if an agent is of another sweep.
        """
        for directory in self._folders().values():
            try:
                manifest = manifests.read(directory)
                identity = manifests.identity(manifest)
                if identity["run_id"] != run_id:
                    raise ForeignError(
                        f"{directory} belongs to another sweep: run_id {identity['run_id']!r}, not "
                        f"{run_id!r}; delete that folder and resume"
                    )
                found = newest_intact(directory / "checkpoints", identity, with_current_names)
            except ForeignError:
                raise
            except (ValueError, FileNotFoundError) as error:
                why = str(error)
            else:
                if found.update is not None:
                    continue
                why = "it has no checkpoint"  # killed while it was written
            moved = move_aside(directory)
            warnings.warn(
                f"the agent in {directory} is lost: {why}. Moved to {moved}", stacklevel=2
            )

    def available(self) -> set[int]:
        """Return the trials whose agents are in memory or on disk."""
        return {*self._agents, *self._folders()}

    def is_among_best(self, trial: int, score: float, trials: list[dict[str, Any]]) -> bool:
        """Return whether an agent that has just got this score is to be kept as it is now.

        Agents that are no longer among the best are dropped.

        Args:
          trials: of the `available` agents, and this one; others are disregarded.
        """
        best = self._best(trials, trial)
        self._agents = {t: agent for t, agent in self._agents.items() if t in best}
        return trial in best and score >= best[trial]

    def keep(self, trial: int, score: float, num_updates: int, agents: PyTree) -> None:
        """Keep the first of a trial's agents, leaves `[K, ...]`, in place of an earlier one."""
        first = jax.tree.map(lambda x: x[0], agents)
        self._agents[trial] = _Agent(score, num_updates, first)

    def forget(self, trial: int) -> None:
        """Drop a trial's agent, if it was kept."""
        self._agents.pop(trial, None)

    def write(
        self,
        trials: list[dict[str, Any]],
        describe: Callable[[int, float], tuple[bool, dict[str, Any]]],
    ) -> None:
        """Write the agents that have changed, and delete those no longer among the best.

        Args:
          describe: `(trial, score) -> (whether its environments can be saved, manifest)`.
        """
        for trial, agent in self._agents.items():
            self._write(self._directory / f"trial-{trial}", agent, *describe(trial, agent.score))
        self._agents = {}  # a replay may take gigabytes
        best = self._best(trials)
        for trial, directory in self._folders().items():
            if trial not in best:
                shutil.rmtree(directory)

    def _folders(self) -> dict[int, Path]:
        """Return the folders of agents by their trials; other folders are left alone."""
        found = ((_FOLDER.fullmatch(path.name), path) for path in self._directory.glob("trial-*"))
        return {int(match[1]): path for match, path in found if match and path.is_dir()}

    def _write(self, directory: Path, agent: _Agent, whole: bool, manifest: dict[str, Any]) -> None:
        if directory.exists() and changed_settings(
            manifests.read(directory), manifest, ["config"]
        ):  # an explorer changed the trial since
            shutil.rmtree(directory)
        directory.mkdir(parents=True, exist_ok=True)
        manifests.write(directory, manifest)
        identity = manifests.identity(manifest)
        with contextlib.closing(Checkpoints(directory / "checkpoints", identity, 1)) as checkpoints:
            if checkpoints.latest() != agent.num_updates:
                checkpoints.save(agent.num_updates, agent.state, {}, whole)

    def _best(self, trials: list[dict[str, Any]], scoring: int | None = None) -> dict[int, float]:
        """Return the trials whose agents are kept, with their best scores.

        Considered are trials whose agents are in memory or on disk, and the one that just scored:
        the agents of trials that ended shortly before a kill are lost.
        """
        available = {scoring, *self.available()}
        order = ranked([trial for trial in trials if trial["trial"] in available])
        chosen = order[: self._keep]
        if self._per is not None:
            best_of_value: dict[str, dict[str, Any]] = {}
            for trial in order:
                if self._per in trial["values"]:  # conditional fields are not in all of them
                    best_of_value.setdefault(repr(trial["values"][self._per]), trial)
            chosen += best_of_value.values()
        return {trial["trial"]: best_score(trial) for trial in chosen}
