"""Pictures of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxrl.training.loggers import Row, read_jsonl


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
