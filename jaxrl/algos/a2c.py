"""A2C: synchronous n-step advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783).

With n-step returns `R_t = r_t + gamma r_{t+1} + ... + gamma^k V(s_{t+k})` inside a rollout of
`num_steps` (t_max), the loss of a transition is (algorithm S3)

    -log pi(a|s) (R - V) + c_v (R - V)^2 / 2 - beta entropy

Many environments are stepped together. A gradient step learns from all of them, or with
`num_minibatches` from some at a time: GA3C (Babaeizadeh et al. 2017, arXiv 1611.06256) takes one
agent's t_max transitions a step.
`gae_lambda` below 1, as by default, gives GAE's advantages A, and R = A + V (Schulman et al. 2016).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import checks
from jaxrl import config as fields
from jaxrl.algos import actor_critic, hyperparameters
from jaxrl.device_axis import SINGLE_DEVICE, Axis, axis_of
from jaxrl.networks import recurrent
from jaxrl.ops import minibatches, normalization, optimizers, returns
from jaxrl.ops.distributions import Categorical
from jaxrl.ops.masks import finite_where_invalid, masked_sum, zero_invalid
from jaxrl.rollouts.simulation import Simulation
from jaxrl.types import Algorithm, Array, Env, Metrics, PyTree, Trajectory


@fields.config
class A2CConfig(actor_critic.RMSPropConfig):
    """Hyperparameters of A2C. Plain fields are traced leaves; `static` ones shape the program."""

    gae_lambda: float = 0.95
    """lambda of GAE, in [0, 1]; 1 for n-step advantages (Schulman et al. 2016)."""
    final_entropy_coef: float | None = None
    """Value that `entropy_coef` reaches linearly after `anneal_updates`; None keeps it constant."""
    log_eps: float = 0.0
    """Use log(max(pi, log_eps)) for log pi in policy loss and entropy, as GA3C's code does (1e-6);
    Discrete actions only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.traced_fields(self, checks.NOT_NEGATIVE, "log_eps")
        if self.final_entropy_coef is not None:
            checks.traced_fields(self, checks.NOT_NEGATIVE, "final_entropy_coef")
        if self.final_entropy_coef is not None and fields.is_zero(self.anneal_updates):
            raise ValueError(
                f"A2CConfig.final_entropy_coef = {self.final_entropy_coef} is reached after "
                "anneal_updates, which is 0; set both"
            )
        checks.traced_fields(self, checks.UNIT_INTERVAL, "gae_lambda")


class A2CState(NamedTuple):
    """The arrays that A2C carries from update to update."""

    params: PyTree
    opt_state: PyTree
    simulation: Simulation
    key: Array
    num_updates: Array
    obs_statistics: normalization.ObsStatistics


class Batch(NamedTuple):
    """Rollouts of B environments to learn from."""

    trajectory: Trajectory  # leaves [T, B, ...]
    core: PyTree  # [1, B, ...] the memory before the rollout
    last_value: Array  # [1, B] the value after it, by the policy that acted


def a2c(env: Env, network: nn.Module | None = None) -> Algorithm:
    """Return A2C on `env`.

    Args:
      network: a Flax module, `obs [B, ...] -> (distribution, value [B])` or one with a memory
        (`jaxrl.networks.recurrent`); None builds one from the config.
    """
    agent, axis = actor_critic.agent_of(env, network), axis_of(env)

    def init(config: A2CConfig, key: Array, simulation: Simulation | None = None) -> A2CState:
        hyperparameters.check_split(config, env, by_env=True)
        params, simulation, key = actor_critic.start(agent, config, key, simulation)
        opt_state = actor_critic.rmsprop_of(config, 0).init(params)
        obs_statistics = hyperparameters.start_obs_statistics(config, env)
        return A2CState(params, opt_state, simulation, key, jnp.int32(0), obs_statistics)

    def update(config: A2CConfig, state: A2CState) -> tuple[A2CState, Metrics]:
        key, rollout_key = jax.random.split(state.key)
        apply = agent.apply(config, state.obs_statistics)
        # Rollout
        simulation, trajectory = actor_critic.collect(
            env, apply, state.params, state.simulation, rollout_key, config.num_steps
        )
        last_value = actor_critic.bootstrap(apply, state.params, simulation)

        # Advantages and learning
        def objective(params: PyTree, batch: Batch) -> tuple[Array, Metrics]:
            core, last_value = jax.tree.map(lambda x: x[0], (batch.core, batch.last_value))
            _, (distribution, value) = apply(params, core, batch.trajectory.inputs)
            advantage = advantages(
                config, batch.trajectory, jax.lax.stop_gradient(value), last_value
            )
            return loss(
                config, distribution, value, advantage, batch.trajectory, state.num_updates, axis
            )

        batch = Batch(trajectory, *recurrent.one_step((state.simulation.core, last_value)))
        (params, opt_state), losses = minibatches.learn_in_turn(
            objective, actor_critic.rmsprop_of(config, state.num_updates),
            (state.params, state.opt_state), batch, config.num_minibatches, axis,
        )  # fmt: skip
        obs_statistics = normalization.update_obs_statistics(state.obs_statistics, trajectory, axis)
        # Metrics
        metrics = actor_critic.metrics(
            env, config, state.num_updates, simulation, trajectory, axis.mean(losses),
            gradient_steps=config.num_minibatches,
        )  # fmt: skip
        return A2CState(
            params, opt_state, simulation, key, state.num_updates + 1, obs_statistics
        ), metrics

    act = partial(actor_critic.act, agent)
    return Algorithm(
        init, update, act, env, network, "a2c", A2CConfig, agent.initial_core, make=a2c
    )


def advantages(
    config: A2CConfig, trajectory: Trajectory, values: Array, last_value: Array
) -> Array:
    """Return n-step (or GAE) advantages `[T, N]`.

    Args:
      values: `[T, N]`, of the rollout's observations; last_value: `[N]`, of those after it.
    """
    return returns.generalized_advantages(
        trajectory.reward, values, last_value, trajectory.terminated, trajectory.truncated,
        config.gamma, config.gae_lambda,
    )  # fmt: skip


def loss(
    config: A2CConfig,
    distribution: Any,
    value: Array,
    advantage: Array,
    trajectory: Trajectory,
    num_updates: Array,
    axis: Axis = SINGLE_DEVICE,
) -> tuple[Array, Metrics]:
    """Return the loss of a rollout over its valid transitions, and its parts; all `[T, N]`."""
    valid = trajectory.valid
    count = axis.mean_count(valid.astype(jnp.float32))
    total = jnp.float32(1 / axis.size) if config.sum_losses else count

    def reduce(x: Array) -> Array:
        return masked_sum(x, valid) / total

    distribution = finite_where_invalid(distribution, valid)
    value, advantage = zero_invalid((value, advantage), valid)
    if isinstance(distribution, Categorical):
        log_prob, entropy = bounded(distribution, trajectory.action, config.log_eps)
    else:
        log_prob, entropy = distribution.log_prob(trajectory.action), distribution.entropy()
    policy_loss = -reduce(log_prob * advantage)  # algorithm S3
    # The target R = A + V(s), so the error R - V is the advantage, at the current value.
    target = advantage + jax.lax.stop_gradient(value)
    value_loss = 0.5 * reduce((target - value) ** 2)
    final = config.entropy_coef if config.final_entropy_coef is None else config.final_entropy_coef
    entropy_coef = optimizers.linear_schedule(
        config.entropy_coef, final, num_updates, config.anneal_updates
    )
    entropy = reduce(entropy)
    loss = policy_loss + config.value_coef * value_loss - entropy_coef * entropy
    return loss, {
        "loss": loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy * total / count,
        "entropy_coef": entropy_coef,
    }


def bounded(
    distribution: Categorical, action: Array, log_eps: Array | float
) -> tuple[Array, Array]:
    """Return `log max(pi(a|s), log_eps)` and `-sum pi log max(pi, log_eps)`."""
    log_probs = distribution.log_probs()
    log_bounded = jnp.maximum(log_probs, jnp.log(log_eps))  # log 0 = -inf bounds nothing
    chosen = jax.nn.one_hot(action, log_probs.shape[-1], dtype=log_probs.dtype)
    return (log_bounded * chosen).sum(-1), -(jnp.exp(log_probs) * log_bounded).sum(-1)
