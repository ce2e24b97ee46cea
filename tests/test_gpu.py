"""Training on a GPU: run these on a machine that has one, by `pytest -m gpu`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_algorithms import CONFIGS, algorithm, as_numpy, assert_close

import jaxrl
from jaxrl.algos import ALGORITHMS
from jaxrl.training import population as populations

pytestmark = pytest.mark.gpu

UPDATES = 4


@pytest.fixture(scope="module", autouse=True)
def precise_products():
    """Multiply in float32: a GPU would round factors to fewer bits."""
    with jax.default_matmul_precision("highest"):
        yield


def trained(name, env_id, device, num_updates=UPDATES):
    """Return the agent's state and the metrics of each update, computed on a device."""
    with jax.default_device(device):
        return jax.jit(jaxrl.train, static_argnums=(0, 3))(
            algorithm(name, env_id), CONFIGS[name], jax.random.key(1), num_updates
        )


@pytest.mark.parametrize("env_id", ["CartPole-v1", "frames"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_gpu_computes_what_a_cpu_computes(name, env_id):
    gpu, cpu = jax.devices("gpu")[0], jax.devices("cpu")[0]
    (state, metrics), (expected, expected_metrics) = (
        trained(name, env_id, device) for device in (gpu, cpu)
    )
    assert {x.device for x in jax.tree.leaves(state.params)} == {gpu}
    assert_close(state.params, expected.params, rtol=1e-3, atol=1e-4)
    assert_close(metrics, expected_metrics, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_lanes_of_a_population_are_its_agents_alone(name):
    algo, config = algorithm(name, "frames"), CONFIGS[name]
    lanes = populations.population(algo, 3)
    configs, keys = populations.stack(config, 3), jax.random.split(jax.random.key(0), 3)

    @jax.jit
    def train(configs, keys):
        return lanes.update(configs, lanes.init(configs, keys), UPDATES, UPDATES)[0]

    states = train(configs, keys)
    for lane, key in enumerate(keys):
        alone, _ = jax.jit(jaxrl.train, static_argnums=(0, 3))(algo, config, key, UPDATES)
        of_lane = jax.tree.map(lambda x: x[lane], states.params)  # noqa: B023
        assert_close(of_lane, alone.params, rtol=1e-3, atol=1e-4)


def test_simulators_on_the_host_train_on_a_gpu():
    algo = jaxrl.a2c(jaxrl.make("envpool/Pong-v5", 4, num_pools=2))
    config = jaxrl.A2CConfig(torso="ga3c_cnn", num_steps=5)
    state, metrics = jax.jit(jaxrl.train, static_argnums=(0, 3))(algo, config, jax.random.key(0), 3)
    assert metrics["valid_steps"].sum() == 4 * 5 * 3
    assert np.isfinite(as_numpy(state.params)[0]).all()


def test_a_resumed_run_continues_on_a_gpu(tmp_path):
    algo, config = algorithm("ppo"), CONFIGS["ppo"]
    arguments = {"seed": 3, "num_evaluations": 0, "progress_bar": False, "log_every": 1}
    whole = jaxrl.run(algo, config, total_steps=80, run_dir=tmp_path / "whole", **arguments)
    jaxrl.run(algo, config, total_steps=40, run_dir=tmp_path / "parts", **arguments)
    parts = jaxrl.run(
        algo, config, total_steps=80, run_dir=tmp_path / "parts", resume=True, **arguments
    )
    for x, y in zip(as_numpy(whole.state), as_numpy(parts.state), strict=True):
        np.testing.assert_array_equal(x, y)


def test_half_precision_trains_on_a_gpu():
    algo = algorithm("ppo", "frames")
    config = CONFIGS["ppo"].replace(compute_dtype="bfloat16")
    state, _ = jax.jit(jaxrl.train, static_argnums=(0, 3))(algo, config, jax.random.key(0), 3)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(state.params))
    assert all(np.isfinite(x).all() for x in as_numpy(state.params))
