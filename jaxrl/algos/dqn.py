"""DQN: deep Q-learning (Mnih et al. 2015, algorithm 1), with its usual extensions as options.

Each update steps the environments epsilon-greedily, stores the transitions in a replay, and takes
`num_gradient_steps` on batches of it that move Q(s, a) towards

    r_t + ... + gamma^{n-1} r_{t+n-1} + gamma^n (1 - terminated) Q_target(s_{t+n}, a*)

with a* the best action by the target network, or by the online one if `double` (van Hasselt et
al. 2016); n > 1 gives n-step targets, `dueling` the head of Wang et al. 2016, `prioritized` the
replay of Schaul et al. 2016. Returns end with episodes; truncated ones bootstrap from their true
last observation. Errors beyond 1 count linearly (`huber`), as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl import checks
from jaxrl import config as fields
from jaxrl.algos import epsilon_greedy, hyperparameters, q_learning
from jaxrl.algos.q_learning import Sample
from jaxrl.device_axis import SINGLE_DEVICE, Axis, axis_of
from jaxrl.networks import recurrent
from jaxrl.networks.recurrent import Apply
from jaxrl.ops import normalization
from jaxrl.ops.masks import masked_sum, zero_invalid
from jaxrl.replay import ring, transitions
from jaxrl.replay.ring import Replay
from jaxrl.replay.transitions import Batch, Layout
from jaxrl.rollouts.rollout import episode_metrics
from jaxrl.rollouts.simulation import Simulation
from jaxrl.types import Algorithm, Array, Env, Metrics, PyTree


@fields.config
class DQNConfig(q_learning.QLearningConfig, epsilon_greedy.EpsilonConfig):
    """Hyperparameters of DQN. Plain fields are traced leaves; `static` ones shape the program."""

    huber: bool = fields.static(True)
    """Loss of an error: half its square, linear beyond 1 (Huber); False for its square."""
    double: bool = fields.static(True)
    """Choose the target's action by the online network (van Hasselt et al. 2016)."""
    prioritized: bool = fields.static(False)
    """Draw transitions by priority (Schaul et al. 2016) instead of uniformly."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.core is not None:
            raise ValueError(f"DQN has no memory, got core={self.core!r}; use jaxrl.r2d2")
        checks.fields(self, checks.flag, "huber", "double", "prioritized")


class DQNState(NamedTuple):
    """The arrays that DQN carries from update to update."""

    params: PyTree
    target_params: PyTree
    opt_state: PyTree
    simulation: Simulation
    replay: Replay
    priorities: Array | None  # [capacity, N], 0 for rows that cannot be drawn
    max_priority: Array | None
    key: Array
    num_updates: Array
    obs_statistics: normalization.ObsStatistics


QValues = Callable[[PyTree, PyTree], Array]
"""`q_values(params, obs) -> action values`, `[B, ...] -> [B, A]`."""


def dqn(env: Env, network: nn.Module | None = None) -> Algorithm:
    """Return DQN on `env`; its actions must be `Discrete`.

    Args:
      network: a Flax module, `obs [B, ...] -> action values [B, A]`; None builds one from the
        config.
    """
    agent, axis = q_learning.agent_of(env, network), axis_of(env)

    def init(config: DQNConfig, key: Array, simulation: Simulation | None = None) -> DQNState:
        check_sizes(config, env, agent.network_of(config))
        params, simulation, key = agent.start(config, key, simulation)
        row = transitions.as_row(layout_of(config), q_learning.first_row(simulation))
        replay = ring.start(row, q_learning.num_rows(config, env), config.num_steps)
        priorities = (replay.capacity, env.num_envs) if config.prioritized else None
        return DQNState(
            **q_learning.start_learner(config, params, priorities)._asdict(),
            target_params=params,
            simulation=simulation,
            replay=replay,
            key=key,
            num_updates=jnp.int32(0),
            obs_statistics=hyperparameters.start_obs_statistics(config, env),
        )

    def update(config: DQNConfig, state: DQNState) -> tuple[DQNState, Metrics]:
        key, rollout_key, learn_key = jax.random.split(state.key, 3)
        apply = agent.apply(config, state.obs_statistics)
        epsilon = epsilon_greedy.annealed_epsilon(config, env, state.num_updates)
        # Rollout
        simulation, trajectory = epsilon_greedy.collect(
            env, apply, state.params, epsilon, state.simulation, rollout_key, config.num_steps
        )
        # Replay
        layout = layout_of(config)
        replay = ring.add(state.replay, transitions.as_row(layout, trajectory))
        state = state._replace(
            simulation=simulation,
            replay=replay,
            priorities=transitions.prioritize(layout, state.priorities, state.max_priority, replay),
            key=key,
            num_updates=state.num_updates + 1,
            obs_statistics=normalization.update_obs_statistics(
                state.obs_statistics, trajectory, axis
            ),
        )
        # Learning
        is_ready = q_learning.has_started(config, env, state.num_updates)
        is_ready &= replay.size >= config.n_step + config.frame_stack
        state, losses = q_learning.learn(
            config,
            state,
            is_ready,
            partial(sample, config, axis, replay),
            partial(objective, config, axis, partial(q_values, apply), state.target_params),
            learn_key,
            axis,
        )
        # Metrics
        return state, episode_metrics(env, simulation, trajectory) | losses | {"epsilon": epsilon}

    act = partial(epsilon_greedy.act, agent, lambda config: config.final_epsilon)
    return Algorithm(init, update, act, env, network, "dqn", DQNConfig, make=dqn)


def q_values(apply: Apply, params: PyTree, obs: PyTree) -> Array:
    """Return the action values `[B, A]` of observations `[B, ...]`."""
    _, values = recurrent.apply_step(apply, params, (), recurrent.without_memory(obs))
    return values


def check_sizes(config: DQNConfig, env: Env, network: nn.Module) -> None:
    """Raise unless the network has no memory and the replay can hold a batch's transitions."""
    if recurrent.is_recurrent(network):
        raise ValueError(
            f"DQN has no memory, got a network with one, {type(network).__name__}; use jaxrl.r2d2"
        )
    rows = config.num_steps + config.n_step + config.frame_stack
    q_learning.check_replay(config, env, rows, f"num_steps + n_step + frame_stack = {rows}")


def layout_of(config: DQNConfig) -> Layout:
    """Return how transitions lie in the replay."""
    return Layout(config.n_step, config.num_steps, config.frame_stack)


def sample(
    config: DQNConfig, axis: Axis, replay: Replay, priorities: Array | None, key: Array
) -> Sample:
    """Draw this device's share of a batch of transitions."""
    num_envs = replay.rows.first.shape[1]
    layout = layout_of(config)
    before, after = layout.rows_before, layout.n_step
    if priorities is None:
        slots, envs = ring.draw_uniformly(
            key, replay, num_envs, config.batch_size, before, after, axis
        )
        weights = jnp.ones_like(slots, jnp.float32)
    else:
        slots, envs, weights = q_learning.draw_by_priority(config, axis, priorities, key)
    batch = transitions.read(layout, replay, slots, envs, config.gamma)
    return Sample(batch, weights, slots, envs)


def objective(
    config: DQNConfig,
    axis: Axis,
    q_values: QValues,
    target_params: PyTree,
    params: PyTree,
    sample: Sample,
) -> tuple[Array, tuple[Array, Metrics]]:
    """Return the loss of a batch; its priorities `[B]` and metrics."""
    batch: Batch = sample.batch
    target = jax.lax.stop_gradient(q_targets(config, q_values, params, target_params, batch))
    value = q_learning.value_of(q_values(params, batch.obs), batch.action)
    weights = sample.weights * batch.valid
    total, (error, losses) = loss(config, value, target, weights, batch.valid, axis)
    priority = q_learning.priority_of(config, jnp.abs(error)) * batch.valid
    return total, (priority, losses)


def q_targets(
    config: DQNConfig, q_values: QValues, params: PyTree, target_params: PyTree, batch: Batch
) -> Array:
    """Return the target of Q for each transition, `[B]`."""
    next_values = q_values(target_params, batch.last_obs)
    chooser = q_values(params, batch.last_obs) if config.double else next_values
    bootstrap = q_learning.value_of(next_values, epsilon_greedy.greedy_actions(chooser))
    # After a termination the value of the last observation may be anything.
    return batch.reward + jnp.where(batch.discount > 0, batch.discount * bootstrap, 0.0)


def loss(
    config: DQNConfig, value: Array, target: Array, weights: Array, valid: Array,
    axis: Axis = SINGLE_DEVICE,
) -> tuple[Array, tuple[Array, Metrics]]:  # fmt: skip
    """Return the loss of valid transitions; the errors `[B]`, 0 for others, and metrics."""
    error = zero_invalid(target - value, valid)
    total = axis.mean_count(valid)
    losses = optax.losses.huber_loss(error) if config.huber else error**2
    loss = (losses * weights).sum() / total
    return loss, (
        error,
        {
            "loss": loss,
            "q_value": masked_sum(value, valid) / total,
            "td_error": jnp.abs(error).sum() / total,
        },
    )
