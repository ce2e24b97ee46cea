"""PPO on envpool's other simulators, stepped on the host: one preset for each.

python experiments/ppo_envpool.py mujoco
python experiments/ppo_envpool.py mujoco --env-id envpool/Ant-v4
"""

from __future__ import annotations

import jaxrl
from launcher import launch_preset, preset

PRESETS = {
    "mujoco": preset(
        "Continuous control, with the settings of Huang et al. 2022.",
        "envpool/HalfCheetah-v4",
        1_000_000,
        8,
        jaxrl.PPOConfig(
            learning_rate=3e-4,
            num_steps=256,
            num_epochs=10,
            num_minibatches=32,
            entropy_coef=0.0,
            clip_value=True,
            normalize_observations=True,
            normalize_rewards=True,
        ),
    ),
}

if __name__ == "__main__":
    launch_preset(jaxrl.ppo, PRESETS)
