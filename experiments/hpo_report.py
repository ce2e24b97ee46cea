"""Summarize the cells of hpo_benchmark.py: tables, a record and a picture.

    python experiments/hpo_report.py
    python experiments/hpo_report.py --results experiments/results
    python experiments/hpo_report.py --beside experiments/results/hpo-benchmark.json

A winner's score is its mean return on the new seeds. A task's table gives the interquartile mean of
the winners of all searches, with a 95% bootstrap interval. Ranks are those of the winners among the
optimizers' winners of one task and one seed, 1 for the best; their mean has an interval too. "Beats
random" is the share of all pairs in which an optimizer's winner scores more than one of random
search on the same task; ties count half. Prints the tables in Markdown.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from scipy.stats import rankdata

from jaxrl.analysis.figures import color_and_dashes
from jaxrl.analysis.records import interval_text, save_record, summarize_seeds
from jaxrl.cli.flags.arguments import exit_with_message
from jaxrl.files.changes import changed_settings
from jaxrl.ops import statistics

Cells = dict[str, dict[str, dict[str, Any]]]
"""Cells by task and optimizer."""
PLACE = ("git_commit", "versions", "hardware")
"""What a manifest says about the code and the machine."""


@dataclasses.dataclass
class Args:
    """Summarize the cells of hpo_benchmark.py."""

    cells: Path = Path("runs") / "hpo-benchmark"
    """Directory of the cells."""
    results: Path = Path("runs") / "results"
    """Directory of the record and the picture."""
    name: str = "hpo-benchmark"
    """Name of both."""
    note: str = ""
    """A sentence about the circumstances, such as other load on the machine."""
    beside: Path | None = None
    """A record whose optimizers are shown, too, unless there are newer cells of them."""


def read_cells(directory: Path) -> Cells:
    """Return all cells of a directory.

    Raises:
      ValueError: if there are none, one is missing, or those of a task were made differently.
    """
    cells: Cells = {}
    for path in sorted(directory.glob("[!.]*.json")):
        cell = json.loads(path.read_text())
        task, optimizer = cell["settings"].pop("task"), cell["settings"].pop("optimizer")
        cells.setdefault(task, {})[optimizer] = cell
    if not cells:
        raise ValueError(f"{directory} has no cells; run experiments/hpo_benchmark.py first")
    names = {name for own in cells.values() for name in own}
    missing = [f"{task} {name}" for task in cells for name in sorted(names - set(cells[task]))]
    if missing:
        raise ValueError(
            f"{directory} lacks {', '.join(missing)}; run experiments/hpo_benchmark.py to its end"
        )
    for task, own in cells.items():
        first, *others = own.values()
        for cell in others:
            if changed_settings(first["settings"], cell["settings"], first["settings"]):
                raise ValueError(f"the cells of {task} have different settings; begin anew")
    seeds = {task: next(iter(own.values()))["settings"]["seeds"] for task, own in cells.items()}
    if len(set(seeds.values())) > 1:
        raise ValueError(
            f"the tasks of {directory} have different --seeds, {seeds}; report them apart"
        )
    return cells


def read_record(path: Path, settings: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a record whose settings, by task, are these.

    Fields of configs that the record lacks were added later, and are not compared.

    Raises:
      ValueError: if it is something else, has other tasks, or was made differently.
    """
    record = json.loads(path.read_text())
    if not isinstance(record, dict) or not {"settings", "tasks", "manifests"} <= record.keys():
        raise ValueError(f"{path} is no record of this benchmark; hpo_report.py writes them")
    before = record["settings"]
    if before.keys() != settings.keys():
        raise ValueError(
            f"{path} has the tasks {', '.join(before)}, the cells {', '.join(settings)}; both must "
            "have the same"
        )
    for task, old in before.items():
        config = {name: settings[task]["config"].get(name) for name in old["config"]}
        if changes := changed_settings(old, settings[task] | {"config": config}, old):
            raise ValueError(
                f"{path} was made with other settings of {task}; run the cells with its own:\n  "
                + "\n  ".join(changes)
            )
    return record


def origins(cells: Cells) -> dict[str, dict[str, Any]]:
    """Return the manifest of each task's first cell, and of its cells that were made elsewhere.

    Those have another commit, other versions or other hardware; print what differs.
    """
    found = {}
    for task, own in cells.items():
        first = found[task] = next(iter(own.values()))["manifest"]
        for name, cell in own.items():
            if changes := changed_settings(first, cell["manifest"], PLACE):
                found[f"{task} {name}"] = cell["manifest"]
                print(f"{task} {name} was made elsewhere:", *changes, sep="\n  ")
    return found


def summarize(cell: dict[str, Any]) -> dict[str, Any]:
    """Return what the record keeps of a cell."""
    curves, settings = np.array(cell["best_so_far"]), cell["settings"]

    def iqm_by_column(scores: np.ndarray) -> np.ndarray:
        return statistics.interquartile_mean(np.swapaxes(scores, -1, -2)[..., None])

    curve = statistics.estimate(iqm_by_column, curves)
    every = settings["phase_steps"] * settings["phases"]
    kept = ("steps", "trials", "seconds", "cpu_seconds", "winners")
    return {
        "on_new_seeds": summarize_seeds(
            np.array(cell["on_new_seeds"]).mean(1), statistics.interquartile_mean
        ),
        "agents_on_new_seeds": np.round(cell["on_new_seeds"], 3).tolist(),
        "in_finals": summarize_seeds(np.array(cell["in_finals"]), statistics.interquartile_mean),
        "best_so_far": {
            "steps": [every * (i + 1) for i in range(curves.shape[1])],
            **{name: x.round(3).tolist() for name, x in curve._asdict().items()},
        },
        **{name: cell[name] for name in kept},
    }


def rounded(estimate: statistics.Estimate) -> dict[str, float]:
    """Return an estimate of one number as a record has it."""
    return {name: round(float(x), 3) for name, x in estimate._asdict().items()}


def mean_ranks(tasks: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each optimizer's mean rank over tasks and seeds, the best optimizer first.

    Each has the probability, too, that its winner beats one of random search.

    Args:
      tasks: what `summarize` returns, by task and optimizer.
    """
    optimizers = sorted(next(iter(tasks.values())))
    scores = [
        [np.array(rows[name]["on_new_seeds"]["by_seed"]) for name in optimizers]
        for rows in tasks.values()
    ]
    by_task = np.array([rankdata(-np.array(rows), axis=0) for rows in scores])  # [tasks, O, S]
    found: dict[str, dict[str, Any]] = {}
    for place, name in enumerate(optimizers):
        rank = statistics.estimate(statistics.mean, by_task[:, place].T)
        means = by_task[:, place].mean(1).round(3).tolist()
        found[name] = rounded(rank) | {"by_task": dict(zip(tasks, means, strict=True))}
        if "random" in optimizers:
            pairs = [
                [of_task[i] for of_task in scores] for i in (place, optimizers.index("random"))
            ]
            both = np.concatenate(pairs).T  # [S, 2 * tasks]
            better = statistics.estimate(statistics.probability_of_improvement, both)
            found[name]["beats_random"] = rounded(better)
    return dict(sorted(found.items(), key=lambda item: item[1]["value"]))


def tables(
    tasks: dict[str, dict[str, Any]], ranks: dict[str, dict[str, Any]], num_searches: int
) -> list[Table]:
    """Return the table of ranks, and one for each task."""
    shown = Table("optimizer", "mean rank", "beats random", *tasks, box=box.MARKDOWN)
    for name, row in ranks.items():
        by_task = [f"{rank:.2f}" for rank in row["by_task"].values()]
        better = interval_text(row["beats_random"], 2) if "beats_random" in row else ""
        shown.add_row(name, interval_text(row, 2), better, *by_task)
    found = [shown]
    for task, rows in tasks.items():
        shown = Table(
            task, "on new seeds", "in the finals", "trials", "steps", "seconds of a search",
            box=box.MARKDOWN,
        )  # fmt: skip
        returns = np.abs([row["on_new_seeds"]["by_seed"] for row in rows.values()])
        digits = 1 if returns.max() > 1 else 3
        for name in ranks:
            row = rows[name]
            search = (row["seconds"]["search"] + row["seconds"]["finals"]) / num_searches
            shown.add_row(
                name, *(interval_text(row[x], digits) for x in ("on_new_seeds", "in_finals")),
                f"{np.mean(row['trials']):.0f}", f"{np.mean(row['steps']):,.0f}", f"{search:.1f}",
            )  # fmt: skip
        found.append(shown)
    return found


def draw(tasks: dict[str, dict[str, Any]]) -> Figure:
    """Return the scores during the searches, and those of the winners on new seeds."""
    figure = Figure(figsize=(4 * len(tasks), 7), dpi=100, layout="constrained")
    grid = figure.subplots(2, len(tasks), squeeze=False)
    for (task, rows), curves, ends in zip(tasks.items(), *grid, strict=True):
        for place, (name, row) in enumerate(sorted(rows.items())):
            curve, end = row["best_so_far"], row["on_new_seeds"]
            color, dashes = color_and_dashes(place)
            curves.plot(curve["steps"], curve["value"], dashes, color=color, label=name)
            curves.fill_between(
                curve["steps"], curve["low"], curve["high"], color=color, alpha=0.1, linewidth=0
            )
            ends.plot([place] * len(end["by_seed"]), end["by_seed"], ".", color=color, alpha=0.3)
            errors = None  # of a single search
            if end["low"] is not None:
                errors = [[end["value"] - end["low"]], [end["high"] - end["value"]]]
            ends.errorbar(place, end["value"], errors, fmt="o", color=color, capsize=3)
        curves.set(title=task, xlabel="environment steps of a search")
        ends.set_xticks(range(len(rows)), sorted(rows), rotation=60)
        for axes in (curves, ends):
            axes.grid(alpha=0.3)
    grid[0, 0].set_ylabel("highest score of a phase so far")
    grid[1, 0].set_ylabel("return of the winner, new seeds")
    grid[0, 0].legend(frameon=False, fontsize="small")
    return figure


def main(args: Args) -> None:
    """Print the tables, and write the record and the picture."""
    cells = read_cells(args.cells)
    firsts = {task: next(iter(own.values())) for task, own in cells.items()}
    record: dict[str, Any] = {
        "note": args.note,
        "manifests": origins(cells),
        "settings": {task: cell["settings"] for task, cell in firsts.items()},
    }
    tasks = {task: {n: summarize(cell) for n, cell in own.items()} for task, own in cells.items()}
    if args.beside is not None:
        before = read_record(args.beside, record["settings"])
        record["note"] = f"{before['note']} {args.note}".strip()
        record["manifests"] = before["manifests"] | {
            f"{task} {name}": cell["manifest"]
            for task, own in cells.items()
            for name, cell in own.items()
        }
        tasks = {task: rows | tasks[task] for task, rows in before["tasks"].items()}
    ranks = mean_ranks(tasks)
    console = Console(width=200)
    for table in tables(tasks, ranks, next(iter(firsts.values()))["settings"]["seeds"]):
        console.print(table)
    record |= {"ranks": ranks, "tasks": tasks}
    draw(tasks).savefig(save_record(args.results, args.name, record))


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Args))
