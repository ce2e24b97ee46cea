"""R2D2 on gymnax, all on the device, the replay too: one preset for each kind of task.

python experiments/r2d2_gymnax.py cartpole
python experiments/r2d2_gymnax.py minatar --env-id Asterix-MinAtar
"""

from __future__ import annotations

import jaxrl
from launcher import launch_preset, preset

PRESETS = {
    "cartpole": preset(
        "Classic control.",
        "CartPole-v1",
        300_000,
        16,
        jaxrl.R2D2Config(
            core_size=64,
            learning_rate=1e-3,
            num_gradient_steps=2,
            max_grad_norm=10.0,
            gamma=0.99,
            epsilon_base=0.3,
            epsilon_exponent=4.0,
            learning_starts=2_000,
            target_period=50,
            num_steps=5,
            burn_in=5,
            unroll_length=10,
            replay_size=100_000,
            hidden_sizes=(64,),
            activation="relu",
        ),
    ),
    "minatar": preset(
        "MinAtar, with an MLP and an LSTM.",
        "Breakout-MinAtar",
        2_000_000,
        16,
        jaxrl.R2D2Config(
            core_size=128,
            learning_rate=1e-3,
            max_grad_norm=10.0,
            gamma=0.99,
            learning_starts=10_000,
            target_period=250,
            num_steps=10,
            burn_in=5,
            unroll_length=15,
            n_step=3,
            batch_size=32,
            replay_size=100_000,
            torso="mlp",
            hidden_sizes=(128,),
            activation="relu",
        ),
    ),
}

if __name__ == "__main__":
    launch_preset(jaxrl.r2d2, PRESETS)
