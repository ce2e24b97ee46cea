"""The purpose of V-trace: IMPALA with actors that lag the learner by 0, 1, 4 and 16 updates, with
and without its off-policy correction.

    python experiments/impala_lag.py cartpole
    python experiments/impala_lag.py minatar

All seeds of a setting are one program. Prints a table, and writes a JSON and a picture under
runs/results/.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import tyro
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import jaxrl
from jaxrl import checks
from jaxrl.analysis.records import mean_returns_by_part, rounded_curve, save_record
from jaxrl.cli.flags.arguments import LargeInteger, exit_with_message
from jaxrl.presets import PRESETS
from jaxrl.training.run import count_updates
from jaxrl.training.run_dir import manifest as manifests


@dataclasses.dataclass
class Args:
    """IMPALA at several lags, with and without V-trace's correction."""

    preset: tyro.conf.Positional[Literal["cartpole", "minatar"]]
    """Preset of IMPALA."""
    lags: tuple[int, ...] = (0, 1, 4, 16)
    """Updates by which the actors lag the learner."""
    seeds: int = 3
    total_steps: LargeInteger | None = None
    """Environment steps of each run; the preset's by default."""
    results: Path = Path("runs") / "results"
    """Directory of the JSON and the picture."""


def learning_curves(algo: jaxrl.Algorithm, config: Any, total_steps: int, seeds: int) -> np.ndarray:
    """Return mean returns over 50 equal parts of the training, `[seeds, 50]`."""
    num_updates = count_updates(algo, config, total_steps)

    def learn(key: jax.Array) -> Any:
        return jaxrl.train(algo, config, key, num_updates)[1]

    keys = jax.random.split(jax.random.key(0), seeds)
    # One after another: a CPU computes vmapped convolutions many times more slowly.
    return mean_returns_by_part(jax.jit(lambda keys: jax.lax.map(learn, keys))(keys))


def main(args: Args) -> None:
    """Train all settings, print a table, and write a record and a picture."""
    checks.integer("--seeds", args.seeds)
    if args.total_steps is not None:
        checks.integer("--total-steps", args.total_steps)
    preset = PRESETS["impala"][args.preset]
    algo = jaxrl.impala(jaxrl.make(preset.env_id, num_envs=preset.num_envs))
    total_steps = args.total_steps or preset.total_steps
    config = preset.config.replace(anneal_updates=count_updates(algo, preset.config, total_steps))
    arguments = {"total_steps": total_steps, "seeds": args.seeds}
    manifest = manifests.describe(algo, config, arguments)
    settings = [(lag, True) for lag in args.lags] + [(max(args.lags), False)]
    table = Table("lag", "correction", "return, last 10% of training, by seed", "mean")
    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    results = []
    for lag, correction in settings:
        varied = config.replace(lag=lag, off_policy_correction=correction)
        curves = learning_curves(algo, varied, total_steps, args.seeds)
        known = np.ma.masked_invalid(curves)
        last = known[:, -max(1, curves.shape[1] // 10) :].mean(1).filled(np.nan)
        mean_curve = known.mean(0).filled(np.nan)
        label = f"lag {lag}" + ("" if correction else ", no correction")
        axes.plot(np.linspace(0, 1, curves.shape[1]), mean_curve, label=label)
        numbers = ", ".join(f"{x:.1f}" for x in last)
        table.add_row(str(lag), "V-trace" if correction else "none", numbers, f"{last.mean():.1f}")
        results.append(
            {
                "lag": lag,
                "off_policy_correction": correction,
                "final_return_by_seed": rounded_curve(last),
                "mean_curve": rounded_curve(mean_curve),
            }
        )
    Console().print(table)
    axes.set(
        title=f"IMPALA on {preset.env_id}, {args.seeds} seeds",
        xlabel="share of training",
        ylabel="mean return",
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    record = {"manifest": manifest, "settings": results}
    figure.savefig(save_record(args.results, f"impala-lag-{args.preset}", record))


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Args))
