"""Environment and policy to trajectory: one `lax.scan` over T steps of N environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.envs import episodes
from jaxrl.envs.episodes import EpisodeStatistics
from jaxrl.types import Array, Env, PyTree, TimeStep, Trajectory

Policy = Callable[[PyTree, Array], tuple[Array, PyTree]]
"""`policy(obs, key) -> (action, extras)` with leading axis `[N]`."""


class Simulation(NamedTuple):
    """The part of a training state that belongs to the environments."""

    env_state: PyTree
    timestep: TimeStep
    episodes: EpisodeStatistics


def start(env: Env, key: Array) -> Simulation:
    """Start N episodes."""
    env_state, timestep = env.init(key)
    return Simulation(env_state, timestep, episodes.start(timestep))


def rollout(
    env: Env, policy: Policy, simulation: Simulation, key: Array, num_steps: int
) -> tuple[Simulation, Trajectory]:
    """Step all environments `num_steps` times, from where `simulation` stands.

    Returns:
      The simulation afterwards, whose `timestep.obs` is the observation to bootstrap from and
      whose `episodes` sum over the episodes that ended in this rollout, and the trajectory with
      leaves `[num_steps, N, ...]`.
    """

    def step(simulation: Simulation, keys: Array) -> tuple[Simulation, Trajectory]:
        obs = simulation.timestep.obs
        action, extras = policy(obs, keys[0])
        env_state, timestep = env.step(keys[1], simulation.env_state, action)
        transition = Trajectory(
            obs=obs,
            action=action,
            reward=timestep.reward,
            terminated=timestep.terminated,
            truncated=timestep.truncated,
            valid=~timestep.first,
            extras=extras,
        )
        statistics = episodes.update(simulation.episodes, timestep)
        return Simulation(env_state, timestep, statistics), transition

    simulation = simulation._replace(episodes=episodes.forget_ended(simulation.episodes))
    # A step of a few pure environments costs less than the loop around it.
    unroll = 4 if env.checkpointable and env.num_envs <= 16 else 1
    keys = jax.random.split(key, (num_steps, 2))
    return jax.lax.scan(step, simulation, keys, unroll=unroll)


def episode_metrics(simulation: Simulation, trajectory: Trajectory) -> dict[str, Array]:
    """The metrics that every algorithm reports of a rollout."""
    return episodes.summarize(simulation.episodes) | {
        "valid_steps": trajectory.valid.sum(dtype=jnp.int32)
    }
