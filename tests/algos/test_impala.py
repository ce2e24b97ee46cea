"""IMPALA: how far its actors lag, and what V-trace makes of that."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_algorithms import train

import jaxrl
from jaxrl.algos import impala as impala_module
from jaxrl.algos.actor_critic import PolicyExtras
from jaxrl.ops.distributions import Categorical


@pytest.mark.parametrize("lag", [0, pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_actors_follow_the_parameters_of_lag_updates_ago(lag):
    algo = jaxrl.impala(jaxrl.make("CartPole-v1", num_envs=2))
    config = jaxrl.ImpalaConfig(num_steps=4, lag=lag, hidden_sizes=(4,), learning_rate=1e-2)
    state = jax.jit(algo.init)(config, jax.random.key(0))
    update = jax.jit(algo.update)
    history = []
    for u in range(8):
        history.append(jax.tree.leaves(state.params)[0])
        actor_params, _ = impala_module.lagged_params(config, state)
        np.testing.assert_array_equal(jax.tree.leaves(actor_params)[0], history[max(0, u - lag)])
        state, metrics = update(config, state)
        if lag == 0:  # on-policy
            np.testing.assert_allclose(metrics["importance_ratio"], 1.0, rtol=1e-5)
    assert any((a != b).any() for a, b in itertools.pairwise(history))


@pytest.mark.slow
def test_a_lag_makes_it_off_policy():
    algo = jaxrl.impala(jaxrl.make("CartPole-v1", num_envs=4))
    config = jaxrl.ImpalaConfig(lag=4, learning_rate=1e-2)
    _, metrics = train(algo, config, jax.random.key(0), 30)
    assert abs(np.asarray(metrics["importance_ratio"]) - 1).max() > 0.01


def test_without_correction_the_behaviour_does_not_matter():
    config = jaxrl.ImpalaConfig(num_steps=4, off_policy_correction=False)
    rng, shape = np.random.default_rng(0), (4, 2)
    distribution = Categorical(jnp.asarray(rng.normal(size=(*shape, 2))))
    behaviour, values = jnp.asarray(rng.normal(size=(2, *shape)))
    action, zeros = jnp.asarray(rng.integers(0, 2, shape)), jnp.zeros(shape)
    no = zeros > 0

    def loss(config, behaviour):
        trajectory = jaxrl.Trajectory(
            jaxrl.Inputs(zeros, no, action, zeros), action, reward=zeros + 1, terminated=no,
            truncated=no, valid=~no, extras=PolicyExtras(behaviour, zeros),
        )  # fmt: skip
        return impala_module.loss(config, distribution, values, zeros[0], trajectory)[0]

    assert loss(config, behaviour) == loss(config, behaviour - 1)
    corrected = config.replace(off_policy_correction=True)
    assert loss(corrected, behaviour) != loss(corrected, behaviour - 1)
