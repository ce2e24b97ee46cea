"""IMPALA: importance weighted actor-learner (Espeholt et al. 2018, arXiv 1802.01561).

Actors follow parameters mu that lag the learner's pi by `lag` updates. V-trace corrects for it:
with its targets v_s and importance weights rho_s (`returns.vtrace`), the loss of a transition is
(section 4.2)

    -rho_s log pi(a_s|x_s) (r_s + gamma v_{s+1} - V(x_s)) + c_v (v_s - V(x_s))^2 / 2 - c_e entropy

Here acting and learning are one program, so the lag is a number that the user sets, not an
accident of queues; 0 is on policy. With a memory (`core="lstm"`), the learner unrolls it from the
state that the actor had at the start of the rollout, as the paper does.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import config as fields
from jaxrl.algos import actor_critic
from jaxrl.device_axis import SINGLE_DEVICE, Axis, axis_of
from jaxrl.networks import build
from jaxrl.ops import normalization, optimizers, returns
from jaxrl.rollouts import pipelined
from jaxrl.rollouts.agent import Agent
from jaxrl.rollouts.rollout import episode_metrics
from jaxrl.rollouts.simulation import Simulation
from jaxrl.types import Algorithm, Array, Env, Memory, Metrics, PyTree, Trajectory


@fields.config
class ImpalaConfig(build.NetworkConfig):
    """Hyperparameters of IMPALA; `static` fields shape the program, others are traced."""

    learning_rate: float = 6e-4
    anneal_updates: float = 0
    """Updates over which the learning rate falls linearly to 0; 0 keeps it constant."""
    gamma: float = 0.99
    trace_lambda: float = 1.0
    rho_bar: float = 1.0
    """Truncates the importance weights of the temporal differences."""
    c_bar: float = 1.0
    """Truncates those of the traces."""
    policy_rho_bar: float = 1.0
    """Truncates those of the policy gradient."""
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    max_grad_norm: float = 40.0
    rmsprop_decay: float = 0.99
    rmsprop_eps: float = 0.01
    num_steps: int = fields.static(20)
    """Steps of each environment in a rollout (n, the unroll length)."""
    lag: int = fields.static(1)
    """Updates by which the actors' parameters lag the learner's."""
    off_policy_correction: bool = fields.static(True)
    """False takes every importance weight for 1, to see what V-trace is for."""
    sum_losses: bool = fields.static(True)
    """Sum the losses of a batch, as the paper does, instead of averaging them."""
    normalize_observations: bool = fields.static(False)
    """By the running mean and variance of each element; of images, each pixel."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fields.check_bound(self, "max_grad_norm", "rho_bar", "c_bar", "policy_rho_bar")
        fields.check_positive(self, "rmsprop_eps")
        fields.check_not_negative(self, "learning_rate", "anneal_updates")
        fields.check_not_negative(self, "value_coef", "entropy_coef")
        fields.check_unit_interval(self, "gamma", "trace_lambda", "rmsprop_decay")
        fields.check_count(self, "num_steps")
        fields.check_count(self, "lag", least=0)
        fields.check_switch(self, "off_policy_correction", "sum_losses", "normalize_observations")


class ImpalaState(NamedTuple):
    """Everything IMPALA carries from update to update; arrays only."""

    params: PyTree
    past_params: PyTree  # [lag, ...]: the learner's before each of the last `lag` updates, a ring;
    # None for no lag
    opt_state: PyTree
    simulation: Simulation
    key: Array
    num_updates: Array
    obs_statistics: normalization.RunningStatistics | None


def impala(env: Env, network: nn.Module | None = None) -> Algorithm:
    """IMPALA on `env`.

    Args:
      network: a Flax module, `obs [B, ...] -> (distribution, value [B])` or one with a memory
        (`jaxrl.networks.recurrent`); None builds one from the config.
    """
    agent = Agent(env, network, build.actor_critic, build.find_actor_critic_problem)
    axis = axis_of(env)

    def optimizer_of(config: ImpalaConfig) -> Any:
        return optimizers.rmsprop(config.rmsprop_decay, config.rmsprop_eps, config.max_grad_norm)

    def init(config: ImpalaConfig, key: Array, simulation: Simulation | None = None) -> ImpalaState:
        network_key, env_key, key = jax.random.split(key, 3)
        params, simulation = agent.start(
            config, network_key, env_key, simulation, actor_critic.no_extras(env)
        )
        past = None
        if config.lag:
            past = jax.tree.map(lambda x: jnp.broadcast_to(x, (config.lag, *x.shape)), params)
        obs_statistics = normalization.init_obs_statistics(
            env.observation_space, config.normalize_observations
        )
        opt_state = optimizer_of(config).init(params)
        return ImpalaState(params, past, opt_state, simulation, key, jnp.int32(0), obs_statistics)

    def update(config: ImpalaConfig, state: ImpalaState) -> tuple[ImpalaState, Metrics]:
        key, rollout_key = jax.random.split(state.key)
        actor_params, past_params = lagged_params(config, state)
        unroll = partial(agent.unroll, config, obs_statistics=state.obs_statistics)
        behave = partial(unroll, actor_params)
        simulation, trajectory = actor_critic.collect(
            env, behave, state.simulation, rollout_key, config.num_steps
        )

        def objective(params: PyTree) -> tuple[Array, Metrics]:
            evaluate = partial(unroll, params)
            core, (distribution, values) = evaluate(state.simulation.core, trajectory.inputs)
            after = simulation._replace(core=jax.lax.stop_gradient(core))
            last_value = actor_critic.bootstrap(evaluate, after)
            return loss(config, distribution, values, last_value, trajectory, axis)

        learning_rate = optimizers.linear_decay(
            config.learning_rate, state.num_updates, config.anneal_updates
        )
        params, opt_state, losses = optimizers.gradient_step(
            optimizer_of(config), objective, state.params, state.opt_state, learning_rate, axis
        )
        metrics = episode_metrics(env, simulation, trajectory) | axis.mean(losses)
        metrics["learning_rate"] = jnp.asarray(learning_rate, jnp.float32)
        policy_lag = jnp.minimum(state.num_updates, config.lag).astype(jnp.float32)
        policy_lag += pipelined.lag(env, config.num_steps)
        metrics |= {"gradient_steps": jnp.int32(1), "policy_lag": policy_lag}
        obs_statistics = normalization.update_obs_statistics(state.obs_statistics, trajectory, axis)
        num_updates = state.num_updates + 1
        return ImpalaState(
            params, past_params, opt_state, simulation, key, num_updates, obs_statistics
        ), metrics

    def act(
        config: ImpalaConfig, state: ImpalaState, memory: Any, obs: PyTree, key: Array, greedy: bool
    ) -> tuple[Memory, Array]:
        return actor_critic.act(agent, config, state, memory, obs, key, greedy)

    return Algorithm(
        init, update, act, env, network, "impala", ImpalaConfig, agent.initial_core, make=impala
    )


def lagged_params(config: ImpalaConfig, state: ImpalaState) -> tuple[PyTree, PyTree]:
    """The parameters of `lag` updates ago, and the ring with the current ones in their place."""
    if config.lag == 0:
        return state.params, state.past_params
    slot = state.num_updates % config.lag
    actor_params = jax.tree.map(lambda past: past[slot], state.past_params)
    past_params = jax.tree.map(
        lambda past, x: past.at[slot].set(x), state.past_params, state.params
    )
    return actor_params, past_params


def loss(
    config: ImpalaConfig,
    distribution: Any,
    values: Array,
    last_value: Array,
    trajectory: Trajectory,
    axis: Axis = SINGLE_DEVICE,
) -> tuple[Array, Metrics]:
    """Policy gradient, value and entropy losses with V-trace, over valid transitions; `[T, N]`."""
    valid = trajectory.valid.astype(jnp.float32)
    count = axis.mean_count(valid)
    total = jnp.float32(1 / axis.size) if config.sum_losses else count

    log_prob = distribution.log_prob(trajectory.action)
    log_ratios = jax.lax.stop_gradient(log_prob) - trajectory.extras.log_prob
    trace = returns.vtrace(
        log_ratios if config.off_policy_correction else jnp.zeros_like(log_ratios),
        trajectory.reward,
        jax.lax.stop_gradient(values),
        jax.lax.stop_gradient(last_value),
        trajectory.terminated,
        trajectory.truncated,
        config.gamma,
        config.trace_lambda,
        config.rho_bar,
        config.c_bar,
        config.policy_rho_bar,
    )
    policy_loss = -(log_prob * trace.advantages * valid).sum() / total
    value_loss = 0.5 * ((trace.targets - values) ** 2 * valid).sum() / total
    entropy = (distribution.entropy() * valid).sum()
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy / total
    return loss, {
        "loss": loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy / count,
        "importance_ratio": (jnp.exp(log_ratios) * valid).sum() / count,
    }
