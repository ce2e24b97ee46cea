"""Rollouts of host environments that simulate while the policy is computed.

GA3C (Babaeizadeh et al. 2017) and SEED RL (Espeholt et al. 2020) keep accelerator and simulators
busy at the same time by queues, whose contents depend on timing. Here the environments are split
over k pools; while the policy looks at one, the others simulate. If inference takes C and
simulation S, both proportional to the number of environments, a step of all takes about max(C, S)
instead of C + S, but for a step at either end of the rollout.

The pools take turns in a fixed order, or the next pool is the one that is ready first: then no pool
waits for a slow one before the rollout's end. Parameters are the same throughout a rollout, and the
policy's noise belongs to an environment and a step. So actions and trajectories are the same as
without pools, whatever the timing: no transition is lost, doubled or delayed.

With `send_ahead` a rollout ends by sending the next actions, so that all environments simulate
while the agent learns. These actions are chosen by the policy before the update, one step in
`num_steps` (`lag`). Its extras, such as the log-probability, are kept with the actions, so the
ratios of PPO and V-trace are right. One-step Q-learning does not depend on the policy that acted.
Targets of several steps, lambda-returns and A2C accept the lag uncorrected, as GA3C does.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp

from jaxrl.envs.host.pools import ANY, NONE
from jaxrl.rollouts.simulation import Sent, Simulation, receive
from jaxrl.types import Array, Env, HostEnv, Inputs, Policy, PyTree, TimeStep, Trajectory


class Decision(NamedTuple):
    """The first half of a transition: what the agent saw and did; leaves `[N, ...]`."""

    inputs: Inputs
    action: Array
    extras: PyTree


class Outcome(NamedTuple):
    """The second half of a transition: what the environments answered; leaves `[N]`."""

    reward: Array
    terminated: Array
    truncated: Array
    valid: Array


def is_pipelined(env: Env) -> TypeGuard[HostEnv]:
    """Return True if environments simulate while something else is computed."""
    return isinstance(env, HostEnv) and (env.num_pools > 1 or env.send_ahead)


def rollout(
    env: HostEnv, policy: Policy, simulation: Simulation, noise: PyTree, num_steps: int
) -> tuple[Simulation, Trajectory]:
    """Step environments that are split over `env.num_pools` for `num_steps` steps.

    Args:
      noise: of the policy, `[num_steps + 1, N, ...]`; the last row is for actions sent ahead.

    Returns:
      As `jaxrl.rollouts.rollout.rollout`.
    """
    collect = collect_first_ready if env.asynchronous else collect_in_turns
    noise, last_noise = (jax.tree.map(lambda x, i=i: x[i], noise) for i in (slice(-1), -1))
    simulation, decisions, outcomes = collect(env, policy, simulation, noise, num_steps)
    if env.send_ahead:
        simulation, outcomes = send_next(env, policy, simulation, last_noise, outcomes)
    return simulation, Trajectory(
        decisions.inputs,
        decisions.action,
        outcomes.reward,
        outcomes.terminated,
        outcomes.truncated,
        outcomes.valid,
        decisions.extras,
    )


def collect_in_turns(
    env: HostEnv, policy: Policy, simulation: Simulation, noise: PyTree, num_steps: int
) -> tuple[Simulation, Decision, Outcome]:
    """Step the pools in a fixed order; return decisions and outcomes `[num_steps, N, ...]`."""
    num_pools = env.num_pools

    def step(carry: tuple[Any, Any], row: tuple[Array, PyTree]) -> tuple[Any, Any]:
        (state, parts), number = carry, row[0]
        decisions, outcomes = [], []
        for pool, noise in enumerate(split(row[1], num_pools)):
            part = parts[pool]
            chosen = choose_actions(policy, part, noise)
            decisions.append(Decision(part.inputs, chosen.action, chosen.extras))
            outcomes.append(outcome_of(part.timestep))
            parts[pool] = record_action(part, chosen)
            # The first pool's step began in this iteration of the scan, the others' in the last.
            following = (pool + 1) % num_pools
            is_due = (number > 0) | (following == 0)
            awaited = jnp.where(is_due, following, NONE)
            sent = jnp.where(chosen.is_pending.any(), NONE, pool)
            state, _, timestep = env.send_and_receive(state, sent, chosen.action, awaited)
            parts[following] = select(is_due, receive(parts[following], timestep), parts[following])
        return (state, parts), (join(decisions), join(outcomes))

    parts = split(simulation._replace(env_state=()), num_pools)
    rows = (jnp.arange(num_steps), noise)
    (state, parts), (decisions, before) = jax.lax.scan(
        step, (simulation.env_state, parts), rows, num_steps
    )
    for pool in range(1, num_pools):
        state, _, timestep = env.send_and_receive(state, NONE, parts[pool].last_action, pool)
        parts[pool] = receive(parts[pool], timestep)
    simulation = join(parts)._replace(env_state=state)
    last = outcome_of(simulation.timestep)
    outcomes = jax.tree.map(lambda x, end: jnp.concatenate([x[1:], end[None]]), before, last)
    return simulation, decisions, outcomes


def collect_first_ready(
    env: HostEnv, policy: Policy, simulation: Simulation, noise: PyTree, num_steps: int
) -> tuple[Simulation, Decision, Outcome]:
    """Step the pool that is ready first, until all have taken their steps."""
    num_pools, last = env.num_pools, num_steps * env.num_pools - 1

    def by_pool(tree: PyTree, axis: int = 0) -> PyTree:
        """Return the axis `N` as `k, N / k`."""
        return jax.tree.map(
            lambda x: x.reshape(*x.shape[:axis], num_pools, -1, *x.shape[axis + 1 :]), tree
        )

    def joined(tree: PyTree, axis: int = 0) -> PyTree:
        """Return the axes `k, N / k` as `N`."""
        return jax.tree.map(lambda x: x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :]), tree)

    def put(rows: PyTree, row: Array, pool: Array, values: PyTree) -> PyTree:
        """Write `values` to a pool's part of a row; do nothing if there is no such row."""
        return jax.tree.map(lambda x, new: x.at[row, pool].set(new, mode="drop"), rows, values)

    def step(i: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        (state, pool, timestep), parts, done, decisions, outcomes = carry
        part = receive(jax.tree.map(lambda x: x[pool], parts), timestep)
        outcomes = put(outcomes, done[pool], pool, outcome_of(timestep))
        done = done.at[pool].add(1)
        number = done[pool]
        # Indices beyond the last row give the last row; that choice is not sent.
        noise = jax.tree.map(lambda x: x[number, pool], noises)
        chosen = choose_actions(policy, part, noise)
        decision = Decision(part.inputs, chosen.action, chosen.extras)
        decisions = put(decisions, number, pool, decision)
        is_sent = number < num_steps
        awaited = jnp.where(i < last, ANY, NONE)
        received = env.send_and_receive(
            state, jnp.where(is_sent, pool, NONE), chosen.action, awaited
        )
        part = select(is_sent, record_action(part, chosen), part)
        parts = jax.tree.map(lambda all, new: all.at[pool].set(new), parts, part)
        return received, parts, done, decisions, outcomes

    noises = by_pool(noise, axis=1)
    chosen = choose_actions(policy, simulation, jax.tree.map(lambda x: x[0], noise))
    first = by_pool(Decision(simulation.inputs, chosen.action, chosen.extras))
    received = (simulation.env_state, None, None)
    for pool in range(num_pools):
        awaited = ANY if pool == num_pools - 1 else NONE
        sent = jnp.where(chosen.is_pending.any(), NONE, pool)
        received = env.send_and_receive(received[0], sent, first.action[pool], awaited)
    parts = by_pool(record_action(simulation, chosen)._replace(env_state=()))
    decisions, outcomes = jax.tree.map(
        lambda x: jnp.zeros((num_steps, *x.shape), x.dtype), (first, outcome_of(parts.timestep))
    )
    decisions = jax.tree.map(lambda rows, row: rows.at[0].set(row), decisions, first)
    carry = (received, parts, jnp.zeros(num_pools, jnp.int32), decisions, outcomes)
    received, parts, _, decisions, outcomes = jax.lax.fori_loop(0, last + 1, step, carry)
    simulation = joined(parts)._replace(env_state=received[0])
    return simulation, joined(decisions, axis=1), joined(outcomes, axis=1)


def choose_actions(policy: Policy, simulation: Simulation, noise: PyTree) -> Sent:
    """Return the actions that were sent ahead, or else those that the policy chooses now."""

    def now() -> Sent:
        chosen = policy(simulation.core, simulation.inputs, noise)
        return Sent(*chosen, is_pending=jnp.zeros(len(simulation.timestep.reward), bool))

    sent = simulation.sent
    if not isinstance(sent, Sent):
        return now()
    return jax.lax.cond(sent.is_pending.any(), lambda: sent, now)


def record_action(simulation: Simulation, chosen: Sent) -> Simulation:
    """Record the action; its time step is pending."""
    sent = simulation.sent
    if isinstance(sent, Sent):
        sent = sent._replace(is_pending=jnp.zeros_like(sent.is_pending))
    return simulation._replace(core=chosen.core, last_action=chosen.action, sent=sent)


def send_next(
    env: HostEnv, policy: Policy, simulation: Simulation, noise: PyTree, outcomes: Outcome
) -> tuple[Simulation, Outcome]:
    """Send all pools the next actions, before the agent learns from `outcomes`."""
    chosen = policy(simulation.core, simulation.inputs, noise)
    sent = Sent(*chosen, is_pending=jnp.ones(env.num_envs, bool))
    state, zeros = simulation.env_state, []
    for pool, action in enumerate(split(sent.action, env.num_pools)):
        state, _, timestep = env.send_and_receive(state, pool, action, NONE)
        zeros.append(timestep.reward)
    # The compiler may delay a call with unused results, so the rewards depend on its zeros.
    outcomes = outcomes._replace(reward=outcomes.reward + jnp.concatenate(zeros))
    return simulation._replace(env_state=state, sent=sent), outcomes


def lag(env: Env, num_steps: int) -> float:
    """Return the share of a rollout's actions that come from the policy before the last update."""
    return 1 / num_steps if isinstance(env, HostEnv) and env.send_ahead else 0.0


def outcome_of(timestep: TimeStep) -> Outcome:
    """Return the outcome of the transition that led to `timestep`."""
    return Outcome(timestep.reward, timestep.terminated, timestep.truncated, ~timestep.first)


def select(flag: Array, tree: PyTree, other: PyTree) -> PyTree:
    """Return `tree` if the flag holds, else `other`."""
    return jax.tree.map(lambda x, y: jnp.where(flag, x, y), tree, other)


def split(tree: PyTree, num_pools: int) -> list[PyTree]:
    """Return leaves `[N, ...]` as a list of trees, one for each pool."""
    return [
        jax.tree.map(lambda x, pool=pool: jnp.split(x, num_pools)[pool], tree)
        for pool in range(num_pools)
    ]


def join(parts: list[PyTree]) -> PyTree:
    """Return leaves `[N, ...]` from the trees of all pools."""
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
