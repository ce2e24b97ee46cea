"""Repeat a recorded result, and say whether the new scores agree with the recorded ones.

jaxrl reproduce cartpole-ppo                          # experiments/results/cartpole-ppo.json
jaxrl reproduce breakout-minatar-ppo-2m --seeds 1     # one of its seeds
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table
from scipy import stats

from jaxrl.analysis.records import read_runs
from jaxrl.cli.flags.arguments import find_own_modules
from jaxrl.config import with_current_names
from jaxrl.files import schema
from jaxrl.training import manifest as manifests
from jaxrl.training.run import run

LEAST_MARGIN = 0.01
"""Least half width of an interval, as a share of the score above the random policy's: seeds that
all reach the best score have no spread, but other versions of packages round differently."""


@dataclasses.dataclass
class ReproduceArguments:
    """Repeat a recorded result from its manifests, and compare the scores."""

    record: tyro.conf.Positional[str]
    """Name of a record among --results, or its path."""
    seeds: tuple[int, ...] = ()
    """Seeds of the record to repeat; all by default."""
    results: Path = Path("experiments/results")
    """Directory of the records."""
    run_dir: Path | None = None
    """Directory for the runs; runs/reproduce/NAME by default. Unfinished ones are resumed."""
    trust_imports: bool = False
    """Import what the record's environment names (gymnasium/module:function). Only if you trust who
    wrote the record."""


class Interval(NamedTuple):
    """Bounds within which a mean score agrees with the recorded ones."""

    low: float
    high: float


def main(argv: Sequence[str], prog: str | None = None) -> int:
    """Repeat the runs; return 1 if their mean score is outside the recorded interval, else 0."""
    args = tyro.cli(ReproduceArguments, args=argv, prog=prog)
    path = Path(args.record)
    if path.suffix != ".json":
        path = args.results / f"{args.record}.json"
    if args.trust_imports:
        find_own_modules()
    record = read_runs(path)
    by_seed = manifests_by_seed(record, path)
    returns = (entry["summary"]["mean_return"] for entry in record["runs"])
    recorded = dict(zip(by_seed, returns, strict=True))
    seeds = args.seeds or tuple(recorded)
    if unknown := sorted(set(seeds) - set(recorded)):
        raise ValueError(f"--seeds: {path} has no seeds {unknown}; it has {sorted(recorded)}")
    directory = args.run_dir or Path("runs") / "reproduce" / path.stem
    scores = {
        seed: repeat(manifest, directory / f"seed{seed}", path, args.trust_imports)
        for seed, manifest in by_seed.items()
        if seed in seeds
    }
    print_scores(path.stem, scores, recorded)
    random = record["random_policy"]["mean_return"]
    return judge(list(scores.values()), list(recorded.values()), random)


def manifests_by_seed(record: dict[str, Any], path: Path) -> dict[int, dict[str, Any]]:
    """Return the manifests of a record's runs, checked."""
    found = {}
    for entry in record["runs"]:
        try:
            manifest = schema.check(with_current_names(entry["manifest"]), schema.MANIFEST)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: a run's manifest: {error}") from error
        schema.require(path, manifest, manifests.ARGUMENTS)
        if manifest["seed"] in found:
            raise ValueError(f"{path} is damaged: two of its runs have the seed {manifest['seed']}")
        found[manifest["seed"]] = manifest
    return found


def repeat(manifest: dict[str, Any], run_dir: Path, path: Path, trust_imports: bool) -> float:
    """Train as a manifest says, or finish a run that did; return the score.

    Raises:
      ValueError: if that run was begun with other versions or another commit than today's.
    """
    if (run_dir / manifests.NAME).exists():
        begun, now = manifests.read(run_dir), manifests.provenance()
        origin = ("versions", "git_commit")
        if any(begun.get(name) != now[name] for name in origin):
            raise ValueError(
                f"{run_dir} was trained on {begun.get('created')} with other versions or another "
                "commit, so its score is not today's; choose another --run-dir"
            )
        print(f"{run_dir} was begun on {begun.get('created')}; what it has trained is not repeated")
    algo, config = manifests.rebuild(manifest, trust_imports=trust_imports, run_dir=path)
    arguments = {name: manifest[name] for name in manifests.ARGUMENTS}
    result = run(algo, config, run_dir=run_dir, resume=True, **arguments)
    if result.interrupted:
        raise KeyboardInterrupt
    score = result.summary["mean_return"]
    return math.nan if score is None else score


def print_scores(name: str, scores: dict[int, float], recorded: dict[int, float]) -> None:
    """Print a table of the scores by seed."""
    table = Table("seed", title=name)
    for column in ("recorded", "now"):
        table.add_column(column, justify="right")
    for seed, score in scores.items():
        table.add_row(str(seed), f"{recorded[seed]:,.2f}", f"{score:,.2f}")
    Console().print(table)


def judge(scores: Sequence[float], recorded: Sequence[float], random: float) -> int:
    """Print whether the mean of scores agrees with the recorded ones; return 0 if it does."""
    now, before = float(np.mean(scores)), float(np.mean(recorded))
    bounds = agreement(len(scores), recorded, random)
    if bounds is None:
        print(f"mean {now:,.2f}, recorded {before:,.2f}: one seed, so there is no interval")
        return 0
    agrees = bounds.low <= now <= bounds.high
    verdict = "reproduced" if agrees else "NOT reproduced"
    print(
        f"mean {now:,.2f}, recorded {before:,.2f}; {len(scores)} new runs are within "
        f"{bounds.low:,.2f} to {bounds.high:,.2f} with 95%: {verdict}"
    )
    return int(not agrees)


def agreement(number: int, recorded: Sequence[float], random: float) -> Interval | None:
    """Return the 95% prediction interval of the mean of new scores; None from one recorded score.

    It is Student's, for scores that are drawn as the recorded ones were.

    Args:
      number: of new scores.
      random: the random policy's score (`LEAST_MARGIN`).
    """
    count = len(recorded)
    if count < 2:
        return None
    mean, deviation = float(np.mean(recorded)), float(np.std(recorded, ddof=1))
    margin = float(stats.t.ppf(0.975, count - 1)) * deviation * math.sqrt(1 / number + 1 / count)
    margin = max(margin, LEAST_MARGIN * abs(mean - random))
    return Interval(mean - margin, mean + margin)
