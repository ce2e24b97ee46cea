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

With `send_ahead` a rollout ends with the next actions, so that all simulate while the agent learns.
Their policy is that of before the update, one step in `num_steps` (`lag`). What it gave with them,
its log-probability for one, is kept with them, so PPO's and V-trace's ratios are right; Q-learning
does not ask who acted; A2C takes the lag as GA3C does.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp

from jaxrl.envs.host.pools import ANY, NONE
from jaxrl.rollouts.simulation import Sent, Simulation, arrived
from jaxrl.types import Array, Env, HostEnv, Inputs, Policy, PyTree, TimeStep, Trajectory


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


def applies(env: Env) -> TypeGuard[HostEnv]:
    """Whether environments simulate while something else is computed."""
    return isinstance(env, HostEnv) and (env.num_pools > 1 or env.send_ahead)


def rollout(
    env: HostEnv, policy: Policy, simulation: Simulation, noise: PyTree, num_steps: int
) -> tuple[Simulation, Trajectory]:
    """`num_steps` steps of environments that are split over `env.num_pools`.

    Args:
      noise: of the policy, `[num_steps + 1, N, ...]`; the last is for an action sent ahead.

    Returns:
      As `jaxrl.rollouts.rollout.rollout`.
    """
    collect = first_ready if env.asynchronous else in_turns
    noise, last_noise = (jax.tree.map(lambda x, i=i: x[i], noise) for i in (slice(-1), -1))
    simulation, decisions, outcomes = collect(env, policy, simulation, noise, num_steps)
    if env.send_ahead:
        simulation, outcomes = send(env, policy, simulation, last_noise, outcomes)
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
            decided = decide(policy, part, noise)
            decisions.append(Decision(part.inputs, decided.action, decided.extras))
            outcomes.append(outcome(part.timestep))
            parts[pool] = acted(part, decided)
            # The first pool's step was begun in this step of the scan, the others' in the last one.
            following = (pool + 1) % num_pools
            due = (number > 0) | (following == 0)
            awaited = jnp.where(due, following, NONE)
            sent = jnp.where(decided.under_way.any(), NONE, pool)
            state, _, timestep = env.send_and_receive(state, sent, decided.action, awaited)
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
        state, _, timestep = env.send_and_receive(state, NONE, parts[pool].last_action, pool)
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
        decided = decide(policy, part, noise)
        decision = Decision(part.inputs, decided.action, decided.extras)
        decisions = put(decisions, number, pool, decision)
        goes_on = number < num_steps
        awaited = jnp.where(i < last, ANY, NONE)
        received = env.send_and_receive(
            state, jnp.where(goes_on, pool, NONE), decided.action, awaited
        )
        after = acted(part, decided)
        part = jax.tree.map(lambda new, old: jnp.where(goes_on, new, old), after, part)
        parts = jax.tree.map(lambda all, new: all.at[pool].set(new), parts, part)
        return received, parts, done, decisions, outcomes

    noises = by_pool(noise, axis=1)
    decided = decide(policy, simulation, jax.tree.map(lambda x: x[0], noise))
    first = by_pool(Decision(simulation.inputs, decided.action, decided.extras))
    received = (simulation.env_state, None, None)
    for pool in range(num_pools):
        awaited = ANY if pool == num_pools - 1 else NONE
        sent = jnp.where(decided.under_way.any(), NONE, pool)
        received = env.send_and_receive(received[0], sent, first.action[pool], awaited)
    parts = by_pool(acted(simulation, decided)._replace(env_state=()))
    decisions, outcomes = jax.tree.map(
        lambda x: jnp.zeros((num_steps, *x.shape), x.dtype), (first, outcome(parts.timestep))
    )
    decisions = jax.tree.map(lambda rows, row: rows.at[0].set(row), decisions, first)
    carry = (received, parts, jnp.zeros(num_pools, jnp.int32), decisions, outcomes)
    received, parts, _, decisions, outcomes = jax.lax.fori_loop(0, last + 1, take_in, carry)
    simulation = joined(parts)._replace(env_state=received[0])
    return simulation, joined(decisions, axis=1), joined(outcomes, axis=1)


def decide(policy: Policy, simulation: Simulation, noise: PyTree) -> Sent:
    """What was sent ahead, or else what the policy says now."""

    def now() -> Sent:
        decided = policy(simulation.core, simulation.inputs, noise)
        return Sent(*decided, under_way=jnp.zeros(len(simulation.timestep.reward), bool))

    sent = simulation.sent
    if not isinstance(sent, Sent):
        return now()
    return jax.lax.cond(sent.under_way.any(), lambda: sent, now)


def acted(simulation: Simulation, decided: Sent) -> Simulation:
    """The agent has acted; where that leads is still to be received."""
    sent = simulation.sent
    if isinstance(sent, Sent):
        sent = sent._replace(under_way=jnp.zeros_like(sent.under_way))
    return simulation._replace(core=decided.core, last_action=decided.action, sent=sent)


def send(
    env: HostEnv, policy: Policy, simulation: Simulation, noise: PyTree, outcomes: Outcome
) -> tuple[Simulation, Outcome]:
    """Send all pools the next actions, before anything is learned from `outcomes`."""
    decided = policy(simulation.core, simulation.inputs, noise)
    sent = Sent(*decided, under_way=jnp.ones(env.num_envs, bool))
    state, nothing = simulation.env_state, []
    for pool, action in enumerate(split(sent.action, env.num_pools)):
        state, _, timestep = env.send_and_receive(state, pool, action, NONE)
        nothing.append(timestep.reward)
    # The compiler may put off what nobody waits for, so rewards wait for the answers, zeros.
    outcomes = outcomes._replace(reward=outcomes.reward + jnp.concatenate(nothing))
    return simulation._replace(env_state=state, sent=sent), outcomes


def lag(env: Env, num_steps: int) -> float:
    """The share of a rollout's actions that the policy of before the last update chose."""
    return 1 / num_steps if isinstance(env, HostEnv) and env.send_ahead else 0.0


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
