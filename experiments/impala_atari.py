"""IMPALA on real Atari through envpool, with the settings of Cleanba (Huang et al. 2023): 64
environments x 20 steps, the deep ResNet, RMSProp, losses summed.

    python experiments/impala_atari.py --env-id Pong-v5
    python experiments/impala_atari.py --env-id Breakout-v5 --lag 4
    python experiments/impala_atari.py --core lstm --core-size 256 --sees-last   # the paper's LSTM
"""

from __future__ import annotations

import dataclasses

import tyro

import jaxrl
from atari import AtariArgs, launch_atari
from flags import Whole


@dataclasses.dataclass
class Args(AtariArgs):
    """IMPALA on Atari."""

    total_steps: Whole = 50_000_000
    num_envs: int = 64
    config: tyro.conf.OmitArgPrefixes[jaxrl.ImpalaConfig] = dataclasses.field(
        default_factory=lambda: jaxrl.ImpalaConfig(torso="impala_resnet")
    )


if __name__ == "__main__":
    args = tyro.cli(Args)
    launch_atari(jaxrl.impala, args, args.config)
