"""The pictures of a hyperparameter sweep: its scores, its hyperparameters and its lanes, as PNG."""

from __future__ import annotations

import collections
import colorsys
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxrl.analysis.figures import DIVERGED_COLOR, color_scale, shorten, show_text, time_unit
from jaxrl.analysis.importance import importances
from jaxrl.analysis.page import count
from jaxrl.analysis.sweep_axes import draw_parallel_coordinates, position, ticks
from jaxrl.tuning.ranking import (
    front,
    late_objectives,
    leaderboard,
    objective_names,
    phase_scores,
    winning_schedule,
)

Sweep = Mapping[str, Any]
"""The content of `sweep.json`."""


class PictureKind(NamedTuple):
    """A kind of picture: its caption and the function that draws it."""

    caption: str
    draw: Callable[[Figure, Sweep], None]


def plot(sweep: Sweep, directory: Path) -> list[Path]:
    """Draw the pictures of a sweep to `directory`, and return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, (_, draw) in pictures_of(sweep).items():
        figure = Figure(figsize=(8, 4.6), dpi=120, layout="constrained")
        draw(figure, sweep)
        paths.append(directory / f"{name}.png")
        figure.savefig(paths[-1])
    return paths


def sweep_title(sweep: Sweep) -> str:
    """Return the algorithm, the environment and the number of trials in words."""
    return f"{sweep['algorithm']} on {sweep['env']}: {count(len(sweep['trials']), 'trial')}"


def duration(sweep: Sweep) -> float:
    """Return the seconds that a sweep took so far; never 0, as it is the length of an axis."""
    return max([sweep.get("seconds") or 0.0, *(span["end"] for span in sweep["spans"])]) or 1.0


def num_lanes(sweep: Sweep) -> int:
    """Return the lanes of a sweep that may train a trial: it may have been given too many."""
    return min(sweep["lanes"], sweep["scheduler"].get("num_trials", sweep["lanes"]))


def best_so_far(sweep: Sweep) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of phases with a finite score in seconds, and the best score until each."""
    scores = {trial["trial"]: phase_scores(trial) for trial in sweep["trials"]}
    ends, reported = [], []
    for span in sorted(sweep["spans"], key=lambda span: span["end"]):
        own_scores = scores.get(span["trial"], np.empty(0))
        # The last phases of an interrupted sweep have spans but no scores.
        if span["phase"] < len(own_scores) and math.isfinite(own_scores[span["phase"]]):
            ends.append(span["end"])
            reported.append(own_scores[span["phase"]])
    return np.array(ends, float), np.maximum.accumulate(np.array(reported, float))


def _draw_phases(figure: Figure, sweep: Sweep) -> None:
    """Draw the score of each phase, one line for each trial."""
    axes = figure.add_subplot()
    ranking = leaderboard(sweep["trials"])
    axes.set_title(sweep_title(sweep), parse_math=False)
    if not ranking:
        show_text(figure, axes, "No trial has a finite score.")
        return
    scores = {trial["trial"]: phase_scores(trial) for trial in sweep["trials"]}
    finite = {row["trial"]: np.flatnonzero(np.isfinite(scores[row["trial"]])) for row in ranking}
    final = {trial: scores[trial][phases[-1]] for trial, phases in finite.items()}
    colors = color_scale(list(final.values()))
    for row in reversed(ranking):  # the best on top
        trial, is_best = row["trial"], row is ranking[0]
        axes.plot(
            finite[trial] + 1,
            scores[trial][finite[trial]],
            color=colors.to_rgba(final[trial]),
            linewidth=3 if is_best else 0.8,
            marker="o",  # a single score has no line
            markersize=5 if is_best else 2,
            label=f"best: trial {trial}" if is_best else None,
        )
    _mark_ends(axes, sweep["trials"])
    longest = max(len(own_scores) for own_scores in scores.values())
    axes.margins(y=0.1)  # room for crosses at the bottom
    axes.set_xlim(0.8, max(longest, 2) + 0.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    phase = sweep["phase"]
    axes.set_xlabel(f"phase, {phase['length']} {phase['unit']} each", parse_math=False)
    axes.set_ylabel("score")
    axes.grid(alpha=0.3)
    figure.colorbar(colors, ax=axes, label="final score")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)


def _mark_ends(axes: Axes, trials: Sequence[Mapping[str, Any]]) -> None:
    """Draw crosses where trials were stopped or diverged; at the bottom without a finite score."""
    colors, labelled = {"stopped": "black", "diverged": DIVERGED_COLOR}, set()
    for trial in trials:
        scores = phase_scores(trial)
        finite, diverged = np.flatnonzero(np.isfinite(scores)), np.flatnonzero(np.isneginf(scores))
        if len(diverged):
            end, phase, bottom = "diverged", diverged[0], 0.02
        elif trial["status"] == "stopped" and len(scores):
            end, phase, bottom = "stopped", [len(scores) - 1, *finite][-1], 0.06
        else:
            continue
        has_score = np.isfinite(scores[phase])
        axes.plot(
            phase + 1,
            scores[phase] if has_score else bottom,
            "x",
            color=colors[end],
            label=None if end in labelled else end,
            transform=axes.transData if has_score else axes.get_xaxis_transform(),
            markersize=5,
            zorder=3,
        )
        labelled.add(end)


def _draw_best(figure: Figure, sweep: Sweep) -> None:
    """Draw the best score until each point of time."""
    axes = figure.add_subplot()
    axes.set_title("best score so far")
    ends, best = best_so_far(sweep)
    if not len(ends):
        show_text(figure, axes, "No phase has ended with a finite score.")
        return
    seconds, unit = time_unit(duration(sweep))
    until = np.append(ends, max(duration(sweep), ends[-1])) / seconds
    axes.step(until, np.append(best, best[-1]), where="post", linewidth=2)
    is_better = np.diff(best, prepend=-np.inf) > 0
    axes.plot(ends[is_better] / seconds, best[is_better], "o", color="C0", markersize=4)
    axes.set(xlabel=f"wall time, {unit}", ylabel="score")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)


def _draw_importance(figure: Figure, sweep: Sweep) -> None:
    """Draw a bar for each hyperparameter's importance."""
    axes = figure.add_subplot()
    axes.set_title("importance for the best score (PED-ANOVA)")
    try:
        shares = importances(sweep)
    except (ValueError, ImportError) as error:
        show_text(figure, axes, f"The importances cannot be computed: {error}.")
        return
    figure.set_size_inches(8, max(2.5, 1.2 + 0.4 * len(shares)))
    bars = axes.barh([shorten(name, 30) for name in shares], list(shares.values()), height=0.6)
    axes.bar_label(bars, [f"{100 * share:.0f} %" for share in shares.values()], padding=4)
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    axes.invert_yaxis()
    axes.set(xlabel="share", xlim=(0, 1.1 * max(shares.values())))
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)


def _draw_lanes(figure: Figure, sweep: Sweep) -> None:
    """Draw a row for each lane, in it a bar for each phase in the colour of its trial."""
    axes = figure.add_subplot()
    occupancy = sweep.get("occupancy")
    is_known = occupancy is not None and math.isfinite(occupancy)
    axes.set_title(f"lanes: {100 * occupancy:.0f} % occupied" if is_known else "lanes")
    spans = sweep["spans"]
    if not spans:
        show_text(figure, axes, "No phase has ended.")
        return
    seconds, unit = time_unit(duration(sweep))
    length = duration(sweep) / seconds
    rows = max(num_lanes(sweep), *(span["lane"] + 1 for span in spans))
    figure.set_size_inches(8, float(np.clip(1.4 + 0.22 * rows, 2.5, 9)))
    has_room = rows <= 40
    phases: dict[tuple[int, int], list[tuple[float, float]]] = collections.defaultdict(list)
    for span in spans:
        own = phases[span["lane"], span["trial"]]
        own.append((span["begin"] / seconds, (span["end"] - span["begin"]) / seconds))
    for (lane, trial), bars in phases.items():
        color, line_width = _trial_color(trial), 0.5 if has_room else 0
        axes.broken_barh(
            bars, (lane - 0.45, 0.9), facecolor=color, edgecolor="white", linewidth=line_width
        )
        begin, end = min(bars)[0], sum(max(bars))  # a bar is its begin and its length
        if has_room and end - begin > 0.03 * length:
            x = (begin + end) / 2
            axes.text(x, lane, str(trial), ha="center", va="center", fontsize=8, color="black")
    axes.set(xlabel=f"wall time, {unit}", ylabel="lane", xlim=(0, length))
    axes.set_ylim(rows - 0.5, -0.5)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _draw_front(figure: Figure, sweep: Sweep) -> None:
    """Draw a point for each trial by the first two objectives; mark those on the Pareto front."""
    axes = figure.add_subplot()
    names = objective_names(sweep)
    axes.set_title(f"Pareto front of {shorten(', '.join(names), 60)}", parse_math=False)
    points = [late_objectives(sweep["trials"], trial)[:2] for trial in sweep["trials"]]
    finite = np.array([point for point in points if len(point) == 2 and np.isfinite(point).all()])
    if not len(finite):
        show_text(figure, axes, "No trial has a finite score by each of the first two.")
        return
    axes.plot(*finite.T, "o", color="0.7", markersize=4)
    best = front(sweep)
    for row in best:
        x, y = row["objectives"][:2]
        axes.plot(x, y, "o", color="C3", markersize=7)
        if len(best) <= 20:
            axes.annotate(str(row["trial"]), (x, y), (5, 5), textcoords="offset points", fontsize=8)
    axes.set_xlabel(f"{shorten(names[0], 40)}, mean of the last two", parse_math=False)
    axes.set_ylabel(f"{shorten(names[1], 40)}, mean of the last two", parse_math=False)
    axes.grid(alpha=0.3)


def _draw_schedule(figure: Figure, sweep: Sweep) -> None:
    """Draw the winner's value of each hyperparameter in each phase, one below the other."""
    schedule, space = winning_schedule(sweep), sweep["space"]
    figure.set_size_inches(8, 1.0 + 1.6 * len(space))
    edges = np.arange(len(schedule) + 1) + 0.5  # around the phases 1, 2, ...
    rows = figure.subplots(len(space), sharex=True, squeeze=False)[:, 0]
    for axes, (name, distribution) in zip(rows, space.items(), strict=True):
        drawn = [
            position(distribution, row["values"][name]) if name in row["values"] else math.nan
            for row in schedule
        ]
        axes.stairs(drawn, edges, baseline=None, linewidth=2)
        places, labels = zip(*ticks(distribution), strict=True)
        short = [shorten(label, 14) for label in labels]
        axes.set_yticks(places, short, fontsize=7, parse_math=False)
        axes.set_ylim(-0.1, 1.1)
        axes.set_title(shorten(name, 60), loc="left", fontsize=9, parse_math=False)
        axes.grid(alpha=0.3)
    rows[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    rows[-1].set_xlabel("phase")


def _trial_color(trial: int) -> tuple[float, float, float]:
    """Return a colour; steps of the golden ratio around the circle keep successive trials apart."""
    return colorsys.hls_to_rgb(trial * 0.618034 % 1, 0.72, 0.6)


PICTURES = {
    "phases": PictureKind(
        "Score by phase, a line for each trial. Crosses mark trials that were stopped or diverged.",
        _draw_phases,
    ),
    "best": PictureKind("Best score so far over wall time.", _draw_best),
    "parallel": PictureKind(
        "Every trial's hyperparameters and its best score.", draw_parallel_coordinates
    ),
    "importance": PictureKind(
        "How much each hyperparameter decides whether a trial is among the best.",
        _draw_importance,
    ),
    "lanes": PictureKind(
        "What each lane trained over time. The colour and the number of a bar are the trial's.",
        _draw_lanes,
    ),
}
"""The pictures of every sweep by the names of their files."""
FRONT = PictureKind(
    "Each trial by the first two objectives, those on the Pareto front in red with their numbers. "
    "Of each objective higher is better.",
    _draw_front,
)
SCHEDULE = PictureKind("The hyperparameters of the winner in each phase.", _draw_schedule)


def pictures_of(sweep: Sweep) -> dict[str, PictureKind]:
    """Return the pictures of a sweep by the names of their files."""
    fronts = {"front": FRONT} if len(objective_names(sweep)) > 1 else {}
    schedules = {"schedule": SCHEDULE} if sweep["space"] and winning_schedule(sweep) else {}
    return PICTURES | fronts | schedules
