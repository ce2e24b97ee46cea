"""Rollouts: the loop over their steps."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.rollouts import simulation as simulations
from jaxrl.rollouts.rollout import rollout

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize(("num_steps", "unroll"), [(1, 1), (2, 1), (5, 2), (7, 3), (8, 4), (30, 4)])
def test_every_rollout_stays_a_loop(num_steps, unroll):
    """XLA may never finish compiling a program in which the steps are unrolled into one piece."""
    algo = jaxrl.a2c(jaxrl.make("CartPole-v1", num_envs=2))
    config = jaxrl.A2CConfig(num_steps=num_steps)
    state = jax.eval_shape(algo.init, config, jax.random.key(0))
    equations = jax.make_jaxpr(algo.update)(config, state).eqns
    scans = [eqn.params for eqn in equations if eqn.primitive.name == "scan"]
    rollout = max(scans, key=lambda scan: len(scan["jaxpr"].eqns))
    assert (rollout["length"], rollout["unroll"]) == (num_steps, unroll)


def test_a_state_without_environments_is_refused():
    algo, config = jaxrl.a2c(jaxrl.make("CartPole-v1", num_envs=2)), jaxrl.A2CConfig()
    state = jax.eval_shape(algo.init, config, jax.random.key(0))._replace(simulation=None)
    with pytest.raises(ValueError, match="no environments to step, like that of a loaded policy"):
        jax.eval_shape(algo.update, config, state)


def test_agents_act_within_the_bounds_of_any_environment():
    """An environment of one's own may not clip what it gets."""
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Own:
        num_envs: int = 2
        id = "own/Env"
        options: ClassVar = {}
        checkpointable = True
        observation_space = jaxrl.Box.of((1,), "float32")
        action_space = jaxrl.Box.of((1,), "float32", 20, 100)

        def init(self, key):
            zero, no = jnp.zeros(2), jnp.zeros(2, bool)
            return (), jaxrl.TimeStep(zero[:, None], zero, no, no, first=~no)

        def step(self, key, state, action):
            jax.debug.callback(seen.append, action)
            return self.init(key)

    env: Any = Own()
    algo, config = jaxrl.ppo(env), jaxrl.PPOConfig(num_steps=4, num_minibatches=1)
    jax.block_until_ready(jaxrl.train(algo, config, jax.random.key(0), 1))
    jax.effects_barrier()
    assert np.min(seen) == 20  # the first policy's mean is 0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda core, n: (core, jnp.zeros(n, int)), r"\(core, action, extras\), got 2 results"),
        (lambda core, n: jnp.zeros(n, int), r"\(core, action, extras\), got \w*Tracer|got .*Array"),
        (lambda core, n: (core, jnp.zeros(n), ()), r"actions int32\[2\] of .*, got float32\[2\]"),
        (lambda core, n: (core, jnp.zeros((n, 1), "int32"), ()), r"got int32\[2, 1\]"),
        (lambda core, n: (core, {"a": jnp.zeros(n)}, ()), r"got \{'a': 'float32\[2\]'\}"),
        (lambda core, n: ((core, core), jnp.zeros(n, "int32"), ()), r"the core .*, got \("),
    ],
)
def test_a_policy_that_answers_otherwise_is_refused(answer, message):
    env, key = jaxrl.make("CartPole-v1", 2), jax.random.key(0)
    start = simulations.start(env, key, jnp.zeros(2))

    def policy(core, inputs, noise):
        return answer(core, len(inputs.first))

    def draw(key):
        return jax.random.uniform(key, (2,))

    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: rollout(env, policy, draw, start, key, 3))


def test_a_core_may_be_of_any_class():
    @jax.tree_util.register_pytree_node_class
    class Count:  # equal to no other one
        def __init__(self, steps):
            self.steps = steps

        def tree_flatten(self):
            return (self.steps,), None

        @classmethod
        def tree_unflatten(cls, _, leaves):
            return cls(*leaves)

    env, key = jaxrl.make("CartPole-v1", 2), jax.random.key(0)

    def policy(core, inputs, noise):
        return Count(core.steps + 1), jnp.zeros(2, jnp.int32), ()

    start = simulations.start(env, key, Count(jnp.zeros(2)))
    draw = lambda key: jax.random.uniform(key, (2,))  # noqa: E731
    after, _ = jax.jit(lambda start: rollout(env, policy, draw, start, key, 3))(start)
    assert after.core.steps.tolist() == [3, 3]


@pytest.mark.parametrize("shape", [(), (1,), (6,)])
def test_noise_of_another_number_of_environments_is_refused(shape):
    env = jaxrl.make("CartPole-v1", num_envs=3)

    def policy(core, inputs, noise):
        return core, jnp.broadcast_to(noise, 3), ()

    def draw(key):
        return jax.random.bernoulli(key, shape=shape).astype(jnp.int32)

    key = jax.random.key(0)
    message = rf"random numbers \[3, ...\], .* got \[{', '.join(map(str, shape))}\]"
    with pytest.raises(ValueError, match=message):
        rollout(env, policy, draw, simulations.start(env, key), key, 2)
