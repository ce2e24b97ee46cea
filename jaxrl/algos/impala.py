"""IMPALA: importance weighted actor-learner (Espeholt et al. 2018, arXiv 1802.01561).

Actors follow parameters mu that lag the learner's pi by `lag` updates. V-trace corrects for it:
with its targets v_s and importance weights rho_s (`returns.vtrace`), the loss of a transition is
(section 4.2)

    -rho_s log pi(a_s|x_s) (r_s + gamma v_{s+1} - V(x_s)) + c_v (v_s - V(x_s))^2 / 2 - c_e entropy

With `trace_lambda` below 1, as by default, `lambda v_{s+1} + (1 - lambda) V(x_{s+1})` replaces
v_{s+1} there. Here acting and learning are one program, so the lag is a number that the user sets,
not an accident of queues; 0 is on policy, with one minibatch and no `send_ahead`. With a memory
(`core="lstm"`), the learner unrolls it from the state that the actor had at the start of the
rollout, as the paper does.
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
from jaxrl.ops import minibatches, normalization, returns
from jaxrl.ops.masks import finite_where_invalid, masked_sum, zero_invalid
from jaxrl.rollouts.simulation import Simulation
from jaxrl.types import Algorithm, Array, Env, Inputs, Metrics, PyTree, Trajectory


@fields.config
class ImpalaConfig(actor_critic.RMSPropConfig):
    """Hyperparameters of IMPALA; `static` fields shape the program, others are traced."""

    trace_lambda: float = 0.95
    """lambda of V-trace, in [0, 1]: decay of the traces (Espeholt et al. 2018, remark 2)."""
    rho_bar: float = 1.0
    """Upper bound of the importance ratios in temporal differences (eq. 1)."""
    c_bar: float = 1.0
    """Upper bound of the importance ratios in traces (eq. 1), at most `rho_bar` in the paper."""
    policy_rho_bar: float = 1.0
    """Upper bound of the importance ratios in the policy gradient (section 4.2)."""
    lag: int = fields.static(1)
    """Updates by which the actors' parameters lag the learner's."""
    off_policy_correction: bool = fields.static(True)
    """Whether V-trace uses importance ratios; False replaces them by 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.traced_fields(self, checks.BOUND, "rho_bar", "c_bar", "policy_rho_bar")
        checks.traced_fields(self, checks.UNIT_INTERVAL, "trace_lambda")
        checks.fields(self, checks.integer, "lag", least=0)
        checks.fields(self, checks.flag, "off_policy_correction")


class ImpalaState(NamedTuple):
    """The arrays that IMPALA carries from update to update."""

    params: PyTree
    past_params: PyTree
    """`[lag, ...]`: a ring of the parameters before each of the last `lag` updates; None for no
    lag."""
    opt_state: PyTree
    simulation: Simulation
    key: Array
    num_updates: Array
    obs_statistics: normalization.ObsStatistics


class Batch(NamedTuple):
    """Rollouts of B environments to learn from."""

    trajectory: Trajectory  # leaves [T, B, ...]
    core: PyTree  # [1, B, ...] the actor's memory before the rollout
    inputs_after: Inputs  # [1, B, ...] what the network receives after it


def impala(env: Env, network: nn.Module | None = None) -> Algorithm:
    """Return IMPALA on `env`.

    Args:
      network: a Flax module, `obs [B, ...] -> (distribution, value [B])` or one with a memory
        (`jaxrl.networks.recurrent`); None builds one from the config.
    """
    agent, axis = actor_critic.agent_of(env, network), axis_of(env)

    def init(config: ImpalaConfig, key: Array, simulation: Simulation | None = None) -> ImpalaState:
        hyperparameters.check_split(config, env, by_env=True)
        params, simulation, key = actor_critic.start(agent, config, key, simulation)
        past = None
        if config.lag:
            past = jax.tree.map(lambda x: jnp.broadcast_to(x, (config.lag, *x.shape)), params)
        opt_state = actor_critic.rmsprop_of(config, 0).init(params)
        obs_statistics = hyperparameters.start_obs_statistics(config, env)
        return ImpalaState(params, past, opt_state, simulation, key, jnp.int32(0), obs_statistics)

    def update(config: ImpalaConfig, state: ImpalaState) -> tuple[ImpalaState, Metrics]:
        key, rollout_key = jax.random.split(state.key)
        apply = agent.apply(config, state.obs_statistics)
        # Rollout
        actor_params, past_params = lagged_params(config, state)
        simulation, trajectory = actor_critic.collect(
            env, apply, actor_params, state.simulation, rollout_key, config.num_steps
        )

        # V-trace and learning
        def objective(params: PyTree, batch: Batch) -> tuple[Array, Metrics]:
            core, inputs_after = jax.tree.map(lambda x: x[0], (batch.core, batch.inputs_after))
            core, (distribution, values) = apply(params, core, batch.trajectory.inputs)
            core = jax.lax.stop_gradient(core)
            _, (_, last_value) = recurrent.apply_step(apply, params, core, inputs_after)
            return loss(config, distribution, values, last_value, batch.trajectory, axis)

        batch = Batch(trajectory, *recurrent.one_step((state.simulation.core, simulation.inputs)))
        (params, opt_state), losses = minibatches.learn_in_turn(
            objective, actor_critic.rmsprop_of(config, state.num_updates),
            (state.params, state.opt_state), batch, config.num_minibatches, axis,
        )  # fmt: skip
        obs_statistics = normalization.update_obs_statistics(state.obs_statistics, trajectory, axis)
        # Metrics
        metrics = actor_critic.metrics(
            env, config, state.num_updates, simulation, trajectory, axis.mean(losses),
            gradient_steps=config.num_minibatches,
            actor_lag=config.num_minibatches * jnp.minimum(state.num_updates, config.lag),
        )  # fmt: skip
        num_updates = state.num_updates + 1
        return ImpalaState(
            params, past_params, opt_state, simulation, key, num_updates, obs_statistics
        ), metrics

    act = partial(actor_critic.act, agent)
    return Algorithm(
        init, update, act, env, network, "impala", ImpalaConfig, agent.initial_core, make=impala
    )


def lagged_params(config: ImpalaConfig, state: ImpalaState) -> tuple[PyTree, PyTree]:
    """Return the parameters of `lag` updates ago, and the ring with the current ones instead."""
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
    """Return the loss of a rollout over its valid transitions, and its parts; all `[T, N]`."""
    valid = trajectory.valid
    count = axis.mean_count(valid.astype(jnp.float32))
    total = jnp.float32(1 / axis.size) if config.sum_losses else count

    distribution = finite_where_invalid(distribution, valid)
    log_prob = distribution.log_prob(trajectory.action)
    log_ratios = jax.lax.stop_gradient(log_prob) - trajectory.extras.log_prob
    log_ratios = zero_invalid(log_ratios, valid)
    corrected = returns.vtrace(
        log_ratios if config.off_policy_correction else jnp.zeros_like(log_ratios),
        trajectory.reward,
        jax.lax.stop_gradient(values),
        jax.lax.stop_gradient(last_value),
        trajectory.terminated,
        trajectory.truncated,
        config.gamma,
        config.trace_lambda,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        policy_rho_bar=config.policy_rho_bar,
    )
    corrected, values = zero_invalid((corrected, values), valid)
    # Section 4.2; the advantages are rho_s (r_s + gamma v_{s+1} - V(x_s)).
    policy_loss = -masked_sum(log_prob * corrected.advantages, valid) / total
    value_loss = 0.5 * masked_sum((corrected.targets - values) ** 2, valid) / total
    entropy = masked_sum(distribution.entropy(), valid)
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy / total
    return loss, {
        "loss": loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy / count,
        "importance_ratio": masked_sum(jnp.exp(log_ratios), valid) / count,
    }
