"""IMPALA on gymnax, all on the device: one preset for each kind of task. `--lag` sets how many
updates the actors' parameters lag the learner's.

    python experiments/impala_gymnax.py cartpole
    python experiments/impala_gymnax.py minatar --env-id Asterix-MinAtar
"""

from __future__ import annotations

import dataclasses

import tyro

import jaxrl
from launcher import RunArgs, launch


@dataclasses.dataclass
class Args(RunArgs):
    """IMPALA on gymnax."""

    config: tyro.conf.OmitArgPrefixes[jaxrl.ImpalaConfig] = dataclasses.field(
        default_factory=jaxrl.ImpalaConfig
    )


PRESETS = {
    "cartpole": (
        "Classic control.",
        Args(
            "CartPole-v1",
            500_000,
            16,
            config=jaxrl.ImpalaConfig(
                learning_rate=3e-3,
                trace_lambda=0.95,
                max_grad_norm=0.5,
                rmsprop_eps=1e-5,
                sum_losses=False,
            ),
        ),
    ),
    "minatar": (
        "MinAtar, with MLPs.",
        Args(
            "Breakout-MinAtar",
            10_000_000,
            64,
            config=jaxrl.ImpalaConfig(
                learning_rate=3e-3,
                trace_lambda=0.95,
                entropy_coef=0.05,
                max_grad_norm=0.5,
                rmsprop_eps=1e-5,
                sum_losses=False,
                torso="mlp",
                activation="relu",
            ),
        ),
    ),
}

if __name__ == "__main__":
    args = tyro.extras.overridable_config_cli(PRESETS)
    launch(jaxrl.impala, args, args.config, {})
