"""jaxrl's own programs as measurements: training, and rollouts alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl
from jaxrl.algos import actor_critic
from jaxrl.networks import build
from jaxrl.rollouts.agent import Agent
from jaxrl.training.compilation import MAX_CHUNK, compile_chunk
from timing import calls_for


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


def rollouts(env: jaxrl.Env, torso: str, num_steps: int) -> Callable[[], float]:
    """Return a measurement of an actor-critic's rollouts: milliseconds of a step of all envs."""
    config = build.NetworkConfig(torso=torso, hidden_sizes=(8,) if torso == "mlp" else None)
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
