"""R2D2: recurrent replay distributed DQN (Kapturowski et al. 2019, ICLR).

A recurrent Q-network learns from sequences of the replay. Each begins with the memory that the
agent had there when it acted, is unrolled for `burn_in` steps without a gradient to bring that
memory up to date, and then for `unroll_length` steps towards n-step double-Q targets under the
value rescaling h of Pohlen et al. 2018,

    h(r_t + ... + gamma^{n-1} r_{t+n-1} + gamma^n h^{-1}(Q_target(s_{t+n}, argmax_a Q(s_{t+n}, a))))

Sequences are drawn by the priority `0.9 max |error| + 0.1 mean |error|` (section 2.3), and each
environment explores with an epsilon of its own, as in Ape-X (Horgan et al. 2018).

A sequence can begin where a rollout of `num_steps` did, so its stored memory is exact; with
`num_steps` below `burn_in + unroll_length` sequences overlap, and every step is stored once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import config as fields
from jaxrl import networks, optim, q_learning, recurrence, replay, returns
from jaxrl.replay import Replay
from jaxrl.rollout import Simulation, episode_metrics, rollout, start
from jaxrl.types import Algorithm, Array, Env, Inputs, Memory, Metrics, PyTree, Trajectory


@fields.config
class R2D2Config(networks.NetworkConfig):
    """Hyperparameters of R2D2. Plain fields are traced leaves; `static` ones shape the program."""

    core: str | None = fields.static("lstm")
    core_size: int = fields.static(512)
    sees_last: bool = fields.static(True)
    learning_rate: float = 1e-4
    anneal_updates: int = 0
    """Updates over which the learning rate falls linearly to 0; 0 keeps it constant."""
    adam_eps: float = 1e-3
    max_grad_norm: float = 80.0
    gamma: float = 0.997
    epsilon_base: float = 0.4
    """Environment i of N explores with epsilon `base ^ (1 + i / (N - 1) (exponent - 1))`."""
    epsilon_exponent: float = 8.0
    learning_starts: float = 200_000.0
    """Environment steps before the first gradient step."""
    target_period: int = 2500
    """Updates between copies of the parameters to the target network."""
    priority_exponent: float = 0.9
    importance_exponent: float = 0.6
    priority_max_share: float = 0.9
    """The largest error's share in a sequence's priority; the mean error has the rest."""
    num_steps: int = fields.static(40)
    """Steps of each environment in an update, and between the beginnings of sequences."""
    burn_in: int = fields.static(40)
    unroll_length: int = fields.static(80)
    n_step: int = fields.static(5)
    num_gradient_steps: int = fields.static(1)
    batch_size: int = fields.static(64)
    """Sequences of a gradient step."""
    replay_size: int = fields.static(1_000_000)
    """Steps kept, over all environments."""
    frame_stack: int = fields.static(1)
    """Images are stacks of so many frames, of which the replay stores each once (Atari: 4)."""
    dueling: bool = fields.static(True)
    rescale_values: bool = fields.static(True)

    def __post_init__(self) -> None:
        super().__post_init__()
        fields.check_bound(self, "max_grad_norm")
        fields.check_positive(self, "adam_eps", "target_period", "epsilon_exponent")
        fields.check_not_negative(self, "learning_rate", "learning_starts", "priority_exponent")
        fields.check_not_negative(self, "anneal_updates")
        fields.check_unit_interval(self, "gamma", "epsilon_base", "importance_exponent")
        fields.check_unit_interval(self, "priority_max_share")
        fields.check_count(self, "num_steps", "unroll_length", "n_step", "num_gradient_steps")
        fields.check_count(self, "batch_size", "replay_size", "frame_stack")
        fields.check_count(self, "burn_in", least=0)
        fields.check_switch(self, "dueling", "rescale_values")


class Row(NamedTuple):
    """A step of N environments in the replay; leaves `[N, ...]`."""

    inputs: Inputs  # `obs` is the newest frame alone if `frame_stack` > 1
    action: Array
    reward: Array
    terminated: Array
    ended: Array  # terminated or truncated


class R2D2State(NamedTuple):
    """Everything R2D2 carries from update to update; arrays only."""

    params: PyTree
    target_params: PyTree
    opt_state: PyTree
    simulation: Simulation
    memory: Replay  # of `Row`
    cores: Replay  # the agent's memory before each rollout
    priorities: Array  # [rollouts, N], 0 for rollouts at which no sequence can begin
    max_priority: Array
    key: Array
    num_updates: Array


class Sequences(NamedTuple):
    """B sequences from the replay, leaves `[L, B, ...]`, L = burn_in + unroll_length + 1."""

    rows: Row
    core: PyTree  # [B, ...], the agent's memory before them


def r2d2(env: Env, network: nn.Module | None = None) -> Algorithm:
    """R2D2 on `env`, whose actions must be `Discrete`.

    Args:
      network: a Flax module with a memory (`jaxrl.recurrence`) whose outputs are action values;
        None builds one from the config.
    """

    def network_of(config: R2D2Config) -> nn.Module:
        return network or networks.q_network(
            env.observation_space, env.action_space, config, config.dueling
        )

    def unroll(config: R2D2Config, params: PyTree, core: PyTree, inputs: Inputs) -> Any:
        return recurrence.unroll(network_of(config), params, core, inputs)

    def init(config: R2D2Config, key: Array) -> R2D2State:
        check_sizes(config, env, network_of(config))
        network_key, env_key, key = jax.random.split(key, 3)
        simulation = start(env, env_key, initial_core(config, env.num_envs))
        inputs = jax.tree.map(lambda x: x[None], simulation.inputs)
        params = recurrence.init(network_of(config), network_key, inputs)
        timestep = simulation.timestep
        row = Row(
            inputs=newest(config, simulation.inputs),
            action=simulation.last_action,
            reward=timestep.reward,
            terminated=timestep.terminated,
            ended=timestep.truncated,
        )
        memory = replay.start(row, -(-config.replay_size // env.num_envs), config.num_steps)
        num_rollouts = memory.capacity // config.num_steps
        return R2D2State(
            params=params,
            target_params=params,
            opt_state=optim.adam(config.adam_eps, config.max_grad_norm).init(params),
            simulation=simulation,
            memory=memory,
            cores=replay.start(simulation.core, num_rollouts, 1),
            priorities=jnp.zeros((num_rollouts, env.num_envs), jnp.float32),
            max_priority=jnp.float32(1),
            key=key,
            num_updates=jnp.int32(0),
        )

    def update(config: R2D2Config, state: R2D2State) -> tuple[R2D2State, Metrics]:
        key, rollout_key, learn_key = jax.random.split(state.key, 3)
        core = state.simulation.core

        def policy(core: PyTree, inputs: Inputs, noise: PyTree) -> tuple[PyTree, Array, None]:
            core, values = unroll(config, state.params, core, one_step(inputs))
            return core, q_learning.explore(values[0], epsilons(config, env.num_envs), noise), None

        draw = q_learning.exploration_noise(env.action_space, env.num_envs)
        simulation, trajectory = rollout(
            env, policy, draw, state.simulation, rollout_key, config.num_steps
        )
        state = state._replace(simulation=simulation, key=key, num_updates=state.num_updates + 1)
        state = remember(config, state, trajectory, core)

        def learn(_: None) -> tuple[Any, Metrics]:
            return gradient_steps(config, lambda *x: unroll(config, *x), state, learn_key)

        def wait(_: None) -> tuple[Any, Metrics]:
            learner = (state.params, state.opt_state, state.priorities, state.max_priority)
            return learner, dict.fromkeys(LOSSES, jnp.float32(0))

        # Priorities are all that a branch returns of the replay: the rows would be copied.
        steps = state.num_updates * (env.num_envs * config.num_steps)
        first_whole = rollouts_after(config) + rollouts_before(config)
        enough = (steps >= config.learning_starts) & (state.num_updates > first_whole)
        (params, opt_state, priorities, max_priority), losses = jax.lax.cond(
            enough, learn, wait, None
        )
        is_time = state.num_updates % config.target_period == 0
        target_params = jax.tree.map(
            lambda new, old: jnp.where(is_time, new, old), params, state.target_params
        )
        state = state._replace(
            params=params,
            opt_state=opt_state,
            target_params=target_params,
            priorities=priorities,
            max_priority=max_priority,
        )
        return state, episode_metrics(simulation, trajectory) | losses

    def act(
        config: R2D2Config, state: R2D2State, memory: Any, obs: PyTree, key: Array, greedy: bool
    ) -> tuple[Memory, Array]:
        memory = memory or recurrence.start_memory(network_of(config), env.action_space, obs)
        inputs = one_step(recurrence.recall(memory, obs))
        core, values = unroll(config, state.params, memory.core, inputs)
        action = q_learning.best(values[0])
        if not greedy:
            noise = q_learning.exploration_noise(env.action_space, values.shape[1])(key)
            smallest = epsilons(config, env.num_envs)[-1]
            action = q_learning.explore(values[0], smallest, noise)
        return recurrence.remember(memory, core, action), action

    def initial_core(config: R2D2Config, num_envs: int) -> PyTree:
        return recurrence.initial_core(network_of(config), num_envs)

    return Algorithm(init, update, act, env, network, "r2d2", R2D2Config, initial_core)


LOSSES = ("loss", "q_value", "td_error")


def check_sizes(config: R2D2Config, env: Env, network: nn.Module) -> None:
    """Raise unless the network has a memory and the replay can hold its sequences."""
    if not recurrence.is_recurrent(network):
        raise ValueError(f"R2D2 needs a network with a memory, got core={config.core!r}")
    rows = -(-config.replay_size // env.num_envs)
    if rows < config.num_steps * (rollouts_before(config) + rollouts_after(config) + 2):
        raise ValueError(
            f"R2D2Config.replay_size = {config.replay_size} over num_envs = {env.num_envs} does "
            f"not hold sequences of burn_in + unroll_length + 1 = {sequence_length(config)} steps "
            f"and a rollout of num_steps = {config.num_steps}"
        )
    shape = getattr(env.observation_space, "shape", ())
    if config.frame_stack > 1 and (len(shape) != 3 or shape[-1] != config.frame_stack):
        raise ValueError(
            f"R2D2Config.frame_stack = {config.frame_stack}, but observations of {env.id} have "
            f"shape {shape}, not [H, W, {config.frame_stack}]"
        )


def one_step(tree: PyTree) -> PyTree:
    """`[N, ...]` as a sequence of one step."""
    return jax.tree.map(lambda x: x[None], tree)


def sequence_length(config: R2D2Config) -> int:
    """Rows of a sequence: the last one only bootstraps."""
    return config.burn_in + config.unroll_length + 1


def rollouts_after(config: R2D2Config) -> int:
    """Rollouts after the one at whose start a sequence begins, until it is whole."""
    return -(-sequence_length(config) // config.num_steps) - 1


def rollouts_before(config: R2D2Config) -> int:
    """Rollouts before a sequence whose frames its first stacks need."""
    return -(-(config.frame_stack - 1) // config.num_steps)


def newest(config: R2D2Config, inputs: Inputs) -> Inputs:
    """Inputs as the replay stores them."""
    if config.frame_stack == 1:
        return inputs
    return inputs._replace(obs=replay.newest_frame(inputs.obs))


def epsilons(config: R2D2Config, num_envs: int) -> Array:
    """The exploration of each environment, `[N]`."""
    place = jnp.arange(num_envs) / max(num_envs - 1, 1)
    return jnp.asarray(config.epsilon_base) ** (1 + place * (config.epsilon_exponent - 1))


def remember(
    config: R2D2Config, state: R2D2State, trajectory: Trajectory, core: PyTree
) -> R2D2State:
    """Store a rollout that began with this memory.

    The newest sequence that is now whole gets the largest priority; the one that begins with the
    rollout to be overwritten next, and those not yet whole, get none.
    """
    rows = Row(
        inputs=newest(config, trajectory.inputs),
        action=trajectory.action,
        reward=trajectory.reward,
        terminated=trajectory.terminated,
        ended=trajectory.terminated | trajectory.truncated,
    )
    cores = replay.add(state.cores, one_step(core))
    newest_rollout = cores.num_added - 1
    ready = newest_rollout - rollouts_after(config)
    before = rollouts_before(config)
    without = newest_rollout - jnp.arange(rollouts_after(config))
    oldest = newest_rollout + 1 + jnp.arange(1 + before)
    priorities = state.priorities.at[ready % cores.capacity].set(
        jnp.where(ready >= before, state.max_priority, 0.0)
    )
    priorities = priorities.at[without % cores.capacity].set(0.0)
    return state._replace(
        memory=replay.add(state.memory, rows),
        cores=cores,
        priorities=priorities.at[oldest % cores.capacity].set(0.0),
    )


def sequences(
    config: R2D2Config, memory: Replay, cores: Replay, rollouts: Array, envs: Array
) -> Sequences:
    """The sequences that begin with these rollouts."""
    times = rollouts * config.num_steps + jnp.arange(sequence_length(config))[:, None]
    slots = times % memory.capacity
    rows = memory.rows

    def gather(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda ring: ring[slots, envs], tree)

    found = gather(rows._replace(inputs=rows.inputs._replace(obs=())))
    if config.frame_stack > 1:
        obs = replay.restack(rows.inputs.obs, slots, envs, config.frame_stack)
    else:
        obs = gather(rows.inputs.obs)
    core = jax.tree.map(lambda ring: ring[rollouts, envs], cores.rows)
    return Sequences(found._replace(inputs=found.inputs._replace(obs=obs)), core)


def gradient_steps(
    config: R2D2Config, unroll: Any, state: R2D2State, key: Array
) -> tuple[Any, Metrics]:
    """Gradient steps on sequences from the replay; the learner after them, and mean losses."""
    optimizer = optim.adam(config.adam_eps, config.max_grad_norm)
    learning_rate = optim.linear_decay(
        config.learning_rate, state.num_updates, config.anneal_updates
    )
    num_envs = state.priorities.shape[1]

    def step(learner: Any, key: Array) -> tuple[Any, Metrics]:
        params, opt_state, priorities, max_priority = learner
        drawn = replay.proportional(key, priorities.reshape(-1), config.batch_size)
        rollouts, envs = drawn.index // num_envs, drawn.index % num_envs
        batch = sequences(config, state.memory, state.cores, rollouts, envs)
        weights = replay.importance_weights(
            drawn.probability, (priorities > 0).sum(), config.importance_exponent
        )

        def objective(params: PyTree) -> tuple[Array, tuple[Array, Metrics]]:
            values = burnt_in(config, unroll, params, batch)
            target_values = burnt_in(config, unroll, state.target_params, batch)
            rows = jax.tree.map(lambda x: x[config.burn_in :], batch.rows)
            return loss(config, values, jax.lax.stop_gradient(target_values), rows, weights)

        grads, (new, losses) = jax.grad(objective, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optim.apply_updates(params, updates, learning_rate)
        new = (new + 1e-6) ** config.priority_exponent
        priorities = priorities.at[rollouts, envs].set(new)
        return (params, opt_state, priorities, jnp.maximum(max_priority, new.max())), losses

    learner = (state.params, state.opt_state, state.priorities, state.max_priority)
    keys = jax.random.split(key, config.num_gradient_steps)
    learner, losses = jax.lax.scan(step, learner, keys)
    return learner, jax.tree.map(jnp.mean, losses)


def burnt_in(config: R2D2Config, unroll: Any, params: PyTree, batch: Sequences) -> Array:
    """Action values `[unroll_length + 1, B, A]` after the burn-in."""
    core, inputs = batch.core, batch.rows.inputs
    if config.burn_in:
        before = jax.tree.map(lambda x: x[: config.burn_in], inputs)
        core, _ = unroll(params, core, before)
        core = jax.lax.stop_gradient(core)
    _, values = unroll(params, core, jax.tree.map(lambda x: x[config.burn_in :], inputs))
    return values


def targets(config: R2D2Config, values: Array, target_values: Array, rows: Row) -> Array:
    """n-step double-Q targets `[unroll_length, B]`, under the rescaling if it is on."""
    chosen = q_learning.value_of(target_values, q_learning.best(values))[1:]
    values_next = returns.unscale_value(chosen) if config.rescale_values else chosen
    rows = jax.tree.map(lambda x: x[:-1], rows)._replace(inputs=rows.inputs)
    # A row that led to a new episode without an end (after a resumed run) is none; sums end there.
    broken = jnp.concatenate([rows.inputs.first[2:], jnp.zeros_like(rows.ended[:1])])
    total = returns.n_step_returns(
        rows.reward,
        values_next,
        rows.terminated,
        (rows.ended | broken) & ~rows.terminated,
        config.gamma,
        config.n_step,
    )
    return returns.rescale_value(total) if config.rescale_values else total


def loss(
    config: R2D2Config, values: Array, target_values: Array, rows: Row, weights: Array
) -> tuple[Array, tuple[Array, Metrics]]:
    """Squared errors over valid steps, summed over time; priorities `[B]` and metrics.

    Args:
      values, target_values: `[unroll_length + 1, B, A]`, online and target network's.
      rows: `[unroll_length + 1, B]`.
      weights: `[B]`, importance weights.
    """
    valid = (~rows.inputs.first[1:]).astype(jnp.float32)
    target = targets(config, jax.lax.stop_gradient(values), target_values, rows)
    value = q_learning.value_of(values, rows.action)[:-1]
    error = (target - value) * valid
    loss = (weights * (0.5 * error**2).sum(0)).mean()
    size = jnp.abs(error)
    mean = size.sum(0) / jnp.maximum(valid.sum(0), 1.0)
    share = config.priority_max_share
    priority = share * size.max(0) + (1 - share) * mean
    count = jnp.maximum(valid.sum(), 1.0)
    return loss, (
        jax.lax.stop_gradient(priority),
        {
            "loss": loss,
            "q_value": (value * valid).sum() / count,
            "td_error": size.sum() / count,
        },
    )
