"""Environments split over pools that simulate in turns: the same results, and clear errors."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import pytest

import jaxrl
from jaxrl.envs import host
from jaxrl.envs.host import ANY, NONE
from jaxrl.logging import read_jsonl
from jaxrl.parallel import spread

pytestmark = pytest.mark.usefixtures("quick_compilation")

# A large epsilon: Adam and RMSProp divide by gradients that are rounding noise otherwise.
SMALL: dict[str, Any] = {"hidden_sizes": (8,), "num_steps": 4}
ADAM: dict[str, Any] = SMALL | {"adam_eps": 0.1}
RMSPROP: dict[str, Any] = SMALL | {"rmsprop_eps": 0.1}
GRU: dict[str, Any] = {"core": "gru", "core_size": 8}
REPLAY: dict[str, Any] = ADAM | {
    "replay_size": 128, "batch_size": 4, "learning_starts": 32, "target_period": 2
}  # fmt: skip
ALGORITHMS = {
    "ppo": (jaxrl.ppo, jaxrl.PPOConfig(**ADAM, num_minibatches=2)),
    "ppo-gru": (jaxrl.ppo, jaxrl.PPOConfig(**ADAM | GRU, num_minibatches=2)),
    "a2c": (jaxrl.a2c, jaxrl.A2CConfig(**RMSPROP)),
    "impala": (jaxrl.impala, jaxrl.ImpalaConfig(**RMSPROP, lag=2)),
    "dqn": (jaxrl.dqn, jaxrl.DQNConfig(**REPLAY)),
    "r2d2": (
        jaxrl.r2d2,
        jaxrl.R2D2Config(**REPLAY, core_size=8, burn_in=2, unroll_length=2, n_step=2),
    ),
}


@functools.cache
def trained(name, **pools):
    make, config = ALGORITHMS[name]
    env = jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, **pools)
    return learned(jax.jit(jaxrl.train, static_argnums=(0, 3)), make(env), config)


def learned(train, algo, config, key=None):
    """All of the final state but the pools' number and count, and the metrics."""
    state, metrics = train(algo, config, jax.random.key(0) if key is None else key, 6)
    simulation = state.simulation._replace(env_state=())
    key = jax.random.key_data(state.key)
    return state._replace(simulation=simulation, key=key), metrics


POOLS = {
    "turns-2": {"num_pools": 2},
    "turns-4": {"num_pools": 4},
    "ready-4": {"num_pools": 4, "asynchronous": True},
}


@pytest.mark.parametrize("pools", POOLS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_pools_change_nothing(name, pools):
    # To float tolerance: a product of fewer rows may be summed in another order.
    chex.assert_trees_all_close(trained(name, **POOLS[pools]), trained(name), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_pools_change_nothing_on_atari(asynchronous):
    def play(num_pools):
        env = jaxrl.make(
            "Pong-v5", 4, num_threads=1, num_pools=num_pools, max_episode_steps=7,
            asynchronous=asynchronous and num_pools > 1,
        )  # fmt: skip
        config = jaxrl.A2CConfig(**RMSPROP, torso="mlp")
        return learned(jax.jit(jaxrl.train, static_argnums=(0, 3)), jaxrl.a2c(env), config)

    chex.assert_trees_all_close(play(2), play(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_population_over_two_pools_is_its_members(asynchronous):
    make, config = ALGORITHMS["a2c"]
    keys = jax.random.split(jax.random.key(1), 3)
    env = jaxrl.make(
        "envpool/CartPole-v1", 4, num_threads=1, num_pools=2, asynchronous=asynchronous
    )
    algo = make(env)

    def train(algo, config, keys, num_updates):
        return jax.jit(jax.vmap(lambda key: jaxrl.train(algo, config, key, num_updates)))(keys)

    population = learned(train, algo, config, keys)
    alone = make(jaxrl.make("envpool/CartPole-v1", 4, num_threads=1))
    for member, key in enumerate(keys):
        one = learned(jax.jit(jaxrl.train, static_argnums=(0, 3)), alone, config, key)
        of_member = jax.tree.map(lambda x, m=member: x[m], population)
        chex.assert_trees_all_close(of_member, one, rtol=1e-4, atol=1e-5)


def test_every_device_has_pools_of_its_own():
    make, config = ALGORITHMS["a2c"]
    algo = spread(make(jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, num_pools=2)), 2)
    state, metrics = jax.jit(jaxrl.train, static_argnums=(0, 3))(algo, config, jax.random.key(0), 6)
    chex.assert_trees_all_close(metrics, trained("a2c")[1], rtol=1e-4, atol=1e-5)
    assert len(set(state.simulation.env_state.pool.tolist())) == 2


@pytest.fixture
def env():
    return jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, num_pools=2)


def refused(message):
    return pytest.raises(jax.errors.JaxRuntimeError, match=message)


def test_a_step_of_all_pools_is_one_of_their_steps(env):
    key, action = jax.random.key(0), jnp.array([0, 1, 1, 0], jnp.int32)
    _, whole = env.step(key, env.init(key)[0], action)
    state, _ = env.init(key)
    state, pool, _ = env.swap(state, 0, action[:2], NONE)
    assert pool == 0  # zeros at once
    for sent, awaited in ((1, 0), (NONE, 1)):
        state, pool, part = env.swap(state, sent, action[2:], awaited)
        assert pool == awaited
        chex.assert_trees_all_equal(
            part, jax.tree.map(lambda x, p=awaited: x[2 * p : 2 * p + 2], whole)
        )


def test_nothing_is_received_that_was_not_sent(env):
    state, _ = env.init(jax.random.key(0))
    with refused("pool 1 was sent no action"):
        jax.block_until_ready(env.swap(state, NONE, jnp.zeros(2, jnp.int32), 1))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_pools_are_received_by_number_or_as_they_get_ready(asynchronous):
    env: Any = jaxrl.make(
        "envpool/CartPole-v1", 4, num_threads=1, num_pools=2, asynchronous=asynchronous
    )
    state, _ = env.init(jax.random.key(0))
    message = "as they get ready, not by number" if asynchronous else "are received by number"
    with refused(message):
        awaited = 0 if asynchronous else ANY
        jax.block_until_ready(env.swap(state, 0, jnp.zeros(2, jnp.int32), awaited))


def test_asynchronous_pools_that_were_sent_nothing_are_not_awaited():
    env: Any = jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, num_pools=2, asynchronous=True)
    state, _ = env.init(jax.random.key(0))
    with refused("no pool was sent an action"):
        jax.block_until_ready(env.swap(state, NONE, jnp.zeros(2, jnp.int32), ANY))


@pytest.mark.parametrize("asynchronous", [True, "yes"])
def test_one_pool_is_not_asynchronous(asynchronous):
    with pytest.raises(ValueError, match="asynchronous must be a bool, and True with num_pools"):
        jaxrl.make("envpool/CartPole-v1", 4, asynchronous=asynchronous)


def test_a_simulating_pool_is_sent_nothing(env):
    state, _ = env.init(jax.random.key(0))
    state, _, _ = env.swap(state, 0, jnp.zeros(2, jnp.int32), NONE)
    with refused("pool 0 is simulating a step already"):
        jax.block_until_ready(env.swap(state, 0, jnp.zeros(2, jnp.int32), NONE))


def test_a_simulating_pool_is_not_restarted(env):
    state, timestep = env.init(jax.random.key(0))
    state, _, _ = env.swap(state, 0, jnp.zeros(2, jnp.int32), NONE)
    with refused("while they simulate"):
        jax.block_until_ready(env.restart(state, timestep, jnp.ones(4, bool)))


def test_gauges_add_up(env):
    state, _ = env.init(jax.random.key(0))
    for _ in range(20):
        state, _ = env.step(jax.random.key(0), state, jnp.zeros(4, jnp.int32))
    lived, waited, simulated = host.entry_of(state).host_time()
    assert 0 < waited <= simulated <= lived


@pytest.mark.parametrize("num_pools", [0, 1.5, True])
def test_pools_are_counted(num_pools):
    with pytest.raises(ValueError, match="num_pools must be an integer >= 1"):
        jaxrl.make("envpool/CartPole-v1", 4, num_pools=num_pools)


def test_environments_split_evenly():
    with pytest.raises(ValueError, match="4 environments cannot be split over 3 pools"):
        jaxrl.make("envpool/CartPole-v1", 4, num_pools=3)


@pytest.mark.parametrize("num_pools", [1, 2])
def test_rows_say_who_waits_for_whom(tmp_path, num_pools):
    env = jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, num_pools=num_pools)
    make, config = ALGORITHMS["ppo"]
    jaxrl.run(make(env), config, total_steps=5 * 16, run_dir=tmp_path / "x", num_evaluations=0,
              progress_bar=False)  # fmt: skip
    rows = read_jsonl(tmp_path / "x" / "metrics.jsonl")
    assert len(rows) == 5
    for row in rows:
        assert 0 < row["simulator_wait"] < 1
        assert 0 < row["simulator_idle"] < 1
        assert row["predictions_per_second"] >= row["steps_per_second"] > 0
        # Four epochs of two minibatches for 16 predictions.
        ratio = row["trainings_per_second"] / row["predictions_per_second"]
        assert ratio == pytest.approx(8 / 16, rel=0.01)
        assert row["policy_lag"] == 3.5
