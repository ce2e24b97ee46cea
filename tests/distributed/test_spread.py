"""One agent on several devices: the agent that one device would train.

These tests use as many devices as JAX sees: two. A process of its own repeats some with eight.
"""

import functools
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import chex
import fast_compile
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_algorithms
from simulators import LENGTH, Counting
from small_algorithms import train
from toy_algorithm import toy

import jaxrl
from jaxrl.device_axis import SINGLE_DEVICE, Axis
from jaxrl.distributed.spread import describe_unused, spread
from jaxrl.training import population as populations
from jaxrl.training.evaluate import (
    EVALUATION_SEED,
    agent_on_one_device,
    evaluate_separately,
)
from jaxrl.training.population import population

D = len(jax.devices())
EIGHT = "--xla_force_host_platform_device_count=8"

SMALL: dict[str, Any] = {"hidden_sizes": (8,), "num_steps": 4}
GRU: dict[str, Any] = {"core": "gru", "core_size": 8}
REPLAY: dict[str, Any] = SMALL | {
    "replay_size": 64 * 8, "learning_starts": 32, "batch_size": 16, "target_period": 2
}  # fmt: skip
SAME: dict[str, Any] = {
    "ppo": jaxrl.PPOConfig(**SMALL, num_minibatches=1, normalize_observations=True,
                           normalize_rewards=True, target_kl=0.05),
    "ppo-gru": jaxrl.PPOConfig(**SMALL | GRU, num_minibatches=1),
    "a2c": jaxrl.A2CConfig(**SMALL, normalize_observations=True),
    "a2c-sums": jaxrl.A2CConfig(**SMALL, sum_losses=True, learning_rate=1e-5),
    "impala": jaxrl.ImpalaConfig(**SMALL, lag=2, normalize_observations=True),
    "impala-lstm": jaxrl.ImpalaConfig(**SMALL | GRU | {"core": "lstm"}, sum_losses=True,
                                      learning_rate=1e-5),
    "dqn": jaxrl.DQNConfig(**REPLAY, n_step=2, double=True, normalize_observations=True),
    "pqn": jaxrl.PQNConfig(**SMALL, num_minibatches=1, normalize_observations=True),
}  # fmt: skip
DRAWN: dict[str, Any] = {
    "ppo": jaxrl.PPOConfig(**SMALL, num_minibatches=2),
    "dqn": jaxrl.DQNConfig(**REPLAY, prioritized=True),
    "r2d2": jaxrl.R2D2Config(**REPLAY, core_size=8, burn_in=2, unroll_length=4, n_step=2),
}
"""Algorithms that learn from random samples, which each device draws for itself."""
BARE: Any = types.SimpleNamespace(id="bare/Env-v0", num_envs=4)


def algorithm(name, env_id="CartPole-v1"):
    return small_algorithms.algorithm(name, env_id, 8)


@functools.cache
def together(name):
    return train(spread(algorithm(name)), SAME[name], jax.random.key(1), 5)


def close(a, b):
    chex.assert_trees_all_close(a, b, rtol=2e-3, atol=2e-4)


def learner(state):
    return state._replace(key=jax.random.key_data(state.key), simulation=None)


# --- the same agent ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name == "ppo" else pytest.param(name, marks=pytest.mark.exhaustive) for name in SAME],
)
def test_an_agent_is_the_same_on_one_device_and_on_several(name):
    algo, config = algorithm(name), SAME[name]
    alone, metrics = train(algo, config, jax.random.key(1), 5)
    state, spread_metrics = together(name)
    close(spread_metrics, metrics)
    close(learner(state), learner(alone))
    close(state.simulation.timestep, alone.simulation.timestep)
    started = jax.jit(algo.init)(config, jax.random.key(1))
    moved = jax.tree.map(lambda x, y: jnp.abs(x - y).max(), started.params, state.params)
    assert max(jax.tree.leaves(moved)) > 0
    assert_environments_are_split_and_the_agent_is_copied(state)


def assert_environments_are_split_and_the_agent_is_copied(state):
    for leaf in jax.tree.leaves(state.simulation):
        assert len({str(shard.index) for shard in leaf.addressable_shards}) == D
        assert leaf.addressable_shards[0].data.shape[0] == 8 // D
    for leaf in jax.tree.leaves(state.params):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(copies) == D
        assert all((copy == copies[0]).all() for copy in copies)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.exhaustive] * (n != "r2d2")) for n in DRAWN],
)
def test_devices_draw_the_samples_that_members_of_vmap_draw(name):
    algo, config = algorithm(name), DRAWN[name]
    state, metrics = train(spread(algo), config, jax.random.key(1), 12)
    part = algo.make(algo.env.spread(Axis("devices", D)), None)

    def one(_):
        return jaxrl.train(part, config, jax.random.key(1), 12)

    states, expected = jax.jit(jax.vmap(one, axis_name="devices"))(jnp.arange(D))
    for device in range(D):
        of_device = jax.tree.map(lambda x: x[device], (expected, states.params))  # noqa: B023
        close((metrics, state.params), of_device)
    assert float(metrics["loss"][-1]) != 0


@pytest.mark.exhaustive
def test_host_environments_have_a_pool_on_each_device():
    algo, config = algorithm("impala", "envpool/CartPole-v1"), SAME["impala"]
    alone, metrics = train(algo, config, jax.random.key(1), 4)
    state, spread_metrics = train(spread(algo), config, jax.random.key(1), 4)
    close(spread_metrics, metrics)
    close(state.params, alone.params)
    assert len(set(np.asarray(state.simulation.env_state.pool).tolist())) == D


@pytest.mark.exhaustive
def test_a_run_resumes_on_another_number_of_devices(tmp_path):
    def run(algo, num_updates, **arguments):
        return jaxrl.run(
            algo, SAME["a2c-sums"], seed=1, total_steps=8 * 4 * num_updates, run_dir=tmp_path,
            num_evaluations=1, eval_episodes=2, log_every=1, progress_bar=False, **arguments,
        )  # fmt: skip

    algo = algorithm("a2c-sums")
    run(spread(algo), 1)
    run(algo, 3, resume=True)
    result = run(spread(algo), 5, resume=True)
    state, _ = together("a2c-sums")  # five updates
    close(learner(result.state), learner(state))
    scores = evaluate_separately(algo, SAME["a2c-sums"], state, 2, EVALUATION_SEED - 1)
    assert result.summary["eval_return"] == pytest.approx(float(scores.episode_return.mean()))


@pytest.mark.slow
def test_a_run_on_several_devices_is_evaluated_in_simulators(tmp_path):
    algo, config = algorithm("a2c-sums", "envpool/CartPole-v1"), SAME["a2c-sums"]
    result = jaxrl.run(
        spread(algo), config, total_steps=8 * 4, run_dir=tmp_path, eval_episodes=2,
        progress_bar=False,
    )  # fmt: skip
    scores = evaluate_separately(algo, config, jaxrl.load_policy(tmp_path).state, 2)
    assert result.summary["eval_return"] == pytest.approx(float(scores.episode_return.mean()))


def test_the_best_agent_of_several_devices_is_loaded(tmp_path):
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", 8))
    config = jaxrl.PPOConfig(**SMALL, num_minibatches=1, num_epochs=1, normalize_rewards=True)
    jaxrl.run(
        spread(algo), config, total_steps=8 * 4, run_dir=tmp_path, num_evaluations=1,
        eval_episodes=2, progress_bar=False,
    )  # fmt: skip
    best, newest = (jaxrl.load_policy(tmp_path, which=w).state for w in ("best", "newest"))
    close(best.params, newest.params)


def test_an_agent_on_several_devices_is_evaluated_in_simulators_by_its_copy_on_one():
    algo = spread(jaxrl.a2c(jaxrl.make(Counting, 8, vectorization_mode="sync")))
    config = jaxrl.A2CConfig(**SMALL)
    state = jax.jit(algo.init)(config, jax.random.key(0))
    evaluate = jax.jit(jaxrl.evaluate, static_argnums=(0, 3))
    agent, env = agent_on_one_device(state), algo.env.for_evaluation(3)
    scores = evaluate(algo, config, agent, env, jax.random.key(1))
    np.testing.assert_array_equal(scores.episode_length, [LENGTH] * 3)
    with pytest.raises(ValueError, match=r"state must be that of .*agent_on_one_device\(state\)"):
        jaxrl.evaluate(algo, config, state, env, jax.random.key(1))


# --- pmap, populations ---------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_pmap_trains_an_agent_on_each_device():
    algo, config = algorithm("ppo"), DRAWN["ppo"]
    keys = jax.random.split(jax.random.key(0), D)

    def run(key):
        return jaxrl.train(algo, config, key, 3)

    states, metrics = jax.device_get(jax.pmap(run)(keys))
    expected, expected_metrics = jax.jit(jax.vmap(run))(keys)
    close((states.params, metrics), (expected.params, expected_metrics))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_pmap_trains_one_agent_on_all_devices():
    algo, config = algorithm("ppo"), SAME["ppo"]
    part = jaxrl.ppo(algo.env.spread(Axis("batch", D)))
    run = jax.pmap(lambda key: jaxrl.train(part, config, key, 5), axis_name="batch")
    states, _ = run(jnp.broadcast_to(jax.random.key(1), (D,)))
    alone, _ = train(algo, config, jax.random.key(1), 5)
    close(jax.tree.map(lambda x: np.asarray(x)[-1], states.params), alone.params)


@pytest.mark.parametrize(
    ("env_id", "num_devices", "num_lane_devices", "strategy"),
    [
        pytest.param("CartPole-v1", D, 1, "map", marks=pytest.mark.exhaustive),
        pytest.param("CartPole-v1", D // 2, 2, "vmap", marks=pytest.mark.exhaustive),
        pytest.param("envpool/CartPole-v1", D, 1, "vmap", marks=pytest.mark.exhaustive),
        pytest.param("envpool/CartPole-v1", D // 2, 2, "vmap", marks=pytest.mark.slow),
    ],
)
def test_populations_lie_on_a_mesh_of_lanes_and_devices(
    env_id, num_devices, num_lane_devices, strategy
):
    algo = algorithm("a2c", env_id)
    configs = populations.stack(
        SAME["a2c-sums"], D, learning_rate=jnp.linspace(1e-6, 1e-5, D, dtype=jnp.float32)
    )
    keys = jax.random.split(jax.random.key(2), D)

    def trained(lanes):
        def run(keys):
            return lanes.update(configs, lanes.init(configs, keys), 3, 3)

        return jax.jit(run)(keys)

    expected, expected_metrics = trained(population(algo, D, "vmap"))
    on_mesh = spread(algo, num_devices, num_lane_devices)
    states, metrics = trained(population(on_mesh, D, strategy))
    close(metrics, expected_metrics)
    close(states.params, expected.params)


# --- refusals, other environments --------------------------------------------------------------


def with_other(name):
    """Return A2C with a function that its `make` does not make."""
    algo = algorithm("a2c")
    return algo._replace(**{name: lambda *args: getattr(algo, name)(*args)})


def traced(name, config):
    return jax.eval_shape(spread(algorithm(name), 2).init, config, jax.random.key(0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spread(algorithm("ppo"), 64), r"1 x 64 devices, but JAX sees \d"),
        (lambda: spread(algorithm("ppo"), 0), r"num_devices must be an integer >= 1"),
        (lambda: spread(algorithm("ppo"), None, 0), r"num_lane_devices must be an .*, got 0"),
        (
            lambda: spread(jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=3)), 2),
            r"num_envs = 3 is not divisible by 2 devices",
        ),
        (
            lambda: spread(jaxrl.ppo(jaxrl.make("envpool/CartPole-v1", 4, num_pools=4)), 2),
            r"num_envs = 2 on each of 2 devices cannot be split over num_pools = 4",
        ),
        (
            lambda: traced("ppo", jaxrl.PPOConfig(num_steps=5, num_minibatches=8)),
            r"4 \* 5 = 20 on each of 2 devices is not divisible by PPOConfig.num_minibatches = 8",
        ),
        (
            lambda: traced("dqn", SAME["dqn"].replace(batch_size=5)),
            r"DQNConfig.batch_size = 5 is not divisible by the number of devices, 2",
        ),
        (lambda: spread(toy(), 2), r"'toy' cannot be spread .* `make`.* is None"),
        (
            lambda: spread(with_other("update"), 2),
            r"the update of 'a2c' was replaced.* replace `make`",
        ),
        (lambda: spread(with_other("init"), 2), r"the init of 'a2c' was replaced.* replace `make`"),
        (
            lambda: spread(toy()._replace(env=BARE), 2),
            r"bare/Env-v0 cannot be spread .* lacks `spread\(axis\)`",
        ),
        (
            lambda: population(spread(algorithm("ppo"), 2), 4, "shard-vmap"),
            r"strategy 'shard-vmap' spreads lanes over devices, but each agent is spread",
        ),
    ],
)
def test_a_bad_spread_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_spread_algorithm_is_made_again_on_as_many_devices():
    algo = spread(algorithm("ppo"), 2)
    assert algo.make is not None
    again = algo.make(jaxrl.make("CartPole-v1", num_envs=4), None)
    state = jax.jit(again.init)(DRAWN["ppo"], jax.random.key(0))
    assert len(state.simulation.timestep.obs.sharding.device_set) == 2
    assert state.simulation.timestep.obs.shape[0] == 4


class Own:
    """An environment that is not jaxrl's."""

    def __init__(self, env, axis=SINGLE_DEVICE):
        self.env, self.axis = env, axis

    def __getattr__(self, name):
        return getattr(self.env, name)

    def spread(self, axis):
        return Own(self.env.spread(axis), axis)


@pytest.mark.slow
def test_an_environment_of_ones_own_is_spread():
    config = jaxrl.A2CConfig(**SMALL)
    own: Any = Own(jaxrl.make("CartPole-v1", num_envs=4))
    algo = jaxrl.a2c(own)
    _, one = train(algo, config, jax.random.key(0), 2)
    _, two = train(spread(algo, 2), config, jax.random.key(0), 2)
    chex.assert_trees_all_close(two, one, rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive
def test_agents_on_eight_devices():
    """Run with a time limit, because devices might wait for each other for ever."""
    these = "is_the_same and ppo and not gru and not lstm or draw_the_samples and r2d2"
    flags = [f for f in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in f]
    command = [sys.executable, *["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]]
    done = subprocess.run(
        [*command, "-m", "not process", "-k", these, __file__], cwd=Path(__file__).parents[2],
        env=os.environ | {"XLA_FLAGS": " ".join([*flags, fast_compile.FLAG, EIGHT])},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.parametrize(
    ("platform", "num_used", "line"),
    [("gpu", 1, "uses 1 of 2 gpu devices; do this"), ("gpu", 2, None), ("cpu", 1, None)],
)
def test_unused_accelerators_are_named(monkeypatch, platform, num_used, line):
    devices = [types.SimpleNamespace(platform=platform)] * 2
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert describe_unused(num_used, "do this") == line
