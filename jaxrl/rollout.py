"""Environment and policy to trajectory: one `lax.scan` over T steps of N environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.axis import axis_of
from jaxrl.envs import episodes
from jaxrl.envs.episodes import EpisodeStatistics
from jaxrl.types import Array, Env, HostEnv, Inputs, PyTree, TimeStep, Trajectory

Policy = Callable[[PyTree, Inputs, PyTree], tuple[PyTree, Array, PyTree]]
"""`policy(core, inputs, noise) -> (core, action, extras)` with leading axis `[N]`."""
Draw = Callable[[Array], PyTree]
"""`draw(key) -> noise`: all that is random about one step of a policy, in the environments of all
devices (`jaxrl.axis`); leaves lead with their number."""


class Simulation(NamedTuple):
    """The part of a training state that belongs to the environments and their running episodes."""

    env_state: PyTree
    timestep: TimeStep
    episodes: EpisodeStatistics
    core: PyTree  # the agent's memory of the episodes, () without one
    last_action: Array

    @property
    def inputs(self) -> Inputs:
        """What the agent sees next, leaves `[N, ...]`."""
        timestep = self.timestep
        return Inputs(timestep.obs, timestep.first, self.last_action, timestep.reward)


def start(
    env: Env, key: Array, core: PyTree = (), simulation: Simulation | None = None
) -> Simulation:
    """Start N episodes, of an agent whose memory is `core` at their start.

    Args:
      simulation: environments to take over where they stand, instead of new ones.
    """
    if simulation is not None:
        return simulation._replace(core=core)
    env_state, timestep = env.init(key)
    space = env.action_space
    last_action = jnp.zeros((env.num_envs, *space.shape), space.dtype)
    return Simulation(env_state, timestep, episodes.start(timestep), core, last_action)


def restart(env: HostEnv, simulation: Simulation, where: Array) -> Simulation:
    """New episodes in all environments if `where`, a flag, holds; nothing of the old ones counts.

    For host environments, whose state cannot be replaced by another.
    """
    flags = jnp.broadcast_to(where, (env.num_envs,))
    env_state, timestep = env.restart(simulation.env_state, simulation.timestep, flags)

    def cleared(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jnp.where(where, jnp.zeros_like(x), x), tree)

    return simulation._replace(
        env_state=env_state,
        timestep=timestep,
        episodes=cleared(simulation.episodes),
        last_action=cleared(simulation.last_action),
    )


def advance(
    env: Env, simulation: Simulation, key: Array, core: PyTree, action: Array
) -> Simulation:
    """Step all environments with `action`, after which the agent's memory is `core`."""
    env_state, timestep = env.step(key, simulation.env_state, action)
    statistics = episodes.update(simulation.episodes, timestep)
    return Simulation(env_state, timestep, statistics, core, action)


def rollout(
    env: Env, policy: Policy, draw: Draw, simulation: Simulation, key: Array, num_steps: int
) -> tuple[Simulation, Trajectory]:
    """Step all environments `num_steps` times, from where `simulation` stands.

    The noise of all steps is drawn at once: random bits for a few numbers at a time cost a small
    rollout a quarter of its time on a CPU (experiments/benchmarks/NOTES.md).

    Returns:
      The simulation afterwards, whose `inputs` are what to bootstrap from and whose `episodes`
      sum over the episodes that ended in this rollout, and the trajectory with leaves
      `[num_steps, N, ...]`.
    """

    def step(simulation: Simulation, randomness: PyTree) -> tuple[Simulation, Trajectory]:
        noise, env_key = randomness
        core, action, extras = policy(simulation.core, simulation.inputs, noise)
        after = advance(env, simulation, env_key, core, action)
        return after, Trajectory(
            inputs=simulation.inputs,
            action=action,
            reward=after.timestep.reward,
            terminated=after.timestep.terminated,
            truncated=after.timestep.truncated,
            valid=~after.timestep.first,
            extras=extras,
        )

    simulation = simulation._replace(episodes=episodes.forget_ended(simulation.episodes))
    action_key, env_key = jax.random.split(key)
    noise = jax.vmap(draw)(jax.random.split(action_key, num_steps))
    noise = axis_of(env).part(noise, axis=1)
    # A step of a few pure environments costs less than the loop around it.
    unroll = 4 if env.checkpointable and env.num_envs <= 16 else 1
    randomness = (noise, jax.random.split(env_key, num_steps))
    return jax.lax.scan(step, simulation, randomness, num_steps, unroll=unroll)


def episode_metrics(env: Env, simulation: Simulation, trajectory: Trajectory) -> dict[str, Array]:
    """The metrics that every algorithm reports of a rollout, of all devices."""
    metrics = episodes.summarize(simulation.episodes)
    metrics["valid_steps"] = trajectory.valid.sum(dtype=jnp.int32)
    return axis_of(env).sum(metrics)
