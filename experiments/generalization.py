"""Generalization: how agents that were trained on K levels score on levels that they never saw.

    python experiments/generalization.py maze
    python experiments/generalization.py procgen --env-id envpool/StarpilotEasy-v0
    python experiments/generalization.py miniworld --algorithm a2c --no-memory

As in Cobbe et al. 2020 (arXiv 1912.01588): agents memorize few levels and fail on others, and the
gap closes as K grows. The levels of mazes are data, so the agents of all K and seeds are one
vmapped program. The levels of Procgen and MiniWorld are options of their simulators: their agents
train one after another, and `--resume` continues with the agent that was training.

Prints a table, and writes a JSON and a picture under runs/results/.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import jaxrl
from jaxrl import checks
from jaxrl.algos import ALGORITHMS
from jaxrl.analysis.records import interval_text, save_record, summarize_seeds
from jaxrl.cli.flags.arguments import LargeInteger, exit_with_message
from jaxrl.envs.host import callback
from jaxrl.envs.maze import MazeEnv
from jaxrl.presets import PRESETS
from jaxrl.rollouts.simulation import Simulation, start
from jaxrl.training.evaluate import evaluate_separately
from jaxrl.training.run import count_updates
from jaxrl.training.run_dir import manifest as manifests

UNSEEN = 100_000
"""Number of test levels; no agent trains on them."""
ENDS = ("low", "high")
SETS = ("training levels", "unseen levels", "gap")
"""Returns of an agent, and the first less the second."""
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
IN_PROCGEN = PRESETS["ppo"]["procgen"].config.replace(torso="impala_resnet")
"""Settings of Cobbe et al., with fewer steps."""
IN_MINIWORLD: dict[str, Any] = {
    "ppo": jaxrl.PPOConfig(
        learning_rate=5e-4, num_steps=64, num_minibatches=4, torso="ga3c_cnn", core="lstm"
    ),
    "a2c": jaxrl.A2CConfig(
        num_steps=20, num_minibatches=4, gae_lambda=0.95, torso="ga3c_cnn", core="lstm"
    ),
}
"""By algorithm. PPO's are those of preset `vizdoom-memory` without a scale of rewards, which are at
most 1 here."""


@dataclasses.dataclass(kw_only=True)
class Args:
    """Flags of all studies."""

    seeds: int = 5
    total_steps: LargeInteger = 2_000_000
    """Environment steps of each agent."""
    num_envs: int = 64
    episodes: int = 256
    """Episodes of each test of an agent."""
    results: Path = Path("runs") / "results"
    """Directory of the JSON and the picture."""


@dataclasses.dataclass(kw_only=True)
class Maze(Args):
    """Agents trained on K mazes, all at once."""

    levels: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    """The values of K."""
    size: int = 9
    """Sides of the mazes."""
    config: tyro.conf.OmitArgPrefixes[jaxrl.PPOConfig] = IN_MAZES


@dataclasses.dataclass(kw_only=True)
class Simulated(Args):
    """Agents trained on K levels of a simulator, one after another."""

    levels: tuple[int, ...] = (1, 4, 16, 64, 256)
    """The values of K."""
    seeds: int = 3
    runs: Path = Path("runs")
    """Parent of the agents' run directories."""
    resume: bool = False
    """Continue with the agents in these directories."""


@dataclasses.dataclass(kw_only=True)
class Procgen(Simulated):
    """Agents trained on K levels of one of Procgen's games."""

    env_id: str = "envpool/CoinrunEasy-v0"
    total_steps: LargeInteger = 5_000_000
    config: tyro.conf.OmitArgPrefixes[jaxrl.PPOConfig] = IN_PROCGEN


@dataclasses.dataclass(kw_only=True)
class Miniworld(Simulated):
    """Agents trained on K layouts of MiniWorld's rooms, seen in first person."""

    env_id: str = "MiniWorld-FourRooms-v0"
    total_steps: LargeInteger = 300_000
    num_envs: int = 16
    algorithm: Literal["ppo", "a2c"] = "ppo"
    memory: bool = True
    """Whether agents have an LSTM."""


# --- populations in mazes ------------------------------------------------------------------------


def start_on_levels(env: MazeEnv, key: jax.Array, levels: jax.Array) -> Simulation:
    """Start N episodes; levels `[2]` are the first level and their number."""
    state, timestep = env.start(key, *levels)
    return start(env, key)._replace(env_state=state, timestep=timestep)


def train(
    algo: jaxrl.Algorithm, config: Any, seeds: jax.Array, levels: jax.Array, total_steps: int
) -> Any:
    """Train P agents with their seeds `[P]` and levels `[P, 2]` as one program.

    Returns:
      States, leaves `[P, ...]`.
    """
    num_updates = count_updates(algo, config, total_steps)
    config = annealed(algo, config, total_steps)

    def learn(seed: jax.Array, levels: jax.Array) -> Any:
        key, env_key = jax.random.split(jax.random.key(seed))
        state = algo.init(config, key, start_on_levels(algo.env, env_key, levels))
        update = lambda state, _: algo.update(config, state)  # noqa: E731
        return jax.lax.scan(update, state, length=num_updates)[0]

    print(f"training {len(seeds)} agents at once, {total_steps:,} steps each")
    options = jaxrl.compiler_options(algo, config)
    return jax.jit(jax.vmap(learn), compiler_options=options)(seeds, levels)


def mean_returns(
    algo: jaxrl.Algorithm, config: Any, states: Any, levels: jax.Array, episodes: int
) -> np.ndarray:
    """Return mean returns `[P, S]` of P agents on S sets of levels each, `[P, S, 2]`."""
    env = algo.env.for_evaluation(episodes)

    def mean_return(state: Any, levels: jax.Array) -> jax.Array:
        key, env_key = jax.random.split(jax.random.key(0))
        simulation = start_on_levels(env, env_key, levels)
        scores = jaxrl.evaluate(algo, config, state, env, key, simulation=simulation)
        return scores.episode_return.mean()

    over_sets = jax.vmap(mean_return, (None, 0))
    return np.asarray(jax.jit(jax.vmap(over_sets))(states, levels), np.float64)


# --- studies -------------------------------------------------------------------------------------


def study_maze(args: Maze) -> None:
    """Train and test the agents of all K and seeds at once."""
    algo = jaxrl.ppo(jaxrl.make("maze/FindAndReturn-v0", args.num_envs, size=args.size))
    seeds = jnp.tile(jnp.arange(args.seeds), len(args.levels))
    numbers = jnp.repeat(jnp.array(args.levels), args.seeds)
    # Each seed has its own training and test levels, so that the intervals cover the choice of
    # levels too.
    training = jnp.stack([seeds * max(args.levels), numbers], 1)
    unseen = jnp.stack(jnp.broadcast_arrays(*unseen_levels(args, seeds)), 1)
    manifest = describe(algo, args)
    states = train(algo, args.config, seeds, training, args.total_steps)
    sets = jnp.stack([training, unseen], 1)
    scores = mean_returns(algo, args.config, states, sets, args.episodes)
    report("maze", manifest, args, scores.reshape(len(args.levels), args.seeds, 2))


def unseen_levels(args: Maze | Simulated, seed: Any) -> tuple[Any, int]:
    """Return the first test level of a seed, which no agent trains on, and their number."""
    return args.seeds * max(args.levels) + seed * UNSEEN, UNSEEN


def study_simulator(args: Procgen | Miniworld) -> None:
    """Train and test the agents of all K and seeds, one after another."""
    manifest = describe(ALGORITHMS[agent_of(args)[0]](make_levels(args)), args)
    scores = [
        [scores_of_agent(args, number, seed) for seed in range(args.seeds)]
        for number in args.levels
    ]
    agents = [
        {"num_levels": number, "seed": seed}
        | manifests.origin_of(manifests.read(run_dir_of(args, number, seed)))
        for number in args.levels
        for seed in range(args.seeds)
    ]
    report(game_name(args), manifest, args, np.array(scores), agents)


def agent_of(args: Maze | Procgen | Miniworld) -> tuple[str, Any]:
    """Return the name of the algorithm and its config."""
    if not isinstance(args, Miniworld):
        return "ppo", args.config
    config = IN_MINIWORLD[args.algorithm]
    return args.algorithm, config if args.memory else config.replace(core=None)


def annealed(algo: jaxrl.Algorithm, config: Any, total_steps: int) -> Any:
    """Return the config whose learning rate falls to 0 over the training."""
    return config.replace(anneal_updates=count_updates(algo, config, total_steps))


def game_name(args: Procgen | Miniworld) -> str:
    """Return the game's name for names of files, and the agent's if it is not PPO with a memory."""
    words = [args.env_id.rpartition("/")[2].lower()]
    if isinstance(args, Miniworld):
        if args.algorithm != "ppo":
            words.append(args.algorithm)
        if not args.memory:
            words.append("no-memory")
    return "-".join(words)


def run_dir_of(args: Procgen | Miniworld, number: int, seed: int) -> Path:
    """Return the directory of the agent of `number` levels and a seed."""
    return args.runs / f"{game_name(args)}-levels{number}-seed{seed}"


def scores_of_agent(args: Procgen | Miniworld, number: int, seed: int) -> list[float]:
    """Return one agent's mean returns on its training levels and on unseen ones."""
    training = (seed * max(args.levels), number)
    name, config = agent_of(args)
    algo = ALGORITHMS[name](make_levels(args, *training))
    config = annealed(algo, config, args.total_steps)
    run_dir = run_dir_of(args, number, seed)
    print(run_dir)
    settings = {"seed": seed, "total_steps": args.total_steps, "num_evaluations": 0}
    result = jaxrl.run(algo, config, run_dir=run_dir, resume=args.resume, **settings)
    if result.interrupted:
        print("interrupted; --resume continues from here", file=sys.stderr)
        sys.exit(130)
    # Each environment of MiniWorld is a process, with a quarter of a gigabyte.
    callback.release(result.state)
    state, scores = result.state._replace(simulation=None), []
    for levels in (training, unseen_levels(args, seed)):
        on_levels = algo._replace(env=make_levels(args, *levels))
        episodes = evaluate_separately(on_levels, config, state, args.episodes)
        scores.append(float(episodes.episode_return.mean()))
    return scores


def make_levels(args: Procgen | Miniworld, first_level: int = 0, num_levels: int = 0) -> jaxrl.Env:
    """Return environments on some levels of a simulator; `num_levels` 0 means all."""
    if isinstance(args, Procgen):
        options = {"start_level": first_level, "num_levels": num_levels}
        return jaxrl.make(args.env_id, args.num_envs, **options)
    options = {"first_level": first_level, "num_levels": num_levels, "env_id": args.env_id}
    return jaxrl.make("gymnasium/miniworld_levels:miniworld", args.num_envs, **options)


# --- results -------------------------------------------------------------------------------------


def describe(algo: jaxrl.Algorithm, args: Maze | Procgen | Miniworld) -> dict[str, Any]:
    """Return the manifest of a study that begins now."""
    flags = dataclasses.asdict(args)
    left_out = ("config", "results", "runs", "resume")  # the manifest has the config
    arguments = {name: flags[name] for name in flags if name not in left_out}
    config = annealed(algo, agent_of(args)[1], args.total_steps)
    return manifests.describe(algo, config, arguments)


def report(
    name: str,
    manifest: dict[str, Any],
    args: Maze | Procgen | Miniworld,
    scores: np.ndarray,
    agents: Sequence[dict[str, Any]] = (),
) -> None:
    """Print, record and draw returns `[K, seeds, 2]` on training and unseen levels.

    Args:
      agents: the origin of each agent, if other processes may have trained some of them.
    """
    scores = np.concatenate([scores, scores[..., :1] - scores[..., 1:]], -1)
    results: list[dict[str, Any]] = [
        {"num_levels": number} | {name: summarize_seeds(row[:, i]) for i, name in enumerate(SETS)}
        for number, row in zip(args.levels, scores, strict=True)
    ]
    table = Table("levels", *SETS, title=f"return, mean of {args.seeds} seeds and 95% interval")
    for row in results:
        table.add_row(str(row["num_levels"]), *(interval_text(row[name], 2) for name in SETS))
    Console().print(table)
    record = {"manifest": manifest, "settings": results}
    if agents:
        record["agents"] = [*agents]
    picture = save_record(args.results, f"generalization-{name}", record)
    draw(manifest["env"]["id"], args.seeds, results).savefig(picture)


def draw(env_id: str, num_seeds: int, results: list[dict[str, Any]]) -> Figure:
    """Return the returns on training and unseen levels, and the gap between them."""
    numbers = [row["num_levels"] for row in results]
    figure = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
    returns, gap = figure.subplots(1, 2)
    panels = dict(zip(SETS, (returns, returns, gap), strict=True))
    colors = {}
    for name, axes in panels.items():
        line = axes.plot(numbers, [row[name]["value"] for row in results], "o-", label=name)[0]
        colors[name] = line.get_color()
        by_seed = [row[name]["by_seed"] for row in results]
        axes.plot(numbers, by_seed, ".", color=colors[name], alpha=0.4)
    for name, axes in panels.items():
        axes.set_ylim(axes.get_ylim())  # intervals of two seeds reach far beyond their scores
        # A single seed has no interval: its ends are None, here NaN.
        low, high = (np.array([row[name][end] for row in results], float) for end in ENDS)
        axes.fill_between(numbers, low, high, color=colors[name], alpha=0.2)
    returns.set(title=f"{env_id}, {num_seeds} seeds", ylabel="mean return")
    returns.legend(frameon=False)
    gap.set(title="generalization gap", ylabel="training - unseen levels")
    for axes in (returns, gap):
        axes.set_xscale("log", base=2)
        axes.set_xticks(numbers, [str(number) for number in numbers])
        axes.set_xlabel("levels trained on")
        axes.grid(alpha=0.3)
    return figure


def main(args: Maze | Procgen | Miniworld) -> None:
    """Run the study that the flags name."""
    checks.integer("--seeds", args.seeds)
    checks.integer("--total-steps", args.total_steps, 1, checks.MAX_LONG)
    checks.integer("--episodes", args.episodes)
    checks.sizes("--levels", args.levels)
    if isinstance(args, Maze):
        study_maze(args)
    else:
        study_simulator(args)


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Maze | Procgen | Miniworld))
