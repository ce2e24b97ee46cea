"""PPO on real Atari through envpool, with the settings of Huang et al. 2022 ("The 37
implementation details of PPO"): 8 environments x 128 steps, 84x84x4 frames, episodic life and
sign-clipped rewards for the learner, raw scores of whole games in the logs.

    python experiments/ppo_atari.py --env-id Pong-v5 --total-steps 10_000_000
    python experiments/ppo_atari.py --env-id Breakout-v5 --torso ga3c_cnn   # cheaper on a CPU
"""

from __future__ import annotations

import dataclasses

import tyro

import jaxrl
from atari import AtariArgs, launch_atari


@dataclasses.dataclass
class Args(AtariArgs):
    """PPO on Atari."""

    config: tyro.conf.OmitArgPrefixes[jaxrl.PPOConfig] = dataclasses.field(
        default_factory=lambda: jaxrl.PPOConfig(clip_epsilon=0.1, clip_value=True)
    )


if __name__ == "__main__":
    args = tyro.cli(Args)
    launch_atari(jaxrl.ppo, args, args.config)
