"""The page of a hyperparameter sweep: its leaderboard, pictures and videos."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.analysis.figures import time_unit
from jaxrl.analysis.page import Picture, count, write_page
from jaxrl.analysis.sweep_figures import duration, num_lanes, pictures_of, plot, sweep_title
from jaxrl.analysis.video import videos_in
from jaxrl.files.urls import redact_text
from jaxrl.tuning.finals import mean_interval
from jaxrl.tuning.sweeps.ranking import (
    best_score,
    front,
    leaderboard,
    objective_names,
    winner,
    winning_schedule,
)

_TABLE_ROWS = 20  # the other trials are folded away


def write_report(sweep: Mapping[str, Any], run_dir: Path) -> Path:
    """Write `report.html`, one self-contained page of a sweep or study, and return its path.

    The pictures are also written to `plots/`. The page shows the .mp4 and .gif files in `videos/`
    side by side with their captions; it links those from 8 MB on.

    Args:
      sweep: the content of `sweep.json`, or what `jaxrl.tuning.sweeps.whole_study` returns.

    Raises:
      OSError: if the page cannot be written.
    """
    pictures = [
        Picture(path.read_bytes(), "image/png", path.stem, pictures_of(sweep)[path.stem].caption)
        for path in plot(sweep, run_dir / "plots")
    ]
    head, lines = _leaderboard_table(sweep)
    return write_page(
        run_dir / "report.html",
        "sweep.html",
        title=f"Sweep of {sweep_title(sweep)}",
        best=_best(sweep),
        facts=_facts(sweep),
        head=head,
        finals_head=["trial", "mean (95%)", "runs", *objective_names(sweep)[1:]],
        finals=_finals_table(sweep),
        front_head=["trial", *objective_names(sweep), "status", *sweep["space"]],
        front=_front_table(sweep),
        schedule_head=["phase", "trial", *sweep["space"]],
        schedule=_schedule_table(sweep),
        leaders=lines[:_TABLE_ROWS],
        others=lines[_TABLE_ROWS:],
        pictures=pictures,
        videos=videos_in(run_dir / "videos"),
    )


def _best(sweep: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the winner's score and values in words, None if no trial has a score."""
    if (best := winner(sweep)) is None:
        return None
    is_final = "score" in best
    score = f"{_text(float(best['score']))} in the finals" if is_final else _text(best_score(best))
    values = ", ".join(f"{name}={_text(value)}" for name, value in best["values"].items())
    settings = "by its schedule, below" if winning_schedule(sweep) else values
    return {"score": f"trial {best['trial']}, score {score}", "settings": settings}


def _facts(sweep: Mapping[str, Any]) -> dict[str, str | list[str]]:
    """Return what was run and how it went, by name; lists are lines of code.

    A study knows of its workers, but neither their seeds, samplers and lanes nor their commands.
    """
    seconds, unit = time_unit(duration(sweep))
    statuses = collections.Counter(trial["status"] for trial in sweep["trials"])
    phase, occupancy = sweep["phase"], sweep.get("occupancy")
    names = objective_names(sweep)
    facts: dict[str, str | list[str]] = {
        "algorithm": sweep["algorithm"],
        "environment": sweep["env"],
        "scheduler": [_call(sweep["scheduler"], "name")],
        **({"objectives": f"{', '.join(names)}; the first one compares trials"} if names else {}),
        "phase": f"{phase['length']} {phase['unit']}",
        "trials": ", ".join(f"{number} {status}" for status, number in sorted(statuses.items())),
        "phases": _cost(sweep),
        "wall time": f"{duration(sweep) / seconds:.3g} {unit}",
        "occupancy": "unknown" if occupancy is None else f"{100 * occupancy:.0f} %",
        "space": [f"{name}: {_call(x, 'kind')}" for name, x in sweep["space"].items()],
    }
    if "workers" in sweep:
        numbers = (f"{worker}: {count(n, 'trial')}" for worker, n in sweep["workers"].items())
        lost = {"lost with their worker": f"{count(sweep['lost'], 'trial')}, run again"}
        return facts | {
            "workers": ", ".join(numbers),
            **(lost if sweep["lost"] else {}),
            "study": f"{sweep['study']} at {sweep['storage']}",
        }
    return facts | {
        "sampler": sweep["sampler"],
        "seed": str(sweep["seed"]),
        "lanes": f"{num_lanes(sweep)}, {sweep['strategy']}",
        "command": [redact_text(sweep["command"])],
    }


def _finals_table(sweep: Mapping[str, Any]) -> list[list[str]]:
    """Return the lines of the finals, the best setting first.

    They have the trial, the mean, each run's score, and the means by other objectives.
    """
    lines = []
    for row in sweep.get("finals", []):
        scores = ", ".join(_text(float(score)) for score in row["scores"])
        others = [_text(float(mean)) for mean in row.get("objectives", [])[1:]]
        lines.append([str(row["trial"]), mean_of_runs(row), scores, *others])
    return lines


def _front_table(sweep: Mapping[str, Any]) -> list[list[str]]:
    """Return a line for each trial on the Pareto front of several objectives."""
    lines = []
    for row in front(sweep):
        values = [row["values"].get(name, "") for name in sweep["space"]]
        cells = [row["trial"], *row["objectives"], row["status"], *values]
        lines.append([_text(cell) for cell in cells])
    return lines


def _schedule_table(sweep: Mapping[str, Any]) -> list[list[str]]:
    """Return a line for each phase that led to the winner, if an explorer changed the trials."""
    return [
        [str(row["phase"] + 1), str(row["trial"])]
        + [_text(row["values"].get(name, "")) for name in sweep["space"]]
        for row in winning_schedule(sweep)
    ]


def mean_of_runs(row: Mapping[str, Any]) -> str:
    """Return a setting's mean over its runs in the finals as text, of several with the interval."""
    scores = np.array([float(score) for score in row["scores"]])
    if not np.isfinite(scores).all():
        return _text(-math.inf)
    if len(scores) == 1:
        return f"{scores[0]:.2f}"
    low, high = mean_interval(scores)
    return f"{scores.mean():.2f} ({low:.2f} to {high:.2f})"


def _leaderboard_table(sweep: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the lines of the leaderboard, the best trial first."""
    others = [f"{name}, last two" for name in objective_names(sweep)[1:]]
    head = ["", "trial", "best score", "last score", *others, "phases", "status", *sweep["space"]]
    lines = []
    for rank, row in enumerate(leaderboard(sweep["trials"]), start=1):
        scores = [row["best_score"], row["last_score"], *row["objectives"][1:]]
        values = [row["values"].get(name, "") for name in sweep["space"]]
        cells = [rank, row["trial"], *scores, row["phases"], row["status"], *values]
        lines.append([_text(cell) for cell in cells])
    return head, lines


def _cost(sweep: Mapping[str, Any]) -> str:
    """Return how many phases the trials have reported, of how many if none were stopped."""
    scheduler, reported = sweep["scheduler"], sum(len(t["scores"]) for t in sweep["trials"])
    number, rate = scheduler.get("num_phases", 0), scheduler.get("eviction_rate")
    most = scheduler.get("num_trials", 0) * number
    if not most:
        return str(reported)
    text = f"{reported} of {most} ({reported / most:.2f})"
    if rate:
        planned = (1 - (1 - rate) ** number) / (rate * number)
        text += f"; {planned * most:.0f} ({planned:.2f}) if scores were exchangeable"
    return text


def _call(description: Mapping[str, Any], name: str) -> str:
    """Return a description as a call in Python: `LogUniform(low=1e-05, high=0.01)`."""
    arguments = (f"{key}={value}" for key, value in description.items() if key != name)
    return f"{description[name]}({', '.join(arguments)})"


def _text(value: Any) -> str:
    """Return a cell's text; numbers have six digits."""
    if isinstance(value, float):
        return "diverged" if value == -math.inf else f"{value:.6g}"
    return str(value)
