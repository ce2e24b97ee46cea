"""The page that compares runs: curves, scores with intervals, settings, commands and videos."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.analysis import atari57, page, statistics
from jaxrl.analysis.comparison import Group, Run, curve, differing, is_atari, over_games
from jaxrl.analysis.figures import Line, plot_lines
from jaxrl.analysis.page import code, text
from jaxrl.analysis.statistics import Estimate, estimate
from jaxrl.analysis.sweep_scores import time_unit
from jaxrl.training.loop import SUMMARY

_STATISTICS = {
    "mean": statistics.mean,
    "median": statistics.median,
    "IQM": statistics.interquartile_mean,
    "optimality gap": statistics.optimality_gap,
}
_PROFILE_POINTS = 200
_PLACE = ("versions", "git_commit", "hardware")
_INTERVALS = (
    "Brackets and bands are 95 % intervals over seeds, by the stratified bootstrap (Agarwal et al. "
    "2021). Those of a few seeds are too narrow, and a single seed has none."
)


def write_comparison(groups: Sequence[Group], path: Path) -> Path:
    """Compare groups of runs on one page, with their pictures and videos in it.

    Videos are those in the runs' `video/`, .mp4 or .gif; from 8 MB on they are linked.

    Raises:
      OSError: if `path` cannot be written.
    """
    colors = _colors(groups)
    runs = [(group, run) for group in groups for run in group.runs]
    parts = [f"<p>{_INTERVALS}</p>", "<h2>Learning curves</h2>"]
    for env_id in dict.fromkeys(group.env_id for group in groups):
        parts.append(_curves([group for group in groups if group.env_id == env_id], colors))
    parts += ["<h2>Final scores</h2>", _scores(groups)]
    if is_atari(groups) and len({group.env_id for group in groups}) > 1:
        parts += ["<h2>Over all games, human-normalized</h2>", _games(groups, colors)]
    methods = {group.method: group.settings for group in groups}
    parts += ["<h2>Settings</h2>", _beside(methods, "settings")]
    parts += ["<h2>Runs</h2>", _runs(runs), "<h3>Versions and machines</h3>", _places(runs)]
    if videos := _videos(runs, path.parent):
        parts += ["<h2>Videos</h2>", page.side_by_side(videos)]
    return page.write(path, f"Comparison of {_count(len(runs), 'run')}", parts)


def summary(group: Group) -> str:
    """A group's scores in a line."""
    found = estimate(statistics.interquartile_mean, group.final_returns)
    seeds = _count(len(group.runs), "seed")
    return (
        f"{group.method} on {group.env_id}: IQM {_number(found.value)} "
        f"({_number(found.low)} to {_number(found.high)}) of {seeds}"
    )


def _curves(groups: Sequence[Group], colors: Mapping[str, str]) -> str:
    """One environment's, against steps and against time."""
    env_id = groups[0].env_id
    by_steps = []
    for group in groups:
        rows = [row for run in group.runs for row in run.rows if "eval_return" in row]
        dots = [(row["steps"], row["eval_return"]) for row in rows]
        label = f"{group.method}, {_count(len(group.runs), 'seed')}"
        by_steps.append(Line(label, colors[group.method], *curve(group, "steps"), dots=dots))
    by_time = [curve(group, "seconds") for group in groups]
    length, unit = time_unit(max(x[-1] for x, _ in by_time))
    lines = [
        line._replace(x=seconds / length, estimate=returns, dots=())
        for line, (seconds, returns) in zip(by_steps, by_time, strict=True)
    ]
    name = "return, mean of last 100 episodes"
    by_steps_about = "Against environment steps. Dots are evaluations."
    by_time_about = (
        "Against time spent training, without compilation, evaluation and checkpoints, until the "
        "first seed is done."
    )
    return page.side_by_side(
        [
            _figure(by_steps, env_id, "environment steps", name, by_steps_about),
            _figure(lines, env_id, f"wall time, {unit}", name, by_time_about),
        ]
    )


def _figure(lines: Sequence[Line], title: str, xlabel: str, ylabel: str, caption: str) -> str:
    picture = plot_lines(lines, title, xlabel, ylabel)
    labels = "; ".join(line.label for line in lines)
    alt = f"{title}: {ylabel}, against {xlabel}, of {labels}"
    return page.figure(page.image(picture, "image/svg+xml", alt), caption)


def _scores(groups: Sequence[Group]) -> str:
    """A row for each group."""
    normalizes = is_atari(groups)
    head = ["method", "environment", "seeds", "mean", "IQM", "evaluation", "steps", "training time"]
    if normalizes:
        head.insert(5, "IQM, human-normalized")
    rows = []
    for group in groups:
        scores = group.final_returns
        evaluations = [run.evaluation for run in group.runs if run.evaluation is not None]
        cells = [
            text(group.method),
            text(group.env_id),
            str(len(group.runs)),
            _estimated(statistics.mean, scores),
            _estimated(statistics.interquartile_mean, scores),
            _number(np.mean(evaluations)) if evaluations else "none",
            page.small(_range([run.rows[-1]["steps"] for run in group.runs])),
            page.small(_time(group.runs)),
        ]
        if normalizes:
            normalized = atari57.human_normalized(group.env_id, scores)
            cells.insert(5, _estimated(statistics.interquartile_mean, normalized))
        rows.append(cells)
    about = "Scores are means of a run's last 100 training episodes."
    if normalizes:
        about += " Human-normalized, 0 is random play and 1 a human tester's (Wang et al. 2016)."
    return page.table(rows, "final scores", head) + f"\n<p>{about}</p>"


def _games(groups: Sequence[Group], colors: Mapping[str, str]) -> str:
    """Aggregates over games, and performance profiles."""
    scores, left_out = over_games(groups)
    parts = [f"<p>{text(method)} is left out: {text(why)}.</p>" for method, why in left_out.items()]
    if not scores:
        return "\n".join(parts)
    rows = [
        [text(method), *(_estimated(statistic, of) for statistic in _STATISTICS.values())]
        for method, of in scores.items()
    ]
    highest = max(float(of.max()) for of in scores.values())
    thresholds = np.linspace(0, max(1.0, highest), _PROFILE_POINTS)
    profile = lambda x: statistics.performance_profile(x, thresholds)  # noqa: E731
    lines = [
        Line(method, colors[method], thresholds, estimate(profile, of))
        for method, of in scores.items()
    ]
    caption = "The share of all runs of all games that score more. Higher is better."
    axis = "human-normalized score"
    return "\n".join(
        [
            page.table(rows, "scores over all games", ["method", *_STATISTICS]),
            *parts,
            _figure(lines, "performance profiles", axis, "share of runs above", caption),
        ]
    )


def _beside(columns: Mapping[str, Mapping[str, Any]], label: str) -> str:
    """Columns of values: the rows that differ, marked, and the others folded away."""
    names = dict.fromkeys(name for column in columns.values() for name in column)
    marked = differing(columns.values())
    row = lambda name: [_value(column, name) for column in columns.values()]  # noqa: E731
    head = ["", *(text(column) for column in columns)]
    unequal = [[page.marked(text(name)), *row(name)] for name in marked]
    equal = [[text(name), row(name)[0]] for name in names if name not in marked]
    parts = [page.table(unequal, f"{label} that differ", head)] if unequal else []
    if equal:
        same = f"{_count(len(equal), 'value')} that {'are' if len(equal) > 1 else 'is'} the same"
        parts.append(page.folded(same, page.table(equal, f"{label} that are the same")))
    return "\n".join(parts)


def _runs(runs: Sequence[tuple[Group, Run]]) -> str:
    """A row for each run, with the commands that made it."""
    rows = []
    for group, run in runs:
        resumptions = run.manifest.get("resumptions", [])
        commands = [run.manifest["command"], *(again["command"] for again in resumptions)]
        rows.append(
            [
                text(run.directory),
                text(group.method),
                text(group.env_id),
                str(run.seed),
                _number(run.final_return),
                "finished" if _is_finished(run) else "unfinished",
                "<br>".join(code(command) for command in commands),
            ]
        )
    head = ["run", "method", "environment", "seed", "score", "state", "command"]
    return page.table(rows, "runs", head)


def _places(runs: Sequence[tuple[Group, Run]]) -> str:
    """Versions, commits and machines; runs that share theirs share a column."""
    together: dict[str, list[Run]] = {}
    for _, run in runs:
        key = json.dumps([run.manifest[name] for name in _PLACE], sort_keys=True)
        together.setdefault(key, []).append(run)
    columns = {}
    for same in together.values():
        manifest, (first, *others) = same[0].manifest, same
        name = f"{first.directory}" + (f" and {len(others)} more" if others else "")
        columns[name] = (
            manifest["versions"] | {"commit": manifest["git_commit"]} | manifest["hardware"]
        )
    return _beside(columns, "versions")


def _videos(runs: Sequence[tuple[Group, Run]], folder: Path) -> list[str]:
    return [
        page.video(
            path, f"{group.method} on {group.env_id}, {run.directory.name}: {path.name}", folder
        )
        for group, run in runs
        for path in page.videos_in(run.directory / "video")
    ]


def _colors(groups: Sequence[Group]) -> dict[str, str]:
    """A method has the same colour in all figures."""
    methods = dict.fromkeys(group.method for group in groups)
    return {method: f"C{number}" for number, method in enumerate(methods)}


def _estimated(statistic: statistics.Statistic, scores: np.ndarray) -> str:
    """A value and, of several runs, its interval."""
    found: Estimate = estimate(statistic, scores)
    if len(scores) == 1:
        return _number(found.value)
    interval = f"[{_number(found.low)}, {_number(found.high)}]"
    return f"{_number(found.value)} {page.small(interval)}"


def _is_finished(run: Run) -> bool:
    path = run.directory / SUMMARY
    return path.exists() and not json.loads(path.read_text())["interrupted"]


def _time(runs: Sequence[Run]) -> str:
    seconds = [max(row.get("seconds", 0.0) for row in run.rows) for run in runs]
    length, unit = time_unit(max(seconds))
    return f"{_range([x / length for x in seconds])} {unit}"


def _range(values: Sequence[float]) -> str:
    low, high = _number(min(values)), _number(max(values))
    return low if low == high else f"{low} to {high}"


def _number(value: Any) -> str:
    """For people: four digits or a few more."""
    if not math.isfinite(value):
        return str(value)
    before_point = math.floor(math.log10(max(abs(value), 1))) + 1
    return f"{value:,.{max(0, 4 - before_point)}f}"


def _value(column: Mapping[str, Any], name: str) -> str:
    return text(column[name]) if name in column else "none"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
