"""Print a table of recorded scores: rows of docs/algorithms/minatar.md and atari.md.

    python experiments/score_table.py asterix-minatar-ppo asterix-minatar-pqn

A score is that of the last 100 training episodes, and that of greedy evaluation over whole episodes
beside it. Of five seeds or more it is their interquartile mean with a 95% bootstrap interval
(Agarwal et al. 2021); of fewer their mean, lowest and highest.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from jaxrl.analysis.records import read_runs
from jaxrl.cli.flags.arguments import exit_with_message
from jaxrl.ops import statistics

EPISODES = 100
"""Episodes of each greedy evaluation, as the head of the table says."""
HEAD = """\
| environment | algorithm | steps | seeds | last 100 training episodes | greedy, 100 episodes |
|---|---|---|---|---|---|"""


@dataclasses.dataclass
class Args:
    """Print a table of recorded scores."""

    names: tyro.conf.Positional[tuple[str, ...]]
    """Names of the records, in the order of the rows."""
    results: Path = Path(__file__).parent / "results"
    """Directory of the records."""


def summarize(scores: np.ndarray) -> str:
    """Return the scores `[num_seeds]` as text: a center, and an interval if there are several."""
    if len(scores) == 1:
        return f"{scores[0]:.1f}"
    if len(scores) < 5:
        return f"{scores.mean():.1f} ({scores.min():.1f} to {scores.max():.1f})"
    center, low, high = statistics.estimate(statistics.interquartile_mean, scores[:, None])
    return f"{center:.1f} ({low:.1f} to {high:.1f})"


def row(name: str, record: dict[str, Any]) -> str:
    """Return a record's row of the table, with a link to its file."""
    runs = record["runs"]
    evaluations = [run["evaluation"] for run in runs if "evaluation" in run]
    if len(evaluations) not in (0, len(runs)) or not all(e.get("greedy") for e in evaluations):
        raise ValueError(f"{name} lacks greedy evaluations; record its runs again")
    if numbers := {evaluation["episodes"] for evaluation in evaluations} - {EPISODES}:
        raise ValueError(
            f"{name} has greedy evaluations over {min(numbers)} episodes; record its runs again "
            f"with --episodes {EPISODES}"
        )
    training = np.array([run["summary"]["mean_return"] for run in runs])
    greedy = np.array([evaluation["mean_return"] for evaluation in evaluations])
    manifest = runs[0]["manifest"]
    link = f"[{summarize(training)}](../../experiments/results/{name}.json)"
    cells = (
        manifest["env"]["id"].rpartition("/")[2],
        manifest["algorithm"].upper(),
        f"{manifest['total_steps'] / 1e6:.3g}M",
        str(len(runs)),
        link,
        summarize(greedy) if evaluations else "-",
    )
    return f"| {' | '.join(cells)} |"


def main(args: Args) -> None:
    """Print the table."""
    rows = [row(name, read_runs(args.results / f"{name}.json")) for name in args.names]
    print(HEAD, *rows, sep="\n")


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Args))
