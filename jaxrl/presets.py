"""Settings to start from, by algorithm and name: data that `jaxrl train` and studies read.

Presets that bear the name of a paper or of a code have its settings. The pages of
docs/algorithms compare them line by line, and `tests/test_presets.py` keeps the values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxrl.algos.a2c import A2CConfig
from jaxrl.algos.dqn import DQNConfig
from jaxrl.algos.impala import ImpalaConfig
from jaxrl.algos.ppo import PPOConfig
from jaxrl.algos.pqn import PQNConfig
from jaxrl.algos.r2d2 import R2D2Config

ATARI_OPTIONS: dict[str, Any] = {
    "episodic_life": True, "reward_clip": True, "repeat_action_probability": 0.0
}  # fmt: skip
"""Options of Atari that presets share: lives as episodes, signs of rewards."""


class Preset(NamedTuple):
    """An environment, a number of steps and a config that go together."""

    description: str
    """The task, and where the settings come from."""
    env_id: str
    total_steps: int
    """Environment steps over all environments."""
    num_envs: int
    config: Any
    env_options: Mapping[str, Any] = MappingProxyType({})
    """Options of the environment; for envpool's Atari those beside `ATARI_OPTIONS`."""
    anneal: bool = True
    """Whether the learning rate falls linearly to 0 over the run."""
    atari_flags: dict[str, bool | float] | None = None
    """Values that differ from `ATARI_OPTIONS`; None if not envpool's Atari."""

    @property
    def options(self) -> dict[str, Any]:
        """All options: `jaxrl.make(env_id, num_envs, **options)` makes the environments."""
        of_atari = {} if self.atari_flags is None else ATARI_OPTIONS | self.atari_flags
        return of_atari | dict(self.env_options)


DEFAULT_PRESET = "cartpole"
"""The one that every algorithm has, and that takes seconds."""

PPO_FOR_ATARI = PPOConfig(
    learning_rate=2.5e-4, num_steps=128, num_minibatches=4, clip_epsilon=0.1, clip_value=True
)
"""Huang et al. 2022, "The 37 implementation details of PPO": the Nature CNN on 84x84x4 frames."""

PPO_FOR_MUJOCO = PPOConfig(
    learning_rate=3e-4,
    num_steps=256,
    num_epochs=10,
    num_minibatches=32,
    entropy_coef=0.0,
    clip_value=True,
    normalize_observations=True,
    normalize_rewards=True,
)
"""Huang et al. 2022 for continuous control, but with 8 environments instead of one."""

_CLEANBA: dict[str, Any] = {
    "learning_rate": 6e-4,
    "entropy_coef": 0.01,
    "max_grad_norm": 40.0,
    "rmsprop_decay": 0.99,
    "rmsprop_eps": 0.01,
    "eps_inside_root": False,
    "num_steps": 20,
    "sum_losses": True,
}
"""Optimizer, losses and rollouts of Huang et al. 2023, "Cleanba", for A2C and IMPALA."""

# fmt: off
_PPO = {
    "cartpole": Preset(
        "classic control with discrete actions", "CartPole-v1", 500_000, 4,
        PPOConfig(learning_rate=2.5e-3, num_steps=128, num_minibatches=4),
    ),
    "pendulum": Preset(
        "classic control with continuous actions and rewards of large scale", "Pendulum-v1",
        1_000_000, 8,
        PPOConfig(
            learning_rate=3e-4, num_steps=128, gamma=0.9, entropy_coef=0.0, num_epochs=10,
            num_minibatches=8, normalize_rewards=True, activation="relu",
        ),
    ),
    "minatar": Preset(
        "MinAtar with a CNN", "Breakout-MinAtar", 10_000_000, 64,
        PPOConfig(
            learning_rate=2e-3, num_steps=128, num_epochs=2, num_minibatches=128,
            torso="minatar_cnn",
        ),
    ),
    "huang": Preset(
        "Atari through envpool; Huang et al. 2022", "Pong-v5", 10_000_000, 8, PPO_FOR_ATARI,
        atari_flags={},
    ),
    # A twentieth of the computation. Each pixel is normalized by its own statistics, since moving
    # objects change the brightness of such small pictures by a hundredth only.
    "laptop": Preset(
        "Atari on 42x42 pictures with GA3C's small network: half an hour of one core", "Pong-v5",
        2_000_000, 8, PPO_FOR_ATARI.replace(torso="ga3c_cnn", normalize_observations=True),
        env_options={"img_height": 42, "img_width": 42}, atari_flags={},
    ),
    "mujoco": Preset(
        "continuous control through envpool; Huang et al. 2022", "envpool/HalfCheetah-v4",
        1_000_000, 8, PPO_FOR_MUJOCO,
    ),
    # Stable-Baselines3's zoo, but with a higher learning rate that whole runs chose, annealed, and
    # half the weight of the value loss: the zoo's loss has no half.
    "halfcheetah": Preset(
        "HalfCheetah through envpool, with wide networks and small first actions",
        "envpool/HalfCheetah-v4", 1_000_000, 8,
        PPOConfig(
            learning_rate=1e-4, num_steps=64, num_minibatches=8, num_epochs=20, gamma=0.98,
            gae_lambda=0.92, clip_epsilon=0.1, value_coef=0.58, entropy_coef=0.0004,
            max_grad_norm=0.8, hidden_sizes=(256, 256), activation="relu", initial_std=0.135,
            normalize_observations=True, normalize_rewards=True,
        ),
    ),
    "vizdoom": Preset(
        "health packs in a Doom room, with four frames and a small network", "envpool/D1Basic-v1",
        300_000, 16,
        PPOConfig(
            learning_rate=5e-4, num_steps=64, num_minibatches=4, torso="ga3c_cnn",
            normalize_rewards=True,
        ),
    ),
    "vizdoom-memory": Preset(
        "Doom with one frame and an LSTM, which must remember what is behind the agent",
        "envpool/HealthGathering-v1", 300_000, 16,
        PPOConfig(
            learning_rate=5e-4, num_steps=64, num_minibatches=4, torso="ga3c_cnn", core="lstm",
            normalize_rewards=True,
        ),
        env_options={"stack_num": 1},
    ),
    "football": Preset(
        "Google Research Football's academy: score at an empty goal",
        "envpool/gfootball/academy_empty_goal_close-v1", 200_000, 8,
        PPOConfig(
            learning_rate=5e-4, num_steps=128, num_minibatches=4, gamma=0.993, clip_epsilon=0.1,
            torso="ga3c_cnn",
        ),
    ),
    "tetris": Preset(
        "Jumanji's Tetris, with a mask of the actions that fit", "envpool/Jumanji/Tetris-v0",
        5_000_000, 64,
        PPOConfig(
            learning_rate=5e-4, num_steps=64, num_minibatches=8, hidden_sizes=(128, 64),
            activation="relu", normalize_rewards=True,
        ),
    ),
    "procgen": Preset(
        "Procgen's levels; envpool 1.2.5 needs Debian's packages libqt5gui5 and libqt5core5a",
        "envpool/CoinrunEasy-v0", 5_000_000, 64,
        PPOConfig(
            learning_rate=5e-4, num_steps=256, gamma=0.999, num_epochs=3, num_minibatches=8,
            torso="ga3c_cnn", normalize_rewards=True,
        ),
    ),
    "lunarlander": Preset(
        "Box2D in Gymnasium's processes: land between the flags", "gymnasium/LunarLander-v3",
        1_000_000, 16,
        PPOConfig(
            learning_rate=1e-3, gamma=0.999, gae_lambda=0.98, num_steps=256, num_minibatches=32
        ),
    ),
    "gymnasium-mujoco": Preset(
        "continuous control in Gymnasium's processes; Huang et al. 2022",
        "gymnasium/HalfCheetah-v5", 1_000_000, 8, PPO_FOR_MUJOCO,
    ),
    "gymnasium-atari": Preset(
        "Atari through ale-py; Huang et al. 2022", "gymnasium/ALE/Pong-v5", 10_000_000, 8,
        PPO_FOR_ATARI,
        env_options=ATARI_OPTIONS,
    ),
    "nes-tetris": Preset(
        "NES Tetris from pixels; experiments/nes_tetris.py says what it needs",
        "gymnasium/nes_tetris:nes_tetris", 1_000_000, 8,
        PPOConfig(
            learning_rate=2.5e-4, num_steps=128, num_minibatches=4, torso="ga3c_cnn",
            normalize_rewards=True,
        ),
    ),
}

_A2C = {
    "cartpole": Preset("classic control", "CartPole-v1", 500_000, 16, A2CConfig()),
    "minatar": Preset(
        "MinAtar with a CNN: gradient steps on 32 transitions", "Breakout-MinAtar", 10_000_000, 16,
        A2CConfig(
            learning_rate=4e-3, entropy_coef=0.03, rmsprop_decay=0.99, num_minibatches=8,
            torso="minatar_cnn",
        ),
    ),
    # A gradient step on the 5 transitions of each agent. Losses are summed, gradients not clipped,
    # TensorFlow's RMSProp has its epsilon of 0.1 inside the root. Gym's PongDeterministic-v0 has
    # sticky actions.
    "ga3c": Preset(
        "Atari through envpool; GA3C, Babaeizadeh et al. 2017", "Pong-v5", 10_000_000, 32,
        A2CConfig(
            torso="ga3c_cnn", learning_rate=3e-4, gae_lambda=1.0, value_coef=1.0,
            entropy_coef=0.01, max_grad_norm=math.inf, rmsprop_decay=0.99, rmsprop_eps=0.1,
            rmsprop_initial=1.0, log_eps=1e-6, num_steps=5, num_minibatches=32, sum_losses=True,
        ),
        env_options={"noop_max": 1, "use_fire_reset": False}, anneal=False,
        atari_flags={"episodic_life": False, "repeat_action_probability": 0.25},
    ),
    # Baselines' value loss has no half, so its weight of 0.5 is 1 here.
    "baselines": Preset(
        "Atari through envpool; OpenAI Baselines, Dhariwal et al. 2017", "Pong-v5", 10_000_000, 16,
        A2CConfig(
            torso="nature_cnn", learning_rate=7e-4, gae_lambda=1.0, value_coef=1.0,
            entropy_coef=0.01, rmsprop_decay=0.99, rmsprop_initial=1.0, num_steps=5,
        ),
        atari_flags={},
    ),
    # Cleanba's optimizer and losses, as in IMPALA's `laptop`.
    "laptop": Preset(
        "Atari on 42x42 pictures with GA3C's small network: two to three hours of a core",
        "Pong-v5",
        10_000_000, 32,
        A2CConfig(
            **_CLEANBA, torso="ga3c_cnn", gae_lambda=1.0, num_minibatches=2,
            normalize_observations=True,
        ),
        env_options={"img_height": 42, "img_width": 42}, atari_flags={},
    ),
}

_IMPALA = {
    "cartpole": Preset("classic control", "CartPole-v1", 500_000, 16, ImpalaConfig()),
    "minatar": Preset(
        "MinAtar with a CNN: gradient steps on 40 transitions", "Breakout-MinAtar", 10_000_000, 16,
        ImpalaConfig(
            learning_rate=8e-3, entropy_coef=0.03, rmsprop_decay=0.99, num_steps=20,
            num_minibatches=8, torso="minatar_cnn",
        ),
    ),
    # Two threads of 64 environments, 4 gradient steps on 32 of them each.
    "atari": Preset(
        "Atari through envpool; Cleanba, Huang et al. 2023: 128 x 20 steps, the deep ResNet",
        "Pong-v5", 50_000_000, 128,
        ImpalaConfig(
            **_CLEANBA, torso="impala_resnet", trace_lambda=1.0, num_minibatches=4,
        ),
        env_options={"full_action_space": True, "noop_max": 1},
        atari_flags={"episodic_life": False, "repeat_action_probability": 0.25},
    ),
    # Cleanba's optimizer and losses, on a quarter of its environments. Pictures as in PPO's.
    "laptop": Preset(
        "Atari on 42x42 pictures with GA3C's small network: two hours of one core", "Pong-v5",
        10_000_000, 32,
        ImpalaConfig(
            **_CLEANBA, torso="ga3c_cnn", trace_lambda=1.0, num_minibatches=2,
            normalize_observations=True,
        ),
        env_options={"img_height": 42, "img_width": 42}, atari_flags={},
    ),
}

_DQN = {
    "cartpole": Preset("classic control", "CartPole-v1", 500_000, 8, DQNConfig()),
    "minatar": Preset(
        "MinAtar with a CNN", "Breakout-MinAtar", 2_000_000, 16,
        DQNConfig(
            learning_rate=2.5e-4, exploration_steps=200_000, learning_starts=5_000,
            target_period=250, batch_size=32, replay_size=100_000, torso="minatar_cnn",
        ),
    ),
    "atari": Preset(
        "Atari through envpool; CleanRL: a replay of a million frames, each stored once (7 GB)",
        "Pong-v5", 10_000_000, 1,
        DQNConfig(
            learning_rate=1e-4, exploration_steps=1e6, learning_starts=80_000, target_period=250,
            num_steps=4, num_gradient_steps=1, batch_size=32, n_step=1, double=False,
            torso="nature_cnn", layer_norm=False, frame_stack=4, max_grad_norm=math.inf,
            huber=False,
        ),
        anneal=False, atari_flags={},
    ),
    # Pictures as in PPO's. The replay of 200,000 frames takes 350 MB.
    "laptop": Preset(
        "Atari on 42x42 pictures with a small network for them: 100 minutes of a core",
        "Pong-v5", 1_000_000, 8,
        DQNConfig(
            learning_rate=2.5e-4, adam_eps=1e-5, exploration_steps=100_000, learning_starts=10_000,
            target_period=250, batch_size=32, replay_size=200_000, torso="ga3c_cnn_42",
            frame_stack=4, max_grad_norm=math.inf, normalize_observations=True,
        ),
        env_options={"img_height": 42, "img_width": 42}, anneal=False, atari_flags={},
    ),
}

# Gallici et al. 2024's code, purejaxql.
_PQN = {
    "cartpole": Preset(
        "classic control; Gallici et al. 2024's code", "CartPole-v1", 500_000, 32,
        PQNConfig(
            learning_rate=1e-4, adam_eps=1e-8, trace_lambda=0.95, reward_scale=0.1,
            final_epsilon=0.2, exploration_steps=100_000, num_steps=64, num_epochs=4,
            num_minibatches=16, hidden_sizes=(256, 256), activation="relu",
        ),
    ),
    "minatar": Preset(
        "MinAtar with a CNN; Gallici et al. 2024's code", "Breakout-MinAtar", 10_000_000, 128,
        PQNConfig(
            learning_rate=5e-4, adam_eps=1e-8, exploration_steps=1_000_000, num_epochs=2,
            num_minibatches=32, torso="minatar_cnn",
        ),
    ),
    "atari": Preset(
        "Atari through envpool; Gallici et al. 2024's code", "Pong-v5", 50_000_000, 128,
        PQNConfig(
            learning_rate=2.5e-4, adam_eps=1e-8, final_epsilon=0.001, exploration_steps=5_000_000,
            num_epochs=2, num_minibatches=32, torso="nature_cnn",
        ),
        anneal=False, atari_flags={},
    ),
    # The minibatches of `atari` for a quarter of its environments. Pictures as in PPO's.
    "laptop": Preset(
        "Atari on 42x42 pictures with a small network for them: two hours of one core",
        "Pong-v5", 5_000_000, 32,
        PQNConfig(
            learning_rate=2.5e-4, adam_eps=1e-8, final_epsilon=0.001, exploration_steps=500_000,
            num_epochs=2, num_minibatches=8, torso="ga3c_cnn_42", normalize_observations=True,
        ),
        env_options={"img_height": 42, "img_width": 42}, atari_flags={},
    ),
}

_R2D2 = {
    "cartpole": Preset("classic control", "CartPole-v1", 1_000_000, 16, R2D2Config()),
    "minatar": Preset(
        "MinAtar with a CNN and an LSTM", "Breakout-MinAtar", 2_000_000, 16,
        R2D2Config(
            core_size=128, learning_rate=5e-4, adam_eps=1e-5, num_gradient_steps=2,
            learning_starts=10_000, target_period=200, num_steps=10, burn_in=5, unroll_length=15,
            n_step=3, batch_size=32, replay_size=100_000, torso="minatar_cnn", hidden_sizes=(128,),
            activation="relu", layer_norm=True,
        ),
    ),
    # SEED RL's settings are those of its script for Atari. A step is learned from 0.75 times:
    # 3 * 64 * 80 / (256 * 80). The target network is copied every 833 * 3 gradient steps. The value
    # rescaling replaces the clipping of rewards.
    "atari": Preset(
        "Atari through envpool; SEED RL, Espeholt et al. 2020: replays 40 + 80 steps (7 GB)",
        "Pong-v5", 200_000_000, 256,
        R2D2Config(
            torso="nature_cnn", layer_norm=False, core_size=512, learning_rate=1e-4,
            adam_eps=1e-3, max_grad_norm=80.0, gamma=0.997, frame_stack=4, num_steps=80, burn_in=40,
            unroll_length=80, num_gradient_steps=3, target_period=833, learning_starts=400_000,
        ),
        env_options={
            "full_action_space": True, "use_fire_reset": False, "use_inter_area_resize": False,
        },
        anneal=False,
        atari_flags={"episodic_life": False, "reward_clip": False},
    ),
}

# fmt: on

PRESETS = {
    "ppo": _PPO | {"atari": _PPO["huang"]},
    "a2c": _A2C | {"atari": _A2C["ga3c"]},
    "impala": _IMPALA,
    "dqn": _DQN,
    "pqn": _PQN,
    "r2d2": _R2D2,
}
"""Presets by algorithm and name."""
