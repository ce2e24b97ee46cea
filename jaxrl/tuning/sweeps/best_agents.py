"""The best agents of a sweep, kept as they were when they scored best, and written to `best/`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.training import manifest as manifests
from jaxrl.training.checkpoint import Checkpoints
from jaxrl.tuning.sweeps.ranking import best_score, ranked
from jaxrl.types import PyTree


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

    def is_among_best(self, trial: int, score: float, trials: list[dict[str, Any]]) -> bool:
        """Return whether an agent that has just got this score is to be kept as it is now.

        Agents that are no longer among the best are dropped.
        """
        best = self._best(trials, trial)
        self._agents = {t: agent for t, agent in self._agents.items() if t in best}
        return trial in best and score >= best[trial]

    def keep(self, trial: int, score: float, num_updates: int, agent: PyTree) -> None:
        """Keep a trial's agent, in place of an earlier one."""
        self._agents[trial] = _Agent(score, num_updates, agent)

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
            directory = self._directory / f"trial-{trial}"
            checkpoints = Checkpoints(directory / "checkpoints", keep=1)
            if checkpoints.latest() != agent.num_updates:
                whole, manifest = describe(trial, agent.score)
                manifests.write(directory, manifest)
                checkpoints.save(agent.num_updates, agent.state, {}, whole)
            checkpoints.close()
        best = {f"trial-{trial}" for trial in self._best(trials)}
        for directory in self._directory.glob("trial-*"):
            if directory.name not in best:
                shutil.rmtree(directory)

    def _best(self, trials: list[dict[str, Any]], scoring: int | None = None) -> dict[int, float]:
        """Return the trials whose agents are kept, with their best scores.

        Considered are trials whose agents are in memory or on disk, and the one that just scored:
        the agents of trials that ended shortly before a kill are lost.
        """
        available = {scoring, *self._agents} | {
            int(path.name.removeprefix("trial-")) for path in self._directory.glob("trial-*")
        }
        order = ranked([trial for trial in trials if trial["trial"] in available])
        chosen = order[: self._keep]
        if self._per is not None:
            best_of_value: dict[str, dict[str, Any]] = {}
            for trial in order:
                best_of_value.setdefault(repr(trial["values"][self._per]), trial)
            chosen += best_of_value.values()
        return {trial["trial"]: best_score(trial) for trial in chosen}
