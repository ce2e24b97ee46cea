"""R2D2 on real Atari through envpool, with the settings of SEED RL (Espeholt et al. 2020):
sequences of 40 + 80 steps, 5-step double-Q targets, value rescaling, an LSTM of 512 with a dueling
head. Rewards are not clipped; the rescaling is there for that. The replay of a million frames takes
7 GB.

    python experiments/r2d2_atari.py --env-id Breakout-v5
    python experiments/r2d2_atari.py --torso ga3c_cnn --core-size 128 --replay-size 100_000
"""

from __future__ import annotations

import dataclasses

import tyro

import jaxrl
from atari import AtariArgs, launch_atari


@dataclasses.dataclass
class Args(AtariArgs):
    """R2D2 on Atari."""

    num_envs: int = 64
    reward_clip: bool = False
    episodic_life: bool = False
    anneal: bool = False
    config: tyro.conf.OmitArgPrefixes[jaxrl.R2D2Config] = dataclasses.field(
        default_factory=lambda: jaxrl.R2D2Config(torso="nature_cnn", frame_stack=4)
    )


if __name__ == "__main__":
    args = tyro.cli(Args)
    launch_atari(jaxrl.r2d2, args, args.config)
