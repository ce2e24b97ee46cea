"""The parts of PPO's update as programs of their own, to be timed alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl
from jaxrl.algos import actor_critic
from jaxrl.algos import ppo as ppo_module
from jaxrl.networks import build, recurrent
from jaxrl.ops.minibatches import shuffled_indices
from tasks import Measure, Task, random_actions
from timing import calls_for, seconds_of


class Part(NamedTuple):
    """A part of an update, as a program `function(data, carry, key) -> (carry, outputs)`.

    Data are an argument, since XLA would compile constants otherwise. Outputs are returned, since
    XLA would not compute unused ones.
    """

    function: Callable[[Any, Any, jax.Array], tuple[Any, Any]]
    data: Any
    carry: Any


@dataclass(frozen=True)
class Parts:
    """The parts of PPO's update, each a method."""

    task: Task
    env: jaxrl.Env

    def measures(self, seconds: float) -> dict[str, Measure]:
        """Return measurements by name: seconds of that part in one update."""
        parts = {
            "env stepping": self.env_stepping(),
            "inference": self.inference(),
            "learning": self.learning(),
            "shuffling": self.shuffling(),
        }
        options = jaxrl.compiler_options(jaxrl.ppo(self.env), self.task.config)
        return {name: repeated(part, seconds, options) for name, part in parts.items()}

    def env_stepping(self) -> Part:
        """Return the part that steps environments with random actions for a rollout."""

        def function(actions: jax.Array, state: Any, key: jax.Array) -> tuple[Any, Any]:
            def step(state: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
                action, key = inputs
                return self.env.step(key, state, action)

            return jax.lax.scan(step, state, (actions, jax.random.split(key, len(actions))))

        state, _ = jax.jit(self.env.init)(jax.random.key(0))
        return Part(function, random_actions(self.task, self.num_actions), state)

    def inference(self) -> Part:
        """Return the part that samples an action for each step's stored observations."""
        network, params, batch = self.stored
        shape = (self.task.config.num_steps, self.env.num_envs)
        obs = batch.trajectory.inputs.obs.reshape(*shape, *batch.trajectory.inputs.obs.shape[2:])

        def function(data: Any, carry: None, key: jax.Array) -> tuple[None, Any]:
            params, obs = data

            def act(carry: None, inputs: tuple[jax.Array, jax.Array]) -> tuple[None, Any]:
                obs, noise = inputs
                distribution, value = network.apply(params, obs)
                action = distribution.from_noise(noise)
                return carry, (action, distribution.log_prob(action), value)

            distribution, _ = jax.eval_shape(network.apply, params, obs[0])
            noise = jax.vmap(distribution.noise)(jax.random.split(key, len(obs)))
            return jax.lax.scan(act, carry, (obs, noise))

        return Part(function, (params, obs), None)

    def learning(self) -> Part:
        """Return the part that learns from a stored batch for all epochs, shuffling included."""
        network, params, batch = self.stored
        config, apply = self.task.config, functools.partial(recurrent.apply, network)

        def function(batch: Any, learner: Any, key: jax.Array) -> tuple[Any, Any]:
            (params, opt_state), _, losses = ppo_module.learn(
                config, learner, apply, ppo_module.clipped_surrogate, batch, key
            )
            return learner._replace(params=params, opt_state=opt_state), losses

        opt_state = actor_critic.adam(config, 0).init(params)
        learner = ppo_module.PPOState(params, opt_state, *(jnp.int32(0),) * 3, None, None)
        return Part(function, batch, learner)

    def shuffling(self) -> Part:
        """Return the permutations and gathers of all epochs, without learning."""
        *_, batch = self.stored
        config = self.task.config

        def function(batch: Any, carry: Any, key: jax.Array) -> tuple[Any, Any]:
            def minibatch(_: Any, rows: jax.Array) -> Any:
                return jax.tree.map(lambda x: x[:, rows], batch), None

            def epoch(carry: Any, key: jax.Array) -> Any:
                rows = shuffled_indices(key, config.num_minibatches, self.task.steps)
                return jax.lax.scan(minibatch, carry, rows)

            return jax.lax.scan(epoch, carry, jax.random.split(key, config.num_epochs))

        rows = self.task.steps // config.num_minibatches
        # A carried minibatch keeps every gather alive at no further work.
        return Part(function, batch, jax.tree.map(lambda x: x[:, :rows], batch))

    @property
    def num_actions(self) -> int:
        """Return the number of actions; all tasks have discrete ones."""
        space = self.env.action_space
        assert isinstance(space, jaxrl.Discrete)
        return space.n

    @functools.cached_property
    def stored(self) -> tuple[Any, Any, Any]:
        """Return the network, its parameters, and invented data of one rollout."""
        space = self.env.observation_space
        config, steps = self.task.config, self.task.steps
        network = build.actor_critic(space, self.env.action_space, config)
        rng = np.random.default_rng(0)
        assert isinstance(space, jaxrl.Box)
        image = space.dtype == np.uint8
        obs = rng.integers(0, 256 if image else 2, (1, steps, *space.shape)).astype(space.dtype)
        number = jnp.linspace(-1, 1, steps)[None]
        action = jnp.arange(steps, dtype=jnp.int32)[None] % self.num_actions
        ones = jnp.ones((1, steps))
        trajectory = jaxrl.Trajectory(
            inputs=jaxrl.Inputs(jnp.asarray(obs), ones > 1, action, number),
            action=action,
            reward=ones,
            terminated=ones > 1,
            truncated=ones > 1,
            valid=ones > 0,
            extras=actor_critic.PolicyExtras(log_prob=-ones, value=number),
        )
        batch = ppo_module.Batch(trajectory, number, number, number, core=())
        params = jax.jit(network.init)(jax.random.key(0), obs[0, :1])
        return network, params, batch


def repeated(part: Part, seconds: float, options: dict[str, Any] | None = None) -> Measure:
    """Return a measurement of a part: seconds of one execution, of many in one program."""
    _, shapes = jax.eval_shape(part.function, part.data, part.carry, jax.random.key(0))

    @functools.partial(jax.jit, donate_argnums=1, compiler_options=options)
    def program(data: Any, carry: Any, count: jax.Array) -> Any:
        def body(i: jax.Array, carry: Any) -> Any:
            return part.function(data, carry[0], jax.random.fold_in(jax.random.key(3), i))

        outputs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.fori_loop(0, count, body, (carry, outputs))

    # A copy, since the program donates it and other parts may share it.
    kept = [jax.tree.map(jnp.copy, part.carry)]

    def run(count: int) -> Any:
        kept[0], outputs = program(part.data, kept[0], jnp.int32(count))
        return kept[0], outputs

    calls = calls_for(seconds / 4, lambda: run(1))
    return lambda: seconds_of(lambda: run(calls)) / calls
