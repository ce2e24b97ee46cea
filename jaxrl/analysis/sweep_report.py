"""The page of a hyperparameter sweep: one HTML file with its tables, pictures and videos in it."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl.analysis import page
from jaxrl.analysis.page import code, text
from jaxrl.analysis.sweep_figures import PICTURES, plot, title
from jaxrl.analysis.sweep_scores import Sweep, duration, leaderboard, time_unit

_TABLE_ROWS = 20


def write_report(sweep: Sweep, run_dir: Path) -> Path:
    """`report.html` of a sweep: one file with its leaderboard, pictures and videos in it.

    The pictures are also left in `plots/`. Videos are those in `videos/`, .mp4 or .gif; from 8 MB
    on they are linked.
    """
    pictures = plot(sweep, run_dir / "plots")
    parts = [
        _summary(sweep),
        "<h2>Leaderboard</h2>",
        _leaderboard_tables(sweep),
        "<h2>Pictures</h2>",
        *(page.figure(_image(path), PICTURES[path.stem][0]) for path in pictures),
    ]
    if videos := page.videos_in(run_dir / "videos"):
        parts += ["<h2>Videos</h2>", *(page.video(path, path.name, run_dir) for path in videos)]
    return page.write(run_dir / "report.html", f"Sweep of {title(sweep)}", parts)


def _summary(sweep: Sweep) -> str:
    """What was run, and how it went."""
    seconds, unit = time_unit(duration(sweep))
    counts = collections.Counter(trial["status"] for trial in sweep["trials"])
    phase, occupancy = sweep["phase"], sweep.get("occupancy")
    facts = {
        "algorithm": text(sweep["algorithm"]),
        "environment": text(sweep["env"]),
        "scheduler": code(_call(sweep["scheduler"], "name")),
        "sampler": text(sweep["sampler"]),
        "phase": text(f"{phase['length']} {phase['unit']}"),
        "seed": text(sweep["seed"]),
        "lanes": text(f"{sweep['lanes']}, {sweep['strategy']}"),
        "trials": text(", ".join(f"{n} {status}" for status, n in sorted(counts.items()))),
        "wall time": text(f"{duration(sweep) / seconds:.3g} {unit}"),
        "occupancy": text("unknown" if occupancy is None else f"{100 * occupancy:.0f} %"),
        "space": "<br>".join(
            code(f"{name}: {_call(distribution, 'kind')}")
            for name, distribution in sweep["space"].items()
        ),
        "command": code(sweep["command"]),
    }
    if ranking := leaderboard(sweep):
        best = ranking[0]
        values = ", ".join(f"{name}={_value(value)}" for name, value in best["values"].items())
        found = f"trial {best['trial']}, score {_value(best['best_score'])}"
        facts = {"best": f"<strong>{text(found)}</strong><br>{code(values)}"} | facts
    return page.table(facts.items(), "what was run")


def _leaderboard_tables(sweep: Sweep) -> str:
    """The first twenty trials, and the rest folded away."""
    ranking = leaderboard(sweep)
    if not ranking:
        return "<p>No trial has a finite score.</p>"
    first, rest = ranking[:_TABLE_ROWS], ranking[_TABLE_ROWS:]
    tables = _leaderboard_table(first, sweep["space"])
    if rest:
        others = _leaderboard_table(rest, sweep["space"], start=_TABLE_ROWS + 1)
        tables += "\n" + page.folded(f"{len(rest)} more", others)
    return tables


def _leaderboard_table(
    rows: Sequence[Mapping[str, Any]], names: Mapping[str, Any], start: int = 1
) -> str:
    head = ["", "trial", "best score", "last score", "phases", "status", *names]
    lines = []
    for rank, row in enumerate(rows, start=start):
        numbers = (row["best_score"], row["last_score"], row["phases"])
        values = [row["values"].get(name, "") for name in names]
        cells = [rank, row["trial"], *numbers, row["status"], *values]
        lines.append([text(_value(cell)) for cell in cells])
    return page.table(lines, "leaderboard", [text(name) for name in head])


def _image(path: Path) -> str:
    return page.image(path.read_bytes(), "image/png", path.stem)


def _call(description: Mapping[str, Any], name: str) -> str:
    """As it is written in Python: `LogUniform(low=1e-05, high=0.01)`."""
    arguments = (f"{key}={value}" for key, value in description.items() if key != name)
    return f"{description[name]}({', '.join(arguments)})"


def _value(value: Any) -> str:
    """For people: numbers to six digits."""
    if isinstance(value, float):
        return "diverged" if value == -math.inf else f"{value:.6g}"
    return str(value)
