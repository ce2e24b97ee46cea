"""A2C on gymnax, all on the device: one preset for each kind of task.

python experiments/a2c_gymnax.py cartpole
python experiments/a2c_gymnax.py minatar --env-id Asterix-MinAtar
"""

from __future__ import annotations

import dataclasses

import tyro

import jaxrl
from launcher import RunArgs, launch


@dataclasses.dataclass
class Args(RunArgs):
    """A2C on gymnax."""

    config: tyro.conf.OmitArgPrefixes[jaxrl.A2CConfig] = dataclasses.field(
        default_factory=jaxrl.A2CConfig
    )


PRESETS = {
    "cartpole": (
        "Classic control.",
        Args(
            "CartPole-v1",
            500_000,
            16,
            config=jaxrl.A2CConfig(learning_rate=3e-3, gae_lambda=0.95),
        ),
    ),
    "minatar": (
        "MinAtar, with MLPs.",
        Args(
            "Breakout-MinAtar",
            10_000_000,
            64,
            config=jaxrl.A2CConfig(
                learning_rate=3e-3,
                gae_lambda=0.95,
                entropy_coef=0.05,
                num_steps=16,
                torso="mlp",
                activation="relu",
            ),
        ),
    ),
}

if __name__ == "__main__":
    args = tyro.extras.overridable_config_cli(PRESETS)
    launch(jaxrl.a2c, args, args.config, {})
