"""A2C and IMPALA learn from the minibatches of a rollout in turn: against a loop by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_algorithms import CONFIGS, algorithm, assert_close

import jaxrl
from jaxrl.algos import a2c, actor_critic, impala
from jaxrl.distributed.spread import spread
from jaxrl.networks import recurrent

N = 4
RMSPROP: dict[str, Any] = {"eps_inside_root": False, "rmsprop_initial": 1.0, "max_grad_norm": 0.3}


def config_of(name: str, **changes: Any) -> Any:
    return CONFIGS[name].replace(**RMSPROP | changes)


def learned_by_hand(algo: Any, config: Any, state: Any, parts: Any) -> list[np.ndarray]:
    """Return the parameters after a gradient step on the environments of each part, in turn."""
    agent = actor_critic.agent_of(algo.env, None)
    apply = jax.jit(agent.apply(config, None))
    _, rollout_key = jax.random.split(state.key)
    simulation, trajectory = jax.jit(
        lambda: actor_critic.collect(
            algo.env, apply, state.params, state.simulation, rollout_key, config.num_steps
        )
    )()
    last_value = actor_critic.bootstrap(apply, state.params, simulation)

    def objective(params, part):
        rollouts = jax.tree.map(lambda x: x[:, part], trajectory)
        core = jax.tree.map(lambda x: x[part], state.simulation.core)
        core, (distribution, value) = apply(params, core, rollouts.inputs)
        if algo.name == "a2c":
            still = jax.lax.stop_gradient(value)
            advantage = a2c.advantages(config, rollouts, still, last_value[part])
            return a2c.loss(config, distribution, value, advantage, rollouts, jnp.int32(0))[0]
        inputs = jax.tree.map(lambda x: x[part], simulation.inputs)
        _, (_, last) = recurrent.apply_step(apply, params, core, inputs)
        return impala.loss(config, distribution, value, last, rollouts)[0]

    params = [np.asarray(x, np.float64) for x in jax.tree.leaves(state.params)]
    structure = jax.tree.structure(state.params)
    squares = [np.full(x.shape, config.rmsprop_initial) for x in params]
    gradient = jax.jit(jax.grad(objective))
    for part in parts:
        grads = gradient(jax.tree.unflatten(structure, params), np.asarray(part))
        grads = [np.asarray(x, np.float64) for x in jax.tree.leaves(grads)]
        norm = np.sqrt(sum((g**2).sum() for g in grads))
        for i, g in enumerate(grads):
            g = g * min(1.0, config.max_grad_norm / norm)
            decay = config.rmsprop_decay
            squares[i] = decay * squares[i] + (1 - decay) * g**2
            params[i] -= config.learning_rate * g / (np.sqrt(squares[i]) + config.rmsprop_eps)
    return params


@pytest.mark.parametrize(
    ("name", "num_minibatches", "sum_losses"),
    [
        ("a2c", 4, True),  # GA3C's: the transitions of one environment a step
        ("impala-lstm", 2, False),
        pytest.param("a2c", 1, True, marks=pytest.mark.exhaustive),
        pytest.param("a2c-lstm", 4, True, marks=pytest.mark.exhaustive),
        pytest.param("a2c", 2, False, marks=pytest.mark.exhaustive),
        pytest.param("impala-lstm", 4, True, marks=pytest.mark.exhaustive),
        pytest.param("impala-lstm", 1, False, marks=pytest.mark.exhaustive),
    ],
)
def test_an_update_takes_a_gradient_step_on_each_minibatch(name, num_minibatches, sum_losses):
    algo = algorithm(name, num_envs=N)
    config = config_of(name, num_minibatches=num_minibatches, sum_losses=sum_losses)
    state = jax.jit(algo.init)(config, jax.random.key(0))
    parts = np.split(np.arange(N), num_minibatches)
    expected = learned_by_hand(algo, config, state, parts)
    state, metrics = jax.jit(algo.update)(config, state)
    assert_close(jax.tree.leaves(state.params), expected, rtol=1e-4, atol=1e-5)
    assert int(metrics["gradient_steps"]) == num_minibatches
    assert float(metrics["policy_lag"]) == (num_minibatches - 1) / 2


def test_actors_of_impala_lag_by_the_gradient_steps_of_an_update():
    algo = algorithm("impala", num_envs=N)
    config = config_of("impala", num_minibatches=4, lag=1)
    state = jax.eval_shape(algo.init, config, jax.random.key(0))
    _, metrics = jax.jit(jaxrl.train, static_argnums=(0, 3))(algo, config, jax.random.key(0), 2)
    np.testing.assert_array_equal(metrics["policy_lag"], [1.5, 4 + 1.5])
    assert jax.tree.leaves(state.past_params)[0].shape[0] == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["a2c", "impala-lstm"])
def test_members_of_a_population_learn_in_turn_as_if_alone(name):
    algo = algorithm(name, num_envs=N)
    rates = jnp.asarray([0.05, 0.01])
    configs = config_of(name, num_minibatches=2).replace(learning_rate=rates)
    broadcast = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), (2,)), configs)
    keys = jax.random.split(jax.random.key(0), 2)

    def learn(config, key):
        return algo.update(config, algo.init(config, key))[0].params

    together = jax.jit(jax.vmap(learn))(broadcast, keys)
    for member in range(2):
        config = config_of(name, num_minibatches=2, learning_rate=float(rates[member]))
        alone = jax.jit(learn)(config, keys[member])
        assert_close(jax.tree.map(lambda x, m=member: x[m], together), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "sum_losses"),
    [("a2c", True), pytest.param("impala-lstm", False, marks=pytest.mark.exhaustive)],
)
def test_a_minibatch_of_two_devices_has_environments_of_each(name, sum_losses):
    if jax.local_device_count() < 2:
        pytest.skip("needs two devices")
    single = algorithm(name, num_envs=N)
    config = config_of(name, num_minibatches=2, sum_losses=sum_losses)
    state = jax.jit(single.init)(config, jax.random.key(0))
    expected = learned_by_hand(single, config, state, [[0, 2], [1, 3]])
    algo = spread(single, 2)
    state, _ = jax.jit(algo.update)(config, jax.jit(algo.init)(config, jax.random.key(0)))
    assert_close(jax.tree.leaves(state.params), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["a2c", "impala"])
def test_environments_that_do_not_split_are_refused_by_name(name):
    algo, config = algorithm(name, num_envs=N), CONFIGS[name].replace(num_minibatches=3)
    message = f"num_envs = 4 is not divisible by {type(config).__name__}.num_minibatches = 3"
    with pytest.raises(ValueError, match=message):
        algo.init(config, jax.random.key(0))
