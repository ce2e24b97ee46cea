"""The evaluations of a run: their scores, and how a signal stops one."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl.distributed import processes
from jaxrl.distributed.processes import Interrupt
from jaxrl.training.evaluate import EVALUATION_SEED, MAX_EPISODE_STEPS, evaluate_separately
from jaxrl.training.progress.bar import ProgressBar
from jaxrl.training.progress.rows import Progress, Row
from jaxrl.training.progress.schedule import LoopSettings
from jaxrl.types import Algorithm

EVALUATED = ("eval_return", "eval_return_std", "eval_episode_length", "eval_episode_count")
"""The scores of an evaluation: means over the episodes that ended, the standard deviation of their
returns, and their number."""


class EvaluationStopped(Exception):
    """The end of an evaluation in which a signal came."""


class RunEvaluator:
    """The evaluations of one run, on separate environments of the first process.

    Args:
      seed: the run's, so that the runs of other seeds play other episodes.
      bar: shows how far an evaluation is.
    """

    def __init__(
        self, algo: Algorithm, config: Any, settings: LoopSettings, seed: int, bar: ProgressBar
    ):
        self._algo, self._config, self._settings, self._bar = algo, config, settings, bar
        self._seed = EVALUATION_SEED - seed

    def __call__(self, agent: Any, progress: Progress, interrupt: Interrupt) -> Row | None:
        """Return the scores `EVALUATED` of an agent, in every process; None after a signal.

        Without an episode that ended, the number of episodes is the only score.

        Args:
          agent: on one device.
        """
        scores, is_whole = np.full(len(EVALUATED), np.nan, np.float32), np.bool_(True)
        if processes.is_first():
            try:
                scores[:] = self._scores_of(agent, progress, interrupt)
            except EvaluationStopped:
                self._bar.announce("the evaluation was stopped")
                is_whole = np.bool_(False)
        scores, is_whole = processes.broadcast((scores, is_whole))
        if not is_whole:
            return None
        row = {name: float(x) for name, x in zip(EVALUATED, scores, strict=True)}
        return {name: x for name, x in row.items() if np.isfinite(x)}

    def _scores_of(
        self, agent: Any, progress: Progress, interrupt: Interrupt
    ) -> tuple[float, float, float, int]:
        """Return the scores `EVALUATED`; means of no episode are NaN.

        Raises:
          EvaluationStopped: after a signal.
        """
        num_episodes = self._settings.eval_episodes
        if not progress.episodes:
            self._bar.announce(
                f"no episode has ended in {progress.steps:,} steps, so the evaluation may take up "
                f"to {MAX_EPISODE_STEPS:,} steps an episode; give the environments a time limit, "
                "or do not evaluate (num_evaluations=0, --num-evaluations 0)"
            )

        def watch(num_ended: int) -> None:
            self._bar.say(f"evaluating, {num_ended} of {num_episodes} episodes")
            if interrupt.requested:
                raise EvaluationStopped

        returns, lengths = evaluate_separately(
            self._algo, self._config, agent, num_episodes, self._seed,
            self._settings.eval_greedy, watch,
        )  # fmt: skip
        ended = np.isfinite(returns)
        if not ended.all():
            self._bar.announce(f"{(~ended).sum()} of {len(ended)} evaluated episodes did not end")
        if not ended.any():
            return np.nan, np.nan, np.nan, 0
        returns, lengths = returns[ended], lengths[ended]
        return float(returns.mean()), float(returns.std()), float(lengths.mean()), len(returns)
