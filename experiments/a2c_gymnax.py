"""A2C on gymnax, all on the device: one preset for each kind of task.

python experiments/a2c_gymnax.py cartpole
python experiments/a2c_gymnax.py minatar --env-id Asterix-MinAtar
"""

from __future__ import annotations

import jaxrl
from launcher import launch_preset, preset

PRESETS = {
    "cartpole": preset(
        "Classic control.",
        "CartPole-v1",
        500_000,
        16,
        jaxrl.A2CConfig(learning_rate=3e-3, gae_lambda=0.95),
    ),
    "minatar": preset(
        "MinAtar, with MLPs.",
        "Breakout-MinAtar",
        10_000_000,
        64,
        jaxrl.A2CConfig(
            learning_rate=3e-3,
            gae_lambda=0.95,
            entropy_coef=0.05,
            num_steps=16,
            torso="mlp",
            activation="relu",
        ),
    ),
}

if __name__ == "__main__":
    launch_preset(jaxrl.a2c, PRESETS)
