"""The tables of a sweep, as text for the terminal and its page."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxrl.tuning.finals import mean_interval
from jaxrl.tuning.ranking import (
    best_score,
    front,
    leaderboard,
    objective_names,
    winning_schedule,
)
from jaxrl.tuning.schedulers.halving import HyperBand, SuccessiveHalving
from jaxrl.tuning.schedulers.hypertrick import HyperTrick
from jaxrl.tuning.schedulers.random_search import RandomSearch
from jaxrl.tuning.timeline import expected_phases

Sweep = Mapping[str, Any]
"""The content of `sweep.json`, or what `jaxrl.tuning.studies.whole_study` returns."""


class TextTable(NamedTuple):
    """The names of a table's columns, and its rows."""

    head: list[str]
    rows: list[list[str]]


def leaderboard_table(sweep: Sweep) -> TextTable:
    """Return a row for each trial that has a finite score, the best first."""
    others = [f"{name}, last two" for name in objective_names(sweep)[1:]]
    head = ["trial", "best score", "last score", *others, "phases", "status", *sweep["space"]]
    rows = []
    for row in leaderboard(sweep["trials"]):
        late = map(late_text, row["objectives"][1:])
        scores = [row["best_score"], row["last_score"], *late]
        cells = [row["trial"], *scores, row["phases"], row["status"], *_values(sweep, row)]
        rows.append([cell_text(cell) for cell in cells])
    return TextTable(head, rows)


def finals_table(sweep: Sweep) -> TextTable:
    """Return a row for each setting of the finals, the best first.

    It has the score that the search chose it by, the mean of its runs, each run's score, and the
    means by other objectives.
    """
    others = objective_names(sweep)[1:]
    rows = []
    for row in sweep.get("finals", []):
        runs = ", ".join(late_text(float(score)) for score in row["scores"])
        means = [late_text(float(mean)) for mean in row.get("objectives", [])[1:]]
        cells = [row["trial"], late_text(float(row["search"])), _mean_of_runs(row), runs, *means]
        rows.append([cell_text(cell) for cell in cells])
    return TextTable(["trial", "search, last two", "finals, mean (95%)", "runs", *others], rows)


def front_table(sweep: Sweep) -> TextTable:
    """Return a row for each trial on the Pareto front of several objectives."""
    rows = [
        [row["trial"], *map(late_text, row["objectives"]), row["status"], *_values(sweep, row)]
        for row in front(sweep)
    ]
    head = ["trial", *objective_names(sweep), "status", *sweep["space"]]
    return TextTable(head, [[cell_text(cell) for cell in row] for row in rows])


def schedule_table(sweep: Sweep) -> TextTable:
    """Return a row for each phase that led to the winner, if an explorer changed the trials."""
    rows = [
        [cell_text(cell) for cell in (row["phase"] + 1, row["trial"], *_values(sweep, row))]
        for row in winning_schedule(sweep)
    ]
    return TextTable(["phase", "trial", *sweep["space"]], rows)


def winner_scores(best: Mapping[str, Any]) -> str:
    """Return the scores of `ranking.winner` in words: in the finals and in the search."""
    if "score" not in best:
        return cell_text(best_score(best))
    searched = late_text(float(best["search"]))
    return f"{_mean_of_runs(best)} in the finals, {searched} in the search (last two)"


def _mean_of_runs(row: Mapping[str, Any]) -> str:
    """Return a setting's mean over its runs in the finals as text, of several with the interval."""
    scores = np.array([float(score) for score in row["scores"]])
    if not np.isfinite(scores).all():
        return late_text(-math.inf)
    numbers = scores if len(scores) == 1 else np.array([scores.mean(), *mean_interval(scores)])
    largest = float(np.abs(numbers).max())
    places = 2 if largest >= 1 or not largest else 2 - math.floor(math.log10(largest))
    mean, *ends = (f"{number:.{places}f}" for number in numbers)
    return f"{mean} ({ends[0]} to {ends[1]})" if ends else mean


def value_text(value: Any) -> str:
    """Return a hyperparameter's value as text; real numbers have four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def cell_text(value: Any) -> str:
    """Return a cell's text; real numbers have six digits."""
    if isinstance(value, float):
        return "diverged" if value == -math.inf else f"{value:.6g}"
    return str(value)


def late_text(score: float) -> str:
    """Return a mean of last scores as text: -inf stands for a divergence or for no episode."""
    return "no score" if score == -math.inf else cell_text(score)


def _values(sweep: Sweep, row: Mapping[str, Any]) -> list[str]:
    """Return a row's hyperparameters with four digits; inactive ones are empty."""
    return [value_text(row["values"].get(name, "")) for name in sweep["space"]]


def phases_text(sweep: Sweep) -> str:
    """Return how many phases trials have reported, how many were planned, and those of finals."""
    scheduler, reported = sweep["scheduler"], sum(len(t["scores"]) for t in sweep["trials"])
    phases = scheduler.get("num_phases", 0)
    most = scheduler.get("num_trials", 0) * phases
    if not most:
        return str(reported)
    if sweep.get("elsewhere"):
        text = f"{len(sweep['spans'])} by this worker, of {most} of all workers"
    else:
        text = f"{reported} of {most} ({reported / most:.2f})"
    if planned := _planned_phases(scheduler):
        is_mean = scheduler["name"] == HyperTrick.__name__
        condition = " if scores were exchangeable" if is_mean else ""
        text += f"; {planned:.0f} ({planned / most:.2f}) planned{condition}"
    caps = [("max_steps", "steps"), ("max_seconds", "seconds")]
    given = [f"{sweep[cap]:,.12g} {unit}" for cap, unit in caps if sweep.get(cap) is not None]
    text += f"; capped at {' and '.join(given)}" if given else ""
    runs = sum(len(row["scores"]) for row in sweep.get("finals", []))
    return text + (f"; {runs * phases} more in finals" if runs else "")


def _planned_phases(description: Mapping[str, Any]) -> float | None:
    """Return the phases of a scheduler without a cap; None if no formula gives them."""
    for kind in (RandomSearch, HyperTrick, SuccessiveHalving, HyperBand):
        if description["name"] == kind.__name__:
            own = {field.name for field in dataclasses.fields(kind) if field.init}
            with contextlib.suppress(TypeError, ValueError):  # of another version
                return expected_phases(kind(**{k: v for k, v in description.items() if k in own}))
    return None
