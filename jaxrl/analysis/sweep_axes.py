"""Axes of hyperparameters: positions of values from 0 to 1, ticks, and lines across all axes.

A distribution is a mapping as `sweep.json` describes it: `kind` and its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from jaxrl.analysis.figures import DIVERGED_COLOR, color_scale, shorten, show_text
from jaxrl.tuning.ranking import leaderboard, phase_scores


def position(distribution: Mapping[str, Any], value: Any) -> float:
    """Return the position of a value on its axis, from 0 to 1; NaN if it is not on the axis.

    Numbers lie between `low` and `high`, on a logarithmic axis if they are drawn in the logarithm.
    The values of a choice are evenly spaced in their order.
    """
    if distribution["kind"] == "Choice":
        labels = choice_labels(distribution)
        if choice_label(value) not in labels:
            return math.nan
        return labels.index(choice_label(value)) / (len(labels) - 1) if len(labels) > 1 else 0.5
    if value is None:
        return math.nan
    scale = math.log if is_log(distribution) else float
    low, high = scale(distribution["low"]), scale(distribution["high"])
    return (scale(clip(distribution, value)) - low) / (high - low)


def positions(space: Mapping[str, Any], values: Mapping[str, Any]) -> list[float]:
    """Return the position of a trial's value on each axis; NaN where the trial has no value."""
    return [
        position(distribution, values[name]) if name in values else math.nan
        for name, distribution in space.items()
    ]


def ticks(distribution: Mapping[str, Any]) -> list[tuple[float, str]]:
    """Return positions and labels along an axis; of a choice at most 12."""
    if distribution["kind"] == "Choice":
        labels = choice_labels(distribution)
        shown = labels[:: -(-len(labels) // 12)]
        spaces = len(labels) - 1
        return [(labels.index(label) / spaces if spaces else 0.5, label) for label in shown]
    low, high = distribution["low"], distribution["high"]
    if is_log(distribution):
        numbers = _log_ticks(low, high)
    else:
        locator = MaxNLocator(10, integer=True) if is_integer(distribution) else MaxNLocator(5)
        numbers = locator.tick_values(low, high)
    return [(position(distribution, x), f"{x:.4g}") for x in numbers if low <= x <= high]


def is_log(distribution: Mapping[str, Any]) -> bool:
    """Return whether numbers are drawn in the logarithm."""
    return distribution["kind"] in ("LogUniform", "QLogUniform")


def is_integer(distribution: Mapping[str, Any]) -> bool:
    """Return whether only integers are drawn."""
    return distribution["kind"] in ("Integer", "QLogUniform")


def clip(distribution: Mapping[str, Any], value: Any) -> Any:
    """Return a number within its bounds; single precision may have put it just outside."""
    return min(max(value, distribution["low"]), distribution["high"])


def choice_label(value: Any) -> str:
    """Return the text of one value of a choice; 1 and 1.0 have the same."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:.12g}" if is_number else str(value)


def choice_labels(distribution: Mapping[str, Any]) -> list[str]:
    """Return the texts of all values of a choice."""
    return list(dict.fromkeys(choice_label(value) for value in distribution["values"]))


def _log_ticks(low: float, high: float) -> list[float]:
    """Return both bounds, and round numbers between them that leave room for their labels."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1,) if len(decades) > 3 else (1, 2, 5)
    room = 0.08 * math.log(high / low)
    kept = [low, high]
    for digit in digits:  # powers of ten come before others
        for number in (digit * 10.0**decade for decade in decades):
            if low < number < high and min(abs(math.log(number / x)) for x in kept) > room:
                kept.append(number)
    return sorted(kept)


def draw_parallel_coordinates(figure: Figure, sweep: Mapping[str, Any]) -> None:
    """Draw parallel coordinates: an axis for each hyperparameter and the score, a line a trial."""
    space = sweep["space"]
    figure.set_size_inches(max(8.0, 1.7 * (len(space) + 1)), 4.6)
    axes = figure.add_subplot()
    axes.set_title("hyperparameters and best score", pad=24)
    ranking = leaderboard(sweep["trials"])
    if not ranking:
        show_text(figure, axes, "No trial has a finite score.")
        return
    colors = color_scale([row["best_score"] for row in ranking])
    low, high = colors.get_clim()
    score = {"kind": "Uniform", "low": low, "high": high}
    score_ticks = ticks(score)

    scored = {row["trial"] for row in ranking}
    bottom = -0.1  # below the score's axis
    for trial in sweep["trials"]:
        if trial["trial"] not in scored and np.isneginf(phase_scores(trial)).any():
            heights = [*positions(space, trial["values"]), bottom]
            axes.plot(heights, color=DIVERGED_COLOR, linewidth=0.8, linestyle=":", alpha=0.7)
            score_ticks = [*ticks(score), (bottom, "diverged")]
    for row in reversed(ranking):  # the best on top
        is_best = row is ranking[0]
        axes.plot(
            [*positions(space, row["values"]), position(score, row["best_score"])],
            color=colors.to_rgba(row["best_score"]),
            linewidth=3 if is_best else 1,
            alpha=1 if is_best else 0.7,
            marker=None if space else "o",
        )
    for x, name in enumerate(space):
        _draw_axis(axes, x, name, ticks(space[name]), "right")
    _draw_axis(axes, len(space), "score", score_ticks, "left")
    axes.set_xlim(-0.5, len(space) + 0.5)
    axes.set_axis_off()


def _draw_axis(
    axes: Axes, x: int, name: str, labels: Sequence[tuple[float, str]], alignment: str
) -> None:
    """Draw a vertical axis at `x` with its name above it; labels end or begin beside it."""
    axes.plot([x, x], [0, 1], color="black", linewidth=1)
    axes.text(x, 1.05, shorten(name, 20), ha="center", va="bottom", parse_math=False)
    for y, label in labels:
        axes.plot([x - 0.02, x + 0.02], [y, y], color="black", linewidth=1)
        axes.text(
            x + (0.04 if alignment == "left" else -0.04),
            y,
            shorten(label, 14),
            ha=alignment,
            va="center",
            fontsize=8,
            path_effects=[withStroke(linewidth=3, foreground="white")],
            parse_math=False,
            zorder=3,
        )
