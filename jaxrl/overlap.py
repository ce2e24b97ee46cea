"""Rollouts of host environments that simulate while the policy is computed.

GA3C (Babaeizadeh et al. 2017) and SEED RL (Espeholt et al. 2020) keep accelerator and simulators
busy at the same time by queues, whose contents depend on timing. Here the environments are split
over k pools; while the policy looks at one, the others simulate. If inference takes C and
simulation S, both proportional to the number of environments, a step of all takes about max(C, S)
instead of C + S, but for a step at either end of the rollout.

The pools take turns in a fixed order, or the one that is ready first is next: then none waits for a
slow one until the rollout's end. Parameters are the same throughout a rollout, and the policy's
noise belongs to an environment and a step, so actions and trajectories are what they are without
pools, whatever the timing: no transition is lost, doubled or delayed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.envs.host import ANY, NONE
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
    collect = first_ready if env.asynchronous else in_turns
    simulation, decisions, outcomes = collect(env, policy, simulation, noise, num_steps)
    return simulation, Trajectory(
        decisions.inputs,
        decisions.action,
        outcomes.reward,
        outcomes.terminated,
        outcomes.truncated,
        outcomes.valid,
        decisions.extras,
    )


def in_turns(
    env: HostEnv, policy: Policy, simulation: Simulation, noise: PyTree, num_steps: int
) -> tuple[Simulation, Decision, Outcome]:
    """The pools in a fixed order; decisions and outcomes `[num_steps, N, ...]`."""
    num_pools = env.num_pools

    def step(carry: tuple[Any, Any], row: tuple[Array, PyTree]) -> tuple[Any, Any]:
        (state, parts), number = carry, row[0]
        decisions, outcomes = [], []
        for pool, noise in enumerate(split(row[1], num_pools)):
            part = parts[pool]
            core, action, extras = policy(part.core, part.inputs, noise)
            decisions.append(Decision(part.inputs, action, extras))
            outcomes.append(outcome(part.timestep))
            parts[pool] = part._replace(core=core, last_action=action)
            # The first pool's step was begun in this step of the scan, the others' in the last one.
            following = (pool + 1) % num_pools
            due = (number > 0) | (following == 0)
            awaited = jnp.where(due, following, NONE)
            state, _, timestep = env.swap(state, pool, action, awaited)
            parts[following] = jax.tree.map(
                lambda new, old, due=due: jnp.where(due, new, old),
                arrived(parts[following], timestep),
                parts[following],
            )
        return (state, parts), (join(decisions), join(outcomes))

    parts = split(simulation._replace(env_state=()), num_pools)
    rows = (jnp.arange(num_steps), noise)
    (state, parts), (decisions, before) = jax.lax.scan(
        step, (simulation.env_state, parts), rows, num_steps
    )
    for pool in range(1, num_pools):
        state, _, timestep = env.swap(state, NONE, parts[pool].last_action, pool)
        parts[pool] = arrived(parts[pool], timestep)
    simulation = join(parts)._replace(env_state=state)
    last = outcome(simulation.timestep)
    outcomes = jax.tree.map(lambda x, end: jnp.concatenate([x[1:], end[None]]), before, last)
    return simulation, decisions, outcomes


def first_ready(
    env: HostEnv, policy: Policy, simulation: Simulation, noise: PyTree, num_steps: int
) -> tuple[Simulation, Decision, Outcome]:
    """The pool that is ready first is next, until all have done their steps."""
    num_pools, last = env.num_pools, num_steps * env.num_pools - 1

    def by_pool(tree: PyTree, axis: int = 0) -> PyTree:
        """`N` as `k, N / k`."""
        return jax.tree.map(
            lambda x: x.reshape(*x.shape[:axis], num_pools, -1, *x.shape[axis + 1 :]), tree
        )

    def joined(tree: PyTree, axis: int = 0) -> PyTree:
        """Back again."""
        return jax.tree.map(lambda x: x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :]), tree)

    def put(rows: PyTree, row: Array, pool: Array, values: PyTree) -> PyTree:
        """Nothing, if there is no such row."""
        return jax.tree.map(lambda x, new: x.at[row, pool].set(new, mode="drop"), rows, values)

    def take_in(i: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        (state, pool, timestep), parts, done, decisions, outcomes = carry
        part = arrived(jax.tree.map(lambda x: x[pool], parts), timestep)
        outcomes = put(outcomes, done[pool], pool, outcome(timestep))
        done = done.at[pool].add(1)
        number = done[pool]
        noise = jax.tree.map(lambda x: x[number, pool], noises)  # the last one, if there is none
        core, action, extras = policy(part.core, part.inputs, noise)
        decisions = put(decisions, number, pool, Decision(part.inputs, action, extras))
        goes_on = number < num_steps
        awaited = jnp.where(i < last, ANY, NONE)
        received = env.swap(state, jnp.where(goes_on, pool, NONE), action, awaited)
        after = part._replace(core=core, last_action=action)
        part = jax.tree.map(lambda new, old: jnp.where(goes_on, new, old), after, part)
        parts = jax.tree.map(lambda all, new: all.at[pool].set(new), parts, part)
        return received, parts, done, decisions, outcomes

    noises = by_pool(noise, axis=1)
    core, action, extras = policy(
        simulation.core, simulation.inputs, jax.tree.map(lambda x: x[0], noise)
    )
    first = by_pool(Decision(simulation.inputs, action, extras))
    received = (simulation.env_state, None, None)
    for pool in range(num_pools):
        awaited = ANY if pool == num_pools - 1 else NONE
        received = env.swap(received[0], pool, first.action[pool], awaited)
    parts = by_pool(simulation._replace(env_state=(), core=core, last_action=action))
    decisions, outcomes = jax.tree.map(
        lambda x: jnp.zeros((num_steps, *x.shape), x.dtype), (first, outcome(parts.timestep))
    )
    decisions = jax.tree.map(lambda rows, row: rows.at[0].set(row), decisions, first)
    carry = (received, parts, jnp.zeros(num_pools, jnp.int32), decisions, outcomes)
    received, parts, _, decisions, outcomes = jax.lax.fori_loop(0, last + 1, take_in, carry)
    simulation = joined(parts)._replace(env_state=received[0])
    return simulation, joined(decisions, axis=1), joined(outcomes, axis=1)


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
