"""PPO: proximal policy optimization with the clipped surrogate (Schulman et al. 2017,
arXiv 1707.06347).

With `ratio = pi(a|s) / pi_old(a|s)` and advantages A by GAE(lambda), each of `num_epochs` passes
over the rollout minimizes, minibatch by minibatch (eq. 7 and 9),

    -min(ratio A, clip(ratio, 1 - eps, 1 + eps) A) + c_v (V - V_target)^2 / 2 - c_e entropy

with the value loss clipped alike if asked to, advantages normalized per minibatch, gradients
clipped by global norm and Adam's learning rate annealed, as in Huang et al. 2022, "The 37
implementation details of PPO". Truncated episodes bootstrap from their true last observation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import config as fields
from jaxrl.algos import actor_critic
from jaxrl.device_axis import SINGLE_DEVICE, Axis, axis_of
from jaxrl.networks import build, recurrent
from jaxrl.ops import normalization, optimizers, returns
from jaxrl.ops.minibatches import learn_in_epochs
from jaxrl.rollouts import pipelined
from jaxrl.rollouts.agent import Agent
from jaxrl.rollouts.rollout import episode_metrics
from jaxrl.rollouts.simulation import Simulation
from jaxrl.types import Algorithm, Array, Env, Inputs, Memory, Metrics, PyTree, Trajectory


@fields.config
class PPOConfig(build.NetworkConfig):
    """Hyperparameters of PPO. Plain fields are traced leaves; `static` ones shape the program."""

    learning_rate: float = 2.5e-4
    anneal_updates: float = 0
    """Updates over which the learning rate falls linearly to 0; 0 keeps it constant."""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.2
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    max_grad_norm: float = 0.5
    adam_eps: float = 1e-5
    target_kl: float | None = None
    """Stop the epochs of an update once the approximate KL divergence exceeds this."""
    num_steps: int = fields.static(128)
    """Steps of each environment in a rollout (T)."""
    num_epochs: int = fields.static(4)
    num_minibatches: int = fields.static(4)
    """Parts of a rollout in an epoch: of its transitions, or of its environments if the agent has
    a memory, which learns from whole sequences."""
    clip_value: bool = fields.static(False)
    """Clip the critic's change alike. Holds back values larger than `clip_epsilon`; meant for
    rewards of small scale, such as Atari's clipped ones."""
    normalize_advantages: bool = fields.static(True)
    normalize_observations: bool = fields.static(False)
    """By the running mean and variance of each element; of images, each pixel."""
    normalize_rewards: bool = fields.static(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        fields.check_bound(self, "max_grad_norm")
        fields.check_positive(self, "adam_eps", "clip_epsilon")
        if self.target_kl is not None:
            fields.check_positive(self, "target_kl")
        fields.check_not_negative(self, "learning_rate", "anneal_updates")
        fields.check_not_negative(self, "value_coef", "entropy_coef")
        fields.check_unit_interval(self, "gamma", "gae_lambda")
        fields.check_count(self, "num_steps", "num_epochs", "num_minibatches")
        fields.check_switch(self, "clip_value", "normalize_advantages")
        fields.check_switch(self, "normalize_observations", "normalize_rewards")


class PPOState(NamedTuple):
    """Everything PPO carries from update to update; arrays only."""

    params: PyTree
    opt_state: PyTree
    simulation: Simulation
    key: Array
    num_updates: Array
    obs_statistics: normalization.RunningStatistics | None
    reward_scale: normalization.RewardScale | None


class Batch(NamedTuple):
    """B sequences of L steps to learn from, leaves `[L, B, ...]`, and the memory before them.

    Without a memory each transition is a sequence of its own.
    """

    inputs: Inputs
    action: Array
    log_prob: Array
    value: Array
    advantage: Array
    target: Array
    valid: Array
    core: PyTree  # [1, B, ...]


Surrogate = Callable[[PPOConfig, Array, Array], Array]
"""`surrogate(config, ratio, advantage)`: what the policy maximizes, of each transition."""


def clipped_surrogate(config: PPOConfig, ratio: Array, advantage: Array) -> Array:
    """PPO's, eq. 7."""
    clipped_ratio = jnp.clip(ratio, 1 - config.clip_epsilon, 1 + config.clip_epsilon)
    return jnp.minimum(ratio * advantage, clipped_ratio * advantage)


def ppo(
    env: Env, network: nn.Module | None = None, surrogate: Surrogate = clipped_surrogate
) -> Algorithm:
    """PPO on `env`.

    Args:
      network: a Flax module, `obs [B, ...] -> (distribution, value [B])` or one with a memory
        (`jaxrl.networks.recurrent`); None builds one from the config.
      surrogate: in place of the clipped one, for variations of PPO, which then bear its name.
    """
    agent = Agent(env, network, build.actor_critic, build.find_actor_critic_problem)
    axis = axis_of(env)

    def init(config: PPOConfig, key: Array, simulation: Simulation | None = None) -> PPOState:
        check_sizes(config, env, agent.network_of(config))
        network_key, env_key, key = jax.random.split(key, 3)
        params, simulation = agent.start(
            config, network_key, env_key, simulation, actor_critic.no_extras(env)
        )
        obs_statistics = normalization.init_obs_statistics(
            env.observation_space, config.normalize_observations
        )
        reward_scale = (
            normalization.init_reward_scale(env.num_envs) if config.normalize_rewards else None
        )
        opt_state = optimizers.adam(config.adam_eps, config.max_grad_norm).init(params)
        return PPOState(
            params, opt_state, simulation, key, jnp.int32(0), obs_statistics, reward_scale
        )

    def update(config: PPOConfig, state: PPOState) -> tuple[PPOState, Metrics]:
        key, rollout_key, shuffle_key = jax.random.split(state.key, 3)
        unroll = partial(agent.unroll, config, obs_statistics=state.obs_statistics)
        behave = partial(unroll, state.params)

        def objective(params: PyTree, batch: Batch) -> tuple[Array, Metrics]:
            core = jax.tree.map(lambda x: x[0], batch.core)
            _, (distribution, value) = unroll(params, core, batch.inputs)
            return loss(config, distribution, value, batch, axis, surrogate)

        simulation, trajectory = actor_critic.collect(
            env, behave, state.simulation, rollout_key, config.num_steps
        )
        values = trajectory.extras.value
        if build.has_own_critic(agent.network_of(config)):
            # One batch after the rollout; the same values within it are then dead code.
            _, (_, values) = behave((), trajectory.inputs)
        last_value = actor_critic.bootstrap(behave, simulation)
        metrics = episode_metrics(env, simulation, trajectory)
        obs_statistics = normalization.update_obs_statistics(state.obs_statistics, trajectory, axis)
        reward_scale, trajectory = normalization.update_reward_scale(
            state.reward_scale, trajectory, config.gamma, axis
        )
        batch = targets(config, state.simulation.core, trajectory, values, last_value)
        if not recurrent.is_recurrent(agent.network_of(config)):
            # T * N sequences of one step, `[1, T * N, ...]`, from N of T steps.
            batch = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), batch)
        params, opt_state, losses = learn(
            config, objective, state, batch, axis.device_key(shuffle_key), axis
        )
        losses["policy_lag"] += losses["gradient_steps"] * pipelined.lag(env, config.num_steps)
        num_updates = state.num_updates + 1
        return PPOState(
            params, opt_state, simulation, key, num_updates, obs_statistics, reward_scale
        ), metrics | losses

    def act(
        config: PPOConfig, state: PPOState, memory: Any, obs: PyTree, key: Array, greedy: bool
    ) -> tuple[Memory, Array]:
        return actor_critic.act(agent, config, state, memory, obs, key, greedy)

    function = surrogate.func if isinstance(surrogate, partial) else surrogate
    name = "ppo" if surrogate is clipped_surrogate else getattr(function, "__name__", "own_ppo")
    make = partial(ppo, surrogate=surrogate)
    return Algorithm(
        init, update, act, env, network, name, PPOConfig, agent.initial_core, make=make
    )


def check_sizes(config: PPOConfig, env: Env, network: nn.Module) -> None:
    """Raise unless the rollout splits evenly into minibatches."""
    if recurrent.is_recurrent(network):
        size, product = env.num_envs, f"num_envs = {env.num_envs}"
    else:
        size = env.num_envs * config.num_steps
        product = f"num_envs * num_steps = {env.num_envs} * {config.num_steps} = {size}"
    if size % config.num_minibatches:
        where = f" on each of {axis_of(env).size} devices" if axis_of(env).size > 1 else ""
        minibatches = f"PPOConfig.num_minibatches = {config.num_minibatches}"
        raise ValueError(f"{product}{where} is not divisible by {minibatches}")


def targets(
    config: PPOConfig, core: PyTree, trajectory: Trajectory, values: Array, last_value: Array
) -> Batch:
    """Advantages and value targets of a rollout whose memory was `core` before it."""
    advantage = returns.generalized_advantages(
        trajectory.reward,
        values,
        last_value,
        trajectory.terminated,
        trajectory.truncated,
        config.gamma,
        config.gae_lambda,
    )
    return Batch(
        inputs=trajectory.inputs,
        action=trajectory.action,
        log_prob=trajectory.extras.log_prob,
        value=values,
        advantage=advantage,
        target=advantage + values,
        valid=trajectory.valid.astype(jnp.float32),
        core=recurrent.one_step(core),
    )


def learn(
    config: PPOConfig,
    objective: Callable[[PyTree, Batch], tuple[Array, Metrics]],
    state: PPOState,
    batch: Batch,
    key: Array,
    axis: Axis = SINGLE_DEVICE,
) -> tuple[PyTree, PyTree, Metrics]:
    """Parameters, optimizer state and mean losses after minibatch epochs over a rollout."""
    optimizer = optimizers.adam(config.adam_eps, config.max_grad_norm)
    learning_rate = optimizers.linear_decay(
        config.learning_rate, state.num_updates, config.anneal_updates
    )

    def step(learner: tuple[PyTree, PyTree], minibatch: Batch) -> tuple[Any, Metrics]:
        params, opt_state, losses = optimizers.gradient_step(
            optimizer, lambda params: objective(params, minibatch), *learner, learning_rate, axis
        )
        return (params, opt_state), losses

    def should_continue(losses: Metrics) -> Array | bool:
        return config.target_kl is None or ~(losses["approx_kl"] > config.target_kl)

    learner = (state.params, state.opt_state)
    sizes = (config.num_epochs, config.num_minibatches)
    learner, epochs, losses = learn_in_epochs(
        step, learner, batch, key, sizes, LOSSES, should_continue, axis
    )
    losses |= {"epochs": epochs, "learning_rate": jnp.asarray(learning_rate, jnp.float32)}
    count = epochs * config.num_minibatches
    return *learner, losses | {"gradient_steps": count, "policy_lag": (count - 1) / 2}


LOSSES = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")


def loss(
    config: PPOConfig,
    distribution: Any,
    value: Array,
    batch: Batch,
    axis: Axis = SINGLE_DEVICE,
    surrogate: Surrogate = clipped_surrogate,
) -> tuple[Array, Metrics]:
    """The surrogate's, value and entropy losses, over valid transitions."""
    total = axis.mean_count(batch.valid)

    def mean(x: Array) -> Array:
        return (x * batch.valid).sum() / total

    advantage = batch.advantage
    if config.normalize_advantages:
        centered = advantage - axis.mean(mean(advantage))
        advantage = centered * jax.lax.rsqrt(axis.mean(mean(centered**2)) + 1e-8)

    log_ratio = distribution.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    policy_loss = -mean(surrogate(config, ratio, advantage))

    error = (value - batch.target) ** 2
    if config.clip_value:
        change = jnp.clip(value - batch.value, -config.clip_epsilon, config.clip_epsilon)
        error = jnp.maximum(error, (batch.value + change - batch.target) ** 2)
    value_loss = 0.5 * mean(error)

    entropy = mean(distribution.entropy())
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    return loss, {
        "loss": loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": mean(ratio - 1 - log_ratio),
        "clip_fraction": mean(jnp.abs(ratio - 1) > config.clip_epsilon),
    }
