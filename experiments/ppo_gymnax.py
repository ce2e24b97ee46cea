"""PPO on gymnax: classic control and MinAtar, all on the device.

    python experiments/ppo_gymnax.py --env-id CartPole-v1
    python experiments/ppo_gymnax.py --env-id Breakout-MinAtar --num-envs 64 --total-steps 10_000_000
    python experiments/ppo_gymnax.py --env-id Pendulum-v1
"""

from __future__ import annotations

import dataclasses

import tyro
from launcher import RunArgs, launch

import jaxrl


@dataclasses.dataclass
class Args(RunArgs):
    """PPO on gymnax."""

    env_id: str = "CartPole-v1"
    total_steps: int = 500_000
    num_envs: int = 4
    config: tyro.conf.OmitArgPrefixes[jaxrl.PPOConfig] = dataclasses.field(
        default_factory=lambda: jaxrl.PPOConfig(learning_rate=1e-3)
    )


if __name__ == "__main__":
    args = tyro.cli(Args)
    launch(jaxrl.ppo, args, args.config, {})
