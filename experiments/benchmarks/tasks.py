"""The tasks on which PPO is timed: sizes and settings that jaxrl and its peers share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jaxrl
from jaxrl.presets import PPO_FOR_ATARI

ATARI = {"episodic_life": True, "reward_clip": True}


@dataclass(frozen=True)
class Task:
    """An environment, sizes and a config."""

    env_id: str
    num_envs: int
    config: jaxrl.PPOConfig
    peers: tuple[str, ...]
    """Names in `peers.PEERS`."""
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def steps(self) -> int:
        """Return the environment steps of one update."""
        return self.num_envs * self.config.num_steps

    def make(self) -> jaxrl.Env:
        """Return the environments."""
        return jaxrl.make(self.env_id, num_envs=self.num_envs, **dict(self.options))

    def sizes(self) -> str:
        """Return the sizes as text."""
        c = self.config
        return (
            f"{self.num_envs} x {c.num_steps}, {c.num_epochs} epochs, "
            f"{c.num_minibatches} minibatches"
        )


# rejax clips the value loss, and has Adam's eps of 1e-8 and swish or tanh; so jaxrl does the same.
SHARED = jaxrl.PPOConfig(
    learning_rate=2.5e-4,
    num_steps=128,
    num_minibatches=4,
    adam_eps=1e-8,
    clip_value=True,
    torso="mlp",
    hidden_sizes=(64, 64),
    activation="tanh",
)
TASKS = {
    "cartpole": Task("gymnax/CartPole-v1", 4, SHARED, ("rejax", "Stable-Baselines3")),
    "breakout": Task("gymnax/Breakout-MinAtar", 64, SHARED.replace(num_minibatches=8), ("rejax",)),
    "pong": Task(
        "envpool/Pong-v5",
        8,
        PPO_FOR_ATARI.replace(torso="nature_cnn"),
        ("PyTorch", "PyTorch, channels last"),
        tuple(ATARI.items()),
    ),
}


def small(task: Task) -> Task:
    """Return the task at the sizes of a smoke test."""
    config = task.config.replace(num_steps=8, num_epochs=1, num_minibatches=2)
    if config.torso == "nature_cnn":
        config = config.replace(torso="ga3c_cnn")
    return dataclasses.replace(task, num_envs=2, config=config)
