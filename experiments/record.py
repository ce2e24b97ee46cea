"""Keep the result of finished runs: one JSON and one picture under experiments/results/.

    python experiments/record.py breakout-minatar-ppo runs/ppo-Breakout-MinAtar-seed*

The JSON holds each run's manifest (exact command, config, versions, hardware), its summary and its
curve, thinned to at most 200 points.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from jaxrl import manifest as manifests
from jaxrl.logging import read_jsonl
from jaxrl.plots import plot_curve, smoothed_returns


@dataclasses.dataclass
class Args:
    """Record runs that differ by their seed."""

    name: tyro.conf.Positional[str]
    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    note: str = ""
    """A sentence on how it was run, such as what else the machine was doing."""
    baseline: float | None = None
    """Mean return of the random policy, for the picture and the record."""
    results: Path = Path(__file__).parent / "results"


def record_of(run_dir: Path) -> dict[str, Any]:
    """One run."""
    steps, returns = smoothed_returns(read_jsonl(run_dir / "metrics.jsonl"))
    kept = np.unique(np.linspace(0, len(steps) - 1, 200).astype(int))
    return {
        "manifest": manifests.read(run_dir),
        "summary": json.loads((run_dir / "summary.json").read_text()),
        "curve": {
            "steps": steps[kept].tolist(),
            "mean_return_of_last_100_episodes": [round(float(x), 3) for x in returns[kept]],
        },
    }


def main(args: Args) -> None:
    runs = [record_of(run_dir) for run_dir in args.run_dirs]
    final = [run["summary"]["mean_return"] for run in runs]
    result = {
        "name": args.name,
        "mean_return": float(np.mean(final)),
        "mean_return_by_seed": {
            str(run["manifest"]["seed"]): score for run, score in zip(runs, final, strict=True)
        },
        "random_policy": args.baseline,
        "note": args.note,
        "runs": runs,
    }
    args.results.mkdir(parents=True, exist_ok=True)
    (args.results / f"{args.name}.json").write_text(json.dumps(result, indent=1) + "\n")
    rows = {
        f"seed {run['manifest']['seed']}": read_jsonl(run_dir / "metrics.jsonl")
        for run, run_dir in zip(runs, args.run_dirs, strict=True)
    }
    manifest = runs[0]["manifest"]
    title = f"{manifest['algorithm'].upper()} on {manifest['env']['id']}"
    plot_curve(rows, title, args.results / f"{args.name}.png", args.baseline)
    print(f"{args.name}: mean return {result['mean_return']:.2f} over {len(runs)} seeds, {final}")


if __name__ == "__main__":
    try:
        main(tyro.cli(Args))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
