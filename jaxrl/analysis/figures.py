"""Pictures of estimates with their intervals, and what several pictures share."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from jaxrl.ops.statistics import Estimate

DIVERGED_COLOR = "tab:red"
_DASHES = ("-", "--", ":", "-.")
_SCORE_COLORS = "viridis_r"  # the best are dark and stand out from a white page


class Line(NamedTuple):
    """An estimate along an axis, drawn with its interval as a band, and single dots."""

    label: str
    color: str
    dashes: str
    x: np.ndarray
    estimate: Estimate  # leaves like x
    dots: Sequence[tuple[float, float]] = ()


def plot_lines(lines: Sequence[Line], title: str, xlabel: str, ylabel: str) -> bytes:
    """Draw lines with a legend below them, and return the picture as SVG."""
    figure = Figure(figsize=(6, 4 + 0.22 * len(lines)), layout="constrained")
    axes = figure.add_subplot()
    for line in lines:
        value, low, high = line.estimate
        axes.plot(
            line.x, value, line.dashes, color=line.color, label=line.label, marker="o",
            markevery=[-1],
        )  # fmt: skip
        axes.fill_between(line.x, low, high, color=line.color, alpha=0.2, linewidth=0)
        if line.dots:
            axes.plot(*zip(*line.dots, strict=True), ".", color=line.color)
    axes.set_title(title, parse_math=False)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if max(line.x[-1] for line in lines) >= 1000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    for text in figure.legend(loc="outside lower center", frameon=False).get_texts():
        text.set_parse_math(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="svg")
    return picture.getvalue()


def color_and_dashes(place: int) -> tuple[str, str]:
    """Return how the line of a number is drawn: after ten lines their colors have other dashes."""
    return f"C{place % 10}", _DASHES[place // 10 % len(_DASHES)]


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the length in seconds and the name of the unit that suits a duration."""
    if seconds >= 2 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if seconds >= 120 else (1.0, "seconds")


def show_text(figure: Figure, axes: Axes, text: str) -> None:
    """Show a sentence in place of a picture."""
    figure.set_size_inches(8, 2)
    axes.set_axis_off()
    axes.text(
        0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, wrap=True,
        parse_math=False,
    )  # fmt: skip


def color_scale(scores: Sequence[float]) -> ScalarMappable:
    """Return a map from scores to colours; equal scores lie in its middle."""
    low, high = min(scores), max(scores)
    if low == high:
        margin = max(abs(low), 1.0) / 2
        low, high = low - margin, high + margin
    return ScalarMappable(Normalize(low, high), matplotlib.colormaps[_SCORE_COLORS])


def shorten(text: str, length: int) -> str:
    """Return the text, or its beginning and two dots if it is too long."""
    return text if len(text) <= length else f"{text[: length - 2]}.."
