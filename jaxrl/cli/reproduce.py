"""Repeat a recorded result, and say whether the new scores agree with the recorded ones.

jaxrl reproduce cartpole-a2c                          # experiments/results/cartpole-a2c.json
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
from rich.table import Table
from scipy import stats

from jaxrl.analysis.records import describe_scores, read_runs
from jaxrl.cli.flags.arguments import find_own_modules, table_console
from jaxrl.cli.play import play_episodes
from jaxrl.config import with_current_names
from jaxrl.envs.host import callback
from jaxrl.files import schema
from jaxrl.training.policy import load_policy
from jaxrl.training.run import run
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.directory import has_checkpoint

MEASURES = ("last 100 training episodes", "greedy episodes")
"""The two scores of a run are means over these episodes. Some records lack the second score."""
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
    greedy: bool = True
    """Also play as many greedy episodes as the record has, and compare their scores."""
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
    """Repeat the runs; return 1 if a mean score is outside its recorded interval, else 0."""
    args = tyro.cli(ReproduceArguments, args=argv, prog=prog)
    path = Path(args.record)
    if path.suffix != ".json":
        path = args.results / f"{args.record}.json"
    if args.trust_imports:
        find_own_modules()
    record = read_runs(path)
    recorded = runs_by_seed(record, path)
    seeds = args.seeds or tuple(recorded)
    if unknown := sorted(set(seeds) - set(recorded)):
        raise ValueError(f"--seeds: {path} has no seeds {unknown}; it has {sorted(recorded)}")
    is_greedy = args.greedy and all(
        run.get("evaluation", {}).get("greedy", False) for run in recorded.values()
    )
    directory = args.run_dir or Path("runs") / "reproduce" / path.stem
    repeated = {
        seed: repeat(run, directory / f"seed{seed}", path, is_greedy, args.trust_imports)
        for seed, run in recorded.items()
        if seed in seeds
    }
    print_scores(path.stem, repeated, recorded, is_greedy)
    random = record["random_policy"]["mean_return"]
    statuses = [
        judge(
            measure,
            [scores_of(run)[place] for run in repeated.values()],
            [scores_of(run)[place] for run in recorded.values()],
            random,
        )
        for place, measure in enumerate(MEASURES[: 1 + is_greedy])
    ]
    return max(statuses)


def runs_by_seed(record: dict[str, Any], path: Path) -> dict[int, dict[str, Any]]:
    """Return a record's runs with their manifests checked."""
    found = {}
    for entry in record["runs"]:
        try:
            manifest = schema.check(with_current_names(entry["manifest"]), schema.MANIFEST)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: a run's manifest: {error}") from error
        schema.require(path, manifest, manifests.ARGUMENTS)
        if manifest["seed"] in found:
            raise ValueError(f"{path} is damaged: two of its runs have the seed {manifest['seed']}")
        found[manifest["seed"]] = entry | {"manifest": manifest}
    return found


def scores_of(run: dict[str, Any]) -> tuple[float, float]:
    """Return the scores of a run by `MEASURES`; NaN for one that it does not have."""
    scores = run["summary"]["mean_return"], run.get("evaluation", {}).get("mean_return")
    training, greedy = (math.nan if score is None else float(score) for score in scores)
    return training, greedy


def repeat(
    recorded: dict[str, Any], run_dir: Path, path: Path, is_greedy: bool, trust_imports: bool
) -> dict[str, Any]:
    """Train as a recorded run did, or finish a run that does; return its summary and evaluation.

    Raises:
      ValueError: if that run was begun with other versions or another commit than today's.
    """
    manifest = recorded["manifest"]
    if manifest.get("init_from") is not None:
        raise ValueError(
            f"the run of seed {manifest['seed']} in {path} began from a trained agent, which the "
            "record does not hold; repeat others by --seeds"
        )
    if has_checkpoint(run_dir):
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
    callback.release(result.state)
    if result.interrupted:
        raise KeyboardInterrupt
    repeated: dict[str, Any] = {"summary": result.summary}
    if is_greedy:
        policy = load_policy(run_dir, env=algo.env)
        scores = play_episodes(policy, recorded["evaluation"]["episodes"], seed=0, greedy=True)
        returns = np.asarray(scores.episode_return)
        if num_cut := int(np.isnan(returns).sum()):
            print(
                f"{num_cut} of {len(returns)} greedy episodes of {run_dir} were cut short, so they "
                "have no mean; --no-greedy leaves these episodes out"
            )
        repeated["evaluation"] = {"mean_return": math.nan} if num_cut else describe_scores(returns)
    return repeated


def print_scores(
    name: str, repeated: dict[int, Any], recorded: dict[int, Any], is_greedy: bool
) -> None:
    """Print a table of the scores by seed."""
    table = Table("seed", title=name)
    measures = MEASURES[: 1 + is_greedy]
    for measure in measures:
        for when in ("recorded", "now"):
            table.add_column(f"{measure}, {when}", justify="right")
    for seed, each in repeated.items():
        pairs = zip(scores_of(recorded[seed]), scores_of(each), strict=True)
        cells = [f"{score:,.2f}" for pair in pairs for score in pair]
        table.add_row(str(seed), *cells[: 2 * len(measures)])
    table_console().print(table)


def judge(measure: str, scores: Sequence[float], recorded: Sequence[float], random: float) -> int:
    """Print whether the mean of scores agrees with the recorded ones; return 0 if it does."""
    now, before = float(np.mean(scores)), float(np.mean(recorded))
    bounds = agreement(len(scores), recorded, random)
    agrees = bounds.low <= now <= bounds.high
    if math.isfinite(bounds.high):
        wanted = (
            f"{len(scores)} new runs are within {bounds.low:,.2f} to {bounds.high:,.2f} with 95%"
        )
    elif math.isfinite(bounds.low):
        wanted = (
            f"one recorded seed tells no spread, so at least {bounds.low:,.2f}, half way from the "
            "random policy, is asked"
        )
    elif math.isfinite(now):
        wanted = "the recorded seed is no better than the random policy, so any score agrees"
    else:
        wanted = "there is no score"
    verdict = "reproduced" if agrees else "NOT reproduced"
    print(f"{measure}: mean {now:,.2f}, recorded {before:,.2f}; {wanted}: {verdict}")
    return int(not agrees)


def agreement(number: int, recorded: Sequence[float], random: float) -> Interval:
    """Return the 95% prediction interval of the mean of new scores.

    It is Student's, for scores that are drawn as the recorded ones were. One recorded score tells
    nothing of its spread: then new ones agree from half way between the random policy's on.

    Args:
      number: of new scores.
      random: the random policy's score (`LEAST_MARGIN`).
    """
    count = len(recorded)
    if count < 2:
        low = (recorded[0] + random) / 2 if recorded[0] > random else -math.inf
        return Interval(low, math.inf)
    mean, deviation = float(np.mean(recorded)), float(np.std(recorded, ddof=1))
    margin = float(stats.t.ppf(0.975, count - 1)) * deviation * math.sqrt(1 / number + 1 / count)
    margin = max(margin, LEAST_MARGIN * abs(mean - random))
    return Interval(mean - margin, mean + margin)
