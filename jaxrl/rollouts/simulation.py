"""N environments and the episodes that run in them: what an agent's state holds of its world."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.envs import episodes
from jaxrl.envs.episodes import EpisodeStatistics
from jaxrl.types import Array, Env, HostEnv, Inputs, PyTree, TimeStep


class Sent(NamedTuple):
    """What the policy said to where the environments stand; leaves `[N, ...]`."""

    core: PyTree  # the agent's memory after it
    action: Array
    extras: PyTree
    under_way: Array  # whether the environments were sent it, and simulate


class Simulation(NamedTuple):
    """The part of a training state that belongs to the environments and their running episodes."""

    env_state: PyTree
    timestep: TimeStep
    episodes: EpisodeStatistics
    core: PyTree  # the agent's memory of the episodes, () without one
    last_action: Array
    sent: Sent | tuple[()] = ()  # before the agent learned (`HostEnv.send_ahead`)

    @property
    def inputs(self) -> Inputs:
        """What the agent sees next, leaves `[N, ...]`."""
        timestep = self.timestep
        return Inputs(timestep.obs, timestep.first, self.last_action, timestep.reward)


def start(
    env: Env,
    key: Array,
    core: PyTree = (),
    simulation: Simulation | None = None,
    extras: PyTree = None,
) -> Simulation:
    """Start N episodes, of an agent whose memory is `core` at their start.

    Args:
      simulation: environments to take over where they stand, instead of new ones.
      extras: what its policy gives beside actions, leaves `[N, ...]`.
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
    """New episodes in all environments if `where`, a flag, holds; nothing of the old ones counts.

    For host environments, whose state cannot be replaced by another. What they were sent ahead is
    not done: its answer is their first observation once more, which makes no valid transition.
    """
    flags = jnp.broadcast_to(where, (env.num_envs,))
    env_state, timestep = env.restart(simulation.env_state, simulation.timestep, flags)

    def cleared(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jnp.where(where, jnp.zeros_like(x), x), tree)

    sent = simulation.sent
    if isinstance(sent, Sent):  # by another agent, whose numbers need not be finite
        sent = cleared(sent)._replace(under_way=sent.under_way)
    return simulation._replace(
        env_state=env_state,
        timestep=timestep,
        episodes=cleared(simulation.episodes),
        last_action=cleared(simulation.last_action),
        sent=sent,
    )


def advance(
    env: Env, simulation: Simulation, key: Array, core: PyTree, action: Array
) -> Simulation:
    """Step all environments with `action`, after which the agent's memory is `core`."""
    env_state, timestep = env.step(key, simulation.env_state, action)
    after = simulation._replace(env_state=env_state, core=core, last_action=action)
    return arrived(after, timestep)


def arrived(simulation: Simulation, timestep: TimeStep) -> Simulation:
    """The environments have come to `timestep`."""
    statistics = episodes.update(simulation.episodes, timestep)
    return simulation._replace(timestep=timestep, episodes=statistics)
