"""DQN on gymnax, all on the device, the replay too: one preset for each kind of task.

python experiments/dqn_gymnax.py cartpole
python experiments/dqn_gymnax.py minatar --env-id Asterix-MinAtar
"""

from __future__ import annotations

import jaxrl
from launcher import launch_preset, preset

PRESETS = {
    "cartpole": preset(
        "Classic control.",
        "CartPole-v1",
        300_000,
        8,
        jaxrl.DQNConfig(
            learning_rate=1e-3,
            exploration_steps=50_000,
            final_epsilon=0.02,
            learning_starts=1_000,
            target_period=200,
            num_steps=1,
            batch_size=64,
            replay_size=100_000,
            n_step=3,
            double=True,
            prioritized=True,
            activation="relu",
        ),
    ),
    "minatar": preset(
        "MinAtar, with an MLP.",
        "Breakout-MinAtar",
        2_000_000,
        16,
        jaxrl.DQNConfig(
            learning_rate=5e-4,
            exploration_steps=200_000,
            learning_starts=5_000,
            num_steps=1,
            batch_size=64,
            replay_size=100_000,
            n_step=3,
            double=True,
            torso="mlp",
            hidden_sizes=(128, 128),
            activation="relu",
        ),
    ),
}

if __name__ == "__main__":
    launch_preset(jaxrl.dqn, PRESETS)
