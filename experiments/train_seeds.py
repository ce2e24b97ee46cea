"""Train one agent with many seeds side by side, as one program, and record the runs.

    python experiments/train_seeds.py asterix-minatar-pqn pqn --preset minatar \\
        --env-id Asterix-MinAtar --seeds 0 1 2 3 4
    python experiments/train_seeds.py cartpole-ppo ppo     # seeds 0 to 9

What follows the record's name is for `jaxrl train`, without the flags of one run, such as
--run-dir. On a GPU ten agents of PPO or PQN on MinAtar take less than twice as long as one. The
record is that of `experiments/record.py`; the agents themselves are not kept. Nothing is saved
before the end, so long runs on a CPU are better trained one by one, by `jaxrl train --resume`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from jaxrl import checks
from jaxrl.algos import ALGORITHMS
from jaxrl.analysis.records import describe_run, save_runs, uniformly_random
from jaxrl.cli.flags import train as train_flags
from jaxrl.cli.flags.arguments import exit_with_message
from jaxrl.cli.train import prepare
from jaxrl.training import population as populations
from jaxrl.training.compilation import compiler_options, enable_compilation_cache
from jaxrl.training.evaluate import evaluate, split_episodes
from jaxrl.training.progress.rows import Progress, Row
from jaxrl.training.run import count_updates
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.types import Algorithm

ROWS = 1000
"""Rows of metrics of a run, about."""
CHUNK = 64
"""Updates in one call of the program, at most."""
REPORT_SECONDS = 10
OF_ONE_RUN = (
    "seed", "run_dir", "label", "init_from", "resume", "video", "num_evaluations", "eval_episodes",
    "eval_greedy", "log_every", "wandb", "autotune", "devices", "cluster", "coordinator",
    "num_hosts", "host_id",
)  # fmt: skip
"""Arguments of `jaxrl train` that have no meaning here."""


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return this script's arguments, and those for `jaxrl train`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("name", help="name of the record's files")
    parser.add_argument("algorithm", choices=tuple(ALGORITHMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--episodes", type=int, default=100, help="of each greedy evaluation")
    parser.add_argument("--note", default="", help="a sentence about the circumstances")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_known_args(argv)


def parse_flags(algorithm: str, argv: Sequence[str]) -> Any:
    """Return the arguments of `jaxrl train`.

    Raises:
      ValueError: for flags of `OF_ONE_RUN`.
    """
    flags = train_flags.parse(algorithm, argv, prog="train_seeds.py")
    defaults = train_flags.parse(algorithm, ["--preset", flags.preset])
    for name in OF_ONE_RUN:
        if getattr(flags, name) != getattr(defaults, name):
            raise ValueError(
                f"--{name.replace('_', '-')} is for one run of jaxrl train; leave it out here"
            )
    return flags


def updates_per_row(num_updates: int) -> int:
    """Return the updates of a row, of about `ROWS` in all."""
    return max(1, min(CHUNK, num_updates // ROWS))


def train(
    algo: Algorithm, config: Any, seeds: Sequence[int], num_updates: int, say: Callable[[str], None]
) -> tuple[Any, list[list[Row]], list[Progress]]:
    """Train an agent for each seed; return their states, rows and totals."""
    lanes = populations.population(algo, len(seeds))
    configs = populations.stack(config, len(seeds))
    began = time.perf_counter()
    states = jax.jit(lanes.init)(configs, jnp.stack([jax.random.key(seed) for seed in seeds]))
    program = (
        jax.jit(lambda *args: lanes.update(*args, CHUNK), donate_argnums=1)
        .lower(configs, states, jnp.int32(1))
        .compile(compiler_options(algo, config))
    )
    totals = [Progress(compile_seconds=time.perf_counter() - began) for _ in seeds]
    rows: list[list[Row]] = [[] for _ in seeds]
    row_updates = updates_per_row(num_updates)
    steps_per_update = algo.env.num_envs * algo.num_steps(config)

    def account(metrics: Any, length: int, seconds: float) -> None:
        for lane, (progress, of_lane) in enumerate(zip(totals, rows, strict=True)):
            if not np.isfinite(metrics["loss"][lane, :length]).all():
                raise FloatingPointError(f"seed {seeds[lane]} diverged: its loss is not finite")
            for first in range(0, length, row_updates):
                of_row = slice(first, min(first + row_updates, length))
                share = (of_row.stop - first) / length
                progress.add(
                    {name: x[lane, of_row] for name, x in metrics.items()}, share * seconds
                )
                of_lane.append(progress.end_row(steps_per_update))

    def report() -> None:
        returns = [np.nan if x.mean_return is None else x.mean_return for x in totals]
        say(
            f"update {totals[0].update:,} of {num_updates:,}, {totals[0].seconds:.0f} s, mean "
            f"return of {len(seeds)} seeds {np.mean(returns):.2f}"
        )

    reported = began = time.perf_counter()
    waiting: tuple[Any, int, float] | None = None
    chunk = CHUNK - CHUNK % row_updates
    for done in range(0, num_updates, chunk):
        length = min(chunk, num_updates - done)
        states, metrics = program(configs, states, jnp.int32(length))
        if waiting is not None:
            account(*waiting)  # while the device works
        metrics = jax.tree.map(np.asarray, metrics)
        seconds = time.perf_counter() - began
        began += seconds
        waiting = metrics, length, seconds
        if began - reported > REPORT_SECONDS:
            reported = began
            report()
    if waiting is not None:
        account(*waiting)
    report()
    return states, rows, totals


def greedy_returns(algo: Algorithm, config: Any, states: Any, episodes: int) -> np.ndarray:
    """Return the returns of whole greedy episodes of each agent, `[seeds, episodes]`."""
    num_envs, episodes_per_env = split_episodes(episodes)
    env, key = algo.env.for_evaluation(num_envs), jax.random.key(0)

    @jax.jit
    @jax.vmap
    def play(state: Any) -> jax.Array:
        return evaluate(algo, config, state, env, key, episodes_per_env, greedy=True)[0]

    return np.asarray(play(states))[:, :episodes]


def main(argv: Sequence[str] | None = None) -> None:
    """Train, evaluate and record."""
    args, for_train = parse(argv)
    checks.integer("--episodes", args.episodes, 2)
    for seed in args.seeds:
        checks.integer("--seeds", seed, 0, checks.MAX_SEED)
    if len(set(args.seeds)) < len(args.seeds):
        raise ValueError(f"--seeds must differ, got {args.seeds}")
    enable_compilation_cache()
    flags = parse_flags(args.algorithm, for_train)
    algo, config, _ = prepare(ALGORITHMS[args.algorithm], flags)
    if not algo.env.checkpointable:
        raise ValueError(
            f"{algo.env.id} runs on the host; train its seeds one by one with jaxrl train, and "
            "record them with experiments/record.py"
        )
    num_updates = count_updates(algo, config, flags.total_steps)
    arguments = {
        "total_steps": flags.total_steps, "log_every": updates_per_row(num_updates),
        "num_evaluations": 0, "eval_episodes": flags.eval_episodes,
        "eval_greedy": flags.eval_greedy,
    }  # fmt: skip
    manifest = manifests.describe(algo, config, arguments)
    say = Console(stderr=True).log
    states, rows, totals = train(algo, config, args.seeds, num_updates, say)
    if any(progress.mean_return is None for progress in totals):
        raise ValueError("no episode of one of the seeds ended; give more --total-steps")
    returns = greedy_returns(algo, config, states, args.episodes)
    random_returns = greedy_returns(
        uniformly_random(algo), config, jax.tree.map(lambda x: x[:1], states), args.episodes
    )[0]
    runs = []
    for lane, seed in enumerate(args.seeds):
        # The seconds are those of all seeds; to tell, keep their number.
        shared = {"seeds_side_by_side": len(args.seeds)}
        summary = {"algorithm": algo.name, "env": algo.env.id} | totals[lane].totals() | shared
        own = manifest | {"seed": seed}
        runs.append(describe_run(own, summary, rows[lane], returns[lane]))
    save_runs(args.results, args.name, runs, random_returns, args.note)


if __name__ == "__main__":
    with exit_with_message():
        main()
