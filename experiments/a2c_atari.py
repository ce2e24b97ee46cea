"""A2C on real Atari through envpool, with GA3C's settings or those of OpenAI Baselines.

    python experiments/a2c_atari.py --preset ga3c --env-id Pong-v5
    python experiments/a2c_atari.py --preset baselines --env-id Breakout-v5 --total-steps 10_000_000
    python experiments/a2c_atari.py --preset ga3c --torso ga3c_large_stride1   # its largest network

Flags after the preset change single settings of it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import tyro

import jaxrl
from atari import AtariArgs, from_preset, launch_atari


@dataclasses.dataclass
class Args(AtariArgs):
    """A2C on Atari."""

    preset: Literal["ga3c", "baselines"] = "ga3c"
    """Whose settings to start from; other flags change them."""
    config: tyro.conf.OmitArgPrefixes[jaxrl.A2CConfig] = dataclasses.field(
        default_factory=jaxrl.A2CConfig
    )


PRESETS = {
    # Babaeizadeh et al. 2017: losses summed, no clipping, TensorFlow's RMSProp with its epsilon
    # of 0.1 inside the root, log(pi + 1e-6).
    "ga3c": Args(
        preset="ga3c",
        num_envs=32,
        anneal=False,
        config=jaxrl.A2CConfig(
            torso="ga3c_cnn",
            learning_rate=3e-4,
            value_coef=1.0,
            max_grad_norm=math.inf,
            rmsprop_eps=0.1,
            rmsprop_initial=1.0,
            log_eps=1e-6,
            sum_losses=True,
        ),
    ),
    # Dhariwal et al. 2017.
    "baselines": Args(preset="baselines", num_envs=16, config=jaxrl.A2CConfig(torso="nature_cnn")),
}


if __name__ == "__main__":
    args = from_preset(PRESETS, "ga3c")
    launch_atari(jaxrl.a2c, args, args.config)
