"""The parts that DQN and R2D2 share: hyperparameters, and gradient steps on batches of a replay
towards the values of a target network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl import checks
from jaxrl import config as fields
from jaxrl.algos import hyperparameters
from jaxrl.device_axis import SINGLE_DEVICE, Axis, axis_of
from jaxrl.networks import build
from jaxrl.ops import optimizers
from jaxrl.replay import frames
from jaxrl.replay.priorities import draw_proportionally, importance_weights
from jaxrl.rollouts.agent import Agent
from jaxrl.rollouts.simulation import Simulation
from jaxrl.types import Array, Env, Metrics, PyTree, Trajectory


@fields.config
class QLearningConfig(hyperparameters.AlgorithmConfig):
    """Hyperparameters that the algorithms share; the defaults are DQN's."""

    learning_rate: float = 1e-4
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    learning_starts: float = 1000.0
    """Environment steps before the first gradient step."""
    target_period: float = 200
    """Updates between copies of the parameters to the target network; rounded."""
    priority_exponent: float = 0.6
    """alpha of prioritized replay; 0 draws uniformly (Schaul et al. 2016, eq. 1)."""
    importance_exponent: float = 0.4
    """beta of prioritized replay, in [0, 1] (Schaul et al. 2016, section 3.4)."""
    num_steps: int = fields.static(1)
    num_gradient_steps: int = fields.static(2)
    """Gradient steps in an update."""
    batch_size: int = fields.static(64)
    """Transitions of a gradient step."""
    replay_size: int = fields.static(1_000_000)
    """Steps kept, over all environments."""
    frame_stack: int = fields.static(1)
    """Gray frames in an observation; the replay stores each frame once (Atari: 4). 1 for no stacks.
    Stacks must begin as copies of the first frame, or go on over a reset, as those of Atari do."""
    n_step: int = fields.static(3)
    """Rewards that a target sums, in steps (Sutton & Barto 2018, eq. 7.1)."""
    layer_norm: bool = fields.static(True)
    dueling: bool = fields.static(False)
    """Whether the head is a dueling one (Wang et al. 2016)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.traced_fields(self, checks.POSITIVE, "adam_eps", "target_period")
        checks.traced_fields(self, checks.NOT_NEGATIVE, "learning_starts", "priority_exponent")
        checks.traced_fields(self, checks.UNIT_INTERVAL, "importance_exponent")
        checks.fields(self, checks.integer, "num_gradient_steps", "batch_size", "replay_size")
        checks.fields(self, checks.integer, "frame_stack", "n_step")
        checks.fields(self, checks.flag, "dueling")


def agent_of(env: Env, network: nn.Module | None) -> Agent:
    """Return the agent with the caller's network, or with the one that a config describes."""
    return Agent(env, network, build.q_network, build.find_q_network_problem)


LOSSES = ("loss", "q_value", "td_error")


class Learner(NamedTuple):
    """The fields of an algorithm's state that gradient steps change."""

    params: PyTree
    opt_state: PyTree
    priorities: Array | None  # [rows, N], 0 for rows that cannot be drawn; None: uniform
    max_priority: Array | None


class Sample(NamedTuple):
    """A batch from the replay, its importance weights, and its places in `priorities`; `[B]`."""

    batch: PyTree
    weights: Array
    rows: Array
    envs: Array


def num_rows(config: QLearningConfig, env: Env) -> int:
    """Return the rows of N environments that the replay of each device keeps."""
    return -(-config.replay_size // (env.num_envs * axis_of(env).size))


def has_started(config: QLearningConfig, env: Env, num_updates: Array) -> Array:
    """Return True once the environments took `learning_starts` steps."""
    return num_updates >= config.learning_starts / hyperparameters.steps_per_update(config, env)


def check_replay(config: QLearningConfig, env: Env, rows: int, reason: str) -> None:
    """Raise unless the replay holds enough, and every device can draw the same share of a batch.

    Args:
      rows: steps of each environment that it must hold.
      reason: what they are for.
    """
    name, num_devices = type(config).__name__, axis_of(env).size
    if num_rows(config, env) < rows:
        num_envs = env.num_envs * num_devices
        raise ValueError(
            f"{name}.replay_size = {config.replay_size} must be at least {rows * num_envs}: "
            f"{rows} steps of each of {num_envs} environments, for {reason}"
        )
    frames.check_frame_stack(config, env)
    if config.batch_size % num_devices:
        raise ValueError(
            f"{name}.batch_size = {config.batch_size} is not divisible by the number of devices, "
            f"{num_devices}"
        )


def first_row(simulation: Simulation) -> Trajectory:
    """Return a row `[N, ...]` of the shapes that rollouts will have."""
    timestep = simulation.timestep
    return Trajectory(
        inputs=simulation.inputs,
        action=simulation.last_action,
        reward=timestep.reward,
        terminated=timestep.terminated,
        truncated=timestep.truncated,
        valid=timestep.first,
        extras=None,
    )


def start_learner(
    config: QLearningConfig, params: PyTree, priorities: tuple[int, int] | None
) -> Learner:
    """Return a learner before its first step.

    Args:
      priorities: their shape; None to draw uniformly.
    """
    opt_state = optimizer_of(config, 0).init(params)
    if priorities is None:
        return Learner(params, opt_state, None, None)
    return Learner(params, opt_state, jnp.zeros(priorities, jnp.float32), jnp.float32(1))


def optimizer_of(config: QLearningConfig, num_updates: Array | int) -> optax.GradientTransformation:
    """Return the optimizer of the update after `num_updates`."""
    rate = hyperparameters.annealed_learning_rate(config, num_updates)
    return optimizers.adam(rate, config.adam_eps, config.max_grad_norm)


def value_of(q_values: Array, action: Array) -> Array:
    """Return the values `[...]` of actions `[...]`, given the values `[..., A]` of all actions."""
    return jnp.take_along_axis(q_values, action[..., None], axis=-1)[..., 0]


def priority_of(config: QLearningConfig, error: Array) -> Array:
    """Return the priorities of errors' sizes `[B]` (Schaul et al. 2016, section 3.3)."""
    return (error + 1e-6) ** config.priority_exponent


def draw_by_priority(
    config: QLearningConfig, axis: Axis, priorities: Array, key: Array
) -> tuple[Array, Array, Array]:
    """Draw by priorities `[rows, N]`: rows, environments and importance weights, each `[B]`.

    Every device draws the same share of a batch in proportion to its own priorities; the weights
    correct for it.
    """
    num_envs = priorities.shape[1]
    share = config.batch_size // axis.size
    drawn = draw_proportionally(axis.device_key(key), priorities.reshape(-1), share)
    weights = importance_weights(drawn.probability, config.importance_exponent)
    weights = jnp.where(drawn.probability > 0, weights, 0.0)  # where nothing could be drawn
    largest = jnp.maximum(axis.max(weights.max()), jnp.finfo(jnp.float32).tiny)
    return drawn.index // num_envs, drawn.index % num_envs, weights / largest


def learn(
    config: QLearningConfig,
    state: Any,
    is_ready: Array,
    draw: Callable[[Array | None, Array], Sample],
    objective: Callable[[PyTree, Sample], tuple[Array, tuple[Array, Metrics]]],
    key: Array,
    axis: Axis = SINGLE_DEVICE,
) -> tuple[Any, Metrics]:
    """Take an update's gradient steps, and renew the target network every `target_period` updates.

    Args:
      state: has the fields of `Learner`, `target_params`, and `num_updates` with this one counted.
      is_ready: True if the replay holds enough to learn from; otherwise nothing is learned.
      draw: `draw(priorities, key) -> Sample`.
      objective: `objective(params, sample) -> (loss, (priority [B], losses))`.

    Returns:
      The state, and its metrics: the means of `LOSSES`, zeros if nothing was learned;
      `gradient_steps` and `learning_rate`.
    """
    optimizer = optimizer_of(config, state.num_updates - 1)

    def step(learner: Learner, key: Array) -> tuple[Learner, Metrics]:
        sample = draw(learner.priorities, key)
        params, opt_state, (priority, losses) = optimizers.gradient_step(
            optimizer,
            lambda params: objective(params, sample),
            learner.params,
            learner.opt_state,
            axis,
        )
        learner = learner._replace(params=params, opt_state=opt_state)
        if learner.priorities is not None and learner.max_priority is not None:
            learner = learner._replace(
                priorities=learner.priorities.at[sample.rows, sample.envs].set(priority),
                max_priority=jnp.maximum(learner.max_priority, axis.max(priority.max())),
            )
        return learner, losses

    def steps(learner: Learner) -> tuple[Learner, Metrics]:
        keys = jax.random.split(key, config.num_gradient_steps)
        learner, losses = jax.lax.scan(step, learner, keys)
        return learner, axis.mean(jax.tree.map(jnp.mean, losses))

    def wait(learner: Learner) -> tuple[Learner, Metrics]:
        return learner, dict.fromkeys(LOSSES, jnp.float32(0))

    # The branches return only the priorities of the replay: its rows would be copied.
    learner = Learner(*(getattr(state, name) for name in Learner._fields))
    learner, losses = jax.lax.cond(is_ready, steps, wait, learner)
    period = jnp.maximum(jnp.round(config.target_period), 1).astype(jnp.int32)
    is_time = state.num_updates % period == 0
    target_params = jax.tree.map(
        lambda new, old: jnp.where(is_time, new, old), learner.params, state.target_params
    )
    metrics = losses | {
        "gradient_steps": jnp.where(is_ready, config.num_gradient_steps, 0),
        "learning_rate": hyperparameters.annealed_learning_rate(config, state.num_updates - 1),
    }
    return state._replace(target_params=target_params, **learner._asdict()), metrics
