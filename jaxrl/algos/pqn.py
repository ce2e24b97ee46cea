"""PQN: parallelized Q-network (Gallici et al. 2024, arXiv 2407.04811).

Q-learning from many parallel environments, without a replay and without a target network:
LayerNorm in the network keeps it stable (section 3). Each update steps the environments
epsilon-greedily, computes the targets of Peng's Q(lambda) backwards over the rollout,

    G_t = r_t + gamma ((1 - lambda) max_a Q(s_{t+1}, a) + lambda G_{t+1})

and minimizes `(Q(s_t, a_t) - G_t)^2 / 2` in some epochs of minibatches (algorithm 1). Returns end
with episodes; truncated ones bootstrap from their true last observation.

With a memory (`core="lstm"`), minibatches are whole sequences of some environments, unrolled from
the state that the agent had at the start of the rollout.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl import checks
from jaxrl import config as fields
from jaxrl.algos import actor_critic, epsilon_greedy, hyperparameters, q_learning
from jaxrl.device_axis import SINGLE_DEVICE, Axis, axis_of
from jaxrl.networks import recurrent
from jaxrl.ops import minibatches, normalization, optimizers, returns
from jaxrl.ops.masks import masked_sum, zero_invalid
from jaxrl.rollouts.simulation import Simulation
from jaxrl.types import Algorithm, Array, Env, Metrics, PyTree, Trajectory


@fields.config
class PQNConfig(epsilon_greedy.EpsilonConfig):
    """Hyperparameters of PQN. Plain fields are traced leaves; `static` ones shape the program."""

    adam_eps: float = 1e-2
    """Epsilon of the optimizer, RAdam. A large one makes steps small where gradients are."""
    trace_lambda: float = 0.65
    """lambda of the returns, in [0, 1]; 0 for targets of one step."""
    reward_scale: float = 1.0
    """Factor of rewards in targets; below 1 where returns are large for a new network."""
    final_epsilon: float = 0.05
    num_epochs: int = fields.static(4)
    """Passes over a rollout in an update."""
    num_minibatches: int = fields.static(4)
    """Parts of a rollout in an epoch: transitions, or whole environments if there is a memory."""
    layer_norm: bool = fields.static(True)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.traced_fields(self, checks.POSITIVE, "adam_eps", "reward_scale")
        checks.traced_fields(self, checks.UNIT_INTERVAL, "trace_lambda")
        checks.fields(self, checks.integer, "num_epochs", "num_minibatches")


class PQNState(NamedTuple):
    """The arrays that PQN carries from update to update."""

    params: PyTree
    opt_state: PyTree
    simulation: Simulation
    key: Array
    num_updates: Array
    obs_statistics: normalization.ObsStatistics


class Batch(NamedTuple):
    """B sequences of L steps to learn from; without a memory each transition is a sequence."""

    trajectory: Trajectory  # leaves [L, B, ...]
    target: Array  # [L, B]
    core: PyTree  # [1, B, ...] the memory before the sequences


def pqn(env: Env, network: nn.Module | None = None) -> Algorithm:
    """Return PQN on `env`; its actions must be `Discrete`.

    Args:
      network: a Flax module, `obs [B, ...] -> action values [B, A]` or one with a memory
        (`jaxrl.networks.recurrent`); None builds one from the config.
    """
    agent, axis = q_learning.agent_of(env, network), axis_of(env)

    def init(config: PQNConfig, key: Array, simulation: Simulation | None = None) -> PQNState:
        hyperparameters.check_split(config, env, recurrent.is_recurrent(agent.network_of(config)))
        values = jnp.zeros(env.num_envs, jnp.float32)
        params, simulation, key = agent.start(config, key, simulation, values)
        opt_state = optimizer_of(config, 0).init(params)
        obs_statistics = hyperparameters.start_obs_statistics(config, env)
        return PQNState(params, opt_state, simulation, key, jnp.int32(0), obs_statistics)

    def update(config: PQNConfig, state: PQNState) -> tuple[PQNState, Metrics]:
        key, rollout_key, shuffle_key = jax.random.split(state.key, 3)
        network, apply = agent.network_of(config), agent.apply(config, state.obs_statistics)
        # Rollout
        epsilon = epsilon_greedy.annealed_epsilon(config, env, state.num_updates)
        simulation, trajectory = epsilon_greedy.collect(
            env, apply, state.params, epsilon, state.simulation, rollout_key, config.num_steps,
            extras_of=largest,
        )  # fmt: skip
        obs_statistics = normalization.update_obs_statistics(state.obs_statistics, trajectory, axis)
        # Targets
        _, q_values = recurrent.apply_step(apply, state.params, simulation.core, simulation.inputs)
        target = lambda_returns(config, trajectory, largest(q_values))
        batch = Batch(trajectory, target, recurrent.one_step(state.simulation.core))
        if not recurrent.is_recurrent(network):  # [T, N, ...] as [1, T * N, ...]
            batch = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), batch)

        # Epochs
        def objective(params: PyTree, minibatch: Batch) -> tuple[Array, Metrics]:
            core = jax.tree.map(lambda x: x[0], minibatch.core)
            _, q_values = apply(params, core, minibatch.trajectory.inputs)
            return loss(q_values, minibatch, axis)

        (params, opt_state), epochs, losses = minibatches.learn_in_epochs(
            objective, optimizer_of(config, state.num_updates), (state.params, state.opt_state),
            batch, axis.device_key(shuffle_key), config.num_epochs, config.num_minibatches,
            q_learning.LOSSES, axis=axis,
        )  # fmt: skip
        # Metrics
        metrics = actor_critic.metrics(
            env, config, state.num_updates, simulation, trajectory, losses | {"epsilon": epsilon},
            gradient_steps=epochs * config.num_minibatches,
        )  # fmt: skip
        num_updates = state.num_updates + 1
        return PQNState(params, opt_state, simulation, key, num_updates, obs_statistics), metrics

    act = partial(epsilon_greedy.act, agent, lambda config: config.final_epsilon)
    return Algorithm(
        init, update, act, env, network, "pqn", PQNConfig, agent.initial_core, make=pqn
    )


def optimizer_of(config: PQNConfig, num_updates: Array | int) -> optax.GradientTransformation:
    """Return the optimizer of the update after `num_updates`."""
    rate = hyperparameters.annealed_learning_rate(config, num_updates)
    return optimizers.radam(rate, config.adam_eps, config.max_grad_norm)


def largest(q_values: Array) -> Array:
    """Return max_a Q(s, a), float32 `[...]`, of action values `[..., A]`."""
    return q_values.max(-1).astype(jnp.float32)


def lambda_returns(config: PQNConfig, trajectory: Trajectory, last_value: Array) -> Array:
    """Return the targets G `[T, N]` of a rollout.

    They are advantages by GAE plus values, where the value of a state is its largest action value.

    Args:
      trajectory: a rollout whose `extras` are the largest action values `[T, N]`.
      last_value: `[N]`, the largest action values where the rollout stopped.
    """
    values = trajectory.extras
    return values + returns.generalized_advantages(
        config.reward_scale * trajectory.reward, values, last_value,
        trajectory.terminated, trajectory.truncated, config.gamma, config.trace_lambda,
    )  # fmt: skip


def loss(q_values: Array, batch: Batch, axis: Axis = SINGLE_DEVICE) -> tuple[Array, Metrics]:
    """Return the loss of a minibatch over its valid transitions, and its metrics.

    Args:
      q_values: `[L, B, A]`.
    """
    valid = batch.trajectory.valid
    total = axis.mean_count(valid.astype(jnp.float32))

    def mean(x: Array) -> Array:
        return masked_sum(x, valid) / total

    value = q_learning.value_of(q_values, batch.trajectory.action)
    error = zero_invalid(value - batch.target, valid)
    loss = 0.5 * mean(error**2)
    return loss, {"loss": loss, "q_value": mean(value), "td_error": mean(jnp.abs(error))}
