"""PPO on gymnax, all on the device: one preset for each kind of task.

python experiments/ppo_gymnax.py cartpole
python experiments/ppo_gymnax.py pendulum
python experiments/ppo_gymnax.py minatar --env-id Breakout-MinAtar --total-steps 10_000_000
"""

from __future__ import annotations

import dataclasses

import tyro

import jaxrl
from launcher import RunArgs, launch


@dataclasses.dataclass
class Args(RunArgs):
    """PPO on gymnax."""

    config: tyro.conf.OmitArgPrefixes[jaxrl.PPOConfig] = dataclasses.field(
        default_factory=jaxrl.PPOConfig
    )


PRESETS = {
    "cartpole": (
        "Classic control with discrete actions.",
        Args("CartPole-v1", 500_000, 4, config=jaxrl.PPOConfig(learning_rate=2.5e-3)),
    ),
    "pendulum": (
        "Classic control with continuous actions and rewards of large scale.",
        Args(
            "Pendulum-v1",
            1_000_000,
            8,
            config=jaxrl.PPOConfig(
                learning_rate=3e-4,
                gamma=0.9,
                entropy_coef=0.0,
                num_epochs=10,
                num_minibatches=8,
                normalize_rewards=True,
                activation="relu",
            ),
        ),
    ),
    "minatar": (
        "MinAtar, with an MLP of 64-64 for each head, which is cheaper on a CPU than the CNN.",
        Args(
            "Breakout-MinAtar",
            10_000_000,
            64,
            config=jaxrl.PPOConfig(
                learning_rate=2e-3, num_minibatches=32, torso="mlp", activation="relu"
            ),
        ),
    ),
}

if __name__ == "__main__":
    args = tyro.extras.overridable_config_cli(PRESETS)
    launch(jaxrl.ppo, args, args.config, {})
