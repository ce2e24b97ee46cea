"""DQN on real Atari through envpool, with CleanRL's settings: a replay of a million frames, each
stored once (7 GB), a gradient step for every four environment steps.

    python experiments/dqn_atari.py --env-id Breakout-v5
    python experiments/dqn_atari.py --double --dueling --prioritized --n-step 3
    python experiments/dqn_atari.py --torso ga3c_cnn --replay-size 100_000   # for a laptop
"""

from __future__ import annotations

import dataclasses

import tyro

import jaxrl
from atari import AtariArgs, launch_atari


@dataclasses.dataclass
class Args(AtariArgs):
    """DQN on Atari."""

    num_envs: int = 1
    anneal: bool = False
    config: tyro.conf.OmitArgPrefixes[jaxrl.DQNConfig] = dataclasses.field(
        default_factory=lambda: jaxrl.DQNConfig(torso="nature_cnn", frame_stack=4)
    )


if __name__ == "__main__":
    args = tyro.cli(Args)
    launch_atari(jaxrl.dqn, args, args.config)
