"""Record finished runs: one JSON and one picture under experiments/results/.

    python experiments/record.py breakout-minatar-ppo runs/ppo-Breakout-MinAtar-seed*
    python experiments/record.py breakout-minatar-ppo runs/ppo-Breakout-MinAtar-seed5 --add

The JSON holds each run's manifest (exact command, config, versions, hardware), its summary, its
curve thinned to at most 200 points, and a greedy evaluation over whole episodes, with that of a
uniformly random policy to compare with.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import jaxrl
from jaxrl import checks
from jaxrl.analysis.records import describe_run, read_runs, save_runs, uniformly_random
from jaxrl.cli.flags.arguments import exit_with_message
from jaxrl.cli.play import play_episodes
from jaxrl.config import with_current_names
from jaxrl.training.loggers import read_jsonl
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.directory import read_summary


@dataclasses.dataclass
class Args:
    """Record runs that differ by their seed."""

    name: tyro.conf.Positional[str]
    """Name of the record's files."""
    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of the runs."""
    add: bool = False
    """Keep the record's runs of other seeds."""
    note: str = ""
    """A sentence about the circumstances, such as other load on the machine. With --add it follows
    the record's own."""
    episodes: int = 100
    """Whole episodes on which each agent, and the random policy, is evaluated."""
    greedy: bool = True
    """Evaluate the agents. Without, the record has their training alone: in some games a greedy
    agent waits until the environment's limit, so that its episodes take long."""
    results: Path = Path(__file__).parent / "results"
    trust_imports: bool = False
    """Import what the runs' environments name (gymnasium/module:function). Only if you trust who
    wrote the directories."""


def read_run(run_dir: Path, episodes: int, trust_imports: bool) -> dict[str, Any]:
    """Return a run's manifest, summary, thinned curve and evaluation, if there are episodes of it.

    Raises:
      ValueError: if the run was interrupted.
    """
    summary = read_summary(run_dir)
    if summary["interrupted"]:
        raise ValueError(f"{run_dir} was interrupted; finish it with --resume, or leave it out")
    returns = None
    if episodes:
        policy = jaxrl.load_policy(run_dir, trust_imports=trust_imports)
        scores = play_episodes(policy, episodes, seed=0, greedy=True)
        returns = np.asarray(scores.episode_return)
    rows = read_jsonl(run_dir / "metrics.jsonl")
    return describe_run(manifests.read(run_dir), summary, rows, returns)


def add_runs(recorded: list[dict[str, Any]], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return both, ordered by seed; a new run replaces the recorded one of its seed.

    Raises:
      ValueError: if two new runs have the same seed, or runs differ in more than their seeds.
    """
    seeds = [run["manifest"]["seed"] for run in runs]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"the seeds of the runs must differ, got {seeds}; name each run once")
    by_seed = {run["manifest"]["seed"]: run for run in [*recorded, *runs]}
    compared = [manifests.comparable(run["manifest"]) for run in by_seed.values()]
    for name in ("algorithm", "env", "config", "total_steps", "init_from"):
        if any(manifest.get(name) != compared[0].get(name) for manifest in compared):
            raise ValueError(f"the runs of the record differ in their {name}; record them apart")
    return [by_seed[seed] for seed in sorted(by_seed)]


def main(args: Args) -> None:
    """Write the record and the picture, and print a summary."""
    if not args.run_dirs:
        raise ValueError("there are no runs to record: name their directories")
    checks.integer("--episodes", args.episodes, 2)
    trust = args.trust_imports
    greedy_episodes = args.episodes if args.greedy else 0
    recorded, note = [], args.note
    if args.add:
        record = with_current_names(read_runs(args.results / f"{args.name}.json"))
        recorded = record["runs"]
        note = " ".join(dict.fromkeys(filter(None, (record["note"], note))))
    # Runs that do not belong together are refused before games that may take an hour.
    add_runs(recorded, [read_run(run_dir, 0, trust) for run_dir in args.run_dirs])
    runs = [read_run(run_dir, greedy_episodes, trust) for run_dir in args.run_dirs]
    runs = add_runs(recorded, runs)
    policy = jaxrl.load_policy(args.run_dirs[0], trust_imports=trust)
    random_policy = jaxrl.LoadedPolicy(uniformly_random(policy.algo), policy.config, policy.state)
    returns = play_episodes(random_policy, args.episodes, seed=0).episode_return
    save_runs(args.results, args.name, runs, np.asarray(returns), note)


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Args))
