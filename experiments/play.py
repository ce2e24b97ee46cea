"""Watch a trained agent: evaluate a saved run over whole episodes and write a video.

python experiments/play.py runs/ppo-CartPole-v1-seed1
python experiments/play.py runs/ppo-Pong-v5-seed1 --greedy --format gif
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import jax
import numpy as np
import tyro

import jaxrl
from errors import exit_with_message
from jaxrl.analysis.video import frames_per_second, write_video
from jaxrl.training.evaluate import Evaluation, frames, split_episodes
from jaxrl.training.run import check_seed

sys.path.append(os.getcwd())  # where modules with environments of one's own may be


@dataclasses.dataclass
class Args:
    """Evaluate a run and record one episode."""

    run_dir: tyro.conf.Positional[Path]
    episodes: int = 16
    """Whole episodes to evaluate; 0 for the video alone."""
    seed: int = 0
    greedy: bool = False
    """Take the most probable action, not a sample."""
    format: Literal["mp4", "gif"] = "mp4"
    max_steps: int = 5_000
    """Longest video, in environment steps."""


def evaluation(policy: jaxrl.LoadedPolicy, episodes: int, seed: int, greedy: bool) -> Evaluation:
    """Scores of whole episodes, as many of each environment."""
    num_envs, episodes_each = split_episodes(episodes)
    scores = jax.jit(jaxrl.evaluate, static_argnums=(0, 3, 5, 6))(
        policy.algo,
        policy.config,
        policy.state,
        policy.algo.env.for_evaluation(num_envs),
        jax.random.key(seed),
        episodes_each,
        greedy,
    )
    return jax.tree.map(lambda x: x[:episodes], scores)


def evaluate(policy: jaxrl.LoadedPolicy, episodes: int, seed: int, greedy: bool) -> np.ndarray:
    """Their returns."""
    return np.asarray(evaluation(policy, episodes, seed, greedy).episode_return)


def record(
    policy: jaxrl.LoadedPolicy, path: Path, seed: int, greedy: bool, max_steps: int
) -> tuple[Path, float, int]:
    """One episode as a video; its path, score and length."""
    env = policy.algo.env.for_rendering()
    key = jax.random.key(seed)
    scores: list[float] = []  # at each picture

    def pictures() -> Iterator[np.ndarray]:
        for picture, score in frames(
            policy.algo, policy.config, policy.state, env, key, greedy, max_steps
        ):
            scores.append(score)
            yield picture

    write_video(pictures(), path, frames_per_second(env))
    return path, scores[-1], len(scores) - 1


def main(args: Args) -> None:
    if args.episodes < 0:
        raise ValueError(f"--episodes must be >= 0, got {args.episodes}")
    check_seed(args.seed)
    policy = jaxrl.load_policy(args.run_dir)
    if args.episodes:
        returns = evaluate(policy, args.episodes, args.seed, args.greedy)
        print(f"return over {args.episodes} episodes: {returns.mean():.2f} +- {returns.std():.2f}")
    path = args.run_dir / "video" / f"seed{args.seed}.{args.format}"
    path, score, length = record(policy, path, args.seed, args.greedy, args.max_steps)
    print(f"{path}: {length} steps, score {score:g}")


if __name__ == "__main__":
    with exit_with_message():
        main(tyro.cli(Args))
