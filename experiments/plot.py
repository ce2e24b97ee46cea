"""Compare runs on one page: curves, scores with intervals, settings, commands and videos.

python experiments/plot.py runs/ppo-Pong-v5-seed* runs/a2c-Pong-v5-seed* --out pong.html

Runs that differ by their seeds alone are one line and one row. A page has everything in it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import tyro

from errors import exit_with_message
from jaxrl.analysis.comparison import groups, read_run
from jaxrl.analysis.comparison_page import summary, write_comparison


@dataclasses.dataclass
class Args:
    """Compare runs."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    out: Path = Path("comparison.html")
    """The page to write."""


def main(args: Args) -> None:
    found = groups([read_run(directory) for directory in args.run_dirs])
    path = write_comparison(found, args.out)
    for group in found:
        print(summary(group))
    print(f"page: {path}")


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Args))
