"""Agents with and without a memory on tasks that need one.

    python experiments/memory.py chain       # recall a bit that was seen ten steps before
    python experiments/memory.py cartpole    # CartPole whose velocities are hidden
    python experiments/memory.py maze        # find a place, and return to it from elsewhere

PPO, IMPALA and R2D2 with an LSTM, and the same without: for R2D2, which is made for a memory, DQN
with its settings. All seeds of an agent are one vmapped program.

Prints a table, and writes a JSON and a picture under runs/results/.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from gymnax.environments import spaces
from gymnax.environments.classic_control.cartpole import CartPole
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import jaxrl
from jaxrl import checks
from jaxrl import config as fields
from jaxrl.algos import ALGORITHMS
from jaxrl.analysis.records import (
    interval_text,
    mean_returns_by_part,
    rounded_curve,
    save_record,
    summarize_seeds,
)
from jaxrl.cli.flags.arguments import LargeInteger, exit_with_message
from jaxrl.training.run import count_updates
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.types import Metrics


class PositionsOnly(CartPole):
    """CartPole that shows the cart's place and the pole's angle, but not how fast they change."""

    def get_obs(self, state: Any, params: Any = None, key: Any = None) -> jax.Array:
        return super().get_obs(state, params, key)[jnp.array([0, 2])]

    def observation_space(self, params: Any) -> spaces.Box:
        high = jnp.asarray(super().observation_space(params).high)[jnp.array([0, 2])]
        return spaces.Box(-high, high, (2,), jnp.float32)


gymnax.register("PositionsOnly-v0", PositionsOnly)


class Task(NamedTuple):
    """A task that needs a memory."""

    env_id: str
    options: dict[str, Any]
    total_steps: int
    """Environment steps of each agent."""
    solved: float
    """Mean return of an agent that remembers."""
    changes: dict[str, dict[str, Any]]
    """What the task needs otherwise than `RECURRENT`, by algorithm."""


TASKS = {
    "chain": Task("gymnax/MemoryChain-bsuite", {"memory_length": 10}, 1_000_000, 0.95, {}),
    # The values of its long episodes are large: errors of PPO's value fill the clipped gradient.
    "cartpole": Task(
        "gymnax/PositionsOnly-v0", {}, 1_000_000, 475,
        {"ppo": {"normalize_rewards": True}, "r2d2": {"num_gradient_steps": 4}},
    ),
    "maze": Task("maze/FindAndReturn-v0", {"size": 7}, 2_000_000, 1.8, {}),
}  # fmt: skip

NETWORK: dict[str, Any] = {"torso": "mlp", "hidden_sizes": (128,), "activation": "relu"}
RECURRENT: dict[str, Any] = {
    "ppo": jaxrl.PPOConfig(
        learning_rate=3e-3, gamma=0.98, num_steps=64, num_epochs=2, num_minibatches=2,
        core="lstm", **NETWORK,
    ),
    "impala": jaxrl.ImpalaConfig(
        learning_rate=2e-3, gamma=0.98, num_steps=20, num_minibatches=8, entropy_coef=0.01,
        rmsprop_decay=0.99, core="lstm", **NETWORK,
    ),
    "r2d2": jaxrl.R2D2Config(
        learning_rate=1e-3, adam_eps=1e-3, target_period=50, gamma=0.98, num_steps=10, burn_in=5,
        unroll_length=15, batch_size=32, **NETWORK,
    ),
}  # fmt: skip


@dataclasses.dataclass
class Args:
    """Agents with and without a memory on a task that needs one."""

    task: tyro.conf.Positional[Literal["chain", "cartpole", "maze"]]
    algorithms: tuple[Literal["ppo", "impala", "r2d2"], ...] = ("ppo", "impala", "r2d2")
    seeds: int = 5
    total_steps: LargeInteger | None = None
    """Environment steps of each agent; the task's by default."""
    num_envs: int = 64
    episodes: int = 100
    """Whole episodes on which each agent is evaluated, by its greedy policy."""
    results: Path = Path("runs") / "results"
    """Directory of the JSON and the picture."""


def with_memory(task: Task, name: str) -> Any:
    """Return an algorithm's config with a memory."""
    return RECURRENT[name].replace(**task.changes.get(name, {}))


def without_memory(task: Task, name: str) -> tuple[str, Any]:
    """Return the algorithm and the config without a memory.

    They differ by the memory alone, but for R2D2: DQN has one epsilon that falls, draws uniformly
    and does not rescale values.
    """
    config = with_memory(task, name)
    # As deep as the network with the memory.
    hidden_sizes = (*NETWORK["hidden_sizes"], config.core_size)
    if name != "r2d2":
        return name, config.replace(core=None, hidden_sizes=hidden_sizes)
    shared = {field.name for field in dataclasses.fields(jaxrl.DQNConfig)}
    values = {k: v for k, v in vars(config).items() if k in shared}
    values |= {"core": None, "use_last_action_reward": False, "hidden_sizes": hidden_sizes}
    # As many transitions as sequences hold.
    values["batch_size"] = config.batch_size * config.unroll_length
    return "dqn", jaxrl.DQNConfig(**values)


def prepare(name: str, config: Any, args: Args) -> tuple[jaxrl.Algorithm, Any]:
    """Return the algorithm on the task, and the config whose learning rate falls to 0."""
    task = TASKS[args.task]
    algo = ALGORITHMS[name](jaxrl.make(task.env_id, args.num_envs, **task.options))
    num_updates = count_updates(algo, config, args.total_steps or task.total_steps)
    return algo, config.replace(anneal_updates=num_updates)


def train(algo: jaxrl.Algorithm, config: Any, args: Args) -> tuple[np.ndarray, np.ndarray]:
    """Train an agent of each seed as one program.

    Args:
      config: as `prepare` returns it; the agents do as many updates as it is annealed over.

    Returns:
      Mean returns of the greedy policies `[seeds]`, and over equal parts of the training
      `[seeds, parts]`.
    """
    num_updates = config.anneal_updates
    env = algo.env.for_evaluation(args.episodes)

    def learn(key: jax.Array) -> tuple[jax.Array, Metrics]:
        state, metrics = jaxrl.train(algo, config, key, num_updates)
        scores = jaxrl.evaluate(algo, config, state, env, key, 1, greedy=True)
        return scores.episode_return.mean(), metrics

    keys = jax.random.split(jax.random.key(1), args.seeds)  # settings were chosen with key 0
    options = jaxrl.compiler_options(algo, config)
    scores, metrics = jax.jit(jax.vmap(learn), compiler_options=options)(keys)
    return np.asarray(scores, np.float64), mean_returns_by_part(metrics)


def draw(args: Args, total_steps: int, agents: list[dict[str, Any]]) -> Figure:
    """Return the training curves, with a panel for each algorithm and its counterpart."""
    figure = Figure(figsize=(4 * len(args.algorithms), 3.6), dpi=120, layout="constrained")
    panels = figure.subplots(1, len(args.algorithms), sharey=True, squeeze=False)[0]
    for i, axes in enumerate(panels):
        for agent in agents[2 * i : 2 * i + 2]:
            curves = np.array(agent["curve_by_seed"], np.float64)
            steps = np.linspace(0, total_steps, curves.shape[1] + 1)[1:]
            label = f"{agent['algorithm'].upper()}, {agent['config']['core'] or 'no memory'}"
            line = axes.plot(steps, np.ma.masked_invalid(curves).mean(0), label=label)[0]
            axes.plot(steps, curves.T, color=line.get_color(), linewidth=0.7, alpha=0.4)
        axes.axhline(TASKS[args.task].solved, color="black", linewidth=0.7, linestyle="dotted")
        axes.set(xlabel="environment steps")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    panels[0].set(ylabel="mean training return")
    figure.suptitle(f"{TASKS[args.task].env_id}, {args.seeds} seeds; dotted: solved")
    return figure


def print_table(agents: list[dict[str, Any]]) -> None:
    """Print the scores of all agents."""
    table = Table("algorithm", "memory", "return of the greedy policy, by seed", "mean (95%)")
    for agent in agents:
        score = agent["greedy_return"]
        by_seed = ", ".join(f"{x:.2f}" for x in score["by_seed"])
        memory = agent["config"]["core"] or "none"
        table.add_row(agent["algorithm"].upper(), memory, by_seed, interval_text(score, 2))
    Console().print(table)


def main(args: Args) -> None:
    """Train all agents; print, record and draw their returns."""
    for name in ("seeds", "num_envs", "episodes"):
        checks.integer(f"--{name.replace('_', '-')}", getattr(args, name))
    task = TASKS[args.task]
    total_steps = args.total_steps or task.total_steps
    arguments = {"total_steps": total_steps, "seeds": args.seeds, "episodes": args.episodes}
    first = args.algorithms[0]
    manifest = manifests.describe(*prepare(first, with_memory(task, first), args), arguments)
    agents = []
    for algorithm in args.algorithms:
        agent = algorithm, with_memory(task, algorithm)
        for name, settings in (agent, without_memory(task, algorithm)):
            print(f"training {args.seeds} agents of {name.upper()}, {total_steps:,} steps each")
            algo, config = prepare(name, settings, args)
            scores, curves = train(algo, config, args)
            agents.append(
                {
                    "algorithm": name,
                    "config": fields.to_dict(config),
                    "greedy_return": summarize_seeds(scores),
                    "curve_by_seed": [rounded_curve(curve) for curve in curves],
                }
            )
    print_table(agents)
    record = {"manifest": manifest, "solved": task.solved, "agents": agents}
    picture = save_record(args.results, f"memory-{args.task}", record)
    draw(args, total_steps, agents).savefig(picture)


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Args))
