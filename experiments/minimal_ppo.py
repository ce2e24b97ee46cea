"""PPO on CartPole from jaxrl's public parts, in 130 lines to read, copy and change.

    python experiments/minimal_ppo.py

Rollout, advantages and epochs are one jitted scan over updates; every constant is below.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import jaxrl
from jaxrl import networks
from jaxrl.ops import minibatches, optimizers, returns
from jaxrl.rollouts import simulation as simulations
from jaxrl.rollouts.rollout import episode_metrics, rollout

NUM_ENVS, NUM_STEPS, NUM_UPDATES = 4, 128, 970
NUM_EPOCHS, NUM_MINIBATCHES = 4, 4
LEARNING_RATE, GAMMA, GAE_LAMBDA, CLIP, ENTROPY_COEF = 2.5e-3, 0.99, 0.95, 0.2, 0.01

env = jaxrl.make("CartPole-v1", NUM_ENVS)
network: Any = networks.actor_critic(env.observation_space, env.action_space)


class State(NamedTuple):
    """The arrays that are carried from update to update."""

    params: Any
    opt_state: Any
    simulation: simulations.Simulation
    key: jax.Array


class Batch(NamedTuple):
    """Transitions to learn from, leaves `[1, B, ...]`."""

    trajectory: jaxrl.Trajectory
    advantage: jax.Array
    target: jax.Array


def optimizer(num_updates: jax.Array | int) -> Any:
    """Return Adam with the learning rate of the update after `num_updates`."""
    rate = optimizers.linear_schedule(LEARNING_RATE, 0.0, jnp.int32(num_updates), NUM_UPDATES)
    return optimizers.adam(rate, eps=1e-5, max_grad_norm=0.5)


def init(key: jax.Array) -> State:
    """Return new parameters, and environments at the start of their episodes."""
    network_key, env_key, key = jax.random.split(key, 3)
    simulation = simulations.start(env, env_key)
    params = network.init(network_key, simulation.inputs.obs)
    return State(params, optimizer(0).init(params), simulation, key)


def update(state: State, num_updates: jax.Array) -> tuple[State, dict[str, jax.Array]]:
    """Collect a rollout, learn from it, and return the metrics of its episodes."""
    key, rollout_key, shuffle_key = jax.random.split(state.key, 3)

    def policy(core: Any, inputs: jaxrl.Inputs, keys: jax.Array) -> Any:
        distribution, value = network.apply(state.params, inputs.obs)
        action = jax.vmap(lambda distribution, key: distribution.sample(key))(distribution, keys)
        return core, action, (distribution.log_prob(action), value)

    def keys_of_step(key: jax.Array) -> jax.Array:
        return jax.random.split(key, NUM_ENVS)

    simulation, trajectory = rollout(
        env, policy, keys_of_step, state.simulation, rollout_key, NUM_STEPS
    )
    _, values = trajectory.extras
    _, last_value = network.apply(state.params, simulation.inputs.obs)
    advantages = returns.generalized_advantages(
        trajectory.reward, values, last_value, trajectory.terminated, trajectory.truncated,
        GAMMA, GAE_LAMBDA,
    )  # fmt: skip
    batch = jax.tree.map(
        lambda x: x.reshape(1, -1, *x.shape[2:]), Batch(trajectory, advantages, advantages + values)
    )
    (params, opt_state), _, losses = minibatches.learn_in_epochs(
        loss, optimizer(num_updates), (state.params, state.opt_state), batch, shuffle_key,
        NUM_EPOCHS, NUM_MINIBATCHES,
    )  # fmt: skip
    metrics = episode_metrics(env, simulation, trajectory) | losses
    return State(params, opt_state, simulation, key), metrics


def loss(params: Any, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the loss of PPO's paper, eq. 9, over valid transitions."""
    trajectory = jax.tree.map(lambda x: x[0], batch.trajectory)
    log_prob, _ = trajectory.extras
    distribution, value = network.apply(params, trajectory.obs)

    def mean(x: jax.Array) -> jax.Array:
        return jnp.mean(x, where=trajectory.valid)

    advantage = batch.advantage[0] - mean(batch.advantage[0])
    advantage = advantage / (jnp.sqrt(mean(advantage**2)) + 1e-8)
    ratio = jnp.exp(distribution.log_prob(trajectory.action) - log_prob)
    clipped_ratio = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    surrogate = mean(jnp.minimum(ratio * advantage, clipped_ratio * advantage))
    value_loss = 0.5 * mean((value - batch.target[0]) ** 2)
    loss = -surrogate + 0.5 * value_loss - ENTROPY_COEF * mean(distribution.entropy())
    return loss, {"loss": loss}


@jax.jit
def train(key: jax.Array) -> dict[str, jax.Array]:
    """Return the metrics of all updates, `[NUM_UPDATES]`."""
    _, metrics = jax.lax.scan(update, init(key), jnp.arange(NUM_UPDATES))
    return metrics


def main(seed: int = 0) -> np.ndarray:
    """Train, print the mean return of the episodes in each tenth of the updates, and return it."""
    metrics = jax.tree.map(lambda x: x.reshape(10, -1).sum(1), train(jax.random.key(seed)))
    mean_returns = np.asarray(metrics["episode_return_sum"] / metrics["episode_count"])
    for part, mean_return in enumerate(mean_returns, 1):
        steps = part * NUM_UPDATES * NUM_STEPS * NUM_ENVS // 10
        print(f"{steps:8,} steps: return {mean_return:6.1f}")
    return mean_returns


if __name__ == "__main__":
    tyro.cli(main)
