"""The page of a hyperparameter sweep: its leaderboard, pictures and videos."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl.analysis.figures import time_unit
from jaxrl.analysis.page import Picture, count, write_page
from jaxrl.analysis.sweep_figures import duration, num_lanes, pictures_of, plot, sweep_title
from jaxrl.analysis.sweep_tables import (
    TextTable,
    cell_text,
    finals_table,
    front_table,
    leaderboard_table,
    phases_text,
    schedule_table,
    winner_scores,
)
from jaxrl.analysis.video import videos_in
from jaxrl.tuning.ranking import objective_names, winner, winning_schedule

_TABLE_ROWS = 20  # the other trials are folded away


def write_report(sweep: Mapping[str, Any], run_dir: Path) -> Path:
    """Write `report.html`, one self-contained page of a sweep or study, and return its path.

    The pictures are also written to `plots/`. The page shows the .mp4 and .gif files in `videos/`
    side by side with their captions; it links those from 8 MB on.

    Args:
      sweep: the content of `sweep.json`, or what `jaxrl.tuning.studies.whole_study` returns.

    Raises:
      OSError: if the page cannot be written.
    """
    pictures = [
        Picture(path.read_bytes(), "image/png", path.stem, pictures_of(sweep)[path.stem].caption)
        for path in plot(sweep, run_dir / "plots")
    ]
    head, rows = leaderboard_table(sweep)
    return write_page(
        run_dir / "report.html",
        "sweep.html",
        title=f"Sweep of {sweep_title(sweep)}",
        best=_best(sweep),
        facts=_facts(sweep),
        finals=finals_table(sweep),
        front=front_table(sweep),
        schedule=schedule_table(sweep),
        leaders=TextTable(head, rows[:_TABLE_ROWS]),
        others=TextTable(head, rows[_TABLE_ROWS:]),
        pictures=pictures,
        videos=videos_in(run_dir / "videos"),
    )


def _best(sweep: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the winner's scores and values in words, None if no trial has a score."""
    if (best := winner(sweep)) is None:
        return None
    values = ", ".join(f"{name}={cell_text(value)}" for name, value in best["values"].items())
    settings = "by its schedule, below" if winning_schedule(sweep) else values
    return {"score": f"trial {best['trial']}, score {winner_scores(best)}", "settings": settings}


def _facts(sweep: Mapping[str, Any]) -> dict[str, str | list[str]]:
    """Return what was run and how it went, by name; lists are lines of code.

    A study knows of its workers, but neither their seeds, samplers and lanes nor their commands.
    """
    seconds, unit = time_unit(duration(sweep))
    statuses = collections.Counter(trial["status"] for trial in sweep["trials"])
    phase, occupancy = sweep["phase"], sweep.get("occupancy")
    names = objective_names(sweep)
    facts: dict[str, str | list[str]] = {
        "algorithm": sweep["algorithm"],
        "environment": sweep["env"],
        "scheduler": [_call(sweep["scheduler"], "name")],
        **({"objectives": f"{', '.join(names)}; the first one compares trials"} if names else {}),
        "phase": f"{phase['length']} {phase['unit']}",
        "trials": ", ".join(f"{number} {status}" for status, number in sorted(statuses.items())),
        "phases": phases_text(sweep),
        "wall time": f"{duration(sweep) / seconds:.3g} {unit}",
        "occupancy": "unknown" if occupancy is None else f"{100 * occupancy:.0f} %",
        "space": [f"{name}: {_call(x, 'kind')}" for name, x in sweep["space"].items()],
    }
    if "workers" in sweep:
        numbers = (f"{worker}: {count(n, 'trial')}" for worker, n in sweep["workers"].items())
        lost = {"lost with their worker": f"{count(sweep['lost'], 'trial')}, run again"}
        return facts | {
            "workers": ", ".join(numbers),
            **(lost if sweep["lost"] else {}),
            "study": f"{sweep['study']} at {sweep['storage']}",
        }
    return facts | {
        "sampler": sweep["sampler"],
        "seed": str(sweep["seed"]),
        "lanes": f"{num_lanes(sweep)}, {sweep['strategy']}",
        "command": [sweep["command"]],
    }


def _call(description: Mapping[str, Any], name: str) -> str:
    """Return a description as a call in Python: `LogUniform(low=1e-05, high=0.01)`."""
    arguments = (f"{key}={value}" for key, value in description.items() if key != name)
    return f"{description[name]}({', '.join(arguments)})"
