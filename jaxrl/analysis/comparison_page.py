"""The page that compares runs: curves, scores with intervals, settings, commands and videos."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl.analysis import atari57
from jaxrl.analysis.comparison import (
    Group,
    Run,
    differing_names,
    has_human_scores,
    mean_curve,
    scores_over_games,
)
from jaxrl.analysis.figures import Line, color_and_dashes, plot_lines, time_unit
from jaxrl.analysis.page import Picture, count, format_number, format_range, write_page
from jaxrl.analysis.video import Film, videos_in
from jaxrl.ops import statistics
from jaxrl.ops.statistics import Estimate, estimate

_STATISTICS = {
    "mean": statistics.mean,
    "median": statistics.median,
    "IQM": statistics.interquartile_mean,
    "optimality gap": statistics.optimality_gap,
}
_PROFILE_POINTS = 200


class ScoreRow(NamedTuple):
    """A group's row in the table of final scores."""

    group: Group
    estimates: list[Estimate]  # mean, IQM and, on Atari, human-normalized IQM
    evaluation: str
    steps: str
    training_time: str


class Games(NamedTuple):
    """Scores over several Atari games."""

    statistics: list[str]
    estimates: dict[str, list[Estimate]]  # of each method, in the order of `statistics`
    num_runs: dict[str, int]  # of each method on each game
    left_out: dict[str, str]  # methods without such scores, and the reasons
    profiles: Picture | None


def write_comparison(groups: Sequence[Group], path: Path) -> Path:
    """Write one self-contained page that compares groups of runs, and return its path.

    The page shows the .mp4 and .gif files in the runs' `video/`; it links those from 8 MB on.

    Raises:
      OSError: if `path` cannot be written.
    """
    methods = dict.fromkeys(group.method for group in groups)
    looks = {method: color_and_dashes(place) for place, method in enumerate(methods)}
    env_ids = dict.fromkeys(group.env_id for group in groups)
    is_atari = has_human_scores(groups)
    num_runs = sum(len(group.runs) for group in groups)
    return write_page(
        path,
        "comparison.html",
        title=f"Comparison of {count(num_runs, 'run')}",
        groups=groups,
        curves=[_curves([x for x in groups if x.env_id == env_id], looks) for env_id in env_ids],
        has_human_scores=is_atari,
        scores=[_score_row(group, is_atari) for group in groups],
        games=_games(groups, looks) if is_atari and len(env_ids) > 1 else None,
        settings={group.method: group.settings for group in groups},
        places=_places([run for group in groups for run in group.runs]),
        differing_names=differing_names,
        videos=[film for group in groups for run in group.runs for film in _films(group, run)],
    )


def summary_line(group: Group) -> str:
    """Return a group's score in one line of text."""
    found = estimate(statistics.interquartile_mean, group.final_returns)
    value, low, high = map(format_number, found)
    interval = f" ({low} to {high})" if len(group.runs) > 1 else ""
    seeds = count(len(group.runs), "seed")
    if unfinished := sum(not run.is_finished for run in group.runs):
        seeds += f", {unfinished} unfinished"
    what = "return of the last 100 training episodes"
    return f"{group.method} on {group.env_id}: {what}, IQM {value}{interval} of {seeds}"


def _curves(groups: Sequence[Group], looks: Mapping[str, tuple[str, str]]) -> list[Picture]:
    """Draw the learning curves of one environment against steps and against time."""
    env_id, returns = groups[0].env_id, "return, mean of last 100 episodes"
    timed = [mean_curve(group, "seconds") for group in groups]
    length, unit = time_unit(max(seconds[-1] for seconds, _ in timed))
    by_steps, by_time = [], []
    for group, (seconds, found) in zip(groups, timed, strict=True):
        label, look = f"{group.method}, {count(len(group.runs), 'seed')}", looks[group.method]
        rows = [row for run in group.runs for row in run.rows if "eval_return" in row]
        dots = [(row["steps"], row["eval_return"]) for row in rows]
        by_steps.append(Line(label, *look, *mean_curve(group, "steps"), dots))
        by_time.append(Line(label, *look, seconds / length, found))
    steps_caption = "Against environment steps. Dots are evaluations."
    time_caption = (
        "Against time spent training, without compilation, evaluation and checkpoints, until the "
        "first seed is done."
    )
    return [
        _picture(by_steps, env_id, "environment steps", returns, steps_caption),
        _picture(by_time, env_id, f"wall time, {unit}", returns, time_caption),
    ]


def _picture(lines: Sequence[Line], title: str, xlabel: str, ylabel: str, caption: str) -> Picture:
    """Draw lines, with a text that describes the picture to a screen reader."""
    labels = "; ".join(line.label for line in lines)
    alt = f"{title}: {ylabel}, against {xlabel}, of {labels}"
    return Picture(plot_lines(lines, title, xlabel, ylabel), "image/svg+xml", alt, caption)


def _score_row(group: Group, is_atari: bool) -> ScoreRow:
    """Estimate a group's final scores."""
    scores, iqm = group.final_returns, statistics.interquartile_mean
    estimates = [estimate(statistics.mean, scores), estimate(iqm, scores)]
    if is_atari:
        estimates.append(estimate(iqm, atari57.human_normalized(group.env_id, scores)))
    evaluations = [run.evaluation for run in group.runs if run.evaluation is not None]
    seconds = [max(row.get("seconds", 0.0) for row in run.rows) for run in group.runs]
    length, unit = time_unit(max(seconds))
    return ScoreRow(
        group,
        estimates,
        evaluation=format_number(np.mean(evaluations)) if evaluations else "none",
        steps=format_range([run.rows[-1]["steps"] for run in group.runs]),
        training_time=f"{format_range([x / length for x in seconds])} {unit}",
    )


def _games(groups: Sequence[Group], looks: Mapping[str, tuple[str, str]]) -> Games:
    """Estimate aggregates over games, and draw performance profiles."""
    scores, left_out = scores_over_games(groups)
    estimates = {
        method: [estimate(statistic, matrix) for statistic in _STATISTICS.values()]
        for method, matrix in scores.items()
    }
    num_runs = {method: len(matrix) for method, matrix in scores.items()}
    picture = _profiles(scores, looks) if scores else None
    return Games(list(_STATISTICS), estimates, num_runs, left_out, picture)


def _profiles(scores: Mapping[str, np.ndarray], looks: Mapping[str, tuple[str, str]]) -> Picture:
    """Draw each method's share of runs above each score."""
    highest = max(float(matrix.max()) for matrix in scores.values())
    thresholds = np.linspace(0, max(1.0, highest), _PROFILE_POINTS)
    profile = functools.partial(statistics.performance_profile, thresholds=thresholds)
    lines = [
        Line(method, *looks[method], thresholds, estimate(profile, matrix))
        for method, matrix in scores.items()
    ]
    caption = "The share of all runs of all games that score more. Higher is better."
    axis = "human-normalized score"
    return _picture(lines, "performance profiles", axis, "share of runs above", caption)


def _places(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Return versions, commits and machines; runs with the same ones share a column."""
    sharing: dict[str, list[Run]] = {}
    for run in runs:
        facts = [run.manifest[name] for name in ("versions", "git_commit", "hardware")]
        sharing.setdefault(json.dumps(facts, sort_keys=True), []).append(run)
    columns = {}
    for first, *others in sharing.values():
        name = f"{first.directory}" + (f" and {len(others)} more" if others else "")
        commit = {"commit": first.manifest["git_commit"]}
        columns[name] = first.manifest["versions"] | commit | first.manifest["hardware"]
    return columns


def _films(group: Group, run: Run) -> list[Film]:
    """Return a run's videos, with captions that name the run."""
    label = f"{group.method} on {group.env_id}, {run.directory.name}"
    found = videos_in(run.directory / "video")
    return [film._replace(caption=f"{label}: {film.caption}") for film in found]
