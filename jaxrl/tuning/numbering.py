"""Which of a search's N trials each trial of a study is: Optuna numbers them otherwise.

One that was returned to the queue gets a new number from Optuna and keeps its index.
"""

from __future__ import annotations

from typing import Any

FIRST = "failed_trial"
"""Where Optuna keeps the number of the trial that another one repeats."""


def by_index(study: Any) -> list[tuple[int, Any]]:
    """All trials with their indices: each one's place among those that repeat no other."""
    indices: dict[int, int] = {}
    trials = study.get_trials(deepcopy=False)
    for t in trials:
        if FIRST not in t.system_attrs:
            indices[t.number] = len(indices)
    return [(indices[t.system_attrs.get(FIRST, t.number)], t) for t in trials]


def not_lost(trials: list[tuple[int, Any]], num_trials: int) -> dict[int, Any]:
    """Trials by index, but for those that were lost with their worker.

    Should two workers have put a trial into the queue, its first repetition is the one.
    """
    alive: dict[int, Any] = {}
    for index, frozen in trials:
        if frozen.state.name != "FAIL" and index < num_trials:
            alive.setdefault(index, frozen)
    return alive
