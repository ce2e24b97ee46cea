"""The picture of a sweep's trials as lines across the axes of their hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from jaxrl.analysis.figures import DIVERGED_COLOR, color_scale, shorten, show_text
from jaxrl.analysis.sweep_axes import position, positions, ticks
from jaxrl.tuning.sweeps.ranking import leaderboard, phase_scores


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
