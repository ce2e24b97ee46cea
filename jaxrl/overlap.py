"""Rollouts of host environments that simulate while the policy is computed.

GA3C (Babaeizadeh et al. 2017) and SEED RL (Espeholt et al. 2020) keep accelerator and simulators
busy at the same time by queues, whose contents depend on timing. Here the environments are split
over k pools, which take turns in a fixed order: when the actions of one have been sent, the program
goes on to the observations of the next, and k - 1 pools simulate meanwhile. If inference takes C
and simulation S, both proportional to the number of environments, a step of all takes about
max(C, S) instead of C + S, but for a step at either end of the rollout. Actions, noise and
trajectories are what they are without pools.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.simulation import Simulation, arrived
from jaxrl.types import Array, HostEnv, Inputs, Policy, PyTree, TimeStep, Trajectory


class Decision(NamedTuple):
    """What was seen and done, leaves `[N, ...]`."""

    inputs: Inputs
    action: Array
    extras: PyTree


class Outcome(NamedTuple):
    """What came of it, leaves `[N]`."""

    reward: Array
    terminated: Array
    truncated: Array
    valid: Array


def rollout(
    env: HostEnv, policy: Policy, simulation: Simulation, noise: PyTree, num_steps: int
) -> tuple[Simulation, Trajectory]:
    """`num_steps` steps of environments that are split over `env.num_pools`.

    Args:
      noise: of the policy, `[num_steps, N, ...]`.

    Returns:
      As `jaxrl.rollout.rollout`.
    """
    num_pools = env.num_pools

    def step(carry: tuple[Any, Any], row: tuple[Array, PyTree]) -> tuple[Any, Any]:
        state, parts = carry
        number, noises = row[0], split(row[1], num_pools)
        begun, decisions, outcomes = [], [], []
        for pool, (part, noise) in enumerate(zip(parts, noises, strict=True)):
            # What was sent in the step before, while other pools had their turns.
            state, part = receive(env, state, part, pool, number > 0)
            core, action, extras = policy(part.core, part.inputs, noise)
            state = env.send(state, pool, action)
            begun.append(part._replace(core=core, last_action=action))
            decisions.append(Decision(part.inputs, action, extras))
            outcomes.append(outcome(part.timestep))
        return (state, begun), (join(decisions), join(outcomes))

    parts = split(simulation._replace(env_state=()), num_pools)
    rows = (jnp.arange(num_steps), noise)
    (state, parts), (decisions, before) = jax.lax.scan(
        step, (simulation.env_state, parts), rows, num_steps
    )
    for pool, part in enumerate(parts):
        state, parts[pool] = receive(env, state, part, pool)
    simulation = join(parts)._replace(env_state=state)
    last = outcome(simulation.timestep)
    outcomes = jax.tree.map(lambda x, end: jnp.concatenate([x[1:], end[None]]), before, last)
    return simulation, Trajectory(
        decisions.inputs,
        decisions.action,
        outcomes.reward,
        outcomes.terminated,
        outcomes.truncated,
        outcomes.valid,
        decisions.extras,
    )


def receive(
    env: HostEnv, state: PyTree, part: Simulation, pool: int, due: Array | bool = True
) -> tuple[PyTree, Simulation]:
    """The end of the step that a pool was sent, if one is due."""
    state, timestep = env.recv(state, pool, due)
    after = arrived(part, timestep)
    return state, jax.tree.map(lambda new, old: jnp.where(due, new, old), after, part)


def outcome(timestep: TimeStep) -> Outcome:
    """What a transition that led to `timestep` gave."""
    return Outcome(timestep.reward, timestep.terminated, timestep.truncated, ~timestep.first)


def split(tree: PyTree, num_pools: int) -> list[PyTree]:
    """Leaves `[N, ...]` as those of each pool."""
    return [
        jax.tree.map(lambda x, pool=pool: jnp.split(x, num_pools)[pool], tree)
        for pool in range(num_pools)
    ]


def join(parts: list[PyTree]) -> PyTree:
    """Leaves `[N, ...]` of those of each pool."""
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
