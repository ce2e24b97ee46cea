"""Environments split over pools that simulate in turns: the same results, and clear errors."""

import functools
from typing import Any

import chex
import fast_compile
import jax
import jax.numpy as jnp
import pytest

import jaxrl
from jaxrl import tuning
from jaxrl.algos import actor_critic
from jaxrl.distributed.spread import spread
from jaxrl.envs.host import callback
from jaxrl.envs.host.pools import ANY, NONE
from jaxrl.rollouts import pipelined
from jaxrl.rollouts.simulation import restart
from jaxrl.training.loggers import read_jsonl

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

TRAIN = fast_compile.jit(jaxrl.train, static_argnums=(0, 3))


@functools.cache
def trained(name, **pools):
    make, config = ALGORITHMS[name]
    env = jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, **pools)
    return learned(TRAIN, make(env), config)


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
        return learned(TRAIN, jaxrl.a2c(env), config)

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
        return fast_compile.jit(jax.vmap(lambda key: jaxrl.train(algo, config, key, num_updates)))(
            keys
        )

    population = learned(train, algo, config, keys)
    alone = make(jaxrl.make("envpool/CartPole-v1", 4, num_threads=1))
    for member, key in enumerate(keys):
        one = learned(TRAIN, alone, config, key)
        of_member = jax.tree.map(lambda x, m=member: x[m], population)
        chex.assert_trees_all_close(of_member, one, rtol=1e-4, atol=1e-5)


def test_every_device_has_pools_of_its_own():
    make, config = ALGORITHMS["a2c"]
    algo = spread(make(jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, num_pools=2)), 2)
    state, metrics = TRAIN(algo, config, jax.random.key(0), 6)
    chex.assert_trees_all_close(metrics, trained("a2c")[1], rtol=1e-4, atol=1e-5)
    assert len(set(state.simulation.env_state.pool.tolist())) == 2


# --- actions sent before the agent learns ---------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pools"),
    [
        ("ppo-gru", "turns-2"),
        ("a2c", "turns-2"),
        ("a2c", "ready-4"),
        ("r2d2", "turns-2"),
        pytest.param("ppo-gru", "ready-4", marks=pytest.mark.slow),
        pytest.param("r2d2", "ready-4", marks=pytest.mark.slow),
    ],
)
def test_pools_change_nothing_of_what_is_sent_ahead(name, pools):
    ahead = trained(name, send_ahead=True, **POOLS[pools])
    chex.assert_trees_all_close(ahead, trained(name, send_ahead=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pools", [{}, POOLS["turns-2"], POOLS["ready-4"]])
def test_an_agent_that_does_not_change_does_the_same_ahead(pools):
    """All that was ever seen and done, in the replay."""

    def memory(**options):
        config = ALGORITHMS["dqn"][1].replace(
            initial_epsilon=0.0, final_epsilon=0.0, learning_rate=0.0
        )
        env = jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, **options)
        state, metrics = learned(TRAIN, jaxrl.dqn(env), config)
        return state.memory, metrics["valid_steps"], metrics["episode_return_sum"]

    chex.assert_trees_all_close(memory(send_ahead=True, **pools), memory(), rtol=1e-6)


def test_who_acted_is_remembered_with_what_was_sent_ahead():
    env = jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, send_ahead=True)
    config, key = jaxrl.A2CConfig(hidden_sizes=(8,)), jax.random.key(0)
    agent = actor_critic.agent_of(env, None)
    apply = agent.apply(config)
    old, simulation, _ = actor_critic.start(agent, config, key, None)
    new = jax.tree.map(lambda x: x + 0.3, old)
    simulation, before = actor_critic.collect(env, apply, old, simulation, key, 4)
    bootstrap = actor_critic.bootstrap(apply, old, simulation)
    _, after = actor_critic.collect(env, apply, new, simulation, jax.random.key(1), 4)

    chex.assert_trees_all_equal(after.inputs.last_action[0], before.action[-1])
    by_old, by_new = (apply(params, (), after.inputs)[1] for params in (old, new))
    log_prob, value = after.extras
    assert (jnp.abs(by_old[1] - by_new[1]) > 0.1).all()
    chex.assert_trees_all_close(value[0], by_old[1][0], bootstrap, rtol=1e-5)
    chex.assert_trees_all_close(value[1:], by_new[1][1:], rtol=1e-5)
    for row, (distribution, _) in ((0, by_old), (3, by_new)):
        expected = distribution.log_prob(after.action)[row]
        chex.assert_trees_all_close(log_prob[row], expected, rtol=1e-4)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_environments_that_simulate_can_begin_anew(asynchronous):
    """A refilled lane's show their first observation twice, the others what they simulated."""
    env: Any = jaxrl.make(
        "envpool/CartPole-v1", 4, num_threads=1, num_pools=2, asynchronous=asynchronous
    )
    key, action = jax.random.key(0), jnp.array([0, 1, 1, 0], jnp.int32)
    _, step = env.step(key, env.init(key)[0], action)
    state, timestep = env.init(key)
    for pool in (0, 1):
        state, _, _ = env.send_and_receive(state, pool, action[2 * pool : 2 * pool + 2], NONE)
    where = jnp.array([True, False, False, True])
    state, fresh = env.restart(state, timestep, where)
    chex.assert_trees_all_equal(fresh.obs[1], timestep.obs[1])
    parts = [None, None]
    for pool in (0, 1):
        state, received, parts[int(received)] = env.send_and_receive(
            state, NONE, action[:2], ANY if asynchronous else pool
        )
    shown = pipelined.join(parts)
    chex.assert_trees_all_equal(shown.first, where)
    chex.assert_trees_all_equal(shown.obs[where], fresh.obs[where])
    chex.assert_trees_all_equal(shown.obs[~where], step.obs[~where])
    chex.assert_trees_all_equal(shown.reward, jnp.where(where, 0.0, step.reward))
    _, after = env.step(key, state, action)
    assert not after.first.any()
    assert (after.obs[where] != fresh.obs[where]).any()


def test_what_a_diverged_agent_sent_ahead_is_forgotten():
    env: Any = jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, send_ahead=True)
    make, config = ALGORITHMS["ppo"]
    simulation = TRAIN(make(env), config, jax.random.key(0), 2)[0].simulation
    extras = jax.tree.map(lambda x: x * jnp.nan, simulation.sent.extras)
    diverged = simulation._replace(sent=simulation.sent._replace(extras=extras))
    assert jnp.isnan(diverged.sent.extras.log_prob).all()
    fresh: Any = restart(env, diverged, jnp.bool_(True)).sent
    assert (fresh.extras.log_prob == 0).all()
    chex.assert_trees_all_equal(fresh.is_pending, simulation.sent.is_pending)
    assert fresh.is_pending.all()


def test_a_search_refills_lanes_whose_environments_simulate():
    make, config = ALGORITHMS["a2c"]
    algo = make(jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, send_ahead=True))
    scheduler = tuning.HyperTrick(num_trials=5, num_phases=2)
    search = functools.partial(
        tuning.search, algo, config, {"learning_rate": tuning.LogUniform(1e-4, 1e-2)}, scheduler
    )
    result = fast_compile.jit(search, static_argnums=(0, 1))(2, 12, jax.random.key(0))
    reported = jnp.arange(2) < result.ledger.reported[:, None]
    assert (result.ledger.reported >= 1).all()
    assert jnp.isfinite(result.ledger.scores[reported]).all()


def test_every_device_sends_ahead():
    make, config = ALGORITHMS["a2c"]
    algo = spread(make(jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, send_ahead=True)), 2)
    _, metrics = TRAIN(algo, config, jax.random.key(0), 6)
    expected = trained("a2c", send_ahead=True)[1]
    chex.assert_trees_all_close(metrics, expected, rtol=1e-4, atol=1e-5)


def test_simulators_that_simulate_can_be_closed():
    env = jaxrl.make("gymnasium/CartPole-v1", 2, send_ahead=True)
    make, config = ALGORITHMS["a2c"]
    state, _ = TRAIN(make(env), config, jax.random.key(0), 2)
    pool: Any = callback.group_of(state.simulation.env_state).pools[0]
    workers = pool.envs.processes
    assert all(worker.is_alive() for worker in workers)
    callback.release(state.simulation.env_state)
    assert not any(worker.is_alive() for worker in workers)


def test_send_ahead_is_a_switch():
    with pytest.raises(ValueError, match="send_ahead must be a bool, got 1"):
        jaxrl.make("envpool/CartPole-v1", 4, send_ahead=1)


# --- the host's side ------------------------------------------------------------------------------


@pytest.fixture
def env():
    return jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, num_pools=2)


def refused(message):
    return pytest.raises(jax.errors.JaxRuntimeError, match=message)


def test_a_step_of_all_pools_is_one_of_their_steps(env):
    key, action = jax.random.key(0), jnp.array([0, 1, 1, 0], jnp.int32)
    _, whole = env.step(key, env.init(key)[0], action)
    state, _ = env.init(key)
    state, pool, _ = env.send_and_receive(state, 0, action[:2], NONE)
    assert pool == 0  # zeros at once
    for sent, awaited in ((1, 0), (NONE, 1)):
        state, pool, part = env.send_and_receive(state, sent, action[2:], awaited)
        assert pool == awaited
        chex.assert_trees_all_equal(
            part, jax.tree.map(lambda x, p=awaited: x[2 * p : 2 * p + 2], whole)
        )


def test_nothing_is_received_that_was_not_sent(env):
    state, _ = env.init(jax.random.key(0))
    with refused("pool 1 was sent no action"):
        jax.block_until_ready(env.send_and_receive(state, NONE, jnp.zeros(2, jnp.int32), 1))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_pools_are_received_by_number_or_as_they_get_ready(asynchronous):
    env: Any = jaxrl.make(
        "envpool/CartPole-v1", 4, num_threads=1, num_pools=2, asynchronous=asynchronous
    )
    state, _ = env.init(jax.random.key(0))
    message = "as they get ready, not by number" if asynchronous else "are received by number"
    with refused(message):
        awaited = 0 if asynchronous else ANY
        jax.block_until_ready(env.send_and_receive(state, 0, jnp.zeros(2, jnp.int32), awaited))


def test_asynchronous_pools_that_were_sent_nothing_are_not_awaited():
    env: Any = jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, num_pools=2, asynchronous=True)
    state, _ = env.init(jax.random.key(0))
    with refused("no pool was sent an action"):
        jax.block_until_ready(env.send_and_receive(state, NONE, jnp.zeros(2, jnp.int32), ANY))


@pytest.mark.parametrize("asynchronous", [True, "yes"])
def test_one_pool_is_not_asynchronous(asynchronous):
    with pytest.raises(ValueError, match="asynchronous must be a bool, and True with num_pools"):
        jaxrl.make("envpool/CartPole-v1", 4, asynchronous=asynchronous)


def test_a_simulating_pool_is_sent_nothing(env):
    state, _ = env.init(jax.random.key(0))
    state, _, _ = env.send_and_receive(state, 0, jnp.zeros(2, jnp.int32), NONE)
    with refused("pool 0 is simulating a step already"):
        jax.block_until_ready(env.send_and_receive(state, 0, jnp.zeros(2, jnp.int32), NONE))


def test_gauges_add_up(env):
    state, _ = env.init(jax.random.key(0))
    for _ in range(20):
        state, _ = env.step(jax.random.key(0), state, jnp.zeros(4, jnp.int32))
    lived, waited, simulated = callback.group_of(state).host_time()
    assert 0 < waited <= simulated <= lived


@pytest.mark.parametrize("num_pools", [0, 1.5, True])
def test_pools_are_counted(num_pools):
    with pytest.raises(ValueError, match="num_pools must be an integer >= 1"):
        jaxrl.make("envpool/CartPole-v1", 4, num_pools=num_pools)


def test_environments_split_evenly():
    with pytest.raises(ValueError, match="4 environments cannot be split over 3 pools"):
        jaxrl.make("envpool/CartPole-v1", 4, num_pools=3)


@pytest.mark.parametrize(("num_pools", "send_ahead"), [(1, False), (2, False), (1, True)])
def test_rows_say_who_waits_for_whom(tmp_path, num_pools, send_ahead):
    env = jaxrl.make(
        "envpool/CartPole-v1", 4, num_threads=1, num_pools=num_pools, send_ahead=send_ahead
    )
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
        # One of four steps was sent before the last update's eight gradient steps.
        assert row["policy_lag"] == (3.5 + 8 / 4 if send_ahead else 3.5)
