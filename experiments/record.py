"""Record finished runs: one JSON and one picture under experiments/results/.

    python experiments/record.py breakout-minatar-ppo runs/ppo-Breakout-MinAtar-seed*

The JSON holds each run's manifest (exact command, config, versions, hardware), its summary, its
curve thinned to at most 200 points, and a greedy evaluation over whole episodes, with that of a
uniformly random policy to compare with.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

import jaxrl
from jaxrl.analysis.records import save_record
from jaxrl.cli.flags.arguments import exit_with_message
from jaxrl.cli.play import play_episodes
from jaxrl.training import manifest as manifests
from jaxrl.training.loggers import plot_curve, read_jsonl, smoothed_returns
from jaxrl.training.progress import read_summary


@dataclasses.dataclass
class Args:
    """Record runs that differ by their seed."""

    name: tyro.conf.Positional[str]
    """Name of the record's files."""
    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of the runs."""
    note: str = ""
    """A sentence about the circumstances, such as other load on the machine."""
    episodes: int = 100
    """Whole episodes on which each agent, and the random policy, is evaluated."""
    results: Path = Path(__file__).parent / "results"
    trust_imports: bool = False
    """Import what the runs' environments name (gymnasium/module:function). Only if you trust who
    wrote the directories."""


def uniformly_random(algo: jaxrl.Algorithm) -> jaxrl.Algorithm:
    """Return the algorithm with a policy that ignores observations."""
    space = algo.env.action_space

    def act(
        config: Any, state: Any, carry: Any, obs: Any, key: jax.Array, greedy: bool
    ) -> tuple[Any, jax.Array]:
        shape = (len(jax.tree.leaves(obs)[0]), *space.shape)
        if isinstance(space, jaxrl.Box):
            return carry, jax.random.uniform(key, shape, None, *space.bounds())
        sizes = space.sizes if isinstance(space, jaxrl.MultiDiscrete) else space.n
        return carry, jax.random.randint(key, shape, 0, jax.numpy.array(sizes))

    return algo._replace(act=act)


def describe(returns: np.ndarray) -> dict[str, float]:
    """Return mean, standard deviation and standard error of episodes' returns."""
    return {
        "episodes": len(returns),
        "mean_return": float(returns.mean()),
        "std": float(returns.std(ddof=1)),
        "standard_error": float(returns.std(ddof=1) / np.sqrt(len(returns))),
    }


def describe_run(run_dir: Path, episodes: int, trust_imports: bool) -> dict[str, Any]:
    """Return a run's manifest, summary, thinned curve and evaluation."""
    policy = jaxrl.load_policy(run_dir, trust_imports=trust_imports)
    scores = play_episodes(policy, episodes, seed=0, greedy=True)
    steps, returns = smoothed_returns(read_jsonl(run_dir / "metrics.jsonl"))
    kept = np.unique(np.linspace(0, len(steps) - 1, 200).astype(int))
    return {
        "manifest": manifests.read(run_dir),
        "summary": read_summary(run_dir),
        "curve": {
            "steps": steps[kept].tolist(),
            "mean_return_of_last_100_episodes": [round(float(x), 3) for x in returns[kept]],
        },
        "evaluation": {"greedy": True} | describe(np.asarray(scores.episode_return)),
    }


def main(args: Args) -> None:
    """Write the record and the picture, and print a summary."""
    if not args.run_dirs:
        raise ValueError("there are no runs to record: name their directories")
    trust = args.trust_imports
    runs = [describe_run(run_dir, args.episodes, trust) for run_dir in args.run_dirs]
    policy = jaxrl.load_policy(args.run_dirs[0], trust_imports=trust)
    random_policy = jaxrl.LoadedPolicy(uniformly_random(policy.algo), policy.config, policy.state)
    returns = play_episodes(random_policy, args.episodes, seed=0).episode_return
    baseline = describe(np.asarray(returns))
    final = [run["summary"]["mean_return"] for run in runs]
    result = {
        "name": args.name,
        "mean_return": float(np.mean(final)),
        "mean_return_by_seed": {
            str(run["manifest"]["seed"]): score for run, score in zip(runs, final, strict=True)
        },
        "random_policy": baseline,
        "note": args.note,
        "runs": runs,
    }
    picture = save_record(args.results, args.name, result)
    rows = {
        f"seed {run['manifest']['seed']}": read_jsonl(run_dir / "metrics.jsonl")
        for run, run_dir in zip(runs, args.run_dirs, strict=True)
    }
    manifest = runs[0]["manifest"]
    title = f"{manifest['algorithm'].upper()} on {manifest['env']['id']}"
    plot_curve(rows, title, picture, baseline["mean_return"])
    print(f"{args.name}: mean return {result['mean_return']:.2f} over {len(runs)} seeds, {final}")
    print(f"evaluated: {[run['evaluation'] for run in runs]}, random policy: {baseline}")


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Args))
