"""Peers of jaxrl at the same sizes: PPO of other libraries.

Stable-Baselines3's PPO steps Gymnasium's CartPole in Python, one environment after another, with
its own networks of the same sizes, on one thread; two are no faster.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import gymnax
import jax
from gymnax.wrappers import LegacyStepAPIWrapper

from jaxrl.networks import build
from tasks import Task


class Learner(Protocol):
    """An agent in training; a call measures it once and returns its valid steps a second."""

    @property
    def num_parameters(self) -> int: ...

    @property
    def compile_seconds(self) -> float | None: ...

    def __call__(self) -> float: ...


class Peer(NamedTuple):
    """Another library's PPO, and the command that installs it."""

    make: Callable[[Task, int], Learner]
    """`make(task, updates)`, with the number of updates of one measurement."""
    package: str
    install: str

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


class CopyableEnv(LegacyStepAPIWrapper):
    """gymnax's wrapper with a copy, since rejax copies its configuration."""

    def __deepcopy__(self, memo: dict[int, Any]) -> CopyableEnv:
        return self


class Rejax:
    """rejax's PPO with the task's sizes and settings, evaluation off.

    Args:
      agents: the number of agents under `vmap`; None for one agent without it.
    """

    def __init__(self, task: Task, updates: int, agents: int | None = None):
        rejax: Any = importlib.import_module("rejax")

        config = task.config
        env, env_params = gymnax.make(task.env_id.removeprefix("gymnax/"))
        steps = updates * task.steps
        algo = rejax.PPO.create(
            env=CopyableEnv(env),
            env_params=env_params,
            agent_kwargs={"activation": config.activation, "hidden_layer_sizes": (64, 64)},
            num_envs=task.num_envs,
            num_steps=config.num_steps,
            num_epochs=config.num_epochs,
            num_minibatches=config.num_minibatches,
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            clip_eps=config.clip_epsilon,
            vf_coef=config.value_coef,
            ent_coef=config.entropy_coef,
            total_timesteps=steps,
            eval_freq=steps,
            skip_initial_evaluation=True,
        ).replace(eval_callback=lambda algo, state, key: None)
        self.steps = steps * (agents or 1)
        init, train = algo.init_state, lambda state: algo.train(train_state=state)[0]
        key = jax.random.PRNGKey(0)
        if agents is not None:
            init, train, key = jax.vmap(init), jax.vmap(train), jax.random.split(key, agents)
        self.state = jax.jit(init)(key)
        began = time.perf_counter()
        self.program = jax.jit(train, donate_argnums=0).lower(self.state).compile()
        self.compile_seconds = time.perf_counter() - began
        self.num_parameters = build.num_parameters(
            (self.state.actor_ts.params, self.state.critic_ts.params)
        )

    def __call__(self) -> float:
        began = time.perf_counter()
        self.state = jax.block_until_ready(self.program(self.state))
        return self.steps / (time.perf_counter() - began)


class StableBaselines3:
    """Stable-Baselines3's PPO with the task's sizes and settings."""

    compile_seconds = None

    def __init__(self, task: Task, updates: int):
        sb3: Any = importlib.import_module("stable_baselines3")
        env_util: Any = importlib.import_module("stable_baselines3.common.env_util")
        self.torch: Any = importlib.import_module("torch")
        config = task.config
        self.model = sb3.PPO(
            "MlpPolicy",
            env_util.make_vec_env(task.env_id.removeprefix("gymnax/"), n_envs=task.num_envs),
            learning_rate=config.learning_rate,
            n_steps=config.num_steps,
            batch_size=task.steps // config.num_minibatches,
            n_epochs=config.num_epochs,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            clip_range=config.clip_epsilon,
            clip_range_vf=config.clip_epsilon,
            ent_coef=config.entropy_coef,
            vf_coef=config.value_coef,
            max_grad_norm=config.max_grad_norm,
            policy_kwargs={"net_arch": list(config.hidden_sizes or ())},
            device="cpu",
        )
        self.num_parameters = sum(x.numel() for x in self.model.policy.parameters())
        self.steps = task.steps * min(updates, 4)

    def __call__(self) -> float:
        self.torch.set_num_threads(1)
        began = time.perf_counter()
        self.model.learn(self.steps, reset_num_timesteps=False)
        return self.steps / (time.perf_counter() - began)


def _pytorch(task: Task, updates: int, channels_last: bool) -> Learner:
    del updates  # one update takes seconds
    import envpool

    name = task.env_id.removeprefix("envpool/")
    envs = envpool.make(
        name, env_type="gymnasium", num_envs=task.num_envs, seed=1, **dict(task.options)
    )
    return importlib.import_module("torch_ppo").TorchPPO(task, envs, channels_last=channels_last)


PEERS = {
    "rejax": Peer(Rejax, "rejax", "pip install rejax==0.1.3"),
    "Stable-Baselines3": Peer(
        StableBaselines3, "stable_baselines3", "pip install torch stable-baselines3"
    ),
    "PyTorch": Peer(partial(_pytorch, channels_last=False), "torch", "pip install torch"),
    "PyTorch, channels last": Peer(
        partial(_pytorch, channels_last=True), "torch", "pip install torch"
    ),
}
