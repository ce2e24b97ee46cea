"""Environment and policy to trajectory: one `lax.scan` over T steps of N environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.device_axis import axis_of
from jaxrl.envs import episodes
from jaxrl.rollouts import pipelined
from jaxrl.rollouts.simulation import Simulation, advance
from jaxrl.spaces import ActionSpace
from jaxrl.types import Array, Env, Inputs, Policy, PyTree, Trajectory

Draw = Callable[[Array], PyTree]
"""`draw(key) -> noise`: the random numbers of one step of a policy; leaves lead with the number of
environments on all devices (`jaxrl.device_axis`)."""


def rollout(
    env: Env, policy: Policy, draw: Draw, simulation: Simulation, key: Array, num_steps: int
) -> tuple[Simulation, Trajectory]:
    """Step all environments `num_steps` times, from where `simulation` stands.

    Host environments in several pools simulate while the policy is computed, with the same result.
    With `send_ahead` they also do while the agent learns; then the first actions are those of the
    policy before the update (`jaxrl.rollouts.pipelined`).

    The noise of all steps is drawn at once: random bits for a few numbers at a time cost a small
    rollout a quarter of its time on a CPU (docs/explanation/benchmark-notes.md).

    Args:
      policy: `policy(core, inputs, noise) -> (core, action, extras)`; `core` is the state of the
        network's memory, `()` without one.
      draw: `draw(key) -> noise`, the random numbers of a step, for all devices' environments.
      simulation: from `jaxrl.rollouts.simulation.start`, or after an earlier rollout.

    Returns:
      The simulation afterwards, and the trajectory with leaves `[num_steps, N, ...]`. Bootstrap
      from the simulation's `inputs`; its `episodes` sum over the episodes that ended in this
      rollout.

    Raises:
      ValueError: if `draw` gives random numbers for another number of environments, `policy`
        returns something else than these environments take, or there is no simulation.
    """
    if simulation is None:
        raise ValueError(
            "the state has no environments to step, like that of a loaded policy; put its params "
            "into a new state, algo.init(config, key)"
        )

    policy = _checked(policy, env.action_space)

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

    def noise(number: int) -> PyTree:
        of_all_devices = jax.vmap(draw)(jax.random.split(action_key, number))
        num_envs = env.num_envs * axis_of(env).size
        for x in jax.tree.leaves(of_all_devices):
            if x.shape[1:2] != (num_envs,):
                raise ValueError(
                    f"draw must give random numbers [{num_envs}, ...], for the environments of all "
                    f"devices (env.num_envs * axis_of(env).size), got {list(x.shape[1:])}"
                )
        return axis_of(env).shard(of_all_devices, axis=1)

    if pipelined.is_pipelined(env):
        return pipelined.rollout(env, policy, simulation, noise(num_steps + 1), num_steps)
    # A step of a few pure environments costs less than the loop around it. But without any loop
    # XLA may compile for minutes (docs/explanation/benchmark-notes.md).
    few = env.checkpointable and env.num_envs <= 16
    unroll = max(1, min(4, num_steps // 2)) if few else 1
    randomness = (noise(num_steps), jax.random.split(env_key, num_steps))
    return jax.lax.scan(step, simulation, randomness, num_steps, unroll=unroll)


def _checked(policy: Policy, space: ActionSpace) -> Policy:
    """Return a policy that raises `ValueError` for results of other structures or shapes."""

    def describe(x: Any) -> str:
        return f"{jnp.result_type(x)}{list(jnp.shape(x))}"

    def act(core: PyTree, inputs: Inputs, noise: PyTree) -> tuple[PyTree, Array, PyTree]:
        answer = policy(core, inputs, noise)
        if not isinstance(answer, tuple | list) or len(answer) != 3:
            is_many = isinstance(answer, tuple | list)
            found = f"{len(answer)} results" if is_many else type(answer).__name__
            raise ValueError(f"policy must return (core, action, extras), got {found}")
        wanted = jax.ShapeDtypeStruct((*inputs.first.shape, *space.shape), space.dtype)
        if (found := jax.tree.map(describe, answer[1])) != describe(wanted):
            raise ValueError(
                f"policy must return actions {describe(wanted)} of {space}, got {found}"
            )
        before, after = (jax.tree.flatten(jax.tree.map(describe, x)) for x in (core, answer[0]))
        if before != after:
            raise ValueError(
                f"policy must return the core in the shapes that it takes, {before}, got {after}"
            )
        return answer[0], answer[1], answer[2]

    return act


def episode_metrics(env: Env, simulation: Simulation, trajectory: Trajectory) -> dict[str, Array]:
    """Return the metrics of a rollout that every algorithm reports, over all devices."""
    metrics = episodes.summarize(simulation.episodes)
    metrics["valid_steps"] = trajectory.valid.sum(dtype=jnp.int32)
    return axis_of(env).sum(metrics)
