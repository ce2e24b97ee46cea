"""Pipelined rollouts: pools and actions sent ahead give the results of plain rollouts."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import pytest
import small_algorithms

import jaxrl
from jaxrl import tuning
from jaxrl.algos import actor_critic
from jaxrl.distributed.spread import spread
from jaxrl.envs.host import callback
from jaxrl.rollouts.simulation import restart
from jaxrl.training.loggers import read_jsonl

NAMES = ["ppo", "ppo-gru", "a2c", "impala", "dqn", "pqn", "r2d2"]
CHANGES = {"impala": {"lag": 2}, "dqn": {"replay_size": 128}, "r2d2": {"replay_size": 128}}
CONFIGS = {name: small_algorithms.CONFIGS[name].replace(**CHANGES.get(name, {})) for name in NAMES}
POOLS = {
    "turns-2": {"num_pools": 2},
    "turns-4": {"num_pools": 4},
    "ready-4": {"num_pools": 4, "asynchronous": True},
}


@functools.cache
def algorithm(name, **options):
    env = jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, **options)
    return getattr(jaxrl, name.partition("-")[0])(env)


@functools.cache
def trained(name, **options):
    return learned(small_algorithms.train, algorithm(name, **options), CONFIGS[name])


def learned(train, algo, config, key=None):
    """Return the final state without the pools' number and count, and the metrics."""
    state, metrics = train(algo, config, jax.random.key(0) if key is None else key, 6)
    simulation = state.simulation._replace(env_state=())
    key = jax.random.key_data(state.key)
    return state._replace(simulation=simulation, key=key), metrics


def assert_close(a, b):
    """Compare to float tolerance: a product of fewer rows may be summed in another order."""
    chex.assert_trees_all_close(a, b, rtol=1e-4, atol=1e-5)


QUICK = [("ppo", "turns-2", False), ("a2c", "ready-4", True)]
EXHAUSTIVE = [
    *((name, pools, False) for name in NAMES for pools in ("turns-2", "ready-4")),
    *(
        (name, pools, True)
        for name in ("a2c", "ppo-gru", "r2d2")
        for pools in ("turns-2", "ready-4")
    ),
    ("ppo", "turns-4", False),
]


@pytest.mark.parametrize(
    ("name", "pools", "send_ahead"),
    [
        *QUICK,
        *(pytest.param(*x, marks=pytest.mark.exhaustive) for x in EXHAUSTIVE if x not in QUICK),
    ],
)
def test_pools_change_nothing(name, pools, send_ahead):
    in_pools = trained(name, send_ahead=send_ahead, **POOLS[pools])
    assert_close(in_pools, trained(name, send_ahead=send_ahead))


@pytest.mark.exhaustive
@pytest.mark.parametrize("asynchronous", [False, True])
def test_pools_change_nothing_on_atari(asynchronous):
    def play(num_pools):
        env = jaxrl.make(
            "Pong-v5", 4, num_threads=1, num_pools=num_pools, max_episode_steps=7,
            asynchronous=asynchronous and num_pools > 1,
        )  # fmt: skip
        return learned(small_algorithms.train, jaxrl.a2c(env), CONFIGS["a2c"].replace(torso="mlp"))

    assert_close(play(2), play(1))


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_a_population_over_two_pools_is_its_members(asynchronous):
    keys = jax.random.split(jax.random.key(1), 3)
    algo = algorithm("a2c", num_pools=2, asynchronous=asynchronous)

    def train(algo, config, keys, num_updates):
        return jax.jit(jax.vmap(lambda key: jaxrl.train(algo, config, key, num_updates)))(keys)

    population = learned(train, algo, CONFIGS["a2c"], keys)
    for member, key in enumerate(keys):
        one = learned(small_algorithms.train, algorithm("a2c"), CONFIGS["a2c"], key)
        assert_close(jax.tree.map(lambda x, m=member: x[m], population), one)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"num_pools": 2}, pytest.param({"send_ahead": True}, marks=pytest.mark.exhaustive)]
)
def test_every_device_has_pools_of_its_own(options):
    algo = spread(algorithm("a2c", **options), 2)
    state, metrics = small_algorithms.train(algo, CONFIGS["a2c"], jax.random.key(0), 6)
    assert_close(metrics, trained("a2c", send_ahead="send_ahead" in options)[1])
    assert len(set(state.simulation.env_state.pool.tolist())) == 2


# --- actions sent before the agent learns ---------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "pools",
    [
        POOLS["ready-4"],
        *(pytest.param(x, marks=pytest.mark.exhaustive) for x in ({}, POOLS["turns-2"])),
    ],
)
def test_an_agent_that_does_not_learn_acts_alike_with_actions_sent_ahead(pools):
    found, expected = replay_without_learning(send_ahead=True, **pools), replay_without_learning()
    chex.assert_trees_all_close(found, expected, rtol=1e-6)


@functools.cache
def replay_without_learning(**options):
    """Return the whole replay of an agent that does not learn, and its episodes."""
    config = CONFIGS["dqn"].replace(initial_epsilon=0.0, final_epsilon=0.0, learning_rate=0.0)
    state, metrics = learned(small_algorithms.train, algorithm("dqn", **options), config)
    return state.replay, metrics["valid_steps"], metrics["episode_return_sum"]


def test_extras_of_actions_sent_ahead_are_those_of_the_policy_that_chose_them():
    env = algorithm("a2c", send_ahead=True).env
    config, key = CONFIGS["a2c"], jax.random.key(0)
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


@pytest.mark.parametrize("name", ["ppo", "pqn"])
def test_steps_are_sent_ahead_in_double_precision_too(name):
    algo, config = algorithm(name, send_ahead=True), CONFIGS[name]
    with jax.enable_x64(True):
        state = jax.eval_shape(algo.init, config, jax.random.key(0))
        after, _ = jax.eval_shape(algo.update, config, state)
    dtypes = [jax.tree.map(lambda x: x.dtype, tree.simulation.sent) for tree in (state, after)]
    assert dtypes[0] == dtypes[1]


def test_a_restart_forgets_the_numbers_of_a_diverged_agent():
    algo = algorithm("ppo", send_ahead=True)
    simulation = small_algorithms.train(algo, CONFIGS["ppo"], jax.random.key(0), 2)[0].simulation
    extras = jax.tree.map(lambda x: x * jnp.nan, simulation.sent.extras)
    diverged = simulation._replace(sent=simulation.sent._replace(extras=extras))
    assert jnp.isnan(diverged.sent.extras.log_prob).all()
    fresh: Any = restart(algo.env, diverged, jnp.bool_(True)).sent
    assert (fresh.extras.log_prob == 0).all()
    chex.assert_trees_all_equal(fresh.is_pending, simulation.sent.is_pending)
    assert fresh.is_pending.all()


def test_a_restart_forgets_the_memory_of_a_diverged_agent():
    """A network of one's own may forget by a product, which would keep NaN."""
    algo, config = algorithm("impala"), CONFIGS["impala"].replace(core="gru", core_size=3)
    simulation = small_algorithms.initializer(algo)(config, jax.random.key(0)).simulation
    diverged = simulation._replace(core=jax.tree.map(lambda x: x * jnp.nan, simulation.core))
    assert jnp.isnan(jax.tree.leaves(diverged.core)[0]).all()
    fresh = restart(algo.env, diverged, jnp.bool_(True))
    chex.assert_trees_all_equal(fresh.core, jax.tree.map(jnp.zeros_like, simulation.core))


@pytest.mark.slow
def test_a_search_refills_lanes_whose_environments_simulate():
    algo, space = (
        algorithm("a2c", send_ahead=True),
        {"learning_rate": tuning.LogUniform(1e-4, 1e-2)},
    )
    scheduler = tuning.HyperTrick(num_trials=5, num_phases=2)
    search = functools.partial(tuning.search, algo, CONFIGS["a2c"], space, scheduler)
    result = jax.jit(search, static_argnums=(0, 1))(2, 12, jax.random.key(0))
    reported = jnp.arange(2) < result.ledger.reported[:, None]
    assert (result.ledger.reported >= 1).all()
    assert jnp.isfinite(result.ledger.scores[reported]).all()


def test_simulators_that_simulate_can_be_closed():
    env = jaxrl.make("gymnasium/CartPole-v1", 2, send_ahead=True)
    state, _ = small_algorithms.train(jaxrl.a2c(env), CONFIGS["a2c"], jax.random.key(0), 2)
    pool: Any = callback.group_of(state.simulation.env_state).pools[0]
    supervisor = pool.workers.process
    assert supervisor.is_alive()
    callback.release(state.simulation.env_state)
    assert not supervisor.is_alive()  # it outlives all workers


@pytest.mark.parametrize(
    ("num_pools", "send_ahead"),
    [*(pytest.param(n, False, marks=pytest.mark.exhaustive) for n in (1, 2)), (1, True)],
)
def test_metrics_rows_hold_waiting_times_and_rates(tmp_path, num_pools, send_ahead):
    algo = algorithm("ppo", num_pools=num_pools, send_ahead=send_ahead)
    config = CONFIGS["ppo"].replace(num_epochs=4)
    jaxrl.run(algo, config, total_steps=5 * 16, run_dir=tmp_path / "x", num_evaluations=0,
              progress_bar=False)  # fmt: skip
    rows = read_jsonl(tmp_path / "x" / "metrics.jsonl")
    assert len(rows) == 5
    for name in ("simulator_wait", "simulator_idle"):
        assert all(0 <= row[name] <= 1 for row in rows)
        assert 0 < sum(row[name] for row in rows) < len(rows)
    for update, row in enumerate(rows):
        assert row["predictions_per_second"] >= row["steps_per_second"] > 0
        # Four epochs of two minibatches for 16 predictions.
        ratio = row["trainings_per_second"] / row["predictions_per_second"]
        assert ratio == pytest.approx(8 / 16, rel=0.1)  # of rounded rates
        # One of four steps was sent before the last update's eight gradient steps.
        assert row["policy_lag"] == 3.5 + (8 / 4 if send_ahead and update else 0)
