"""Memory: what it carries from step to step, where it forgets, and how PPO cuts what it learns."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algos import actor_critic
from jaxrl.algos import ppo as ppo_module
from jaxrl.networks import build, recurrent
from jaxrl.rollouts.simulation import start
from jaxrl.spaces import Box, Discrete, MultiDiscrete

VECTOR = Box((4,), np.dtype(np.float32))
THREE_ACTIONS: Any = Discrete(3)
T, N = 5, 3
SIZE = 6


def network(core, use_last_action_reward=True, action_space=THREE_ACTIONS):
    config = build.NetworkConfig(
        hidden_sizes=(8,), core=core, core_size=SIZE, use_last_action_reward=use_last_action_reward
    )
    return build.q_network(VECTOR, Discrete(3), config).clone(action_space=action_space)


def random_inputs(num_steps, first_share=0.0, seed=0, action_space=THREE_ACTIONS):
    rng = np.random.default_rng(seed)
    lead = (num_steps, N)
    if isinstance(action_space, Box):
        action = rng.normal(size=(*lead, *action_space.shape)).astype(np.float32)
    else:
        action = rng.integers(0, 2, (*lead, *action_space.shape), np.int32)
    return jaxrl.Inputs(
        obs=jnp.asarray(rng.normal(size=(*lead, 4)), jnp.float32),
        first=jnp.asarray(rng.random(lead) < first_share),
        last_action=jnp.asarray(action),
        last_reward=jnp.asarray(rng.normal(size=lead), jnp.float32),
    )


def random_core(net, seed=1):
    core = recurrent.initial_core(net, N)
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), core)


@functools.cache
def parameters(net):
    return jax.jit(functools.partial(recurrent.init, net))(jax.random.key(0), random_inputs(1))


@functools.cache
def unroller(net):
    return jax.jit(functools.partial(recurrent.apply, net))


def unroll(net, core, inputs):
    return unroller(net)(parameters(net), core, inputs)


def steps(tree, *indices):
    return jax.tree.map(lambda x: x[slice(*indices)], tree)


def assert_close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


cores = pytest.mark.parametrize("core", ["gru", "lstm"])


@pytest.mark.parametrize("length", [1, T])
@cores
def test_unrolls_of_parts_with_the_state_carried_equal_one(core, length):
    net, inputs = network(core), random_inputs(2 * T, first_share=0.2)
    carried, parts = random_core(net), []
    expected_core, expected = unroll(net, carried, inputs)
    for t in range(0, 2 * T, length):
        carried, part = unroll(net, carried, steps(inputs, t, t + length))
        parts.append(part)
    assert expected.shape == (2 * T, N, 3)
    assert_close((carried, jnp.concatenate(parts)), (expected_core, expected))


@cores
def test_where_an_episode_begins_it_starts_afresh(core):
    net, inputs = network(core), random_inputs(2 * T)
    inputs = inputs._replace(first=inputs.first.at[T, 1].set(True))
    _, outputs = unroll(net, random_core(net), inputs)
    _, carried_on = unroll(
        net, random_core(net), inputs._replace(first=jnp.zeros_like(inputs.first))
    )
    afresh = steps(inputs, T, None)
    afresh = afresh._replace(first=afresh.first.at[0].set(True))
    _, alone = unroll(net, recurrent.initial_core(net, N), afresh)
    assert_close(outputs[T:, 1], alone[:, 1])
    assert_close(outputs[:T], carried_on[:T])
    assert_close(outputs[:, [0, 2]], carried_on[:, [0, 2]])
    assert (jnp.abs(outputs[T:, 1] - carried_on[T:, 1]) > 1e-4).any(-1).all()


@cores
def test_the_memory_reaches_back_to_the_first_step(core):
    net, inputs = network(core), random_inputs(T)
    inputs = inputs._replace(first=inputs.first.at[0].set(True))
    _, outputs = unroll(net, random_core(net), inputs)
    other = inputs._replace(obs=inputs.obs.at[0, 0].add(1.0))
    _, changed = unroll(net, random_core(net), other)
    assert (outputs[:, 0] != changed[:, 0]).any(-1).all()
    assert_close(outputs[:, 1:], changed[:, 1:])


SPACES = {
    "discrete": Discrete(3),
    "multi_discrete": MultiDiscrete((2, 4)),
    "box": Box((2,), np.dtype(np.float32), -1, 1),
}


@pytest.mark.parametrize(("space", "width"), [("discrete", 3), ("multi_discrete", 6), ("box", 2)])
def test_the_last_action_and_reward_are_inputs_of_the_core(space, width):
    action_space = SPACES[space]
    net = network("gru", action_space=action_space)
    inputs = random_inputs(1, action_space=action_space)
    params = jax.eval_shape(functools.partial(recurrent.init, net), jax.random.key(0), inputs)
    (cell,) = [value for key, value in params["params"].items() if "Cell" in key]
    assert cell["in"]["kernel"].shape == (8 + width + 1, SIZE)


def different_last(inputs):
    return inputs._replace(
        last_action=(inputs.last_action + 1) % 3, last_reward=inputs.last_reward / 2
    )


def test_what_came_before_an_episode_is_not_seen_in_it():
    net, inputs = network("gru"), random_inputs(1)
    other = different_last(inputs)
    first = jnp.array([[True, False, False]])
    core = random_core(net)
    _, a = unroll(net, core, inputs._replace(first=first))
    for part in ("last_action", "last_reward"):
        _, b = unroll(net, core, inputs._replace(first=first, **{part: getattr(other, part)}))
        assert (a[0, 0] == b[0, 0]).all()
        assert (a[0, 1:] != b[0, 1:]).any(-1).all()


def test_without_use_last_action_reward_only_observations_are_seen():
    net, inputs = network("gru", use_last_action_reward=False), random_inputs(1)
    core = random_core(net)
    assert_close(unroll(net, core, inputs), unroll(net, core, different_last(inputs)))


def test_rewards_are_seen_clipped():
    net, inputs = network("gru"), random_inputs(1)

    def seen(reward):
        rewarded = inputs._replace(last_reward=jnp.full((1, N), reward))
        return np.asarray(unroll(net, random_core(net), rewarded)[1])

    assert (seen(1.0) == seen(100.0)).all()
    assert (seen(-1.0) == seen(-100.0)).all()
    assert (seen(1.0) != seen(0.5)).any()


def test_a_network_without_a_memory_sees_each_step_alone():
    config = build.NetworkConfig(hidden_sizes=(8,))
    net: Any = build.q_network(VECTOR, Discrete(3), config)
    inputs = random_inputs(T)
    assert not recurrent.is_recurrent(net)
    assert recurrent.initial_core(net, N) == ()
    core, outputs = unroll(net, (), inputs)
    assert core == ()
    expected = net.apply(parameters(net), inputs.obs.reshape(T * N, 4))
    assert_close(outputs, jnp.reshape(expected, (T, N, 3)))


# --- in algorithms -------------------------------------------------------------------------------


def test_the_learner_unrolls_to_what_the_actor_saw():
    """Over two rollouts of episodes of 3 steps, so that both cut episodes and hold whole ones."""
    env = jaxrl.make("probe/Recall-v0", num_envs=N, limit=3)
    config = build.PolicyConfig(
        hidden_sizes=(8,), core="lstm", core_size=SIZE, use_last_action_reward=True
    )
    net = build.actor_critic(env.observation_space, env.action_space, config)
    key = jax.random.key(0)

    @jax.jit
    def play():
        simulation = start(env, key, recurrent.initial_core(net, N))
        inputs = jax.tree.map(lambda x: x[None], simulation.inputs)
        params = recurrent.init(net, key, inputs)

        apply = functools.partial(recurrent.apply, net)
        simulations, trajectories = [simulation], []
        for i in range(2):
            simulation, trajectory = actor_critic.collect(
                env, apply, params, simulation, jax.random.key(i), 5
            )
            simulations.append(simulation)
            trajectories.append(trajectory)
        rollouts = [
            apply(params, before.core, trajectory.inputs)
            for before, trajectory in zip(simulations, trajectories, strict=False)
        ]
        return simulations, trajectories, rollouts

    simulations, trajectories, rollouts = play()
    assert trajectories[1].inputs.first[1:].any()
    assert not trajectories[1].inputs.first[0].all()
    for i, (core_after, (distribution, value)) in enumerate(rollouts):
        extras = trajectories[i].extras
        assert_close(core_after, simulations[i + 1].core)
        assert_close(value, extras.value)
        assert_close(distribution.log_prob(trajectories[i].action), extras.log_prob)


RECURRENT_PPO: dict[str, Any] = {
    "num_steps": 4, "num_epochs": 1, "hidden_sizes": (8,), "core": "gru", "core_size": SIZE
}  # fmt: skip


@pytest.mark.parametrize(("num_minibatches", "shape"), [(1, (4, 4)), (2, (4, 2)), (4, (4, 1))])
def test_ppo_with_a_memory_splits_environments_not_time(monkeypatch, num_minibatches, shape):
    config = jaxrl.PPOConfig(num_minibatches=num_minibatches, **RECURRENT_PPO)
    algo = jaxrl.ppo(jaxrl.make("probe/Recall-v0", num_envs=4))
    seen, right = [], ppo_module.loss

    def loss(config, distribution, value, batch, axis, surrogate):
        seen.append((value.shape, batch.trajectory.valid.shape, batch.core.shape))
        return right(config, distribution, value, batch, axis, surrogate)

    monkeypatch.setattr(ppo_module, "loss", loss)
    state = jax.eval_shape(algo.init, config, jax.random.key(0))
    jax.eval_shape(algo.update, config, state)
    assert set(seen) == {(shape, shape, (1, shape[1], SIZE))}


def test_environments_that_do_not_split_into_minibatches_are_refused_by_name():
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=3))
    config = jaxrl.PPOConfig(num_minibatches=2, **RECURRENT_PPO)
    with pytest.raises(ValueError, match=r"num_envs = 3 is not .*num_minibatches = 2"):
        algo.init(config, jax.random.key(0))
    jax.eval_shape(algo.init, config.replace(core=None), jax.random.key(0))


def test_any_flax_module_with_an_initial_core_can_be_the_memory():
    class Counter(nn.Module):
        """Adds up what it saw since the episode began."""

        def initial_core(self, num_envs):
            return jnp.zeros((num_envs, 4))

        @nn.compact
        def __call__(self, inputs, core):
            def step(core, row):
                obs, first = row
                core = jnp.where(first[:, None], 0.0, core) + obs
                return core, core

            core, sums = jax.lax.scan(step, core, (inputs.obs, inputs.first))
            return core, nn.Dense(2)(sums)

    algo = jaxrl.r2d2(jaxrl.make("CartPole-v1", num_envs=2), Counter())
    config = jaxrl.R2D2Config(num_steps=4, burn_in=2, unroll_length=4, replay_size=64)
    state = jax.eval_shape(algo.init, config, jax.random.key(0))
    after, _ = jax.eval_shape(algo.update, config, state)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
    assert algo.initial_core(config, 7).shape == (7, 4)
