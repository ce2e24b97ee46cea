"""PPO: its loss against NumPy, its config, and the program it compiles to."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl
from jaxrl.algos import ppo as ppo_module
from jaxrl.algos.ppo import Batch
from jaxrl.config import is_static
from jaxrl.distributions import Categorical, DiagonalNormal

NOTHING: Any = None


def small_config(**changes):
    return jaxrl.PPOConfig(num_steps=16, num_minibatches=2, num_epochs=2, **changes)


def leaves_equal(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(as_data(x)), np.asarray(as_data(y))) for x, y in pairs)


def as_data(x):
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def reference_loss(config, logits, value, batch):
    """The clipped surrogate of the paper, a row at a time, over the valid rows alone."""
    rows = [i for i in range(len(value)) if batch.valid[i]]
    advantage = np.array([batch.advantage[i] for i in rows], np.float64)
    if config.normalize_advantages:
        advantage = (advantage - advantage.mean()) / np.sqrt(advantage.var() + 1e-8)
    policy_losses, value_losses, entropies = [], [], []
    for a, i in zip(advantage, rows, strict=True):
        probs = np.exp(logits[i] - np.log(np.exp(logits[i]).sum()))
        ratio = probs[batch.action[i]] / np.exp(batch.log_prob[i])
        eps = config.clip_epsilon
        policy_losses.append(-min(ratio * a, min(max(ratio, 1 - eps), 1 + eps) * a))
        error = (value[i] - batch.target[i]) ** 2
        if config.clip_value:
            near = batch.value[i] + min(max(value[i] - batch.value[i], -eps), eps)
            error = max(error, (near - batch.target[i]) ** 2)
        value_losses.append(error / 2)
        entropies.append(-(probs * np.log(probs)).sum())
    return (
        np.mean(policy_losses)
        + config.value_coef * np.mean(value_losses)
        - config.entropy_coef * np.mean(entropies)
    )


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(2, 12),
    clip_value=st.booleans(),
    normalize=st.booleans(),
)
def test_loss_equals_a_row_by_row_reference_over_valid_rows(seed, size, clip_value, normalize):
    rng = np.random.default_rng(seed)
    valid = rng.random(size) < 0.7
    valid[0] = valid[1] = True
    batch = Batch(
        inputs=NOTHING,
        core=(),
        action=rng.integers(0, 3, size),
        log_prob=np.log(rng.uniform(0.1, 0.9, size)),
        value=rng.normal(size=size),
        advantage=rng.normal(size=size),
        target=rng.normal(size=size),
        valid=valid.astype(np.float64),
    )
    logits, value = rng.normal(size=(size, 3)), rng.normal(size=size)
    config = jaxrl.PPOConfig(
        value_coef=0.7, entropy_coef=0.03, clip_value=clip_value, normalize_advantages=normalize
    )
    as_jax = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), batch)
    loss, _ = ppo_module.loss(config, Categorical(jnp.asarray(logits)), jnp.asarray(value), as_jax)
    assert float(loss) == pytest.approx(reference_loss(config, logits, value, batch), rel=2e-4)


def test_loss_of_a_normal_policy_uses_its_density():
    config = jaxrl.PPOConfig(normalize_advantages=False, value_coef=0.0, entropy_coef=0.0)
    one = jnp.ones(1)
    batch = Batch(NOTHING, jnp.zeros((1, 2)), jnp.zeros(1), one, one, one, one, ())
    loss, _ = ppo_module.loss(config, DiagonalNormal(jnp.zeros((1, 2)), jnp.zeros(2)), one, batch)
    assert float(loss) == pytest.approx(-1 / (2 * np.pi))


CHANGES = {
    "learning_rate": 1e-2,
    "anneal_updates": 3,
    "gamma": 0.5,
    "gae_lambda": 0.5,
    "clip_epsilon": 1e-3,
    "value_coef": 0.1,
    "entropy_coef": 0.5,
    "max_grad_norm": 0.01,
    "adam_eps": 0.1,
    "target_kl": 1e-9,
    "num_steps": 32,
    "num_epochs": 1,
    "num_minibatches": 4,
    "clip_value": True,
    "normalize_advantages": False,
    "normalize_observations": True,
    "normalize_rewards": True,
    "hidden_sizes": (32,),
    "activation": "swish",
    "compute_dtype": "bfloat16",
    "core": "gru",
    "core_size": 16,
    "sees_last": True,
}
MEMORY = {"core_size", "sees_last"}


@functools.cache
def cartpole():
    return jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=2))


train = jax.jit(jaxrl.train, static_argnums=(0, 3))


def learned(config, algo=None):
    state, _ = train(algo or cartpole(), config, jax.random.key(0), 2)
    return jax.tree.leaves(state.params)


@pytest.mark.parametrize(
    "name", [f.name for f in dataclasses.fields(jaxrl.PPOConfig) if f.name != "torso"]
)
def test_every_field_of_the_config_changes_the_learned_parameters(name):
    base = small_config(learning_rate=1e-3, core="lstm" if name in MEMORY else None)
    before, after = learned(base), learned(base.replace(**{name: CHANGES[name]}))
    same_shapes = [x.shape for x in before] == [x.shape for x in after]
    assert not same_shapes or any((x != y).any() for x, y in zip(before, after, strict=True))


def test_the_torso_is_the_one_asked_for():
    algo = jaxrl.ppo(jaxrl.make("Breakout-MinAtar", num_envs=2))

    def shapes(torso):
        state = jax.eval_shape(algo.init, small_config(torso=torso), jax.random.key(0))
        return [x.shape for x in jax.tree.leaves(state.params)]

    assert shapes("auto") == shapes("minatar_cnn")
    assert len({str(shapes(torso)) for torso in ("minatar_cnn", "impala_resnet", "mlp")}) == 3


def test_traced_fields_do_not_retrace_and_static_ones_do():
    algo = jaxrl.ppo(jaxrl.make("probe/Bandit-v0", num_envs=4))
    traces = 0

    def update(config, state):
        nonlocal traces
        traces += 1
        return algo.update(config, state)

    update = jax.jit(update)
    config = small_config()
    state = algo.init(config, jax.random.key(0))
    state, _ = update(config, state)
    for field in dataclasses.fields(config):
        if not is_static(field) and field.name != "target_kl":
            state, _ = update(config.replace(**{field.name: CHANGES[field.name]}), state)
    assert traces == 1
    update(config.replace(num_epochs=1), state)
    assert traces == 2


def test_rollouts_that_do_not_split_into_minibatches_are_refused_by_name():
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=3))
    with pytest.raises(ValueError, match=r"3 \* 16 = 48 .*num_minibatches = 5"):
        algo.init(jaxrl.PPOConfig(num_steps=16, num_minibatches=5), jax.random.key(0))


def test_update_under_jit_equals_eager():
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=2))
    # A large epsilon: Adam divides by gradients that are rounding noise otherwise.
    config = jaxrl.PPOConfig(num_steps=2, num_minibatches=2, num_epochs=1, adam_eps=0.1)
    state = algo.init(config, jax.random.key(0))
    jitted, metrics = jax.jit(algo.update)(config, state)
    with jax.disable_jit():
        eager, eager_metrics = algo.update(config, state)
    for a, b in zip(jax.tree.leaves(jitted.params), jax.tree.leaves(eager.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    for name in metrics:
        np.testing.assert_allclose(metrics[name], eager_metrics[name], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("env_id", ["gymnax/CartPole-v1", "envpool/CartPole-v1"])
def test_a_population_over_learning_rates_and_seeds_learns_what_its_members_learn(env_id):
    algo = jaxrl.ppo(jaxrl.make(env_id, num_envs=2))
    keys = jax.random.split(jax.random.key(3), 3)
    rates = jnp.array([1e-4, 1e-3, 1e-2])

    def learn(rate, key):
        return jaxrl.train(algo, small_config().replace(learning_rate=rate), key, 3)

    population, metrics = jax.jit(jax.vmap(learn))(rates, keys)
    single = jax.jit(learn)
    for i in range(3):
        state, one = single(rates[i], keys[i])
        for a, b in zip(
            jax.tree.leaves(population.params), jax.tree.leaves(state.params), strict=True
        ):
            np.testing.assert_allclose(a[i], b, rtol=1e-3, atol=1e-5)
        assert (metrics["valid_steps"][i] == one["valid_steps"]).all()
        assert (metrics["episode_return_sum"][i] == one["episode_return_sum"]).all()


def test_metrics_are_scalars_and_stack_to_the_number_of_updates():
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=2))
    config = small_config()
    _, metrics = jax.eval_shape(algo.update, config, algo.init(config, jax.random.key(0)))
    assert {x.shape for x in metrics.values()} == {()}
    _, metrics = jax.jit(jaxrl.train, static_argnums=(0, 3))(algo, config, jax.random.key(0), 5)
    assert {x.shape for x in metrics.values()} == {(5,)}
    assert {
        "episode_return_sum", "episode_length_sum", "episode_count", "valid_steps", "loss"
    } <= set(metrics)  # fmt: skip


def test_target_kl_stops_the_epochs():
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4))
    config = small_config(learning_rate=1e-1).replace(num_epochs=10)
    state = algo.init(config, jax.random.key(0))
    _, free = jax.jit(algo.update)(config, state)
    _, stopped = jax.jit(algo.update)(config.replace(target_kl=1e-4), state)
    _, loose = jax.jit(algo.update)(config.replace(target_kl=1e9), state)
    assert (int(free["epochs"]), int(loose["epochs"])) == (10, 10)
    assert 1 <= int(stopped["epochs"]) < 10


def test_the_learning_rate_falls_to_zero_over_the_annealed_updates():
    algo = jaxrl.ppo(jaxrl.make("probe/Bandit-v0", num_envs=2))
    config = small_config(learning_rate=1.0, anneal_updates=4)
    _, metrics = train(algo, config, jax.random.key(0), 6)
    np.testing.assert_allclose(metrics["learning_rate"], [1, 0.75, 0.5, 0.25, 0, 0])


def test_any_flax_module_can_be_the_network():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, obs):
            x = nn.relu(nn.Dense(8)(obs))
            return Categorical(nn.Dense(2)(x)), nn.Dense(1)(x)[:, 0]

    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=2), Network())
    state, _ = jax.jit(algo.update)(small_config(), algo.init(small_config(), jax.random.key(0)))
    assert state.params["params"]["Dense_0"]["kernel"].shape == (4, 8)


def test_observations_of_the_wrong_rank_for_the_torso_are_refused_by_name():
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=2))
    with pytest.raises(ValueError, match=r"nature_cnn.*shape \(4,\)"):
        algo.init(small_config(torso="nature_cnn"), jax.random.key(0))


@pytest.mark.parametrize("extreme", [{"gamma": 0.0}, {"gamma": 1.0}, {"learning_rate": 0.0},
                                     {"entropy_coef": 1e3}, {"clip_epsilon": 1e-8},
                                     {"max_grad_norm": 1e-8}])  # fmt: skip
def test_extreme_but_legal_values_give_finite_numbers(extreme):
    state, metrics = train(cartpole(), small_config(**extreme), jax.random.key(0), 2)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.params, metrics)))


def test_act_is_greedy_without_chance_and_samples_with_it():
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=2))
    config = small_config()
    state = algo.init(config, jax.random.key(0))
    obs = jnp.zeros((64, 4))
    _, greedy = algo.act(config, state, (), obs, jax.random.key(0), True)
    _, sampled = algo.act(config, state, (), obs, jax.random.key(0), False)
    assert len(set(np.asarray(greedy).tolist())) == 1
    assert set(np.asarray(sampled).tolist()) == {0, 1}
