"""The configs of all algorithms: every field has its effect, its limits and its errors."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_algorithms import CONFIGS, algorithm, described, learn, same, start

import jaxrl
from jaxrl.config import is_static
from jaxrl.networks import build

pytestmark = pytest.mark.usefixtures("quick_compilation")
everything = pytest.mark.parametrize("name", CONFIGS)

NETWORK = {
    "torso": "mlp",
    "hidden_sizes": (9,),
    "activation": "swish",
    "compute_dtype": "bfloat16",
}
MEMORY = {"core": None, "core_size": 9, "use_last_action_reward": False}
LEARNING = {
    "learning_rate": 0.02,
    "anneal_updates": 3,
    "gamma": 0.5,
    "max_grad_norm": 0.01,
    "num_steps": 8,
}
ACTOR_CRITIC = {"value_coef": 0.1, "entropy_coef": 0.5}
Q_LEARNING = {
    "adam_eps": 0.2,
    "learning_starts": 40,
    "target_period": 3,
    "priority_exponent": 0.2,
    "importance_exponent": 1.0,
    "num_gradient_steps": 2,
    "batch_size": 8,
    "replay_size": 64,
    "frame_stack": 4,
    "n_step": 1,
    "dueling": False,
}
CHANGES: dict[str, dict[str, Any]] = {
    "ppo-gru": NETWORK | MEMORY | LEARNING | ACTOR_CRITIC | {
        "gae_lambda": 0.5,
        "clip_epsilon": 1e-3,
        "adam_eps": 0.2,
        "target_kl": 1e-9,
        "num_epochs": 1,
        "num_minibatches": 1,
        "clip_value": True,
        "normalize_advantages": False,
        "normalize_observations": True,
        "normalize_rewards": True,
    },
    "a2c-lstm": NETWORK | MEMORY | LEARNING | ACTOR_CRITIC | {
        "gae_lambda": 0.5,
        "final_entropy_coef": 0.5,
        "rmsprop_decay": 0.5,
        "rmsprop_eps": 0.2,
        "rmsprop_initial": 1.0,
        "log_eps": 1e-2,
        "min_training_batch": 16,
        "eps_inside_root": False,
        "sum_losses": True,
        "normalize_observations": True,
    },
    "impala-lstm": NETWORK | MEMORY | LEARNING | ACTOR_CRITIC | {
        "trace_lambda": 0.5,
        "rho_bar": 0.5,
        "c_bar": 0.5,
        "policy_rho_bar": 0.5,
        "rmsprop_decay": 0.5,
        "rmsprop_eps": 0.2,
        "lag": 2,
        "off_policy_correction": False,
        "sum_losses": False,
        "normalize_observations": True,
    },
    "dqn-prioritized": NETWORK | LEARNING | Q_LEARNING | {
        "initial_epsilon": 0.5,
        "final_epsilon": 0.9,
        "exploration_steps": 10.0,
        "double": False,
        "prioritized": False,
    },
    "r2d2": NETWORK | MEMORY | LEARNING | Q_LEARNING | {
        "core": "gru",
        "epsilon_base": 0.9,
        "epsilon_exponent": 1.0,
        "priority_max_share": 0.1,
        "burn_in": 1,
        "unroll_length": 3,
        "rescale_values": False,
    },
}  # fmt: skip
FIELDS = [(name, field) for name in CHANGES for field in dataclasses.fields(CONFIGS[name])]
FOR_IMAGES = ("torso", "frame_stack")


def changed(name, *fields):
    changes = next(changes for base, changes in CHANGES.items() if base.startswith(name))
    return CONFIGS[name].replace(**{field: changes[field] for field in fields})


def of_fields(static):
    return pytest.mark.parametrize(
        ("name", "field"),
        [
            (name, field.name)
            for name, field in FIELDS
            if is_static(field) == static and field.name in CHANGES[name]
        ],
    )


def test_the_changes_cover_every_field_of_every_config():
    assert {type(CONFIGS[name]) for name in CHANGES} == {
        type(config) for config in CONFIGS.values()
    }
    for name, changes in CHANGES.items():
        known = {field.name for field in dataclasses.fields(CONFIGS[name])}
        # DQN refuses a memory, so its fields are without effect.
        assert known - set(changes) == (set(MEMORY) if name == "dqn-prioritized" else set())
        assert set(changes) <= known


@pytest.mark.slow
@of_fields(static=False)
def test_every_traced_field_changes_what_is_learned(name, field):
    configs = CONFIGS[name], changed(name, field)
    before, after = (learn(name, config, start(name, 0, config))[0] for config in configs)
    assert not same(before.params, after.params)


@functools.cache
def shapes(name, env_id, *fields):
    algo, config = algorithm(name, env_id), changed(name, *fields)
    state = jax.eval_shape(algo.init, config, jax.random.key(0))
    return state, [x.shape for x in jax.tree.leaves(state.params)]


@functools.cache
def program(name, env_id, *fields):
    """Return the text of an update's program."""
    state, _ = shapes(name, env_id, *fields)
    return str(jax.make_jaxpr(algorithm(name, env_id).update)(changed(name, *fields), state))


def setting(name, field):
    """Return the algorithm and environment that show a field's effect and are traced fastest."""
    # Not IMPALA's: without a lag there is nothing to correct.
    without_memory = {"ppo-gru": "ppo", "a2c-lstm": "a2c"}
    name = name if field in MEMORY else without_memory.get(name, name)
    return name, "frames" if field in FOR_IMAGES else "CartPole-v1"


@of_fields(static=True)
def test_every_static_field_changes_the_program(name, field):
    where = setting(name, field)
    other_network = shapes(*where, field)[1] != shapes(*where)[1]
    assert other_network or program(*where, field) != program(*where)


def test_a_program_is_traced_to_the_same_text_again():
    where = "dqn-prioritized", "CartPole-v1"
    again = algorithm.__wrapped__(*where)
    assert str(jax.make_jaxpr(again.update)(CONFIGS[where[0]], shapes(*where)[0])) == program(
        *where
    )


@pytest.mark.parametrize("name", CHANGES)
def test_traced_fields_do_not_retrace_and_static_ones_do(name):
    traces = 0

    @jax.jit
    def update(config, state):
        nonlocal traces
        traces += 1
        return algorithm(name).update(config, state)

    state = jax.eval_shape(algorithm(name).init, CONFIGS[name], jax.random.key(0))
    for field in dataclasses.fields(CONFIGS[name]):
        if not is_static(field):
            update.eval_shape(changed(name, field.name), state)
    assert traces == 1
    update.eval_shape(changed(name, "activation"), state)
    assert traces == 2


@pytest.mark.parametrize("name", CHANGES)
def test_whole_numbers_do_for_every_traced_field(name):
    traced = [field.name for field in dataclasses.fields(CONFIGS[name]) if not is_static(field)]
    state, _ = shapes(name, "CartPole-v1")
    whole = CONFIGS[name].replace(**dict.fromkeys(traced, 1))
    after, _ = jax.eval_shape(algorithm(name).update, whole, state)
    assert described(after) == described(state)


EXTREMES = {
    "learning_rate": [0.0],
    "gamma": [0.0, 1.0],
    "gae_lambda": [0.0, 1.0],
    "trace_lambda": [0.0],
    "anneal_updates": [1],
    "max_grad_norm": [1e-8, 1e8],
    "value_coef": [0.0, 1e3],
    "entropy_coef": [0.0, 1e3],
    "final_entropy_coef": [1e3],
    "clip_epsilon": [1e-8, 1e8],
    "target_kl": [1e-20],
    "adam_eps": [1e-30],
    "rmsprop_eps": [1e-30],
    "rmsprop_decay": [0.0, 1.0],
    "rmsprop_initial": [1e8],
    "log_eps": [0.0, 1e-30, 1.0],
    "rho_bar": [1e-8, math.inf],
    "c_bar": [1e-8, math.inf],
    "policy_rho_bar": [1e-8, math.inf],
    "initial_epsilon": [0.0],
    "final_epsilon": [0.0, 1.0],
    "exploration_steps": [1e-8, 1e12],
    "learning_starts": [0, 10**9],
    "target_period": [1, 10**9],
    "priority_exponent": [0.0, 10.0],
    "importance_exponent": [0.0, 1.0],
    "epsilon_base": [0.0, 1.0],
    "epsilon_exponent": [1e-8, 1e8],
    "priority_max_share": [0.0, 1.0],
}


def test_every_traced_field_has_extremes():
    assert {field.name for _, field in FIELDS if not is_static(field)} == set(EXTREMES)


@pytest.mark.slow
@everything
def test_extreme_but_legal_values_give_finite_numbers(name):
    config, state = CONFIGS[name], start(name)
    values = {field: x for field, x in EXTREMES.items() if getattr(config, field, None) is not None}
    for field, extremes in values.items():
        for value in extremes:
            after, metrics = learn(name, config.replace(**{field: value}), state)
            finite = [np.isfinite(x).all() for x in jax.tree.leaves((after.params, metrics))]
            assert all(finite), (field, value)
            if field == "learning_rate":
                assert same(after.params, state.params)


BAD: dict[Any, list[tuple[str, Any]]] = {  # fields of a base class once
    jaxrl.PPOConfig: [
        ("learning_rate", -1e-3),
        ("anneal_updates", math.inf),
        ("gamma", jnp.array([0.9, 1.1])),
        ("value_coef", "half"),
        ("entropy_coef", math.inf),
        ("max_grad_norm", 0.0),
        ("num_steps", 2.0),
        ("normalize_observations", "yes"),
        ("core", "transformer"),
        ("core_size", 0),
        ("use_last_action_reward", "yes"),
        ("hidden_sizes", (8, 0)),
        ("hidden_sizes", 8),
        ("gae_lambda", -0.1),
        ("clip_epsilon", 0.0),
        ("adam_eps", 0.0),
        ("target_kl", 0.0),
        ("num_epochs", 0),
        ("num_minibatches", "4"),
        ("clip_value", 1),
        ("normalize_advantages", None),
        ("normalize_rewards", 1),
    ],
    jaxrl.A2CConfig: [
        ("gae_lambda", -0.1),
        ("final_entropy_coef", -0.1),
        ("rmsprop_decay", 1.1),
        ("rmsprop_eps", 0.0),
        ("rmsprop_initial", -1.0),
        ("log_eps", -1e-6),
        ("min_training_batch", 0),
        ("eps_inside_root", 1),
        ("sum_losses", None),
    ],
    jaxrl.ImpalaConfig: [
        ("trace_lambda", 1.5),
        ("rho_bar", 0.0),
        ("c_bar", math.nan),
        ("policy_rho_bar", -1.0),
        ("rmsprop_decay", -0.1),
        ("rmsprop_eps", -1.0),
        ("lag", -1),
        ("lag", True),
        ("off_policy_correction", "no"),
        ("sum_losses", 0),
    ],
    jaxrl.DQNConfig: [
        ("learning_rate", None),
        ("anneal_updates", -1),
        ("adam_eps", 0.0),
        ("max_grad_norm", 0.0),
        ("gamma", -0.5),
        ("learning_starts", -1),
        ("target_period", 0),
        ("priority_exponent", -0.5),
        ("importance_exponent", 2.0),
        ("num_steps", 0),
        ("num_gradient_steps", True),
        ("batch_size", "64"),
        ("replay_size", -5),
        ("replay_size", 1e6),
        ("frame_stack", 0),
        ("n_step", 0),
        ("dueling", None),
        ("initial_epsilon", 1.5),
        ("final_epsilon", -0.1),
        ("exploration_steps", 0.0),
        ("double", 1),
        ("prioritized", "rank"),
    ],
    jaxrl.R2D2Config: [
        ("epsilon_base", 1.5),
        ("epsilon_exponent", 0.0),
        ("priority_max_share", 1.1),
        ("burn_in", -1),
        ("unroll_length", 0),
        ("rescale_values", None),
    ],
}


@pytest.mark.parametrize(
    ("config_class", "field", "value"),
    [(config_class, *bad) for config_class, rows in BAD.items() for bad in rows],
)
def test_a_bad_value_is_refused_by_name(config_class, field, value):
    with pytest.raises(ValueError, match=f"{config_class.__name__}.{field} must be .*, got "):
        config_class(**{field: value})
    with pytest.raises(ValueError, match=f"{config_class.__name__}.{field} must be .*, got "):
        config_class().replace(**{field: value})


def test_every_field_of_the_configs_has_a_bad_value():
    def names(config_class):
        return {field.name for field in dataclasses.fields(config_class)}

    for config_class, rows in BAD.items():
        tests_its_base = config_class in (jaxrl.PPOConfig, jaxrl.DQNConfig)
        base = build.NetworkConfig if tests_its_base else config_class.__base__
        assert names(config_class) - names(base) <= {field for field, _ in rows}


def test_dqn_with_a_memory_is_refused_by_name():
    with pytest.raises(ValueError, match=r"DQN has no memory, got core='gru'; use jaxrl.r2d2"):
        jaxrl.DQNConfig(core="gru")


@pytest.mark.parametrize(
    ("name", "env_id", "changes", "message"),
    [
        ("r2d2", "CartPole-v1", {"core": None}, "R2D2 needs a network with a memory.*core=None"),
        (
            "dqn", "CartPole-v1", {"replay_size": 10},
            "DQNConfig.replay_size = 10 over num_envs = 2 .* num_steps = 4 and n_step = 1",
        ),
        (
            "dqn", "CartPole-v1", {"n_step": 12},
            "DQNConfig.replay_size = 32 over num_envs = 2 .* num_steps = 4 and n_step = 12",
        ),
        (
            "r2d2", "CartPole-v1", {"replay_size": 22},
            "R2D2Config.replay_size = 22 over num_envs = 2 .* = 5 steps .*num_steps = 4",
        ),
        ("dqn", "CartPole-v1", {"frame_stack": 4}, r"DQNConfig.frame_stack = 4.*shape \(4,\)"),
        ("r2d2", "CartPole-v1", {"frame_stack": 4}, r"R2D2Config.frame_stack = 4.*shape \(4,\)"),
        ("dqn", "Breakout-MinAtar", {"frame_stack": 3}, r"frame_stack = 3.*shape \(10, 10, 4\)"),
        ("r2d2", "Breakout-MinAtar", {"frame_stack": 3}, r"frame_stack = 3.*shape \(10, 10, 4\)"),
        ("dqn", "Pendulum-v1", {}, "needs Discrete actions, got the space Box"),
        ("r2d2", "Pendulum-v1", {}, "needs Discrete actions, got the space Box"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_environment_is_refused_by_name(name, env_id, changes, message):
    algo, config = algorithm(name, env_id), CONFIGS[name].replace(**changes)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(algo.init, config, jax.random.key(0))


@pytest.mark.parametrize(
    ("name", "changes"),
    [("dqn", {"replay_size": 12}), ("dqn", {"n_step": 11}), ("r2d2", {"replay_size": 24})],
)
def test_a_replay_that_is_just_large_enough_is_taken(name, changes):
    config = CONFIGS[name].replace(**changes)
    state = jax.eval_shape(algorithm(name).init, config, jax.random.key(0))
    assert state.memory.capacity >= 6
