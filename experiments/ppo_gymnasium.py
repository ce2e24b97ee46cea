"""PPO on Gymnasium environments, in a worker process each: one preset for each kind of task.

pip install '.[gymnasium]'
python experiments/ppo_gymnasium.py lunarlander
python experiments/ppo_gymnasium.py mujoco --env-id gymnasium/Hopper-v5
python experiments/ppo_gymnasium.py atari --env-id gymnasium/ALE/Breakout-v5
python experiments/ppo_gymnasium.py nes-tetris
python experiments/ppo_gymnasium.py lunarlander --env-id gymnasium/my_module:my_function
"""

from __future__ import annotations

import jaxrl
from launcher import PPO_FOR_MUJOCO, launch_preset, preset

PRESETS = {
    "lunarlander": preset(
        "Box2D: land between the flags.",
        "gymnasium/LunarLander-v3",
        1_000_000,
        16,
        jaxrl.PPOConfig(
            learning_rate=1e-3,
            gamma=0.999,
            gae_lambda=0.98,
            num_steps=256,
            num_minibatches=32,
        ),
    ),
    "mujoco": preset(
        "Continuous control.",
        "gymnasium/HalfCheetah-v5",
        1_000_000,
        8,
        PPO_FOR_MUJOCO,
    ),
    "atari": preset(
        "Atari through ale-py, with the settings of ppo_atari.py.",
        "gymnasium/ALE/Pong-v5",
        10_000_000,
        8,
        jaxrl.PPOConfig(clip_epsilon=0.1, clip_value=True),
        ("episodic_life=True", "reward_clip=True", "repeat_action_probability=0.0"),
    ),
    "nes-tetris": preset(
        "NES Tetris from pixels (needs a C++ compiler: see nes_tetris.py).",
        "gymnasium/nes_tetris:nes_tetris",
        1_000_000,
        8,
        jaxrl.PPOConfig(torso="ga3c_cnn", normalize_rewards=True),
    ),
}

if __name__ == "__main__":
    launch_preset(jaxrl.ppo, PRESETS)
