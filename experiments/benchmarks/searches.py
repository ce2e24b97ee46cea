"""Time of a random search of PPO on CartPole: jaxrl's one program against ARLBench.

    python experiments/benchmarks/searches.py --peer path/to/python

`--peer` is the Python of an environment with ARLBench (Becktepe et al. 2024, arXiv 2409.18827),
which needs an older JAX than jaxrl; docs/explanation/hpo-benchmark.md says how to make one. Both
train each setting once for as many steps, with networks, rollouts and minibatches of the same
sizes, and evaluate its greedy policy in 128 episodes. ARLBench trains one setting after another, as
its examples do, in `arlbench_trials.py`. A search is timed from its first setting to its last
score, with compilation, in turn with the other one; starting Python is left out.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import jaxrl
from jaxrl import checks, tuning
from jaxrl.cli.flags.arguments import exit_with_message
from jaxrl.distributed.spread import split_cpu
from timing import RESULTS, alternate, compile_anew, write_results

TRIALS = Path(__file__).with_name("arlbench_trials.py")
NUM_ENVS, EPISODES = 8, 128
CONFIG = jaxrl.PPOConfig(
    num_steps=128, num_epochs=10, num_minibatches=16, activation="tanh", hidden_sizes=(64, 64)
)
SPACE: tuning.Space = {
    "learning_rate": tuning.LogUniform(1e-6, 0.1),
    "entropy_coef": tuning.Uniform(0.0, 0.5),
    "gae_lambda": tuning.Uniform(0.8, 0.9999),
    "clip_epsilon": tuning.Uniform(1e-6, 0.5),
    "value_coef": tuning.Uniform(0.0, 1.0),
    "max_grad_norm": tuning.Uniform(1e-6, 1.0),
}
"""The fields of ARLBench's space of PPO that jaxrl traces, as in hpo_benchmark.py."""
NAMES = {"entropy_coef": "ent_coef", "clip_epsilon": "clip_eps", "value_coef": "vf_coef"}
"""ARLBench's names of fields, where they differ."""


@dataclasses.dataclass
class Args:
    """Time of a random search of PPO on CartPole."""

    peer: Path | None = None
    """Python of an environment with ARLBench; without it jaxrl alone is measured."""
    trials: int = 16
    """Settings of a search."""
    updates: int = 98
    """Updates of a trial, of 1,024 steps each."""
    strategy: str = "shard-vmap"
    """How jaxrl runs the trials; see `jaxrl.population`."""
    repeats: int = 3
    """Searches that count; the first one of each does not."""
    quick: bool = False
    """Smoke test: small sizes, one search. Meaningless numbers."""
    output: Path | None = RESULTS / "searches.json"


class Search:
    """A random search by jaxrl; a call searches anew and returns its seconds."""

    def __init__(self, args: Args):
        self.args, self.compile_seconds, self.scores = args, 0.0, np.zeros(args.trials)
        self.key = jax.random.key(0)

    def __call__(self) -> float:
        args = self.args
        jax.clear_caches()
        began = time.perf_counter()
        algo = jaxrl.ppo(jaxrl.make("CartPole-v1", NUM_ENVS))
        run = functools.partial(
            tuning.search, algo, CONFIG, SPACE, tuning.RandomSearch(args.trials, 1), args.trials,
            args.updates, strategy=args.strategy, evaluation_episodes=EPISODES,
        )  # fmt: skip
        options = jaxrl.compiler_options(algo, CONFIG)
        program = jax.jit(run).lower(self.key).compile(options)
        self.compile_seconds = time.perf_counter() - began
        self.scores = np.asarray(program(self.key).ledger.scores)[:, 0]
        return time.perf_counter() - began

    def settings(self) -> list[dict[str, float]]:
        """Return the settings of the trials, with ARLBench's names."""
        draw = functools.partial(tuning.trial_values, SPACE, self.key)
        drawn = jax.jit(jax.vmap(draw))(np.arange(self.args.trials))
        return [
            {NAMES.get(name, name): float(drawn[name][trial]) for name in SPACE}
            for trial in range(self.args.trials)
        ]


class Peer:
    """The same search by ARLBench, in a process of its own; a call returns its seconds."""

    def __init__(self, args: Args, settings: list[dict[str, float]]):
        self.args, self.settings, self.scores = args, settings, np.zeros(args.trials)
        self.versions: dict[str, str] = {}
        command = [str(args.peer), "-c", "import arlbench"]
        try:
            subprocess.run(command, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            problem = f"--peer needs a Python that imports arlbench, got {args.peer}"
            raise ValueError(problem) from error

    def __call__(self) -> float:
        steps = NUM_ENVS * CONFIG.num_steps
        request = {
            "settings": self.settings,
            "total_steps": self.args.updates * steps,
            "num_envs": NUM_ENVS,
            "episodes": EPISODES,
            "num_steps": CONFIG.num_steps,
            "num_epochs": CONFIG.num_epochs,
            "minibatch_size": steps // CONFIG.num_minibatches,
        }
        process = subprocess.run(
            [str(self.args.peer), str(TRIALS)], input=json.dumps(request), stdout=subprocess.PIPE,
            text=True, check=True, env=dict(os.environ, JAX_ENABLE_COMPILATION_CACHE="0"),
        )  # fmt: skip
        answer = json.loads(process.stdout.splitlines()[-1])
        self.scores, self.versions = np.array(answer["scores"]), answer["versions"]
        return answer["seconds"]


def main(args: Args) -> dict[str, Any]:
    """Measure, print and write; return the results."""
    checks.integer("--repeats", args.repeats)
    if args.quick:
        args = dataclasses.replace(args, trials=2, updates=1, repeats=1, output=None)
    search = Search(args)
    candidates: dict[str, Any] = {"jaxrl": search}
    if args.peer is not None:
        candidates["ARLBench"] = Peer(args, search.settings())
    seconds = alternate(candidates, args.repeats)
    results = {
        name: {
            "seconds": seconds[name],
            "mean_score": float(candidate.scores.mean()),
            "best_score": float(candidate.scores.max()),
        }
        for name, candidate in candidates.items()
    }
    results["jaxrl"]["compile_seconds"] = search.compile_seconds
    found: dict[str, Any] = {"trials": args.trials, "searches": results}
    if args.peer is not None:
        results["ARLBench"]["versions"] = candidates["ARLBench"].versions
        ratio = seconds["ARLBench"]["median"] / seconds["jaxrl"]["median"]
        found["ARLBench_to_jaxrl"] = ratio
    shown = Table("search", "seconds, median (range)", "mean score", "best score")
    for name, row in results.items():
        spread = "{median:.1f} ({min:.1f}-{max:.1f})".format_map(row["seconds"])
        shown.add_row(name, spread, f"{row['mean_score']:.0f}", f"{row['best_score']:.0f}")
    Console().print(shown)
    return write_results(args.output, found)


if __name__ == "__main__":
    compile_anew()
    split_cpu()  # before gymnax, which jaxrl.make imports, starts JAX's backend
    with exit_with_message():
        main(tyro.cli(Args))
