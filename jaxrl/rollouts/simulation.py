"""The part of a training state that belongs to N environments and their running episodes."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.envs import episodes
from jaxrl.envs.episodes import EpisodeStatistics
from jaxrl.spaces import Box
from jaxrl.types import Array, Env, HostEnv, Inputs, PyTree, TimeStep


class Sent(NamedTuple):
    """The actions that a policy chose at the current observations; leaves `[N, ...]`."""

    core: PyTree  # the agent's memory after acting
    action: Array
    extras: PyTree
    is_pending: Array  # True if the environments already simulate the actions


class Simulation(NamedTuple):
    """N environments, and the agent's memory of the episodes that run in them."""

    env_state: PyTree
    timestep: TimeStep
    episodes: EpisodeStatistics
    core: PyTree  # the agent's memory of the episodes, () without one
    last_action: Array
    sent: Sent | tuple[()] = ()  # the actions sent before learning, if `HostEnv.send_ahead`

    @property
    def inputs(self) -> Inputs:
        """Return what the agent sees next, leaves `[N, ...]`."""
        timestep = self.timestep
        return Inputs(timestep.obs, timestep.first, self.last_action, timestep.reward)


def start(
    env: Env,
    key: Array,
    core: PyTree = (),
    simulation: Simulation | None = None,
    extras: PyTree = None,
) -> Simulation:
    """Start N episodes.

    Args:
      core: the agent's memory at their start.
      simulation: environments whose episodes have just begun, instead of new ones.
      extras: what the agent's policy gives beside actions, leaves `[N, ...]`.
    """
    if simulation is not None:
        return simulation._replace(core=core)
    env_state, timestep = env.init(key)
    space = env.action_space
    last_action = jnp.zeros((env.num_envs, *space.shape), space.dtype)
    sent: Sent | tuple[()] = ()
    if isinstance(env, HostEnv) and env.send_ahead:
        sent = Sent(core, last_action, extras, jnp.zeros(env.num_envs, bool))
    return Simulation(env_state, timestep, episodes.start(timestep), core, last_action, sent)


def restart(env: HostEnv, simulation: Simulation, where: Array) -> Simulation:
    """Start new episodes in all environments if the flag `where` holds, and forget the old ones.

    For host environments: their state cannot be replaced by another. Memories and all else that
    another agent left become 0, since its numbers need not be finite. Actions sent ahead are
    discarded: their answer is the first observation once more, which makes no valid transition.
    """
    flags = jnp.broadcast_to(where, (env.num_envs,))
    env_state, timestep = env.restart(simulation.env_state, simulation.timestep, flags)

    def cleared(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jnp.where(where, jnp.zeros_like(x), x), tree)

    sent = simulation.sent
    if isinstance(sent, Sent):
        sent = cleared(sent)._replace(is_pending=sent.is_pending)
    return simulation._replace(
        env_state=env_state,
        timestep=timestep,
        episodes=cleared(simulation.episodes),
        core=cleared(simulation.core),
        last_action=cleared(simulation.last_action),
        sent=sent,
    )


def advance(
    env: Env, simulation: Simulation, key: Array, core: PyTree, action: Array
) -> Simulation:
    """Step all environments with `action`, clipped to a Box; `core` is the memory after it."""
    space = env.action_space
    within = jnp.clip(action, *space.bounds()) if isinstance(space, Box) else action
    env_state, timestep = env.step(key, simulation.env_state, within)
    after = simulation._replace(env_state=env_state, core=core, last_action=action)
    return receive(after, timestep)


def receive(simulation: Simulation, timestep: TimeStep) -> Simulation:
    """Record the time step that the last action led to."""
    statistics = episodes.update(simulation.episodes, timestep)
    return simulation._replace(timestep=timestep, episodes=statistics)
