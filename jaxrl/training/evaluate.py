"""Evaluation over a fixed number of whole episodes, and pictures of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.rollouts.simulation import Simulation, advance, start
from jaxrl.types import Algorithm, Array, Env, Memory

MAX_ENVS = 16


def split(num_episodes: int) -> tuple[int, int]:
    """How many environments play so many episodes, and how many each: as many or a few more."""
    num_envs = min(num_episodes, MAX_ENVS)
    return num_envs, -(-num_episodes // num_envs)


class Evaluation(NamedTuple):
    """Scores of whole episodes; leaves `[num_envs * episodes_per_env]`, NaN if cut short."""

    episode_return: Array
    episode_length: Array


def evaluate(
    algo: Algorithm,
    config: Any,
    state: Any,
    env: Env,
    key: Array,
    episodes_per_env: int = 1,
    greedy: bool = False,
    max_steps: int = 100_000,
    simulation: Simulation | None = None,
) -> Evaluation:
    """Play until every environment has finished `episodes_per_env` episodes, or `max_steps`.

    Each environment counts the same number of episodes, its first ones, so short episodes are not
    favoured. Pure: `jit` it with `static_argnums=(0, 3, 5, 6, 7)`.

    Args:
      env: as `algo.env.for_evaluation(num_envs)` gives it.
      key: the same key gives the same environments.
      greedy: take the policy's mode, not a sample.
      simulation: environments `env` where they stand, at new episodes, instead of ones that begin.
    """
    start_key, key = jax.random.split(key)
    simulation = start(env, start_key, algo.initial_core(config, env.num_envs), simulation)
    rows = jnp.arange(env.num_envs)
    nothing = jnp.full((env.num_envs, episodes_per_env + 1), jnp.nan)

    def unfinished(carry: tuple[Any, ...]) -> Array:
        _, simulation, _, step = carry
        return (simulation.episodes.count < episodes_per_env).any() & (step < max_steps)

    def play(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        key, simulation, scores, step = carry
        before = simulation.episodes
        key, step_key = jax.random.split(key)
        simulation = _play_step(algo, config, state, env, simulation, greedy, step_key)
        now = simulation.episodes
        ended = now.count > before.count
        # Episodes past the wanted ones, and steps that end none, fall into a column of no use.
        column = jnp.where(ended, jnp.minimum(before.count, episodes_per_env), episodes_per_env)
        scores = Evaluation(
            scores.episode_return.at[rows, column].set(now.return_sum - before.return_sum),
            scores.episode_length.at[rows, column].set(now.length_sum - before.length_sum),
        )
        return key, simulation, scores, step + 1

    carry = (key, simulation, Evaluation(nothing, nothing), jnp.int32(0))
    _, _, scores, _ = jax.lax.while_loop(unfinished, play, carry)
    return jax.tree.map(lambda x: x[:, :episodes_per_env].reshape(-1), scores)


def _play_step(
    algo: Algorithm,
    config: Any,
    state: Any,
    env: Env,
    simulation: Simulation,
    greedy: bool,
    key: Array,
) -> Simulation:
    act_key, env_key = jax.random.split(key)
    inputs = simulation.inputs
    memory = Memory(simulation.core, inputs.last_action, inputs.last_reward, inputs.first)
    memory, action = algo.act(config, state, memory, inputs.obs, act_key, greedy)
    return advance(env, simulation, env_key, memory.core, action)


def frames(
    algo: Algorithm,
    config: Any,
    state: Any,
    env: Env,
    key: Array,
    greedy: bool = False,
    max_steps: int = 100_000,
) -> Iterator[tuple[np.ndarray, float]]:
    """Pictures of one episode of the first environment of `env`, each with the score so far.

    Args:
      env: as `algo.env.for_rendering()` gives it.
    """
    start_key, key = jax.random.split(key)
    simulation = jax.jit(start, static_argnums=0)(env, start_key, algo.initial_core(config, 1))
    step = jax.jit(_play_step, static_argnums=(0, 3, 5))
    yield env.render(simulation.env_state), 0.0
    for _ in range(max_steps):
        key, step_key = jax.random.split(key)
        simulation = step(algo, config, state, env, simulation, greedy, step_key)
        statistics = simulation.episodes
        over = bool(statistics.count[0] > 0)
        score = statistics.return_sum[0] if over else statistics.running_return[0]
        yield env.render(simulation.env_state), float(score)
        if over:
            return
