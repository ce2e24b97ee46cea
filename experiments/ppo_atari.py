"""PPO on real Atari through envpool: 8 environments x 128 steps, episodic life and sign-clipped
rewards for the learner, raw scores of whole games in the logs.

    python experiments/ppo_atari.py --env-id Pong-v5 --total-steps 10_000_000
    python experiments/ppo_atari.py --preset laptop --env-id Pong-v5   # half an hour of a CPU core

Flags change single settings of the preset.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import tyro

import jaxrl
from atari import AtariArgs, from_preset, launch_atari

HUANG = jaxrl.PPOConfig(clip_epsilon=0.1, clip_value=True)


@dataclasses.dataclass
class Args(AtariArgs):
    """PPO on Atari."""

    preset: Literal["huang", "laptop"] = "huang"
    """Whose settings to start from; other flags change them."""
    config: tyro.conf.OmitArgPrefixes[jaxrl.PPOConfig] = HUANG


PRESETS = {
    # Huang et al. 2022, "The 37 implementation details of PPO": the Nature CNN on 84x84x4 frames.
    "huang": Args(),
    # A twentieth of the computation. Each pixel is normalized by its own statistics, since what
    # moves is a hundredth of such small pictures' brightness, and is not found otherwise.
    "laptop": Args(
        preset="laptop",
        total_steps=2_000_000,
        env_options=("img_height=42", "img_width=42"),
        config=HUANG.replace(torso="ga3c_cnn", normalize_observations=True),
    ),
}

if __name__ == "__main__":
    args = from_preset(PRESETS, "huang")
    launch_atari(jaxrl.ppo, args, args.config)
