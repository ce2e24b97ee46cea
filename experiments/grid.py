"""Watch several agents side by side, with the numbers that tell them apart.

    python experiments/grid.py runs/pong-gamma-0.9 runs/pong-gamma-0.99 --out gammas.mp4
    python experiments/grid.py runs/sweep-a2c-Pong-v5-seed1 --out best.gif

Of a sweep, these are the best agents that it has kept. The numbers, of whole games that each agent
plays besides the filmed one, are printed and written beside the video, as JSON.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import jaxrl
from errors import exit_with_message
from jaxrl.analysis.comparison import differing, settings
from jaxrl.analysis.grid import Tile, grid
from jaxrl.analysis.video import checked_suffix, frames_per_second, write_video
from jaxrl.training import manifest as manifests
from jaxrl.training.evaluate import frames
from jaxrl.tuning.sweeps import state as sweeps
from play import evaluation

MOST_TOLD = 6


@dataclasses.dataclass
class Args:
    """Film agents side by side."""

    run_dirs: tyro.conf.Positional[tuple[Path, ...]]
    out: Path = Path("grid.mp4")
    """The video, .mp4 or .gif; the numbers go beside it."""
    episodes: int = 16
    """Whole games that the numbers are of."""
    seed: int = 0
    greedy: bool = False
    """Take the most probable action, not a sample."""
    max_steps: int = 5_000
    """Longest video, in environment steps."""
    columns: int | None = None
    """As many as rows, or one more, by default."""


class Agent(NamedTuple):
    """An agent, what tells it from the others, and its scores."""

    directory: Path
    policy: jaxrl.LoadedPolicy
    told: dict[str, Any]
    numbers: dict[str, float]

    @property
    def label(self) -> str:
        """In few words: the directory's name where more things differ."""
        if not 0 < len(self.told) <= MOST_TOLD:
            return self.directory.name
        return ", ".join(f"{name} {_short(value)}" for name, value in self.told.items())


def agents_of(directory: Path) -> list[Path]:
    """The directory of a run itself; of a sweep, those of its best agents, the best first."""
    if not (directory / sweeps.NAME).exists():
        return [directory]
    kept = sorted((directory / "best").glob("trial-*"), key=lambda x: -manifests.read(x)["score"])
    if not kept:
        raise ValueError(f"{directory} has kept no agents; search with --keep-best 3")
    return kept


def distinctions(directories: list[Path]) -> list[dict[str, Any]]:
    """What tells agents apart: their trials, settings, seeds and scores where they differ."""
    described = []
    for directory in directories:
        manifest = manifests.read(directory)
        facts = {"algorithm": manifest["algorithm"], "environment": manifest["env"]["id"]}
        facts = {"trial": manifest.get("trial")} | facts | settings(manifest)
        facts |= {name: manifest.get(name) for name in ("seed", "score")}
        described.append(facts)
    told = differing(described)
    return [{name: facts[name] for name in told if name in facts} for facts in described]


def measure(policy: jaxrl.LoadedPolicy, args: Args) -> dict[str, float]:
    """Points and length of whole games."""
    if args.episodes < 1:
        raise ValueError(f"--episodes must be >= 1, got {args.episodes}")
    scores = evaluation(policy, args.episodes, args.seed, args.greedy)
    returns, lengths = (np.asarray(x, float)[np.isfinite(x)] for x in scores)
    if not len(returns):
        raise ValueError(f"no game on {policy.algo.env.id} came to its end")
    return {
        "games": len(returns),
        "points_per_game": float(returns.mean()),
        "points_per_game_std": float(returns.std()),
        "game_length": float(lengths.mean()),
        "points_per_step": float(returns.sum() / lengths.sum()),
    }


def filmed(agent: Agent, args: Args) -> Iterator[tuple[np.ndarray, str]]:
    """One game, and how it stands."""
    policy, key = agent.policy, jax.random.key(args.seed)
    env = policy.algo.env.for_rendering()
    game = frames(policy.algo, policy.config, policy.state, env, key, args.greedy, args.max_steps)
    for step, (picture, score) in enumerate(game):
        yield picture, f"this one: {score:g} points, {step:,} steps"


def tile(agent: Agent, args: Args) -> Tile:
    numbers = agent.numbers
    said = (
        f"a game: {numbers['points_per_game']:.4g} points, {numbers['game_length']:,.0f} steps, "
        f"{numbers['points_per_step']:.3g} a step"
    )
    return Tile([agent.label, said], filmed(agent, args))


def table(agents: list[Agent]) -> Table:
    """The numbers, for people."""
    shown = Table("agent", "points a game", "length of a game", "points a step")
    for agent in agents:
        numbers = agent.numbers
        points = f"{numbers['points_per_game']:.4g} +- {numbers['points_per_game_std']:.3g}"
        length = f"{numbers['game_length']:,.1f}"
        shown.add_row(agent.label, points, length, f"{numbers['points_per_step']:.4g}")
    return shown


def main(args: Args) -> None:
    checked_suffix(args.out)
    if not args.run_dirs:
        raise ValueError("there are no agents to film; give directories of runs or sweeps")
    directories = [agent for directory in args.run_dirs for agent in agents_of(directory)]
    agents = []
    for directory, told in zip(directories, distinctions(directories), strict=True):
        policy = jaxrl.load_policy(directory)
        agents.append(Agent(directory, policy, told, measure(policy, args)))
    pictures = grid([tile(agent, args) for agent in agents], args.columns)
    write_video(pictures, args.out, frames_per_second(agents[0].policy.algo.env))
    numbers = [
        {"run_dir": str(agent.directory), "told_apart_by": agent.told}
        | agent.numbers
        | {"manifest": manifests.read(agent.directory)}
        for agent in agents
    ]
    beside = args.out.with_suffix(".json")
    beside.write_text(json.dumps(numbers, indent=1) + "\n")
    Console().print(table(agents))
    print(f"video: {args.out}, numbers: {beside}")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Args))
