"""The pictures of a hyperparameter sweep: its scores, its hyperparameters and its lanes, as PNG."""

from __future__ import annotations

import colorsys
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from jaxrl.analysis.sweep_scores import (
    Sweep,
    best_so_far,
    duration,
    importances,
    leaderboard,
    phase_scores,
    position,
    positions,
    ticks,
    time_unit,
)

_COLORS = "viridis_r"  # the best are dark, and stand out from a white page
_DIVERGED = "tab:red"


def plot(sweep: Sweep, directory: Path) -> list[Path]:
    """Every picture of a sweep, as PNG."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, (_, draw) in PICTURES.items():
        figure = Figure(figsize=(8, 4.6), dpi=120, layout="constrained")
        draw(figure, sweep)
        paths.append(directory / f"{name}.png")
        figure.savefig(paths[-1])
    return paths


def title(sweep: Sweep) -> str:
    """What was trained on what, and in how many trials."""
    count = len(sweep["trials"])
    return f"{sweep['algorithm']} on {sweep['env']}: {count} trial{'' if count == 1 else 's'}"


def _draw_phases(figure: Figure, sweep: Sweep) -> None:
    axes = figure.add_subplot()
    ranking = leaderboard(sweep)
    axes.set_title(title(sweep), parse_math=False)
    if not ranking:
        _say(figure, axes, "No trial has a finite score.")
        return
    scores = {trial["trial"]: phase_scores(trial) for trial in sweep["trials"]}
    finite = {row["trial"]: np.flatnonzero(np.isfinite(scores[row["trial"]])) for row in ranking}
    final = {trial: scores[trial][phases[-1]] for trial, phases in finite.items()}
    colors = _color_scale(list(final.values()))
    for row in reversed(ranking):  # the best on top
        trial, is_best = row["trial"], row is ranking[0]
        axes.plot(
            finite[trial] + 1,
            scores[trial][finite[trial]],
            color=colors.to_rgba(final[trial]),
            linewidth=3 if is_best else 0.8,
            marker="o",  # else a single score would not show
            markersize=5 if is_best else 2,
            label=f"best: trial {trial}" if is_best else None,
        )
    _cross_out(axes, sweep["trials"])
    longest = max(len(of_trial) for of_trial in scores.values())
    axes.margins(y=0.1)  # room for crosses at the bottom
    axes.set_xlim(0.8, max(longest, 2) + 0.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    phase = sweep["phase"]
    axes.set(xlabel=f"phase, {phase['length']} {phase['unit']} each", ylabel="score")
    axes.grid(alpha=0.3)
    figure.colorbar(colors, ax=axes, label="final score")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)


def _cross_out(axes: Axes, trials: Sequence[Mapping[str, Any]]) -> None:
    """Where trials were stopped, at their last score, and where they diverged, at the bottom."""
    stopped: list[tuple[int, float]] = []
    sunk: dict[str, list[int]] = {"stopped": [], "diverged": []}
    for trial in trials:
        scores = phase_scores(trial)
        finite = np.flatnonzero(np.isfinite(scores))
        if np.isneginf(scores).any():
            sunk["diverged"].append(int(np.argmax(np.isneginf(scores))) + 1)
        elif trial["status"] == "stopped" and len(finite):
            stopped.append((int(finite[-1]) + 1, float(scores[finite[-1]])))
        elif trial["status"] == "stopped" and len(scores):
            sunk["stopped"].append(len(scores))
    style: dict[str, Any] = {"marker": "x", "linestyle": "none", "markersize": 5, "zorder": 3}
    if stopped or sunk["stopped"]:
        x, y = zip(*stopped, strict=True) if stopped else ((), ())
        axes.plot(x, y, color="black", label="stopped", **style)
    edge = axes.get_xaxis_transform()
    for name, color, height in (("stopped", "black", 0.06), ("diverged", _DIVERGED, 0.02)):
        if sunk[name]:
            label = name if name == "diverged" else None
            heights = np.full(len(sunk[name]), height)
            axes.plot(sunk[name], heights, color=color, label=label, transform=edge, **style)


def _draw_best(figure: Figure, sweep: Sweep) -> None:
    axes = figure.add_subplot()
    axes.set_title("best score so far")
    ends, best = best_so_far(sweep)
    if not len(ends):
        _say(figure, axes, "No phase has ended with a finite score.")
        return
    seconds, unit = time_unit(duration(sweep))
    until = np.append(ends, max(duration(sweep), ends[-1])) / seconds
    axes.step(until, np.append(best, best[-1]), where="post", linewidth=2)
    is_better = np.diff(best, prepend=-np.inf) > 0
    axes.plot(ends[is_better] / seconds, best[is_better], "o", color="C0", markersize=4)
    axes.set(xlabel=f"wall time, {unit}", ylabel="score")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)


def _draw_parallel(figure: Figure, sweep: Sweep) -> None:
    space = sweep["space"]
    figure.set_size_inches(max(8.0, 1.7 * (len(space) + 1)), 4.6)
    axes = figure.add_subplot()
    axes.set_title("hyperparameters and best score", pad=24)
    ranking = leaderboard(sweep)
    if not ranking:
        _say(figure, axes, "No trial has a finite score.")
        return
    best = [row["best_score"] for row in ranking]
    colors = _color_scale(best)
    assert colors.norm.vmin is not None
    assert colors.norm.vmax is not None
    score = {"kind": "Uniform", "low": colors.norm.vmin, "high": colors.norm.vmax}
    columns = {name: (space[name], ticks(space[name])) for name in space}
    columns["score"] = (score, ticks(score))

    scored = {row["trial"] for row in ranking}
    diverged = [
        trial
        for trial in sweep["trials"]
        if trial["trial"] not in scored and np.isneginf(phase_scores(trial)).any()
    ]
    bottom = -0.1
    for trial in diverged:
        heights = [*positions(space, trial["values"]), bottom]
        axes.plot(heights, color=_DIVERGED, linewidth=0.8, linestyle=":", alpha=0.7)
    for row in reversed(ranking):
        axes.plot(
            [*positions(space, row["values"]), position(score, row["best_score"])],
            color=colors.to_rgba(row["best_score"]),
            linewidth=3 if row is ranking[0] else 1,
            alpha=1 if row is ranking[0] else 0.7,
            marker="o" if not space else None,
        )
    if diverged:
        columns["score"][1].append((bottom, "diverged"))

    outline = [withStroke(linewidth=3, foreground="white")]
    for x, (name, (_, labels)) in enumerate(columns.items()):
        axes.plot([x, x], [0, 1], color="black", linewidth=1)
        axes.text(x, 1.05, _short(name, 20), ha="center", va="bottom", parse_math=False)
        is_last = x == len(columns) - 1
        for y, label in labels:
            axes.plot([x - 0.02, x + 0.02], [y, y], color="black", linewidth=1)
            axes.text(
                x + (0.04 if is_last else -0.04),
                y,
                _short(label, 14),
                ha="left" if is_last else "right",
                va="center",
                fontsize=8,
                path_effects=outline,
                parse_math=False,
                zorder=3,
            )
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_axis_off()


def _draw_importance(figure: Figure, sweep: Sweep) -> None:
    axes = figure.add_subplot()
    axes.set_title("importance for the best score (PED-ANOVA)")
    try:
        shares = importances(sweep)
    except (ValueError, ImportError) as error:
        _say(figure, axes, f"It cannot be computed: {error}.")
        return
    figure.set_size_inches(8, max(2.5, 1.2 + 0.4 * len(shares)))
    bars = axes.barh([_short(name, 30) for name in shares], list(shares.values()), height=0.6)
    axes.bar_label(bars, [f"{100 * share:.0f} %" for share in shares.values()], padding=4)
    axes.invert_yaxis()
    axes.set(xlabel="share", xlim=(0, 1.1 * max(shares.values())))
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)


def _draw_lanes(figure: Figure, sweep: Sweep) -> None:
    axes = figure.add_subplot()
    occupancy = sweep.get("occupancy")
    is_known = occupancy is not None and math.isfinite(occupancy)
    axes.set_title(f"lanes: {100 * occupancy:.0f} % occupied" if is_known else "lanes")
    spans = sweep["spans"]
    if not spans:
        _say(figure, axes, "No phase has ended.")
        return
    length = duration(sweep)
    seconds, unit = time_unit(length)
    num_lanes = max(sweep["lanes"], *(span["lane"] + 1 for span in spans))
    figure.set_size_inches(8, float(np.clip(1.4 + 0.22 * num_lanes, 2.5, 9)))
    is_roomy = num_lanes <= 40
    for lane in {span["lane"] for span in spans}:
        mine = sorted((s for s in spans if s["lane"] == lane), key=lambda s: s["begin"])
        axes.broken_barh(
            [(s["begin"] / seconds, (s["end"] - s["begin"]) / seconds) for s in mine],
            (lane - 0.45, 0.9),
            facecolors=[_trial_color(s["trial"]) for s in mine],
            edgecolor="white",
            linewidth=0.5 if is_roomy else 0,
        )
        for trial, phases in itertools.groupby(mine, key=lambda s: s["trial"]):
            ends = [(s["begin"], s["end"]) for s in phases]
            begin, end = ends[0][0], ends[-1][1]
            if is_roomy and end - begin > 0.03 * length:
                x = (begin + end) / (2 * seconds)
                axes.text(x, lane, str(trial), ha="center", va="center", fontsize=8, color="black")
    axes.set(xlabel=f"wall time, {unit}", ylabel="lane", xlim=(0, length / seconds))
    axes.set_ylim(num_lanes - 0.5, -0.5)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _say(figure: Figure, axes: Axes, text: str) -> None:
    """Words in place of a picture."""
    figure.set_size_inches(8, 2)
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, wrap=True)


def _color_scale(scores: Sequence[float]) -> ScalarMappable:
    low, high = min(scores), max(scores)
    if low == high:
        margin = max(abs(low), 1.0) / 2
        low, high = low - margin, high + margin
    return ScalarMappable(Normalize(low, high), matplotlib.colormaps[_COLORS])


def _trial_color(trial: int) -> tuple[float, float, float]:
    """Steps of the golden ratio around the colour circle keep neighbours apart."""
    return colorsys.hls_to_rgb(trial * 0.618034 % 1, 0.72, 0.6)


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 2]}.."


PICTURES: dict[str, tuple[str, Callable[[Figure, Sweep], None]]] = {
    "phases": (
        "Score by phase, a line for each trial. Crosses mark trials that were stopped or diverged.",
        _draw_phases,
    ),
    "best": ("Best score so far over wall time.", _draw_best),
    "parallel": ("Every trial's hyperparameters and its best score.", _draw_parallel),
    "importance": (
        "How much each hyperparameter decides whether a trial is among the best.",
        _draw_importance,
    ),
    "lanes": (
        "What each lane did: a bar is a phase, its colour and number are the trial's.",
        _draw_lanes,
    ),
}
"""Names of pictures, their captions, and what draws them."""
