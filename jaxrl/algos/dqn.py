"""DQN: deep Q-learning (Mnih et al. 2015), with its usual extensions as options.

Each update steps the environments epsilon-greedily, stores what they showed, and takes
`num_gradient_steps` on batches of the replay that move Q(s, a) towards

    r_t + ... + gamma^{n-1} r_{t+n-1} + gamma^n (1 - terminated) Q_target(s_{t+n}, a*)

with a* the best action by the target network, or by the online one if `double` (van Hasselt et
al. 2016); n > 1 gives n-step targets, `dueling` the head of Wang et al. 2016, `prioritized` the
replay of Schaul et al. 2016. Returns end with episodes; truncated ones bootstrap from their true
last observation, which the replay holds, as it holds every step, ends included. Errors beyond 1
count linearly, as in the paper.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl import config as fields
from jaxrl import networks, optim, q_learning, replay
from jaxrl.replay import Replay
from jaxrl.rollout import Simulation, episode_metrics, rollout, start
from jaxrl.types import Algorithm, Array, Env, Inputs, Metrics, PyTree, Trajectory


@fields.config
class DQNConfig(networks.NetworkConfig):
    """Hyperparameters of DQN. Plain fields are traced leaves; `static` ones shape the program."""

    learning_rate: float = 1e-4
    anneal_updates: int = 0
    """Updates over which the learning rate falls linearly to 0; 0 keeps it constant."""
    adam_eps: float = 1e-8
    max_grad_norm: float = 10.0
    gamma: float = 0.99
    initial_epsilon: float = 1.0
    final_epsilon: float = 0.01
    exploration_steps: float = 1e6
    """Environment steps over which epsilon falls linearly."""
    learning_starts: float = 80_000.0
    """Environment steps before the first gradient step."""
    target_period: int = 250
    """Updates between copies of the parameters to the target network."""
    priority_exponent: float = 0.6
    """alpha of prioritized replay."""
    importance_exponent: float = 0.4
    """beta of prioritized replay."""
    num_steps: int = fields.static(4)
    """Steps of each environment in an update."""
    num_gradient_steps: int = fields.static(1)
    batch_size: int = fields.static(32)
    replay_size: int = fields.static(1_000_000)
    """Transitions kept, over all environments."""
    frame_stack: int = fields.static(1)
    """Images are stacks of so many frames, of which the replay stores each once (Atari: 4)."""
    n_step: int = fields.static(1)
    double: bool = fields.static(False)
    dueling: bool = fields.static(False)
    prioritized: bool = fields.static(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.core is not None:
            raise ValueError(f"DQN has no memory, got core={self.core!r}; use jaxrl.r2d2")
        fields.check_bound(self, "max_grad_norm")
        fields.check_positive(self, "adam_eps", "exploration_steps", "target_period")
        fields.check_not_negative(self, "learning_rate", "learning_starts", "priority_exponent")
        fields.check_not_negative(self, "anneal_updates")
        fields.check_unit_interval(self, "gamma", "initial_epsilon", "final_epsilon")
        fields.check_unit_interval(self, "importance_exponent")
        fields.check_count(self, "num_steps", "num_gradient_steps", "batch_size", "replay_size")
        fields.check_count(self, "frame_stack", "n_step")
        fields.check_switch(self, "double", "dueling", "prioritized")


class Row(NamedTuple):
    """A step of N environments in the replay; leaves `[N, ...]`."""

    obs: PyTree  # the newest frame alone if `frame_stack` > 1
    first: Array
    action: Array
    reward: Array
    terminated: Array
    ended: Array  # terminated or truncated


class DQNState(NamedTuple):
    """Everything DQN carries from update to update; arrays only."""

    params: PyTree
    target_params: PyTree
    opt_state: PyTree
    simulation: Simulation
    memory: Replay
    priorities: Array | None  # [capacity, N], 0 for rows that can't be learned from
    max_priority: Array | None
    key: Array
    num_updates: Array


class Batch(NamedTuple):
    """Transitions of n steps, leaves `[B, ...]`."""

    obs: PyTree
    action: Array
    reward: Array  # discounted sum
    discount: Array  # of the value after it: gamma^n, or 0 after a termination
    last_obs: PyTree
    valid: Array  # float32: 0 where the rows don't belong together


def dqn(env: Env, network: nn.Module | None = None) -> Algorithm:
    """DQN on `env`, whose actions must be `Discrete`.

    Args:
      network: a Flax module, `obs [B, ...] -> action values [B, A]`; None builds one from the
        config.
    """

    def network_of(config: DQNConfig) -> nn.Module:
        return network or networks.q_network(
            env.observation_space, env.action_space, config, config.dueling
        )

    def values_of(config: DQNConfig, params: PyTree, obs: PyTree) -> Array:
        return jnp.asarray(network_of(config).apply(params, obs))

    def as_row(config: DQNConfig, inputs: Inputs, trajectory: Trajectory) -> Row:
        obs = replay.newest_frame(inputs.obs) if config.frame_stack > 1 else inputs.obs
        ended = trajectory.terminated | trajectory.truncated
        return Row(
            obs, inputs.first, trajectory.action, trajectory.reward, trajectory.terminated, ended
        )

    def init(config: DQNConfig, key: Array) -> DQNState:
        check_sizes(config, env)
        network_key, env_key, key = jax.random.split(key, 3)
        simulation = start(env, env_key)
        params = network_of(config).init(network_key, simulation.timestep.obs)
        timestep = simulation.timestep
        row = Row(
            replay.newest_frame(timestep.obs) if config.frame_stack > 1 else timestep.obs,
            timestep.first,
            simulation.last_action,
            timestep.reward,
            timestep.terminated,
            timestep.truncated,
        )
        memory = replay.start(row, -(-config.replay_size // env.num_envs), config.num_steps)
        priorities = max_priority = None
        if config.prioritized:
            priorities = jnp.zeros((memory.capacity, env.num_envs), jnp.float32)
            max_priority = jnp.float32(1)
        return DQNState(
            params=params,
            target_params=params,
            opt_state=optim.adam(config.adam_eps, config.max_grad_norm).init(params),
            simulation=simulation,
            memory=memory,
            priorities=priorities,
            max_priority=max_priority,
            key=key,
            num_updates=jnp.int32(0),
        )

    def update(config: DQNConfig, state: DQNState) -> tuple[DQNState, Metrics]:
        key, rollout_key, learn_key = jax.random.split(state.key, 3)
        steps_per_update = env.num_envs * config.num_steps
        epsilon = optim.linear_schedule(
            config.initial_epsilon,
            config.final_epsilon,
            state.num_updates,
            config.exploration_steps / steps_per_update,
        )

        def policy(core: PyTree, inputs: Inputs, noise: PyTree) -> tuple[PyTree, Array, None]:
            values = values_of(config, state.params, inputs.obs)
            return core, q_learning.explore(values, epsilon, noise), None

        draw = q_learning.exploration_noise(env.action_space, env.num_envs)
        simulation, trajectory = rollout(
            env, policy, draw, state.simulation, rollout_key, config.num_steps
        )
        state = state._replace(simulation=simulation, key=key, num_updates=state.num_updates + 1)
        state = remember(config, state, as_row(config, trajectory.inputs, trajectory))

        def learn(_: None) -> tuple[Any, Metrics]:
            return gradient_steps(config, lambda *x: values_of(config, *x), state, learn_key)

        def wait(_: None) -> tuple[Any, Metrics]:
            learner = (state.params, state.opt_state, state.priorities, state.max_priority)
            return learner, dict.fromkeys(LOSSES, jnp.float32(0))

        # Priorities are all that a branch returns of the replay: the rows would be copied.
        enough = state.num_updates * steps_per_update >= config.learning_starts
        enough &= state.memory.size >= config.n_step + config.frame_stack
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
        return state, episode_metrics(simulation, trajectory) | losses | {"epsilon": epsilon}

    def act(
        config: DQNConfig, state: DQNState, memory: Any, obs: PyTree, key: Array, greedy: bool
    ) -> tuple[Any, Array]:
        values = values_of(config, state.params, obs)
        if greedy:
            return memory, q_learning.best(values)
        noise = q_learning.exploration_noise(env.action_space, len(values))(key)
        return memory, q_learning.explore(values, config.final_epsilon, noise)

    return Algorithm(init, update, act, env, network, "dqn", DQNConfig)


LOSSES = ("loss", "q_value", "td_error")


def check_sizes(config: DQNConfig, env: Env) -> None:
    """Raise unless the replay can hold a batch's transitions, and images are stacks as claimed."""
    rows = -(-config.replay_size // env.num_envs)
    if rows < config.n_step + config.frame_stack + config.num_steps:
        raise ValueError(
            f"DQNConfig.replay_size = {config.replay_size} over num_envs = {env.num_envs} is too "
            f"small for num_steps = {config.num_steps} and n_step = {config.n_step}"
        )
    shape = getattr(env.observation_space, "shape", ())
    if config.frame_stack > 1 and (len(shape) != 3 or shape[-1] != config.frame_stack):
        raise ValueError(
            f"DQNConfig.frame_stack = {config.frame_stack}, but observations of {env.id} have "
            f"shape {shape}, not [H, W, {config.frame_stack}]"
        )


def remember(config: DQNConfig, state: DQNState, rows: Row) -> DQNState:
    """Store a rollout; its rows get the largest priority once their n steps are there."""
    memory = replay.add(state.memory, rows)
    if state.priorities is None or state.max_priority is None:
        return state._replace(memory=memory)
    # New rows wait for the n rows after them; the next to be overwritten lose their older frames.
    now = memory.num_added
    waiting = now - config.n_step + jnp.arange(config.n_step + config.frame_stack - 1)
    ready = now - config.n_step - config.num_steps + jnp.arange(config.num_steps)
    allowed = (ready >= config.frame_stack - 1)[:, None]
    priorities = state.priorities.at[ready % memory.capacity].set(
        jnp.where(allowed, state.max_priority, 0.0)
    )
    priorities = priorities.at[waiting % memory.capacity].set(0.0)
    return state._replace(memory=memory, priorities=priorities)


def sample(
    config: DQNConfig, memory: Replay, priorities: Array | None, key: Array
) -> tuple[Batch, Array, Array, Array]:
    """A batch, its importance weights `[B]`, and the slots and environments it came from."""
    num_envs = memory.rows.first.shape[1]
    before, after = config.frame_stack - 1, config.n_step
    if priorities is None:
        slots, envs = replay.uniform_slots(key, memory, num_envs, config.batch_size, before, after)
        weights = jnp.ones(config.batch_size, jnp.float32)
    else:
        drawn = replay.proportional(key, priorities.reshape(-1), config.batch_size)
        slots, envs = drawn.index // num_envs, drawn.index % num_envs
        weights = replay.importance_weights(
            drawn.probability, (memory.size - before - after) * num_envs, config.importance_exponent
        )
    return transitions(config, memory, slots, envs), weights, slots, envs


def transitions(config: DQNConfig, memory: Replay, slots: Array, envs: Array) -> Batch:
    """The n-step transitions that begin at these slots."""
    rows, n = memory.rows, config.n_step

    def window(ring: Array, length: int = n) -> Array:
        return replay.window(ring, slots, envs, length)

    def observe(slots: Array) -> PyTree:
        if config.frame_stack > 1:
            return replay.restack(rows.obs, slots, envs, config.frame_stack)
        return jax.tree.map(lambda ring: ring[slots, envs], rows.obs)

    ended = window(rows.ended)
    goes_on = jnp.cumprod(jnp.concatenate([jnp.ones_like(ended[:1]), ~ended[:-1]]), axis=0) > 0
    discounts = config.gamma ** jnp.arange(n)[:, None]
    length = goes_on.sum(0)
    terminated = (goes_on & window(rows.terminated)).any(0)
    # A row that only led to a new episode (or, after a resumed run, to another one) is no step.
    seams = goes_on & window(rows.first, n + 1)[1:]
    return Batch(
        obs=observe(slots),
        action=rows.action[slots, envs],
        reward=(goes_on * discounts * window(rows.reward)).sum(0),
        discount=jnp.where(terminated, 0.0, jnp.asarray(config.gamma) ** length),
        last_obs=observe((slots + length) % memory.capacity),
        valid=(~seams.any(0)).astype(jnp.float32),
    )


def gradient_steps(
    config: DQNConfig, q_values: Any, state: DQNState, key: Array
) -> tuple[Any, Metrics]:
    """Gradient steps on batches from the replay; the learner after them, and mean losses."""
    optimizer = optim.adam(config.adam_eps, config.max_grad_norm)
    learning_rate = optim.linear_decay(
        config.learning_rate, state.num_updates, config.anneal_updates
    )

    def step(learner: Any, key: Array) -> tuple[Any, Metrics]:
        params, opt_state, priorities, max_priority = learner
        batch, weights, slots, envs = sample(config, state.memory, priorities, key)
        target = q_targets(config, q_values, params, state.target_params, batch)

        def objective(params: PyTree) -> tuple[Array, tuple[Array, Metrics]]:
            values = q_values(params, batch.obs)
            value = q_learning.value_of(values, batch.action)
            return loss(value, target, weights * batch.valid, batch.valid)

        grads, (error, losses) = jax.grad(objective, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optim.apply_updates(params, updates, learning_rate)
        if priorities is not None:
            new = (jnp.abs(error) + 1e-6) ** config.priority_exponent * batch.valid
            priorities = priorities.at[slots, envs].set(new)
            max_priority = jnp.maximum(max_priority, new.max())
        return (params, opt_state, priorities, max_priority), losses

    learner = (state.params, state.opt_state, state.priorities, state.max_priority)
    keys = jax.random.split(key, config.num_gradient_steps)
    learner, losses = jax.lax.scan(step, learner, keys)
    return learner, jax.tree.map(jnp.mean, losses)


def q_targets(
    config: DQNConfig, q_values: Any, params: PyTree, target_params: PyTree, batch: Batch
) -> Array:
    """What Q of each transition should be, `[B]`."""
    next_values = q_values(target_params, batch.last_obs)
    chooser = q_values(params, batch.last_obs) if config.double else next_values
    bootstrap = q_learning.value_of(next_values, q_learning.best(chooser))
    return batch.reward + batch.discount * bootstrap


def loss(
    value: Array, target: Array, weights: Array, valid: Array
) -> tuple[Array, tuple[Array, Metrics]]:
    """Huber loss over valid transitions; `[B]`."""
    error = target - value
    total = jnp.maximum(valid.sum(), 1.0)
    loss = (optax.losses.huber_loss(error) * weights).sum() / total
    return loss, (
        error,
        {
            "loss": loss,
            "q_value": (value * valid).sum() / total,
            "td_error": (jnp.abs(error) * valid).sum() / total,
        },
    )
