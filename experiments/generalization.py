"""What agents that were trained on K levels make of levels that they never saw; and that the maze
they do it in needs a memory.

    python experiments/generalization.py maze
    python experiments/generalization.py procgen --env-id envpool/StarpilotEasy-v0
    python experiments/generalization.py memory

As in Cobbe et al. 2020 (arXiv 1912.01588): who knows few levels by heart fails on others, and the
gap closes as K grows. Which mazes there are is data, so the agents of all K and seeds are one
vmapped program. Procgen's levels are options of its simulator: its agents train one after another,
and after a stop `--resume` goes on with the one that was training.
`memory` trains agents with a recurrent core and without, on mazes without limit.

Prints a table, and writes a JSON and a picture under experiments/results/.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import jaxrl
from errors import exit_with_message
from flags import Whole
from jaxrl import config as fields
from jaxrl.analysis import statistics
from jaxrl.envs.maze import MazeEnv
from jaxrl.rollouts.simulation import Simulation, start
from jaxrl.training import manifest as manifests
from jaxrl.training.loggers import ProgressBar
from jaxrl.training.loop import run_chunk
from record import keep

PARTS = 50
"""Parts of a training, after each of which progress is shown."""
UNSEEN = 100_000
"""Levels of the tests, none of which is trained on."""
IN_MAZES = jaxrl.PPOConfig(
    learning_rate=3e-3,
    gamma=0.98,
    num_steps=64,
    num_epochs=2,
    num_minibatches=2,
    torso="mlp",
    hidden_sizes=(128,),
    activation="relu",
    core="gru",
    core_size=128,
)
IN_PROCGEN = jaxrl.PPOConfig(
    learning_rate=5e-4,
    gamma=0.999,
    num_steps=256,
    num_epochs=3,
    num_minibatches=8,
    normalize_rewards=True,
    torso="impala_resnet",
)
"""As Cobbe et al. have it, over fewer steps."""


@dataclasses.dataclass(kw_only=True)
class Args:
    """Flags of all studies."""

    seeds: int = 5
    total_steps: Whole = 2_000_000
    """Environment steps of each agent."""
    num_envs: int = 64
    episodes: int = 256
    """Of each test of an agent."""
    results: Path = Path(__file__).parent / "results"
    config: tyro.conf.OmitArgPrefixes[jaxrl.PPOConfig] = IN_MAZES


@dataclasses.dataclass(kw_only=True)
class Memory(Args):
    """Agents with a memory and without, on all mazes."""

    size: int = 9
    """Sides of the mazes."""


@dataclasses.dataclass(kw_only=True)
class Maze(Args):
    """Agents that know K mazes, all at once."""

    levels: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    """K."""
    size: int = 9
    """Sides of the mazes."""


@dataclasses.dataclass(kw_only=True)
class Procgen(Args):
    """Agents that know K levels of one of Procgen's games, one after another."""

    env_id: str = "envpool/CoinrunEasy-v0"
    levels: tuple[int, ...] = (1, 4, 16, 64, 256)
    """K."""
    seeds: int = 3
    total_steps: Whole = 5_000_000
    runs: Path = Path("runs")
    """Where the training of each agent is kept, in a run directory of its own."""
    resume: bool = False
    """Go on with the agents that are kept there."""
    config: tyro.conf.OmitArgPrefixes[jaxrl.PPOConfig] = IN_PROCGEN


# --- populations in mazes ------------------------------------------------------------------------


def on_levels(env: MazeEnv, key: jax.Array, levels: jax.Array) -> Simulation:
    """N episodes of some levels, the first of them and their number, `[2]`."""
    state, timestep = env.start(key, *levels)
    return start(env, key)._replace(env_state=state, timestep=timestep)


def train(
    algo: jaxrl.Algorithm, config: Any, seeds: jax.Array, levels: jax.Array, total_steps: int
) -> tuple[Any, np.ndarray]:
    """P agents with their seeds `[P]` and levels `[P, 2]`, one program.

    Returns:
      States, leaves `[P, ...]`, and mean returns over equal parts of the training `[P, parts]`.
    """
    num_updates = updates_of(algo, config, total_steps)
    config = config.replace(anneal_updates=num_updates)
    part = -(-num_updates // PARTS)

    def begin(seed: jax.Array, levels: jax.Array) -> Any:
        key, env_key = jax.random.split(jax.random.key(seed))
        return algo.init(config, key, on_levels(algo.env, env_key, levels))

    def learn(state: Any, num_updates: int) -> Any:
        return run_chunk(algo, config, state, num_updates, part)

    steps_per_update = len(seeds) * algo.env.num_envs * config.num_steps
    bar = ProgressBar(num_updates * steps_per_update, visible=True)
    bar.say(f"compiling {len(seeds)} agents")
    states = jax.jit(jax.vmap(begin))(seeds, levels)
    compiled = (
        jax.jit(jax.vmap(learn, (0, None)), donate_argnums=0)
        .lower(states, part)
        .compile(jaxrl.compiler_options(algo, config))
    )
    bar.say(f"{len(seeds)} agents")
    curves = []
    for done in range(0, num_updates, part):
        began, now = time.perf_counter(), min(part, num_updates - done)
        states, metrics = compiled(states, now)
        sums, counts = (np.asarray(metrics[f"episode_{x}"]).sum(1) for x in ("return_sum", "count"))
        curves.append(sums / np.where(counts, counts, np.nan))
        rate = now * steps_per_update / (time.perf_counter() - began)
        score = float(sums.sum() / counts.sum()) if counts.any() else None
        bar.advance((done + now) * steps_per_update, rate, score, "")
    bar.close()
    return states, np.stack(curves, 1)


def updates_of(algo: jaxrl.Algorithm, config: Any, total_steps: int) -> int:
    """How many updates take so many environment steps."""
    return -(-total_steps // (algo.env.num_envs * config.num_steps))


def mean_returns(
    algo: jaxrl.Algorithm, config: Any, states: Any, levels: jax.Array, episodes: int
) -> np.ndarray:
    """Mean returns of P agents on S sets of levels each, `[P, S, 2]`, one program."""
    env = algo.env.for_evaluation(episodes)

    def of_one(state: Any, levels: jax.Array) -> jax.Array:
        key, env_key = jax.random.split(jax.random.key(0))
        simulation = on_levels(env, env_key, levels)
        scores = jaxrl.evaluate(algo, config, state, env, key, simulation=simulation)
        return scores.episode_return.mean()

    over_sets = jax.vmap(of_one, (None, 0))
    return np.asarray(jax.jit(jax.vmap(over_sets))(states, levels), np.float64)


# --- studies -------------------------------------------------------------------------------------


def study_maze(args: Maze) -> None:
    algo = jaxrl.ppo(jaxrl.make("maze/FindAndReturn-v0", args.num_envs, size=args.size))
    seeds = jnp.tile(jnp.arange(args.seeds), len(args.levels))
    numbers = jnp.repeat(jnp.array(args.levels), args.seeds)
    # Each seed has levels of its own, to train on and for the test, so that the intervals are of
    # other levels, too.
    training = jnp.stack([seeds * max(args.levels), numbers], 1)
    unseen = jnp.stack(jnp.broadcast_arrays(*unseen_levels(args, seeds)), 1)
    states, _ = train(algo, args.config, seeds, training, args.total_steps)
    sets = jnp.stack([training, unseen], 1)
    scores = mean_returns(algo, args.config, states, sets, args.episodes)
    report("maze", algo, args, scores.reshape(len(args.levels), args.seeds, 2))


def unseen_levels(args: Maze | Procgen, seed: Any) -> tuple[Any, int]:
    """The first of a seed's levels that no agent trains on, and how many there are."""
    return args.seeds * max(args.levels) + seed * UNSEEN, UNSEEN


def study_procgen(args: Procgen) -> None:
    scores = [
        [procgen_scores(args, number, seed) for seed in range(args.seeds)] for number in args.levels
    ]
    report(name_of(args), jaxrl.ppo(make_procgen(args)), args, np.array(scores))


def name_of(args: Procgen) -> str:
    return args.env_id.rpartition("/")[2].lower()


def procgen_scores(args: Procgen, number: int, seed: int) -> list[float]:
    """Mean returns of one agent on its training levels and on unseen ones."""
    training = (seed * max(args.levels), number)
    algo = jaxrl.ppo(make_procgen(args, *training))
    config = args.config.replace(anneal_updates=updates_of(algo, args.config, args.total_steps))
    run_dir = args.runs / f"{name_of(args)}-levels{number}-seed{seed}"
    print(run_dir)
    result = jaxrl.run(
        algo,
        config,
        seed=seed,
        total_steps=args.total_steps,
        run_dir=run_dir,
        resume=args.resume,
        num_evaluations=0,
    )
    if result.interrupted:
        print("interrupted; --resume goes on from here", file=sys.stderr)
        sys.exit(130)
    state = result.state._replace(simulation=None)
    evaluate = jax.jit(jaxrl.evaluate, static_argnums=(0, 3))
    envs = [make_procgen(args, *levels) for levels in (training, unseen_levels(args, seed))]
    return [
        float(
            evaluate(
                algo, config, state, env.for_evaluation(args.episodes), jax.random.key(0)
            ).episode_return.mean()
        )
        for env in envs
    ]


def make_procgen(args: Procgen, first_level: int = 0, num_levels: int = 0) -> jaxrl.Env:
    try:
        return jaxrl.make(
            args.env_id, args.num_envs, start_level=first_level, num_levels=num_levels
        )
    except ImportError as error:
        if "Qt" not in str(error):
            raise
        raise ImportError(
            f"{error} Of Debian's packages the runtime alone will do: "
            "apt-get install libqt5core5a libqt5gui5"
        ) from error


def study_memory(args: Memory) -> None:
    algo = jaxrl.ppo(jaxrl.make("maze/FindAndReturn-v0", args.num_envs, size=args.size))
    recurrent = args.config
    as_deep = (*(recurrent.hidden_sizes or ()), recurrent.core_size)
    feed_forward = recurrent.replace(core=None, hidden_sizes=as_deep)
    everything = jnp.zeros((args.seeds, 2), jnp.int32)
    table = Table("agent", "return after training, by seed", "mean and 95% interval")
    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    results = []
    for name, config in (("recurrent", recurrent), ("feed-forward", feed_forward)):
        states, curves = train(algo, config, jnp.arange(args.seeds), everything, args.total_steps)
        scores = mean_returns(algo, config, states, everything[:, None], args.episodes)[:, 0]
        steps = np.linspace(0, args.total_steps, curves.shape[1] + 1)[1:]
        line = axes.plot(steps, curves.mean(0), label=name)[0]
        axes.plot(steps, curves.T, color=line.get_color(), linewidth=0.7, alpha=0.4)
        by_seed = ", ".join(f"{score:.2f}" for score in scores)
        table.add_row(name, by_seed, text(summary(scores)))
        results.append(
            {
                "agent": name,
                "config": fields.to_dict(config),
                "final_return": summary(scores),
                "curve_by_seed": curves.round(3).tolist(),
            }
        )
    Console().print(table)
    axes.set(
        title=f"Find and return in unlimited mazes, {args.seeds} seeds",
        xlabel="environment steps",
        ylabel="mean return (2: found and returned)",
        ylim=(0, 2.05),
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(keep(args.results, "maze-memory", record(algo, args, results)))


# --- results -------------------------------------------------------------------------------------


def summary(scores: np.ndarray) -> dict[str, Any]:
    """The mean over seeds `[seeds]`, with its 95% bootstrap interval."""
    estimate = statistics.estimate(statistics.mean, scores[:, None])
    rounded = {name: round(float(x), 4) for name, x in estimate._asdict().items()}
    return rounded | {"by_seed": scores.round(4).tolist()}


def text(of: dict[str, Any]) -> str:
    return f"{of['value']:.2f} ({of['low']:.2f} to {of['high']:.2f})"


def record(algo: jaxrl.Algorithm, args: Args, results: list[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of a study."""
    flags = dataclasses.asdict(args)
    kept_elsewhere = ("config", "results", "runs", "resume")
    arguments = {name: flags[name] for name in flags if name not in kept_elsewhere}
    return {"manifest": manifests.describe(algo, args.config, arguments), "settings": results}


def report(name: str, algo: jaxrl.Algorithm, args: Maze | Procgen, scores: np.ndarray) -> None:
    """Print and keep returns `[K, seeds, 2]` on training and unseen levels."""
    scores = np.concatenate([scores, scores[..., :1] - scores[..., 1:]], -1)
    names = ("training levels", "unseen levels", "gap")
    results: list[dict[str, Any]] = [
        {"num_levels": number} | {what: summary(row[:, i]) for i, what in enumerate(names)}
        for number, row in zip(args.levels, scores, strict=True)
    ]
    table = Table("levels", *names, title=f"return, mean of {args.seeds} seeds and 95% interval")
    for row in results:
        table.add_row(str(row["num_levels"]), *(text(row[what]) for what in names))
    Console().print(table)
    figure = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
    returns, gap = figure.subplots(1, 2)
    for what, axes in zip(names, (returns, returns, gap), strict=True):
        low, value, high = ([row[what][x] for row in results] for x in ("low", "value", "high"))
        line = axes.plot(args.levels, value, "o-", label=what)[0]
        axes.fill_between(args.levels, low, high, color=line.get_color(), alpha=0.2)
    returns.set(title=f"{algo.env.id}, {args.seeds} seeds", ylabel="mean return")
    returns.legend(frameon=False)
    gap.set(title="generalization gap", ylabel="training - unseen levels")
    for axes in (returns, gap):
        axes.set_xscale("log", base=2)
        axes.set_xticks(args.levels, [str(number) for number in args.levels])
        axes.set_xlabel("levels trained on")
        axes.grid(alpha=0.3)
    figure.savefig(keep(args.results, f"generalization-{name}", record(algo, args, results)))


def main(args: Maze | Procgen | Memory) -> None:
    for name in ("seeds", "total_steps", "episodes", "levels"):
        if np.min(getattr(args, name, 1), initial=1) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be >= 1, got {getattr(args, name)}")
    if isinstance(args, Maze):
        study_maze(args)
    elif isinstance(args, Procgen):
        study_procgen(args)
    else:
        study_memory(args)


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Maze | Procgen | Memory))
