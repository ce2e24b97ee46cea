"""PPO on envpool's other simulators, stepped on the host: one preset for each.

python experiments/ppo_envpool.py mujoco
python experiments/ppo_envpool.py mujoco --env-id envpool/Ant-v4
python experiments/ppo_envpool.py vizdoom
python experiments/ppo_envpool.py vizdoom-memory --env-id envpool/MyWayHome-v1
python experiments/ppo_envpool.py football --env-id envpool/gfootball/academy_run_to_score-v1
python experiments/ppo_envpool.py procgen --env-options num_levels=200

Atari's Tetris is `ppo_atari.py --env-id Tetris-v5`.
"""

from __future__ import annotations

import jaxrl
from launcher import PPO_FOR_MUJOCO, launch_preset, preset

PRESETS = {
    "mujoco": preset(
        "Continuous control.",
        "envpool/HalfCheetah-v4",
        1_000_000,
        8,
        PPO_FOR_MUJOCO,
    ),
    "vizdoom": preset(
        "Health packs in a Doom room, with four frames and a small network.",
        "envpool/D1Basic-v1",
        300_000,
        16,
        jaxrl.PPOConfig(learning_rate=5e-4, num_steps=64, torso="ga3c_cnn", normalize_rewards=True),
    ),
    "vizdoom-memory": preset(
        "The same with one frame and an LSTM: what is behind must be remembered.",
        "envpool/HealthGathering-v1",
        300_000,
        16,
        jaxrl.PPOConfig(
            learning_rate=5e-4,
            num_steps=64,
            torso="ga3c_cnn",
            core="lstm",
            normalize_rewards=True,
        ),
        ("stack_num=1",),
    ),
    "football": preset(
        "Google Research Football's academy: score at an empty goal.",
        "envpool/gfootball/academy_empty_goal_close-v1",
        200_000,
        8,
        jaxrl.PPOConfig(
            learning_rate=5e-4, num_steps=128, gamma=0.993, clip_epsilon=0.1, torso="ga3c_cnn"
        ),
    ),
    "tetris": preset(
        "Jumanji's Tetris, whose observations say where a piece fits.",
        "envpool/Jumanji/Tetris-v0",
        5_000_000,
        64,
        jaxrl.PPOConfig(
            learning_rate=5e-4,
            num_steps=64,
            num_minibatches=8,
            hidden_sizes=(128, 64),
            activation="relu",
            normalize_rewards=True,
        ),
    ),
    "procgen": preset(
        "Procgen's levels (needs Debian's packages libqt5gui5 and libqt5core5a).",
        "envpool/CoinrunEasy-v0",
        5_000_000,
        64,
        jaxrl.PPOConfig(
            learning_rate=5e-4,
            num_steps=256,
            gamma=0.999,
            num_epochs=3,
            num_minibatches=8,
            torso="ga3c_cnn",
            normalize_rewards=True,
        ),
    ),
}

if __name__ == "__main__":
    launch_preset(jaxrl.ppo, PRESETS)
