"""Pipelined rollouts: pools and actions sent ahead give the results of plain rollouts."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import pytest

import jaxrl
from jaxrl import tuning
from jaxrl.algos import actor_critic
from jaxrl.distributed.spread import spread
from jaxrl.envs.host import callback
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

TRAIN = jax.jit(jaxrl.train, static_argnums=(0, 3))


@functools.cache
def trained(name, **pools):
    make, config = ALGORITHMS[name]
    env = jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, **pools)
    return learned(TRAIN, make(env), config)


def learned(train, algo, config, key=None):
    """Return the final state without the pools' number and count, and the metrics."""
    state, metrics = train(algo, config, jax.random.key(0) if key is None else key, 6)
    simulation = state.simulation._replace(env_state=())
    key = jax.random.key_data(state.key)
    return state._replace(simulation=simulation, key=key), metrics


POOLS = {
    "turns-2": {"num_pools": 2},
    "turns-4": {"num_pools": 4},
    "ready-4": {"num_pools": 4, "asynchronous": True},
}


@pytest.mark.parametrize(
    ("name", "pools"),
    [
        ("ppo", "turns-2"),
        ("a2c", "ready-4"),
        *(
            pytest.param(name, pools, marks=pytest.mark.slow)
            for name in ALGORITHMS
            for pools in ("turns-2", "ready-4")
            if (name, pools) not in (("ppo", "turns-2"), ("a2c", "ready-4"))
        ),
        pytest.param("ppo", "turns-4", marks=pytest.mark.slow),
    ],
)
def test_pools_change_nothing(name, pools):
    # To float tolerance: a product of fewer rows may be summed in another order.
    chex.assert_trees_all_close(trained(name, **POOLS[pools]), trained(name), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
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


@pytest.mark.slow
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
        pytest.param("ppo-gru", "turns-2", marks=pytest.mark.slow),
        ("a2c", "turns-2"),
        ("a2c", "ready-4"),
        pytest.param("r2d2", "turns-2", marks=pytest.mark.slow),
        pytest.param("ppo-gru", "ready-4", marks=pytest.mark.slow),
        pytest.param("r2d2", "ready-4", marks=pytest.mark.slow),
    ],
)
def test_pools_change_nothing_with_actions_sent_ahead(name, pools):
    ahead = trained(name, send_ahead=True, **POOLS[pools])
    chex.assert_trees_all_close(ahead, trained(name, send_ahead=True), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("pools", [{}, POOLS["turns-2"], POOLS["ready-4"]])
def test_an_agent_that_does_not_learn_acts_alike_with_actions_sent_ahead(pools):
    """Compare the whole replay of an agent that does not learn."""

    def memory(**options):
        config = ALGORITHMS["dqn"][1].replace(
            initial_epsilon=0.0, final_epsilon=0.0, learning_rate=0.0
        )
        env = jaxrl.make("envpool/CartPole-v1", 4, num_threads=1, **options)
        state, metrics = learned(TRAIN, jaxrl.dqn(env), config)
        return state.memory, metrics["valid_steps"], metrics["episode_return_sum"]

    chex.assert_trees_all_close(memory(send_ahead=True, **pools), memory(), rtol=1e-6)


def test_extras_of_actions_sent_ahead_are_those_of_the_policy_that_chose_them():
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


def test_a_restart_forgets_the_numbers_of_a_diverged_agent():
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
    result = jax.jit(search, static_argnums=(0, 1))(2, 12, jax.random.key(0))
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


@pytest.mark.parametrize(("num_pools", "send_ahead"), [(1, False), (2, False), (1, True)])
def test_metrics_rows_hold_waiting_times_and_rates(tmp_path, num_pools, send_ahead):
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
