"""Pictures of runs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxrl.logging import Row, read_jsonl
from jaxrl.reliable import Estimate


def smoothed_returns(
    rows: Sequence[Row], episodes: int = 100, over: str = "steps"
) -> tuple[np.ndarray, np.ndarray]:
    """Steps (or `seconds`), and the mean return over at least the last `episodes` episodes."""
    rows = [row for row in rows if row.get("episode_count", 0) > 0]
    counts = np.array([row["episode_count"] for row in rows])
    sums = np.array([row["episode_return"] for row in rows]) * counts
    count_until, sum_until = np.cumsum(counts), np.cumsum(sums)
    start = np.searchsorted(count_until, count_until - episodes, side="right") - 1
    before = lambda totals: np.where(start >= 0, totals[start], 0)  # noqa: E731
    means = (sum_until - before(sum_until)) / np.maximum(count_until - before(count_until), 1)
    return np.array([row[over] for row in rows]), means


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


def plot_curve(
    runs: dict[str, list[Row]], title: str, path: Path, baseline: float | None = None
) -> None:
    """Mean return over the last 100 episodes against steps, one line a run, as PNG.

    Dots are evaluations; `baseline` is the random policy's return.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for label, rows in runs.items():
        steps, means = smoothed_returns(rows)
        line = axes.plot(steps, means, label=label)[0]
        evaluated = [row for row in rows if "eval_return" in row]
        axes.plot(
            [row["steps"] for row in evaluated],
            [row["eval_return"] for row in evaluated],
            "o",
            color=line.get_color(),
            markersize=4,
        )
    if baseline is not None:
        axes.axhline(baseline, color="gray", linestyle="--", label="random policy")
    axes.set(title=title, xlabel="environment steps", ylabel="return, mean of last 100 episodes")
    axes.grid(alpha=0.3)
    if len(runs) > 1 or baseline is not None:
        axes.legend(frameon=False)
    figure.savefig(path)


def plot_run(run_dir: Path, title: str) -> Path:
    """`curve.png` of one run."""
    path = run_dir / "curve.png"
    plot_curve({run_dir.name: read_jsonl(run_dir / "metrics.jsonl")}, title, path)
    return path
