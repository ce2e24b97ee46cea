"""Every algorithm at its smallest, as compiled programs that tests share."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algos.q_learning import QLearningConfig
from jaxrl.networks import build
from jaxrl.training.compilation import train_chunk
from jaxrl.types import is_key

# A large epsilon: Adam and RMSProp divide by gradients that are rounding noise otherwise.
SMALL: dict[str, Any] = {
    "num_steps": 4, "hidden_sizes": (8,), "learning_rate": 0.05, "anneal_updates": 100
}  # fmt: skip
ADAM: dict[str, Any] = SMALL | {"adam_eps": 0.1}
RMSPROP: dict[str, Any] = SMALL | {
    "rmsprop_eps": 0.1, "rmsprop_decay": 0.99, "entropy_coef": 0.01
}  # fmt: skip
A2C: dict[str, Any] = RMSPROP | {"gae_lambda": 1.0}
IMPALA: dict[str, Any] = RMSPROP | {
    "trace_lambda": 1.0, "max_grad_norm": 40.0, "sum_losses": True
}  # fmt: skip
LSTM: dict[str, Any] = {"core": "lstm", "core_size": 8, "use_last_action_reward": True}
# The replay is full after 4 updates, the target network moves after 2.
REPLAY: dict[str, Any] = ADAM | {
    "replay_size": 32, "batch_size": 4, "learning_starts": 8, "target_period": 2,
    "num_gradient_steps": 1, "layer_norm": False,
}  # fmt: skip
ON_POLICY_PPO: dict[str, Any] = ADAM | {"num_minibatches": 2, "num_epochs": 2}
EXPLORING: dict[str, Any] = {"final_epsilon": 0.1, "exploration_steps": 40.0}

CONFIGS: dict[str, Any] = {
    "ppo": jaxrl.PPOConfig(**ON_POLICY_PPO),
    "ppo-gru": jaxrl.PPOConfig(**ON_POLICY_PPO | LSTM | {"core": "gru", "target_kl": 10.0}),
    "a2c": jaxrl.A2CConfig(**A2C),
    "a2c-lstm": jaxrl.A2CConfig(**A2C | LSTM | {"final_entropy_coef": 0.0, "log_eps": 1e-6}),
    "impala": jaxrl.ImpalaConfig(**IMPALA, lag=0),
    "impala-lstm": jaxrl.ImpalaConfig(**IMPALA | LSTM),
    "dqn": jaxrl.DQNConfig(**REPLAY | EXPLORING, n_step=1, double=False),
    "dqn-prioritized": jaxrl.DQNConfig(
        **REPLAY | EXPLORING, n_step=2, double=True, dueling=True, prioritized=True
    ),
    "pqn": jaxrl.PQNConfig(**ON_POLICY_PPO | EXPLORING, layer_norm=False),
    "pqn-lstm": jaxrl.PQNConfig(**ON_POLICY_PPO | EXPLORING | LSTM),
    "r2d2": jaxrl.R2D2Config(
        **REPLAY, core_size=8, burn_in=2, unroll_length=4, n_step=2, gamma=0.997, max_grad_norm=80.0
    ),
}
WITH_MEMORY = [name for name, config in CONFIGS.items() if config.core]


def few_in_every_run(*few: str, of: Iterable[str] = CONFIGS) -> Any:
    """Run a test for these names in every run, and for the others before a release."""
    names = [n if n in few else pytest.param(n, marks=pytest.mark.exhaustive) for n in of]
    return pytest.mark.parametrize("name", names)


@dataclasses.dataclass(frozen=True)
class Frames:
    """Breakout-MinAtar at twice the size, as if its planes were a stack of frames, in bytes."""

    planes: Any

    def __getattr__(self, name):
        return getattr(self.planes, name)

    @property
    def observation_space(self):
        height, width, planes = self.planes.observation_space.shape
        return jaxrl.Box((2 * height, 2 * width, planes), np.dtype(np.uint8), 0, 255)

    def init(self, key):
        return self._as_frames(*self.planes.init(key))

    def step(self, key, state, action):
        return self._as_frames(*self.planes.step(key, state, action))

    def _as_frames(self, state, timestep):
        obs = (255 * timestep.obs).astype(jnp.uint8).repeat(2, 1).repeat(2, 2)
        return state, timestep._replace(obs=obs)


@functools.cache
def algorithm(name, env_id="CartPole-v1", num_envs=2):
    frames = env_id == "frames"
    env = jaxrl.make("Breakout-MinAtar" if frames else env_id, num_envs=num_envs)
    return getattr(jaxrl, name.partition("-")[0])(Frames(env) if frames else env)


def network_of(algo, config):
    """Return the network that an algorithm builds from its config."""
    spaces = algo.env.observation_space, algo.env.action_space
    if isinstance(config, jaxrl.PQNConfig | QLearningConfig):
        return build.q_network(*spaces, config)
    return build.actor_critic(*spaces, config)


@functools.cache
def initializer(algo):
    return jax.jit(algo.init)


def start(name, key=0, config=None):
    key = jax.random.key(key) if isinstance(key, int) else key
    return initializer(algorithm(name))(config or CONFIGS[name], key)


train = jax.jit(jaxrl.train, static_argnums=(0, 3))


def learn(name, config, state, num_updates=10) -> tuple[Any, dict[str, np.ndarray]]:
    """Train by the program that runs use, on a copy of the state: the program takes its memory."""
    copy = jax.tree.map(jnp.copy, state)
    state, metrics = train_chunk(algorithm(name), config, copy, jnp.int32(num_updates))
    return state, {key: np.asarray(x)[:num_updates] for key, x in metrics.items()}


def without_keys(tree):
    """Return a tree whose random keys are numbers."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)


def as_numpy(tree):
    return [np.asarray(x) for x in jax.tree.leaves(without_keys(tree))]


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(as_numpy(a), as_numpy(b), strict=True))


def assert_close(a, b, **tolerance):
    for x, y in zip(as_numpy(a), as_numpy(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


def described(tree):
    """Return shapes and dtypes, also whether they are weak."""
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)
