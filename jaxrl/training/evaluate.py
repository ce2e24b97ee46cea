"""Evaluation over whole episodes, and pictures of one episode."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import checks
from jaxrl.envs.host import callback
from jaxrl.replay.ring import Replay
from jaxrl.rollouts.simulation import Simulation, advance, start
from jaxrl.spaces import zeros
from jaxrl.types import (
    Algorithm,
    Array,
    DrawableEnv,
    Env,
    HostEnv,
    Memory,
    check_agent,
    check_environments,
)

MAX_ENVS = 16
MAX_EPISODE_STEPS = 100_000
"""Mean steps of the episodes of an evaluation, at most."""
EVALUATION_SEED = 2**31 - 1
PIECE_STEPS = 200
"""Steps between which an evaluation can be stopped."""


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
    max_steps: int = MAX_EPISODE_STEPS,
    simulation: Simulation | None = None,
) -> Evaluation:
    """Play `episodes_per_env` episodes in each environment, or until the steps run out.

    Each environment counts the same number of episodes, its first ones, so short episodes are not
    favoured. Pure: `jit` it with `static_argnums=(0, 3, 5, 6, 7)`; `vmap` it over agents only with
    environments on the device.

    Args:
      algo: the algorithm whose agent plays.
      config: its config.
      state: a training state; only the learner's part is read. If it lies on several devices, host
        environments need `jaxrl.training.evaluate.agent_on_one_device(state)`.
      env: environments such as `algo.env.for_evaluation(num_envs)`.
      key: of the environments and actions; the same key gives the same environments.
      episodes_per_env: episodes of each environment.
      greedy: take the policy's mode, not a sample.
      max_steps: all stop after `max_steps * episodes_per_env` steps; an episode that has not ended
        by then has the score NaN.
      simulation: environments `env` at the start of episodes, used instead of new ones.

    Raises:
      ValueError: for bad arguments.
    """
    check_agent(algo, config)
    check_environments(env)
    _check_spaces(algo.env, env)
    if isinstance(env, HostEnv) and any(map(_is_on_several_devices, jax.tree.leaves(state))):
        raise checks.refuse(
            "state", "that of jaxrl.training.evaluate.agent_on_one_device(state) for environments "
            "on the host", "one on several devices",
        )  # fmt: skip
    if "simulation" not in getattr(state, "_fields", ()):
        raise checks.refuse("state", "a training state, as algo.init returns it", type(state))
    episodes_per_env = checks.integer("episodes_per_env", episodes_per_env)
    greedy, max_steps = checks.flag("greedy", greedy), checks.integer("max_steps", max_steps)
    games = _begin(algo, config, env, checks.random_key("key", key), episodes_per_env, simulation)
    limit = jnp.int32(min(max_steps * episodes_per_env, checks.MAX_COUNT))
    games = _play(algo, config, state, env, games, episodes_per_env, greedy, limit)
    return _scores(games)


class _Games(NamedTuple):
    """Episodes that are played for an evaluation."""

    key: Array
    simulation: Simulation
    scores: Evaluation
    """Of `[num_envs, episodes_per_env + 1]`; the last column takes what does not count."""
    step: Array
    """Steps of each environment so far."""


def _begin(
    algo: Algorithm,
    config: Any,
    env: Env,
    key: Array,
    episodes_per_env: int,
    simulation: Simulation | None = None,
) -> _Games:
    """Return games at the start of their first episodes, in `simulation` if it is given."""
    start_key, key = jax.random.split(key)
    simulation = start(env, start_key, algo.initial_core(config, env.num_envs), simulation)
    no_scores = jnp.full((env.num_envs, episodes_per_env + 1), jnp.nan)
    return _Games(key, simulation, Evaluation(no_scores, no_scores), jnp.int32(0))


def _play(
    algo: Algorithm,
    config: Any,
    state: Any,
    env: Env,
    games: _Games,
    episodes_per_env: int,
    greedy: bool,
    limit: Array,
) -> _Games:
    """Play until each environment has ended its episodes or done `limit` steps."""
    rows = jnp.arange(env.num_envs)

    def unfinished(games: _Games) -> Array:
        too_few = games.simulation.episodes.count < episodes_per_env
        return too_few.any() & (games.step < limit)

    def play_step(games: _Games) -> _Games:
        key, simulation, scores, step = games
        before = simulation.episodes
        # A sum of all episodes would lose digits of the newest ones.
        none = before._replace(return_sum=jnp.zeros_like(before.return_sum))
        simulation = simulation._replace(episodes=none)
        key, step_key = jax.random.split(key)
        simulation = _play_step(algo, config, state, env, simulation, greedy, step_key)
        now = simulation.episodes
        ended = now.count > before.count
        # The last column takes what does not count: further episodes, steps that end none.
        column = jnp.where(ended, jnp.minimum(before.count, episodes_per_env), episodes_per_env)
        scores = Evaluation(
            scores.episode_return.at[rows, column].set(now.return_sum),
            scores.episode_length.at[rows, column].set(now.length_sum - before.length_sum),
        )
        return _Games(key, simulation, scores, step + 1)

    return jax.lax.while_loop(unfinished, play_step, games)


def _scores(games: _Games) -> Evaluation:
    """Return the scores of the episodes that count."""
    return jax.tree.map(lambda x: x[:, :-1].reshape(-1), games.scores)


def _check_spaces(own: Env, env: Env) -> None:
    """Raise `ValueError` unless `env` has the agent's actions, and observations of its shapes."""
    for name in ("action_space", "observation_space"):
        expected, space = getattr(own, name), getattr(env, name)
        if expected == space:
            continue
        # The bounds of observations may differ: networks do not depend on them.
        shapes = [jax.eval_shape(functools.partial(zeros, x)) for x in (expected, space)]
        if name == "action_space" or shapes[0] != shapes[1]:
            raise ValueError(
                f"env must have the {name} of the agent's environments, {own.id}: {expected}; "
                f"{env.id} has {space}"
            )


def _is_on_several_devices(x: Any) -> bool:
    is_known = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    return is_known and len(x.devices()) > 1


def evaluate_separately(
    algo: Algorithm,
    config: Any,
    state: Any,
    num_episodes: int,
    seed: int = EVALUATION_SEED,
    greedy: bool = False,
    watch: Callable[[int], None] = lambda num_ended: None,
) -> Evaluation:
    """Evaluate on separate environments, and close their simulators.

    Args:
      watch: called at the start and after each `PIECE_STEPS` steps with the number of episodes
        that have ended; an error that it raises ends the evaluation.

    Returns:
      NumPy arrays `[num_episodes]`: the scores of `evaluate` with the key of this seed.
    """
    num_envs, episodes_per_env = split_episodes(num_episodes)
    env, limit = algo.env.for_evaluation(num_envs), MAX_EPISODE_STEPS * episodes_per_env
    play = jax.jit(_play, static_argnums=(0, 3, 5, 6))
    watch(0)
    key, some = jax.random.key(seed), next(iter(jax.tree.leaves(state)), None)
    if isinstance(some, jax.Array) and some.committed:
        # Else the second piece, whose games lie where the agent does, would be compiled again.
        key = jax.device_put(key, some.sharding)
    games = jax.jit(_begin, static_argnums=(0, 2, 4))(algo, config, env, key, episodes_per_env)
    with callback.closing(games.simulation if isinstance(env, HostEnv) else None):
        for step in range(0, limit, PIECE_STEPS):
            until = jnp.int32(min(step + PIECE_STEPS, limit))
            games = play(algo, config, state, env, games, episodes_per_env, greedy, until)
            num_ended = np.minimum(games.simulation.episodes.count, episodes_per_env).sum()
            if num_ended == num_envs * episodes_per_env:
                break
            watch(min(int(num_ended), num_episodes))
        return jax.tree.map(lambda x: np.asarray(x)[:num_episodes], _scores(games))


def split_episodes(num_episodes: int) -> tuple[int, int]:
    """Return a number of environments, and episodes of each, for at least `num_episodes`."""
    num_envs = min(num_episodes, MAX_ENVS)
    return num_envs, -(-num_episodes // num_envs)


def without_training(state: Any) -> Any:
    """Return a training state with None for its environments, replay and priorities."""
    replays = {name for name, part in state._asdict().items() if isinstance(part, Replay)}
    unread = replays | ({"simulation", "priorities"} & {*state._fields})
    return state._replace(**dict.fromkeys(unread))


def agent_on_one_device(state: Any) -> Any:
    """Return a training state on one device, without environments, replay and priorities.

    The state may lie on several devices and processes. The running sums of rewards differ between
    devices; only training reads them, so they become 0. Use it before evaluating on host
    environments, because XLA refuses calls of the host in a program of several devices.
    """

    def on_one_device(x: Array) -> Array:
        is_whole = x.is_fully_replicated
        return x.addressable_data(0) if is_whole else jnp.zeros(x.shape, x.dtype)

    return jax.tree.map(on_one_device, without_training(state))


def _play_step(
    algo: Algorithm,
    config: Any,
    state: Any,
    env: Env,
    simulation: Simulation,
    greedy: bool,
    key: Array,
) -> Simulation:
    """Act once in all environments and step them."""
    act_key, env_key = jax.random.split(key)
    inputs = simulation.inputs
    memory = Memory(simulation.core, inputs.last_action, inputs.last_reward, inputs.first)
    memory, action = algo.act(config, state, memory, inputs.obs, act_key, greedy)
    return advance(env, simulation, env_key, memory.core, action)


def frames(
    algo: Algorithm,
    config: Any,
    state: Any,
    env: DrawableEnv,
    key: Array,
    greedy: bool = False,
    max_steps: int = 100_000,
) -> Iterator[tuple[np.ndarray, float]]:
    """Yield pictures of one episode, each with the score so far.

    Args:
      algo, config, state, key, greedy: as for `evaluate`.
      env: an environment such as `algo.env.for_rendering()`.
      max_steps: pictures after the first one, at most.
    """
    start_key, key = jax.random.split(key)
    simulation = jax.jit(start, static_argnums=0)(env, start_key, algo.initial_core(config, 1))
    step = jax.jit(_play_step, static_argnums=(0, 3, 5))
    with callback.closing(simulation):
        yield env.render(simulation.env_state), 0.0
        for _ in range(max_steps):
            key, step_key = jax.random.split(key)
            simulation = step(algo, config, state, env, simulation, greedy, step_key)
            statistics = simulation.episodes
            is_over = bool(statistics.count[0] > 0)
            score = statistics.return_sum[0] if is_over else statistics.running_return[0]
            yield env.render(simulation.env_state), float(score)
            if is_over:
                return
