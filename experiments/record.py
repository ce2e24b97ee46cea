"""Record finished runs: one JSON and one picture under experiments/results/.

    python experiments/record.py breakout-minatar-ppo runs/ppo-Breakout-MinAtar-seed*
    python experiments/record.py breakout-minatar-ppo runs/ppo-Breakout-MinAtar-seed5 --add

The JSON holds each run's manifest (exact command, config, versions, hardware), its summary, its
curve thinned to at most 200 points, and a greedy evaluation over whole episodes, with that of a
uniformly random policy to compare with.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from matplotlib.figure import Figure

import jaxrl
from jaxrl.analysis.records import save_record
from jaxrl.cli.flags.arguments import exit_with_message
from jaxrl.cli.play import play_episodes
from jaxrl.config import with_current_names
from jaxrl.training import manifest as manifests
from jaxrl.training.loggers import read_jsonl, smoothed_returns
from jaxrl.training.progress import read_summary


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


def add_runs(recorded: list[dict[str, Any]], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return both, ordered by seed; a new run replaces the recorded one of its seed."""
    by_seed = {run["manifest"]["seed"]: run for run in [*recorded, *runs]}
    for name in ("algorithm", "env", "config", "total_steps"):
        if any(run["manifest"][name] != runs[0]["manifest"][name] for run in by_seed.values()):
            raise ValueError(f"the recorded runs differ in their {name}; record without --add")
    return [by_seed[seed] for seed in sorted(by_seed)]


def draw(result: dict[str, Any]) -> Figure:
    """Return the curves of a record's runs."""
    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for run in result["runs"]:
        axes.plot(*run["curve"].values(), label=f"seed {run['manifest']['seed']}")
    baseline = result["random_policy"]["mean_return"]
    axes.axhline(baseline, color="gray", linestyle="--", label="random policy")
    manifest = result["runs"][0]["manifest"]
    title = f"{manifest['algorithm'].upper()} on {manifest['env']['id']}"
    axes.set_title(title, parse_math=False)
    axes.set(xlabel="environment steps", ylabel="return, mean of last 100 episodes")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def main(args: Args) -> None:
    """Write the record and the picture, and print a summary."""
    if not args.run_dirs:
        raise ValueError("there are no runs to record: name their directories")
    trust = args.trust_imports
    runs = [describe_run(run_dir, args.episodes, trust) for run_dir in args.run_dirs]
    note = args.note
    if args.add:
        path = args.results / f"{args.name}.json"
        recorded = with_current_names(json.loads(path.read_text()))
        runs, note = add_runs(recorded["runs"], runs), note or recorded["note"]
    policy = jaxrl.load_policy(args.run_dirs[0], trust_imports=trust)
    random_policy = jaxrl.LoadedPolicy(uniformly_random(policy.algo), policy.config, policy.state)
    returns = play_episodes(random_policy, args.episodes, seed=0).episode_return
    baseline = describe(np.asarray(returns))
    final = {str(run["manifest"]["seed"]): run["summary"]["mean_return"] for run in runs}
    result = {
        "name": args.name,
        "mean_return": float(np.mean([*final.values()])),
        "mean_return_by_seed": final,
        "random_policy": baseline,
        "note": note,
        "runs": runs,
    }
    picture = save_record(args.results, args.name, result)
    draw(result).savefig(picture)
    print(f"{args.name}: mean return {result['mean_return']:.2f} over {len(runs)} seeds, {final}")
    print(f"evaluated: {[run['evaluation'] for run in runs]}, random policy: {baseline}")


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Args))
