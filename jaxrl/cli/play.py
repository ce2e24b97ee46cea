"""Play a trained agent: evaluate it over whole episodes and write a video of one.

jaxrl play runs/ppo-CartPole-v1-seed1
jaxrl play runs/ppo-Pong-v5-seed1 --which best --greedy --format gif
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import tyro

from jaxrl import checks
from jaxrl.analysis.video import (
    MAX_STEPS,
    check_video,
    film,
    summarize_games,
    write_caption,
)
from jaxrl.cli.flags.arguments import find_own_modules
from jaxrl.envs.host.errors import SimulatorError, message_in
from jaxrl.envs.trust import code_named_by
from jaxrl.training.evaluate import (
    MAX_EPISODE_STEPS,
    Evaluation,
    evaluate_separately,
)
from jaxrl.training.policy import LoadedPolicy, load_policy


@dataclasses.dataclass
class PlayArguments:
    """Evaluate a run and record one episode."""

    run_dir: tyro.conf.Positional[Path]
    """Directory of a run."""
    episodes: int = 16
    """Whole episodes to evaluate; 0 for the video alone."""
    seed: int = 0
    """Seed of environments and actions."""
    greedy: bool = False
    """Take the most probable action instead of a sample."""
    format: Literal["mp4", "gif"] = "mp4"
    which: Literal["newest", "best"] = "newest"
    """The newest agent, or the one that was evaluated best."""
    max_steps: int = MAX_STEPS
    """Longest video, in environment steps."""
    trust_imports: bool = False
    """Import what the run's environment names (gymnasium/module:function), also from the working
    directory. Only if you trust who wrote run_dir."""


def main(argv: Sequence[str], prog: str | None = None) -> int:
    """Evaluate and film the agent that the flags name; return the exit status."""
    args = tyro.cli(PlayArguments, args=argv, prog=prog)
    checks.integer("--episodes", args.episodes, 0)
    checks.integer("--max-steps", args.max_steps)
    checks.integer("--seed", args.seed, 0, checks.MAX_SEED)
    if args.trust_imports:
        find_own_modules()
    policy = load_policy(args.run_dir, trust_imports=args.trust_imports, which=args.which)
    kinds = ["best"] * (args.which == "best") + ["greedy"] * args.greedy
    name = "-".join([f"seed{args.seed}", *kinds])
    path = args.run_dir / "video" / f"{name}.{args.format}"
    try:
        check_video(policy.algo.env, path)
        has_video = True
    except (ValueError, ImportError, SimulatorError, jax.errors.JaxRuntimeError) as error:
        if not args.episodes:
            raise
        has_video = False
        print(f"no video: {message_in(error) or error}", file=sys.stderr)
    numbers = None
    if args.episodes:
        scores = play_episodes(policy, args.episodes, args.seed, args.greedy)
        returns = scores.episode_return[np.isfinite(scores.episode_return)]
        if len(returns):
            found = f"{returns.mean():.2f} +- {returns.std():.2f}"
            print(f"return over {len(returns)} episodes: {found}")
            numbers = summarize_games(*scores)
        if num_cut := args.episodes - len(returns):
            few = f"{MAX_EPISODE_STEPS:,} steps for each on average"
            print(
                f"{num_cut} of {args.episodes} episodes did not end within {few}", file=sys.stderr
            )
    if not has_video:
        return 0
    try:
        path, score, length = film(policy, path, args.seed, args.greedy, args.max_steps)
    except OSError as error:  # the run's directory may be on a disk that cannot be written
        if not args.episodes:
            raise
        print(f"no video: {error}", file=sys.stderr)
        return 0
    found = ", ".join([f"{length} steps", f"score {score:g}", *kinds])
    write_caption(path, found, numbers)
    print(f"{path}: {found}")
    return 0


def play_episodes(
    policy: LoadedPolicy, episodes: int, seed: int, greedy: bool = False
) -> Evaluation:
    """Return the scores of whole episodes, leaves `[episodes]`, the first ones of environments."""
    return evaluate_separately(policy.algo, policy.config, policy.state, episodes, seed, greedy)


def play_command(run_dir: Path | None, env_id: str, options: Mapping[str, Any]) -> str:
    """Return the command that plays a run's agent; it must trust code that the user named."""
    trust = " --trust-imports" if code_named_by(env_id, options) else ""
    return f"jaxrl play {shlex.quote(str(run_dir))}{trust}"
