"""Compare runs on one HTML page: curves, scores with intervals, settings, commands and videos.

    jaxrl compare runs/ppo-Pong-v5-seed* runs/a2c-Pong-v5-seed* --out pong.html

Runs that differ only by their seeds are one line and one row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import tyro

from jaxrl.analysis.comparison import Run, group_runs, read_run
from jaxrl.analysis.comparison_page import summary_line, write_comparison
from jaxrl.cli.flags.arguments import printable


@dataclasses.dataclass
class CompareArguments:
    """Compare runs on one page."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of runs."""
    out: Path = Path("runs") / "comparison.html"
    """The page to write."""


def main(argv: Sequence[str], prog: str | None = None) -> int:
    """Write the page and print a line for each group of runs; return the exit status."""
    args = tyro.cli(CompareArguments, args=argv, prog=prog)
    found = group_runs(read_runs(args.run_dirs))
    path = write_comparison(found, args.out)
    for group in found:
        print(printable(summary_line(group)))
    print(f"page: {path}")
    return 0


def read_runs(directories: Sequence[Path]) -> list[Run]:
    """Read all runs.

    Raises:
      ValueError: if some cannot be read; it names all of these.
    """
    runs, problems = [], []
    for directory in directories:
        try:
            runs.append(read_run(directory))
        except (OSError, ValueError) as error:
            problems.append(str(error))
    if problems:
        raise ValueError("\n".join(problems))
    return runs
