"""The ranking of a sweep's trials, from the best score to the worst, and who trained an agent.

Trials are dictionaries as `sweep.json` holds them. A phase's score there is a number, None if no
episode ended in the phase, or "-inf" if the trial diverged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxrl.tuning.objectives import pareto_front

Trial = Mapping[str, Any]
"""A trial of `sweep.json`: `trial` (its index), `values`, `scores` and `status`."""


def phase_scores(trial: Trial) -> np.ndarray:
    """Return a trial's score of each phase: NaN if no episode ended, -inf if it diverged."""
    return _numbers(trial["scores"])


def _numbers(scores: Iterable[float | str | None]) -> np.ndarray:
    return np.array([math.nan if s is None else float(s) for s in scores], float)


def best_score(trial: Trial) -> float:
    """Return the best finite score of a trial's phases, -inf if it has none."""
    scores = phase_scores(trial)
    return float(scores[np.isfinite(scores)].max(initial=-math.inf))


def best_phase(trial: Trial) -> int:
    """Return the last phase with a trial's best finite score.

    If no score is finite, it is the last phase in which the trial diverged, or 0 if there is none.
    """
    found = np.flatnonzero(phase_scores(trial) == best_score(trial))
    return int(found[-1]) if len(found) else 0


def best_values(trial: Trial) -> dict[str, Any]:
    """Return the values with which a trial scored best; only explorers change a trial's values."""
    return values_in(trial, best_phase(trial))


def late_score(trials: Iterable[Trial], trial: Trial) -> float:
    """Return the mean of the last two scores of the agent with which a trial ended.

    It is -inf if no phase had an ended episode. An agent that an explorer copied brings the scores
    of earlier phases with it.

    Args:
      trials: all trials.
    """
    return _late_mean(row["scores"][phase] for phase, row in enumerate(_trainers(trials, trial)))


def _trainers(trials: Iterable[Trial], trial: Trial) -> list[Trial]:
    """Return the trial that trained a trial's last agent in each phase."""
    number = len(trial["scores"])
    if "changes" not in trial:
        return [trial] * number
    by_index = {each["trial"]: each for each in trials}
    return [by_index[step["trial"]] for step in schedule_of(trials, trial["trial"], number)]


def _late_mean(scores: Iterable[float | str | None]) -> float:
    numbers = _numbers(scores)
    late = numbers[~np.isnan(numbers)][-2:]
    return float(late.mean()) if len(late) else -math.inf


def objective_names(sweep: Mapping[str, Any]) -> list[str]:
    """Return the names of a sweep's objectives; none if it has a single one."""
    found = sweep.get("objective")
    return found if isinstance(found, list) else []


def late_objectives(trials: Iterable[Trial], trial: Trial) -> list[float]:
    """Return the `late_score` of a trial by each of several objectives."""
    if "objectives" not in trial:
        return []
    trainers = _trainers(trials, trial)
    return [
        _late_mean(row["objectives"][place][phase] for phase, row in enumerate(trainers))
        for place in range(len(trial["objectives"]))
    ]


def front(sweep: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row for each trial on the Pareto front, the best by the first objective first.

    Returns:
      Rows with `trial`, `status`, `objectives` (`late_objectives`), and `values`, those of the last
      phase; none if there is a single objective.
    """
    number = len(objective_names(sweep))
    trials = [each for each in sweep["trials"] if len(each.get("objectives", [])) == number > 1]
    if not trials:
        return []
    objectives = [late_objectives(sweep["trials"], trial) for trial in trials]
    rows = [
        {
            "trial": trial["trial"],
            "status": trial["status"],
            "objectives": scores,
            "values": values_in(trial, len(trial["scores"]) - 1),
        }
        for trial, scores, is_in in zip(
            trials, objectives, np.asarray(pareto_front(np.array(objectives))), strict=True
        )
        if is_in
    ]
    return sorted(rows, key=lambda row: (-row["objectives"][0], row["trial"]))


def winner(sweep: Mapping[str, Any]) -> Trial | None:
    """Return the best setting of the finals; without them the trial with the highest score.

    It has `trial` and `values`; it is None if no score is finite. A setting of the finals has none
    if one of its runs has none.
    """
    if finals := sweep.get("finals"):
        return next((row for row in finals if math.isfinite(float(row["score"]))), None)
    return next(iter(ranked(sweep["trials"])), None)


def winning_schedule(sweep: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the phases that led to the winner, if an explorer changed the trials, else [].

    They lead to its best score; in finals the whole schedule trained again. See
    `schedule_of` for what a phase has.
    """
    best, changed = winner(sweep), {t["trial"]: t for t in sweep["trials"] if "changes" in t}
    # The winner of finals that workers share may be another worker's trial.
    if best is None or best["trial"] not in changed:
        return []
    row = changed[best["trial"]]
    num_phases = len(row["scores"]) if "score" in best else best_phase(row) + 1
    return schedule_of(sweep["trials"], row["trial"], num_phases)


def ranked(trials: Iterable[Trial]) -> list[Any]:
    """Return the trials that have a finite score, the best first, equal ones by their index."""
    scored = [trial for trial in trials if best_score(trial) > -math.inf]
    return sorted(scored, key=lambda trial: (-best_score(trial), trial["trial"]))


def leaderboard(trials: Iterable[Trial]) -> list[dict[str, Any]]:
    """Return one row for each trial that has a finite score, the best first, equal ones by index.

    Returns:
      Rows with `trial`; `best_score` of all phases; `last_score`, which is -inf if the trial
      diverged and disregards phases in which no episode ended; `phases`, the number reported;
      `status`; `values`, those of the best score; and `objectives` (`late_objectives`).
    """
    trials = list(trials)
    return [_row(trials, trial) for trial in ranked(trials)]


def _row(trials: list[Trial], trial: Trial) -> dict[str, Any]:
    scores = phase_scores(trial)
    return {
        "trial": trial["trial"],
        "best_score": best_score(trial),
        "last_score": float(scores[~np.isnan(scores)][-1]),
        "phases": len(scores),
        "status": trial["status"],
        "values": best_values(trial),
        "objectives": late_objectives(trials, trial),
    }


def values_in(trial: Trial, phase: int) -> dict[str, Any]:
    """Return the values with which a trial of `sweep.json` trains a phase."""
    changes = trial.get("changes", [])[:phase]
    return changes[-1]["values"] if changes else trial["values"]


def schedule_of(trials: Iterable[Trial], trial: int, num_phases: int) -> list[dict[str, Any]]:
    """Return who trained the agent that a trial had after so many phases, and with which values.

    Returns:
      For each phase its number from 0, `phase`, the `trial` that trained it, and its `values`.
    """
    by_index = {each["trial"]: each for each in trials}
    schedule = []
    for phase in reversed(range(num_phases)):
        row = by_index[trial]
        schedule.append({"phase": phase, "trial": trial, "values": values_in(row, phase)})
        if phase:
            trial = row["changes"][phase - 1]["parent"]
    return schedule[::-1]
