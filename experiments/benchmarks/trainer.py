"""jaxrl's own programs as measurements: an agent, a population, a search, and rollouts alone.

Their `compile_seconds` are true if the script calls `timing.compile_anew` first.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl
from jaxrl import tuning
from jaxrl.algos import actor_critic
from jaxrl.networks import build
from jaxrl.rollouts.agent import Agent
from jaxrl.training import population as populations
from jaxrl.training.compilation import compile_chunk
from jaxrl.training.progress.schedule import MAX_CHUNK
from tasks import Task
from timing import calls_for

MAX_UPDATES = 64
"""Size of a population's metrics buffer: the most updates of one measurement."""


class Trainer:
    """An agent in training, compiled ahead of time; a call returns its valid steps a second.

    Args:
      seconds: approximate length of a measurement; it has at least one update.
    """

    def __init__(self, algo: jaxrl.Algorithm, config: Any, seconds: float):
        self.config = config
        self.state = jax.jit(algo.init)(config, jax.random.key(0))
        began = time.perf_counter()
        self.program = compile_chunk(algo, config, self.state)
        self.compile_seconds = time.perf_counter() - began
        self.num_parameters = build.num_parameters(self.state.params)
        self.updates = min(calls_for(seconds, lambda: self.train(1)), MAX_CHUNK)

    def train(self, updates: int) -> float:
        """Train and return the number of valid steps."""
        self.state, metrics = self.program(self.config, self.state, jnp.int32(updates))
        return float(np.asarray(metrics["valid_steps"]).sum())

    def __call__(self) -> float:
        began = time.perf_counter()
        valid_steps = self.train(self.updates)
        return valid_steps / (time.perf_counter() - began)


class Lanes:
    """A population of PPO in training, compiled ahead of time.

    A call does `updates` updates and returns valid steps a second of all agents.
    """

    def __init__(self, task: Task, agents: int, strategy: Any, updates: int):
        algo = jaxrl.ppo(task.make())
        lanes = populations.population(algo, agents, strategy)
        self.configs = populations.stack(task.config, agents)
        self.updates = min(updates, MAX_UPDATES)
        keys = jax.random.split(jax.random.key(0), agents)
        self.states = jax.jit(lanes.init)(self.configs, keys)

        def update(configs: Any, states: Any, num_updates: jax.Array) -> Any:
            return lanes.update(configs, states, num_updates, MAX_UPDATES)

        began = time.perf_counter()
        lowered = jax.jit(update, donate_argnums=1).lower(self.configs, self.states, jnp.int32(1))
        self.program = lowered.compile(jaxrl.compiler_options(algo, task.config))
        self.compile_seconds = time.perf_counter() - began

    def __call__(self) -> float:
        began = time.perf_counter()
        self.states, metrics = self.program(self.configs, self.states, jnp.int32(self.updates))
        return float(np.asarray(metrics["valid_steps"]).sum()) / (time.perf_counter() - began)


class Search:
    """A whole HyperTrick search of PPO's learning rate as one program, compiled ahead of time.

    There are twice as many trials as lanes, and four phases. A call searches anew and returns the
    environment steps a second of all lanes: those without a trial left step on, too.
    """

    def __init__(self, task: Task, lanes: int, strategy: Any, updates: int):
        algo = jaxrl.ppo(task.make())
        space = {"learning_rate": tuning.LogUniform(1e-4, 1e-2)}
        search = functools.partial(
            tuning.search, algo, task.config, space, tuning.HyperTrick(2 * lanes, 4), lanes,
            updates, strategy=strategy,
        )  # fmt: skip
        self.steps, self.key = lanes * updates * task.steps, jax.random.key(0)
        began = time.perf_counter()
        lowered = jax.jit(search).lower(self.key)
        self.program = lowered.compile(jaxrl.compiler_options(algo, task.config))
        self.compile_seconds = time.perf_counter() - began

    def __call__(self) -> float:
        began = time.perf_counter()
        rounds = int(self.program(self.key).num_rounds)
        return rounds * self.steps / (time.perf_counter() - began)


def rollouts(env: jaxrl.Env, torso: str, num_steps: int) -> Callable[[], float]:
    """Return a measurement of an actor-critic's rollouts: milliseconds of a step of all envs."""
    config = build.PolicyConfig(torso=torso, hidden_sizes=(8,) if torso == "mlp" else None)
    agent = Agent(env, None, build.actor_critic, build.find_actor_critic_problem)
    params, simulation, _ = agent.start(config, jax.random.key(0))
    apply = agent.apply(config)

    @jax.jit
    def collect(simulation: Any, key: jax.Array) -> Any:
        after, trajectory = actor_critic.collect(env, apply, params, simulation, key, num_steps)
        return after, trajectory.extras.value.sum()

    def measure() -> float:
        nonlocal simulation
        began = time.perf_counter()
        simulation, total = collect(simulation, jax.random.key(0))
        total.block_until_ready()
        return (time.perf_counter() - began) / num_steps * 1e3

    return measure


def random_steps(env: Any, num_steps: int) -> Callable[[], float]:
    """Return a measurement of a program that only steps environments, with random actions.

    Returns:
      A function that returns steps a second, of all environments together.
    """

    def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
        state, total = carry
        action = jax.random.randint(key, (env.num_envs,), 0, env.action_space.n)
        state, timestep = env.step(key, state, action)
        return (state, total + timestep.reward.sum()), None

    @jax.jit
    def run(state: Any, key: jax.Array) -> Any:
        keys = jax.random.split(key, num_steps)
        return jax.lax.scan(step, (state, jnp.float32(0)), keys)[0]

    state, _ = jax.jit(env.init)(jax.random.key(0))

    def measure() -> float:
        nonlocal state
        began = time.perf_counter()
        state, total = run(state, jax.random.key(0))
        total.block_until_ready()
        return num_steps * env.num_envs / (time.perf_counter() - began)

    return measure
