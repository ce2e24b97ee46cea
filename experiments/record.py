"""Keep the result of finished runs: one JSON and one picture under experiments/results/.

    python experiments/record.py breakout-minatar-ppo runs/ppo-Breakout-MinAtar-seed*

The JSON holds each run's manifest (exact command, config, versions, hardware), its summary, its
curve thinned to at most 200 points, and an evaluation over whole episodes beside the uniformly
random policy's.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

import jaxrl
from errors import exit_with_message
from jaxrl.training import manifest as manifests
from jaxrl.training.loggers import plot_curve, read_jsonl, smoothed_returns
from play import evaluate


@dataclasses.dataclass
class Args:
    """Record runs that differ by their seed."""

    name: tyro.conf.Positional[str]
    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    note: str = ""
    """A sentence on how it was run, such as what else the machine was doing."""
    episodes: int = 100
    """Whole episodes that each agent, and the random policy, is evaluated on."""
    results: Path = Path(__file__).parent / "results"


def uniformly_random(algo: jaxrl.Algorithm) -> jaxrl.Algorithm:
    """The algorithm with the policy that ignores what it sees."""
    assert algo.env is not None
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
    """Mean, spread and standard error of some episodes' returns."""
    return {
        "episodes": len(returns),
        "mean_return": float(returns.mean()),
        "std": float(returns.std(ddof=1)),
        "standard_error": float(returns.std(ddof=1) / np.sqrt(len(returns))),
    }


def record_of(run_dir: Path, episodes: int) -> dict[str, Any]:
    """One run."""
    policy = jaxrl.load_policy(run_dir)
    steps, returns = smoothed_returns(read_jsonl(run_dir / "metrics.jsonl"))
    kept = np.unique(np.linspace(0, len(steps) - 1, 200).astype(int))
    return {
        "manifest": manifests.read(run_dir),
        "summary": json.loads((run_dir / "summary.json").read_text()),
        "curve": {
            "steps": steps[kept].tolist(),
            "mean_return_of_last_100_episodes": [round(float(x), 3) for x in returns[kept]],
        },
        "evaluation": describe(evaluate(policy, episodes, seed=0, greedy=False)),
    }


def keep(results: Path, name: str, record: dict[str, Any]) -> Path:
    """Write a record; the path of the picture beside it."""
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    return results / f"{name}.png"


def main(args: Args) -> None:
    if not args.run_dirs:
        raise ValueError("there are no runs to record: name their directories")
    runs = [record_of(run_dir, args.episodes) for run_dir in args.run_dirs]
    policy = jaxrl.load_policy(args.run_dirs[0])
    random_policy = jaxrl.LoadedPolicy(uniformly_random(policy.algo), policy.config, policy.state)
    baseline = describe(evaluate(random_policy, args.episodes, seed=0, greedy=False))
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
    picture = keep(args.results, args.name, result)
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
