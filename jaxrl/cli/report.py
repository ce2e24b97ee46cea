"""Name the winner of a study, and show the trials of all its workers on one HTML page.

jaxrl report runs/sweep-a2c-Pong-v5-seed1                 # a sweep's directory
jaxrl report runs/pong/worker-3 --out runs/pong/study     # of one worker
jaxrl report postgresql://user@host/database --study pong # or the storage itself
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro

from jaxrl.analysis.sweep_report import write_report
from jaxrl.analysis.sweep_tables import schedule_table, winner_scores
from jaxrl.cli.flags.arguments import write_pair
from jaxrl.cli.sweep_result import FAILED_FINALS, print_table
from jaxrl.files.urls import redact_url, storage_file
from jaxrl.tuning.ranking import winner
from jaxrl.tuning.studies.whole_study import read_study
from jaxrl.tuning.sweeps import sweep_file
from jaxrl.tuning.sweeps.settings import storage_url


@dataclasses.dataclass
class ReportArguments:
    """Name the winner of a study, and show the trials of all its workers on one page."""

    source: tyro.conf.Positional[str]
    """Directory of a sweep, or the URL of a study's storage."""
    study: str | None = None
    """Name of the study; by default the sweep's, or the only one of the storage."""
    storage: str | None = None
    """URL of the storage of the sweep in that directory, needed unless that is a file."""
    out: Path | None = None
    """Directory for the page and its pictures; `study/` in the sweep's, or else in runs/."""


def print_winner(study: Mapping[str, Any]) -> None:
    """Print the winner of a whole study, its settings, and which worker trained it last."""
    best = winner(study)
    if best is None:
        print("no winner:", FAILED_FINALS if study.get("finals") else "no trial has a finite score")
        return
    is_over = len(study["trials"]) == study["scheduler"]["num_trials"] and all(
        trial["status"] in ("stopped", "completed") for trial in study["trials"]
    )
    what = "winner" if is_over else "best so far"
    worker = study["owners"].get(best["trial"], "?")
    print(f"{what}: trial {best['trial']}, score {winner_scores(best)}, of worker {worker}")
    if not (schedule := schedule_table(study)).rows:
        print("settings:", " ".join(itertools.starmap(write_pair, sorted(best["values"].items()))))
    print_table(schedule, "best schedule: the phases that led to the winner")


def main(argv: Sequence[str], prog: str | None = None) -> int:
    """Print the winner and write the page; return the exit status."""
    args = tyro.cli(ReportArguments, args=argv, prog=prog)
    directory, url, name = Path(args.source), args.source, args.study
    is_directory = "://" not in args.source
    if args.storage is not None and not is_directory:
        raise ValueError(
            "--storage goes with the directory of a sweep, but the source is a storage already: "
            "leave --storage out"
        )
    if is_directory and not (directory / sweep_file.NAME).is_file():
        raise FileNotFoundError(
            f"{directory} is not a sweep's directory: it has no {sweep_file.NAME}; give one, or "
            "the URL of a study's storage"
        )
    sweep = sweep_file.read(directory) if is_directory else {}
    if is_directory:
        url = args.storage or storage_url(directory, sweep.get("storage"))
        name = name or sweep.get("study") or directory.name
        if args.storage is None and storage_file(url) is None:
            raise ValueError(
                f"{directory} names the database {redact_url(url)}, to which your password would "
                f"go; if you trust who wrote the directory, give --storage {redact_url(url)}"
            )
    found = read_study(url, name)
    if "finals" in sweep and sweep.get("study") in (None, name):  # not those of another study
        found["finals"] = sweep["finals"]
    if is_directory or args.out:
        out = args.out or directory / "study"
    elif Path(found["study"]).name == found["study"] != "..":
        out = Path("runs") / found["study"] / "study"
    else:  # whoever can write to a database chooses the name
        raise ValueError(f"the study {found['study']!r} cannot name a directory; give --out")
    out.mkdir(parents=True, exist_ok=True)
    print_winner(found)
    print(f"page: {write_report(found, out)}")
    return 0
