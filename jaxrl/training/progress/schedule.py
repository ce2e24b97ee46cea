"""The lengths of a run, of its chunks of updates, and of the time between its evaluations."""

from __future__ import annotations

from typing import NamedTuple

from jaxrl.training.progress.rows import Progress

MAX_CHUNK = 1024
"""Updates in one call of the compiled program, at most."""


class LoopSettings(NamedTuple):
    """The lengths of a run and of its parts; `jaxrl.run` explains them."""

    num_updates: int
    steps_per_update: int
    log_every: int
    num_evaluations: int
    eval_episodes: int
    eval_greedy: bool
    chunk_updates: int | None
    chunk_seconds: float
    checkpoint_seconds: float

    def next_evaluation(self, update: int) -> int | None:
        """Return the update after `update` that an evaluation follows, None if there is none.

        Evaluations are evenly spaced, the last one after the last update.
        """
        if not self.num_evaluations or update >= self.num_updates:
            return None
        number = update * self.num_evaluations // self.num_updates + 1
        return -(-number * self.num_updates // self.num_evaluations)

    def is_evaluated(self, update: int) -> bool:
        """Return whether an evaluation follows an update; none follows update 0."""
        return update > 0 and self.next_evaluation(update - 1) == update


def chunk_length(
    settings: LoopSettings, progress: Progress, seconds_per_update: float | None
) -> int:
    """Return the number of updates of the next chunk, at most up to the next evaluation.

    `seconds_per_update` is the last chunk's, None before the first.
    """
    if settings.chunk_updates is not None:
        length = settings.chunk_updates
    elif seconds_per_update is None:
        length = 1
    else:
        length = int(settings.chunk_seconds / max(seconds_per_update, 1e-6))
    length = min(length, MAX_CHUNK)
    if length >= settings.log_every:  # end with a row
        length -= (progress.row_updates + length) % settings.log_every
    stop = settings.next_evaluation(progress.update) or settings.num_updates
    return min(max(length, 1), stop - progress.update)
