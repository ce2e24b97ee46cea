"""One agent on several devices: the same agent as on one.

These tests run on as many devices as JAX sees: two, and for every algorithm eight in a process of
its own.
"""

import dataclasses
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
from toy_algorithm import toy

import jaxrl
from jaxrl.device_axis import SINGLE_DEVICE, Axis
from jaxrl.distributed.spread import spread
from jaxrl.training import population as populations
from jaxrl.training.population import population

pytestmark = pytest.mark.usefixtures("quick_compilation")

D = len(jax.devices())
EIGHT = "--xla_force_host_platform_device_count=8"
train = jax.jit(jaxrl.train, static_argnums=(0, 3))

SMALL: dict[str, Any] = {"hidden_sizes": (8,), "num_steps": 4}
GRU: dict[str, Any] = {"core": "gru", "core_size": 8}
REPLAY: dict[str, Any] = SMALL | {
    "replay_size": 64 * 8, "learning_starts": 32, "batch_size": 16, "target_period": 2
}  # fmt: skip
SAME: dict[str, Any] = {
    "ppo": jaxrl.PPOConfig(**SMALL, num_minibatches=1, normalize_observations=True,
                           normalize_rewards=True, target_kl=0.05),
    "ppo-gru": jaxrl.PPOConfig(**SMALL | GRU, num_minibatches=1),
    "a2c": jaxrl.A2CConfig(**SMALL, min_training_batch=40, normalize_observations=True),
    "a2c-sums": jaxrl.A2CConfig(**SMALL, sum_losses=True, learning_rate=1e-5),
    "impala": jaxrl.ImpalaConfig(**SMALL, lag=2, normalize_observations=True),
    "impala-lstm": jaxrl.ImpalaConfig(**SMALL | GRU | {"core": "lstm"}, sum_losses=True,
                                      learning_rate=1e-5),
    "dqn": jaxrl.DQNConfig(**REPLAY, n_step=2, double=True),
}  # fmt: skip
DRAWN: dict[str, Any] = {
    "ppo": jaxrl.PPOConfig(**SMALL, num_minibatches=2),
    "dqn": jaxrl.DQNConfig(**REPLAY, prioritized=True),
    "r2d2": jaxrl.R2D2Config(**REPLAY, core_size=8, burn_in=2, unroll_length=2, n_step=2),
}
"""What learns from random parts of what there is, which each device draws for itself."""


@functools.cache
def algorithm(name, env_id="CartPole-v1"):
    return getattr(jaxrl, name.partition("-")[0])(jaxrl.make(env_id, num_envs=8))


@functools.cache
def together(name):
    return train(spread(algorithm(name)), SAME[name], jax.random.key(1), 5)


def close(a, b):
    chex.assert_trees_all_close(a, b, rtol=2e-3, atol=2e-4)


def learner(state):
    return state._replace(key=jax.random.key_data(state.key), simulation=None)


# --- the same agent ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAME)
def test_an_agent_is_the_same_on_one_device_and_on_several(name):
    algo, config = algorithm(name), SAME[name]
    alone, metrics = train(algo, config, jax.random.key(1), 5)
    state, its_metrics = together(name)
    close(its_metrics, metrics)
    close(learner(state), learner(alone))
    close(state.simulation.timestep, alone.simulation.timestep)
    started = jax.jit(algo.init)(config, jax.random.key(1))
    moved = jax.tree.map(lambda x, y: jnp.abs(x - y).max(), started.params, state.params)
    assert max(jax.tree.leaves(moved)) > 0


@pytest.mark.parametrize("name", SAME)
def test_environments_lie_on_all_devices_and_the_agent_on_each(name):
    state, _ = together(name)
    for leaf in jax.tree.leaves(state.simulation):
        assert len({str(shard.index) for shard in leaf.addressable_shards}) == D
        assert leaf.addressable_shards[0].data.shape[0] == 8 // D
    for leaf in jax.tree.leaves(state.params):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(copies) == D
        for copy in copies:
            np.testing.assert_array_equal(copy, copies[0])


@pytest.mark.parametrize("name", DRAWN)
def test_what_devices_draw_for_themselves_is_as_under_vmap(name):
    """The same parts of the same agent as members of `vmap` on one device."""
    algo, config = algorithm(name), DRAWN[name]
    state, metrics = train(spread(algo), config, jax.random.key(1), 12)
    part = algo.make(algo.env.spread(Axis("devices", D)), None)

    def one(_):
        return jaxrl.train(part, config, jax.random.key(1), 12)

    states, expected = jax.jit(jax.vmap(one, axis_name="devices"))(jnp.arange(D))
    for device in range(D):
        close(metrics, jax.tree.map(lambda x: x[device], expected))  # noqa: B023
        params = jax.tree.map(lambda x: x[device], states.params)  # noqa: B023
        close(state.params, params)
    assert float(metrics["loss"][-1]) != 0


@pytest.mark.parametrize("name", ["ppo", pytest.param("impala", marks=pytest.mark.slow)])
def test_host_environments_have_a_pool_on_each_device(name):
    algo, config = algorithm(name, "envpool/CartPole-v1"), SAME[name]
    alone, metrics = train(algo, config, jax.random.key(1), 4)
    state, its_metrics = train(spread(algo), config, jax.random.key(1), 4)
    close(its_metrics, metrics)
    close(state.params, alone.params)
    assert len(set(np.asarray(state.simulation.env_state.pool).tolist())) == D


def test_a_run_goes_on_on_another_number_of_devices(tmp_path):
    def run(directory, algo, steps, **arguments):
        return jaxrl.run(
            algo, SAME["ppo"], seed=1, total_steps=steps, run_dir=tmp_path / directory,
            num_evaluations=1, eval_episodes=2, log_every=1, chunk_updates=2, progress_bar=False,
            **arguments,
        )  # fmt: skip

    algo = algorithm("ppo")
    whole = run("alone", algo, 8 * 4 * 10)
    run("several", spread(algo), 8 * 4 * 4)
    run("several", algo, 8 * 4 * 6, resume=True)
    result = run("several", spread(algo), 8 * 4 * 10, resume=True)
    assert int(result.state.num_updates) == 10
    close(learner(result.state), learner(whole.state))
    assert result.summary["eval_return"] == pytest.approx(whole.summary["eval_return"])


# --- pmap, populations ---------------------------------------------------------------------------


def test_pmap_trains_an_agent_on_each_device():
    algo, config = algorithm("ppo"), DRAWN["ppo"]
    keys = jax.random.split(jax.random.key(0), D)

    def run(key):
        return jaxrl.train(algo, config, key, 3)

    states, metrics = jax.pmap(run)(keys)
    expected_states, expected = jax.jit(jax.vmap(run))(keys)
    close(jax.device_get(states.params), expected_states.params)
    close(jax.device_get(metrics), expected)


def test_pmap_trains_one_agent_on_all_devices():
    algo, config = algorithm("ppo"), SAME["ppo"]
    part = jaxrl.ppo(algo.env.spread(Axis("batch", D)))
    run = jax.pmap(lambda key: jaxrl.train(part, config, key, 3), axis_name="batch")
    states, _ = run(jnp.broadcast_to(jax.random.key(1), (D,)))
    alone, _ = train(algo, config, jax.random.key(1), 3)
    close(jax.tree.map(lambda x: np.asarray(x)[-1], states.params), alone.params)


@pytest.mark.parametrize(
    ("env_id", "num_devices", "num_lane_devices", "strategy"),
    [
        pytest.param("CartPole-v1", D, 1, "vmap", marks=pytest.mark.slow),
        ("CartPole-v1", D, 1, "map"),
        ("CartPole-v1", D // 2, 2, "vmap"),
        pytest.param("envpool/CartPole-v1", D, 1, "vmap", marks=pytest.mark.slow),
        ("envpool/CartPole-v1", D // 2, 2, "vmap"),
    ],
)
def test_populations_lie_on_a_mesh_of_lanes_and_devices(
    env_id, num_devices, num_lane_devices, strategy
):
    algo = algorithm("ppo", env_id)
    configs = populations.stack(
        SAME["ppo"], D, learning_rate=jnp.linspace(1e-4, 1e-3, D, dtype=jnp.float32)
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


# --- the axis ------------------------------------------------------------------------------------


def test_an_axis_of_one_device_does_nothing():
    x = jnp.arange(6.0)
    for function in (SINGLE_DEVICE.mean, SINGLE_DEVICE.sum, SINGLE_DEVICE.max, SINGLE_DEVICE.shard):
        assert function(x) is x
    assert float(SINGLE_DEVICE.mean_count(x > 2)) == 3
    assert float(SINGLE_DEVICE.mean_count(x > 9)) == 1
    key = jax.random.key(0)
    assert SINGLE_DEVICE.device_key(key) is key
    assert (SINGLE_DEVICE.split_key(key, 4) == jax.random.split(key, 4)).all()


def test_parts_keys_and_counts_of_an_axis():
    axis = Axis("batch", 4)
    x = jnp.arange(8.0)
    key = jax.random.key(0)

    def one(valid):
        return (
            axis.shard(x),
            axis.split_key(key, 2),
            axis.device_key(key),
            axis.mean_count(valid),
            axis.max(valid),
        )

    valid = jnp.array([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    parts, keys, own, count, largest = jax.vmap(one, axis_name="batch")(valid)
    np.testing.assert_array_equal(parts.reshape(-1), x)
    assert (keys.reshape(-1) == jax.random.split(key, 8)).all()
    assert len(np.unique(jax.random.key_data(own), axis=0)) == 4
    np.testing.assert_array_equal(count, 3 / 4)
    np.testing.assert_array_equal(largest[:, 0], 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spread(algorithm("ppo"), 64), r"1 x 64 devices, but JAX sees \d"),
        (lambda: spread(algorithm("ppo"), 0), r"1 x 0 devices"),
        (lambda: spread(algorithm("ppo"), None, 0), r"num_lane_devices must be >= 1, got 0"),
        (
            lambda: spread(jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=3)), 2),
            r"num_envs = 3 is not divisible by 2 devices",
        ),
        (
            lambda: jax.eval_shape(
                spread(jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=2)), 2).init,
                jaxrl.PPOConfig(num_steps=5, num_minibatches=2),
                jax.random.key(0),
            ),
            r"1 \* 5 = 5 on each of 2 devices is not divisible by PPOConfig.num_minibatches = 2",
        ),
        (
            lambda: jax.eval_shape(
                spread(algorithm("dqn"), 2).init,
                SAME["dqn"].replace(batch_size=5),
                jax.random.key(0),
            ),
            r"DQNConfig.batch_size = 5 is not divisible by the number of devices, 2",
        ),
        (
            lambda: population(spread(algorithm("ppo"), 2), 4, "shard-vmap"),
            r"strategy 'shard-vmap' spreads lanes over devices, but each agent is spread",
        ),
    ],
)
def test_what_cannot_be_spread_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_algorithms_that_cannot_be_made_again_are_refused_by_name():
    with pytest.raises(ValueError, match=r"'toy' cannot be spread .* `make`.* is None"):
        spread(toy(), 2)


def test_a_spread_algorithm_is_made_again_on_as_many_devices():
    algo = spread(algorithm("ppo"), 2)
    assert algo.make is not None
    again = algo.make(jaxrl.make("CartPole-v1", num_envs=4), None)
    state = jax.jit(again.init)(DRAWN["ppo"], jax.random.key(0))
    assert len(state.simulation.timestep.obs.sharding.device_set) == 2
    assert state.simulation.timestep.obs.shape[0] == 4


@dataclasses.dataclass(frozen=True)
class Own:
    """An environment that nobody can draw."""

    env: Any
    axis: Axis = SINGLE_DEVICE
    id = "own/CartPole"
    options: Any = dataclasses.field(default_factory=dict, hash=False)
    checkpointable = True
    num_envs = property(lambda self: self.env.num_envs)
    observation_space = property(lambda self: self.env.observation_space)
    action_space = property(lambda self: self.env.action_space)

    def init(self, key):
        return self.env.init(key)

    def step(self, key, state, action):
        return self.env.step(key, state, action)

    def for_evaluation(self, num_envs):
        return Own(self.env.for_evaluation(num_envs))

    def spread(self, axis):
        return Own(self.env.spread(axis), axis)


def test_an_environment_of_ones_own_is_spread():
    config = jaxrl.PPOConfig(**SMALL, num_minibatches=1)
    own: Any = Own(jaxrl.make("CartPole-v1", num_envs=4))
    algo = jaxrl.ppo(own)
    _, one = train(algo, config, jax.random.key(0), 2)
    _, two = train(spread(algo, 2), config, jax.random.key(0), 2)
    chex.assert_trees_all_close(two, one, rtol=1e-4, atol=1e-5)


def test_environments_that_cannot_be_spread_are_refused_by_name():
    bare: Any = types.SimpleNamespace(id="bare/Env-v0", num_envs=4)
    with pytest.raises(ValueError, match=r"bare/Env-v0 cannot be spread .* lacks `spread\(axis\)`"):
        spread(toy()._replace(env=bare), 2)


@pytest.mark.skipif(D == 8, reason="these are the eight devices")
def test_every_algorithm_on_eight_devices():
    """With a time limit, should devices ever wait for each other for ever."""
    these = "is_the_same and not gru and not lstm and not sums or draw_for_themselves and r2d2"
    flags = [f for f in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in f]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-k",
            these,
            __file__,
        ],
        env=os.environ | {"XLA_FLAGS": " ".join([*flags, fast_compile.FLAG, EIGHT])},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
