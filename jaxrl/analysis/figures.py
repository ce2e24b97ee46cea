"""Draw estimates with their intervals as SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxrl.analysis.statistics import Estimate


class Line(NamedTuple):
    """An estimate along an axis, its interval as a band, and dots beside it."""

    label: str
    color: str
    x: np.ndarray
    estimate: Estimate  # leaves like x
    dots: Sequence[tuple[float, float]] = ()


def plot_lines(lines: Sequence[Line], title: str, xlabel: str, ylabel: str) -> bytes:
    """Lines with a legend below them, as SVG."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(6, 4 + 0.22 * len(lines)), layout="constrained")
    axes = figure.add_subplot()
    for line in lines:
        value, low, high = line.estimate
        axes.plot(line.x, value, color=line.color, label=line.label, marker="o", markevery=[-1])
        axes.fill_between(line.x, low, high, color=line.color, alpha=0.2, linewidth=0)
        if line.dots:
            axes.plot(*zip(*line.dots, strict=True), ".", color=line.color)
    axes.set_title(title, parse_math=False)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if max(line.x[-1] for line in lines) >= 1000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="svg")
    return picture.getvalue()
