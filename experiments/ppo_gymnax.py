"""PPO on gymnax, all on the device: one preset for each kind of task.

python experiments/ppo_gymnax.py cartpole
python experiments/ppo_gymnax.py pendulum
python experiments/ppo_gymnax.py minatar --env-id Breakout-MinAtar --total-steps 10_000_000
"""

from __future__ import annotations

import jaxrl
from launcher import launch_preset, preset

PRESETS = {
    "cartpole": preset(
        "Classic control with discrete actions.",
        "CartPole-v1",
        500_000,
        4,
        jaxrl.PPOConfig(learning_rate=2.5e-3),
    ),
    "pendulum": preset(
        "Classic control with continuous actions and rewards of large scale.",
        "Pendulum-v1",
        1_000_000,
        8,
        jaxrl.PPOConfig(
            learning_rate=3e-4,
            gamma=0.9,
            entropy_coef=0.0,
            num_epochs=10,
            num_minibatches=8,
            normalize_rewards=True,
            activation="relu",
        ),
    ),
    "minatar": preset(
        "MinAtar, with an MLP of 64-64 for each head, which is cheaper on a CPU than the CNN.",
        "Breakout-MinAtar",
        10_000_000,
        64,
        jaxrl.PPOConfig(learning_rate=2e-3, num_minibatches=32, torso="mlp", activation="relu"),
    ),
}

if __name__ == "__main__":
    launch_preset(jaxrl.ppo, PRESETS)
