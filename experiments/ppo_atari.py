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
from launcher import RunArgs, launch


@dataclasses.dataclass
class Args(RunArgs):
    """PPO on Atari."""

    env_id: str = "Pong-v5"
    total_steps: int = 10_000_000
    num_envs: int = 8
    episodic_life: bool = True
    """Show the learner a lost life as an end."""
    reward_clip: bool = True
    """Show the learner the sign of rewards only."""
    repeat_action_probability: float = 0.0
    """Sticky actions (Machado et al. 2018)."""
    num_threads: int = 0
    """Threads of the simulators; 0 for one a core."""
    config: tyro.conf.OmitArgPrefixes[jaxrl.PPOConfig] = dataclasses.field(
        default_factory=lambda: jaxrl.PPOConfig(clip_epsilon=0.1, clip_value=True)
    )


if __name__ == "__main__":
    args = tyro.cli(Args)
    options = {
        "episodic_life": args.episodic_life,
        "reward_clip": args.reward_clip,
        "repeat_action_probability": args.repeat_action_probability,
        "num_threads": args.num_threads,
    }
    launch(jaxrl.ppo, args, args.config, options)
