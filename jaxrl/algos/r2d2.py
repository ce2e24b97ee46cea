"""R2D2: recurrent replay distributed DQN (Kapturowski et al. 2019, ICLR).

A recurrent Q-network learns from sequences of the replay. Each begins with the memory that the
agent had there when it acted, is unrolled for `burn_in` steps without a gradient to bring that
memory up to date, and then for `unroll_length` steps towards n-step double-Q targets under the
value rescaling h of Pohlen et al. 2018,

    h(r_t + ... + gamma^{n-1} r_{t+n-1} + gamma^n h^{-1}(Q_target(s_{t+n}, argmax_a Q(s_{t+n}, a))))

Sums end with their episode, and bootstrap from its last state unless it terminated.
Sequences are drawn by the priority `0.9 max |error| + 0.1 mean |error|` (section 2.3), and each
environment explores with an epsilon of its own, as in Ape-X (Horgan et al. 2018).

A sequence can begin where a rollout of `num_steps` did, so its stored memory is exact. `num_steps`
is at most `unroll_length`, so that every step is learned from; sequences overlap, and every step is
stored once.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import checks
from jaxrl import config as fields
from jaxrl.algos import epsilon_greedy, hyperparameters, q_learning
from jaxrl.algos.q_learning import Sample
from jaxrl.device_axis import SINGLE_DEVICE, Axis, axis_of
from jaxrl.networks import recurrent
from jaxrl.networks.recurrent import Apply
from jaxrl.ops import normalization, returns
from jaxrl.ops.masks import masked_sum, zero_invalid
from jaxrl.replay import ring, sequences
from jaxrl.replay.ring import Replay
from jaxrl.replay.sequences import Layout, Row, Sequences
from jaxrl.rollouts.rollout import episode_metrics
from jaxrl.rollouts.simulation import Simulation
from jaxrl.types import Algorithm, Array, Env, Metrics, PyTree


@fields.config
class R2D2Config(q_learning.QLearningConfig):
    """Hyperparameters of R2D2. Plain fields are traced leaves; `static` ones shape the program."""

    core: str | None = fields.static("lstm")
    core_size: int = fields.static(64)
    use_last_action_reward: bool = fields.static(True)
    learning_rate: float = 5e-4
    adam_eps: float = 1e-5
    epsilon_base: float = 0.4
    """Environment i of N explores with epsilon `base ^ (1 + i / (N - 1) (exponent - 1))`."""
    epsilon_exponent: float = 8.0
    """Exponent of that schedule (Horgan et al. 2018)."""
    learning_starts: float = 2000.0
    priority_exponent: float = 0.9
    importance_exponent: float = 0.6
    priority_max_share: float = 0.9
    """The largest error's share in a sequence's priority; the mean error has the rest."""
    num_steps: int = fields.static(5)
    """Steps of each environment in a rollout, and between the beginnings of sequences; at most
    `unroll_length`."""
    burn_in: int = fields.static(5)
    """Steps of a sequence that only bring the memory up to date."""
    unroll_length: int = fields.static(10)
    """Steps of a sequence to learn from, after the burn-in."""
    n_step: int = fields.static(5)
    batch_size: int = fields.static(64)
    """Sequences of a gradient step."""
    dueling: bool = fields.static(True)
    rescale_values: bool = fields.static(True)
    """Learn values rescaled by h (Pohlen et al. 2018)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.traced_fields(self, checks.POSITIVE, "epsilon_exponent")
        checks.traced_fields(self, checks.UNIT_INTERVAL, "epsilon_base", "priority_max_share")
        checks.fields(self, checks.integer, "unroll_length")
        checks.fields(self, checks.integer, "burn_in", least=0)
        checks.fields(self, checks.flag, "rescale_values")


class R2D2State(NamedTuple):
    """The arrays that R2D2 carries from update to update."""

    params: PyTree
    target_params: PyTree
    opt_state: PyTree
    simulation: Simulation
    replay: Replay  # of `Row`
    cores: Replay  # the agent's memory before each rollout
    priorities: Array  # [rollouts, N], 0 for rollouts at which no sequence can begin
    max_priority: Array
    key: Array
    num_updates: Array
    obs_statistics: normalization.ObsStatistics


def r2d2(env: Env, network: nn.Module | None = None) -> Algorithm:
    """Return R2D2 on `env`; its actions must be `Discrete`.

    Args:
      network: a Flax module with a memory (`jaxrl.networks.recurrent`) that gives action values;
        None builds one from the config.
    """
    agent, axis = q_learning.agent_of(env, network), axis_of(env)

    def init(config: R2D2Config, key: Array, simulation: Simulation | None = None) -> R2D2State:
        check_sizes(config, env, agent.network_of(config))
        params, simulation, key = agent.start(config, key, simulation)
        row = sequences.as_row(layout_of(config), q_learning.first_row(simulation))
        replay = ring.start(row, q_learning.num_rows(config, env), config.num_steps)
        num_rollouts = replay.capacity // config.num_steps
        return R2D2State(
            **q_learning.start_learner(config, params, (num_rollouts, env.num_envs))._asdict(),
            target_params=params,
            simulation=simulation,
            replay=replay,
            cores=ring.start(simulation.core, num_rollouts, 1),
            key=key,
            num_updates=jnp.int32(0),
            obs_statistics=hyperparameters.start_obs_statistics(config, env),
        )

    def update(config: R2D2Config, state: R2D2State) -> tuple[R2D2State, Metrics]:
        key, rollout_key, learn_key = jax.random.split(state.key, 3)
        apply = agent.apply(config, state.obs_statistics)
        epsilon = epsilons(config, env.num_envs * axis.size)
        # Rollout
        simulation, trajectory = epsilon_greedy.collect(
            env, apply, state.params, epsilon, state.simulation, rollout_key, config.num_steps
        )
        # Replay
        layout = layout_of(config)
        cores = ring.add(state.cores, recurrent.one_step(state.simulation.core))
        state = state._replace(
            simulation=simulation,
            replay=ring.add(state.replay, sequences.as_row(layout, trajectory)),
            cores=cores,
            priorities=sequences.prioritize(layout, state.priorities, state.max_priority, cores),
            key=key,
            num_updates=state.num_updates + 1,
            obs_statistics=normalization.update_obs_statistics(
                state.obs_statistics, trajectory, axis
            ),
        )
        # Learning
        is_ready = q_learning.has_started(config, env, state.num_updates)
        is_ready &= state.num_updates > layout.rollouts_after + layout.rollouts_before
        state, losses = q_learning.learn(
            config,
            state,
            is_ready,
            partial(sample, config, axis, state.replay, state.cores),
            partial(objective, config, axis, apply, state.target_params),
            learn_key,
            axis,
        )
        # Metrics
        return state, episode_metrics(env, simulation, trajectory) | losses

    def smallest_epsilon(config: R2D2Config) -> Array:
        return epsilons(config, num_envs=2).min()

    act = partial(epsilon_greedy.act, agent, smallest_epsilon)
    return Algorithm(
        init, update, act, env, network, "r2d2", R2D2Config, agent.initial_core, make=r2d2
    )


def check_sizes(config: R2D2Config, env: Env, network: nn.Module) -> None:
    """Raise unless the network has a memory, and the replay holds sequences that miss no step."""
    if not recurrent.is_recurrent(network):
        raise ValueError(
            "R2D2 needs a network with a memory, such as that of core='lstm', got "
            f"{type(network).__name__}; jaxrl.dqn takes networks without one"
        )
    if config.num_steps > config.unroll_length:
        raise ValueError(
            f"R2D2Config.num_steps = {config.num_steps} must be at most unroll_length = "
            f"{config.unroll_length}: sequences begin where rollouts do, so some steps would never "
            "be learned from"
        )
    layout = layout_of(config)
    rows = config.num_steps * (layout.rollouts_before + layout.rollouts_after + 2)
    q_learning.check_replay(
        config, env, rows,
        f"sequences of burn_in + unroll_length + 1 = {layout.length} steps and rollouts of "
        f"num_steps = {config.num_steps}",
    )  # fmt: skip


def layout_of(config: R2D2Config) -> Layout:
    """Return how sequences lie in the replay; their last row only bootstraps."""
    length = config.burn_in + config.unroll_length + 1
    return Layout(length, config.num_steps, config.frame_stack)


def epsilons(config: R2D2Config, num_envs: int) -> Array:
    """Return the epsilon of each environment, `[N]` (Horgan et al. 2018, section 4.1)."""
    place = jnp.arange(num_envs) / max(num_envs - 1, 1)
    return jnp.asarray(config.epsilon_base) ** (1 + place * (config.epsilon_exponent - 1))


def sample(
    config: R2D2Config, axis: Axis, replay: Replay, cores: Replay, priorities: Array, key: Array
) -> Sample:
    """Draw this device's share of a batch of sequences."""
    rollouts, envs, weights = q_learning.draw_by_priority(config, axis, priorities, key)
    batch = sequences.read(layout_of(config), replay, cores, rollouts, envs)
    return Sample(batch, weights, rollouts, envs)


def objective(
    config: R2D2Config, axis: Axis, apply: Apply, target_params: PyTree, params: PyTree,
    sample: Sample,
) -> tuple[Array, tuple[Array, Metrics]]:  # fmt: skip
    """Return the loss of a batch; its priorities `[B]` and metrics."""
    values = values_after_burn_in(config, apply, params, sample.batch)
    target_values = values_after_burn_in(config, apply, target_params, sample.batch)
    target_values = jax.lax.stop_gradient(target_values)
    rows = jax.tree.map(lambda x: x[config.burn_in :], sample.batch.rows)
    total, (error, losses) = loss(config, values, target_values, rows, sample.weights, axis)
    return total, (q_learning.priority_of(config, error), losses)


def values_after_burn_in(
    config: R2D2Config, apply: Apply, params: PyTree, batch: Sequences
) -> Array:
    """Return the action values `[unroll_length + 1, B, A]` after the burn-in."""
    core, inputs = batch.core, batch.rows.inputs
    if config.burn_in:
        before = jax.tree.map(lambda x: x[: config.burn_in], inputs)
        core, _ = apply(params, core, before)
        core = jax.lax.stop_gradient(core)
    _, values = apply(params, core, jax.tree.map(lambda x: x[config.burn_in :], inputs))
    return values


def targets(config: R2D2Config, values: Array, target_values: Array, rows: Row) -> Array:
    """Return n-step double-Q targets `[unroll_length, B]`, rescaled if `rescale_values`.

    Args:
      values, target_values: `[unroll_length + 1, B, A]`, online and target network's.
      rows: `[unroll_length + 1, B]`.
    """
    bootstrap = q_learning.value_of(target_values, epsilon_greedy.greedy_actions(values))[1:]
    if config.rescale_values:
        bootstrap = returns.unscale_value(bootstrap)
    reward, terminated, ended = rows.reward[:-1], rows.terminated[:-1], rows.ended[:-1]
    # A resumed run starts new episodes although the ones before it did not end; sums stop there.
    broken = jnp.concatenate([rows.inputs.first[2:], jnp.zeros_like(ended[:1])])
    truncated = (ended | broken) & ~terminated
    total = returns.n_step_returns(
        reward, bootstrap, terminated, truncated, config.gamma, config.n_step
    )
    return returns.rescale_value(total) if config.rescale_values else total


def loss(
    config: R2D2Config, values: Array, target_values: Array, rows: Row, weights: Array,
    axis: Axis = SINGLE_DEVICE,
) -> tuple[Array, tuple[Array, Metrics]]:  # fmt: skip
    """Return squared errors over valid steps, summed over time; priorities `[B]` and metrics.

    Args:
      values, target_values: `[unroll_length + 1, B, A]`, online and target network's.
      rows: `[unroll_length + 1, B]`.
      weights: `[B]`, importance weights.
    """
    valid = ~rows.inputs.first[1:]
    target = targets(config, jax.lax.stop_gradient(values), target_values, rows)
    value = q_learning.value_of(values, rows.action)[:-1]
    error = zero_invalid(target - value, valid)
    loss = (weights * (0.5 * error**2).sum(0)).mean()
    size = jnp.abs(error)
    mean = size.sum(0) / jnp.maximum(valid.sum(0), 1.0)
    share = config.priority_max_share
    priority = jax.lax.stop_gradient(share * size.max(0) + (1 - share) * mean)  # section 2.3
    count = axis.mean_count(valid.astype(jnp.float32))
    q_value, td_error = masked_sum(value, valid) / count, size.sum() / count
    return loss, (priority, {"loss": loss, "q_value": q_value, "td_error": td_error})
