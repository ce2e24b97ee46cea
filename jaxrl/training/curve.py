"""The learning curve of a run: its smoothed returns, and a picture of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxrl.training.loggers import read_jsonl
from jaxrl.training.progress.rows import RECENT_EPISODES, Row


def smoothed_returns(
    rows: Sequence[Row], episodes: int = RECENT_EPISODES, over: str = "steps"
) -> tuple[np.ndarray, np.ndarray]:
    """Return steps (or `seconds`), and the mean return of at least the last `episodes` episodes."""
    rows = [r for r in rows if r.get("episode_count", 0) > 0 and {"episode_return", over} <= {*r}]
    counts = np.array([row["episode_count"] for row in rows])
    sums = np.array([row["episode_return"] for row in rows]) * counts
    count_until, sum_until = np.cumsum([0, *counts]), np.cumsum([0, *sums])
    # How many of the first rows each mean leaves out.
    skipped = np.searchsorted(count_until[1:], count_until[1:] - episodes, side="right")
    count, total = (x[1:] - x[skipped] for x in (count_until, sum_until))
    return np.array([row[over] for row in rows]), total / np.maximum(count, 1)


def plot_run(run_dir: Path, title: str) -> Path:
    """Draw `curve.png` of a run and return its path.

    The line is the mean return of the last 100 episodes over steps, dots are evaluations.
    """
    from matplotlib.figure import Figure

    rows = read_jsonl(run_dir / "metrics.jsonl")
    evaluated = [row for row in rows if {"steps", "eval_return"} <= {*row}]
    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    line = axes.plot(*smoothed_returns(rows))[0]
    steps, returns = [[row[x] for row in evaluated] for x in ("steps", "eval_return")]
    axes.plot(steps, returns, "o", color=line.get_color(), markersize=4)
    axes.set_title(title, parse_math=False)
    axes.set(xlabel="environment steps", ylabel="return, mean of last 100 episodes")
    axes.grid(alpha=0.3)
    path = run_dir / "curve.png"
    figure.savefig(path)
    return path
