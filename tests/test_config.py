"""Configs: pytrees of traced numbers, static program choices, and errors that name the field."""

import dataclasses
import functools
import inspect
import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl import A2CConfig, PPOConfig
from jaxrl import config as fields
from jaxrl.algos import ALGORITHMS
from jaxrl.config import ADDED_FIELDS, from_dict, is_static, to_dict, with_current_names

TRACED = {
    "learning_rate", "anneal_updates", "gamma", "gae_lambda", "clip_epsilon", "value_coef",
    "entropy_coef", "max_grad_norm", "adam_eps",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("gamma", bad) for bad in (-0.1, 1.1, float("nan"), np.float32(2), jnp.float32(-1))),
        ("gamma", jnp.array([0.9, 1.1])),
        ("learning_rate", float("inf")),
        ("learning_rate", np.array([1e-3, -1e-3])),
        *(("learning_rate", not_a_number) for not_a_number in ("fast", None, [1e-3, -1.0])),
        ("max_grad_norm", 0),
        ("clip_epsilon", 0.0),
        ("target_kl", 0.0),
        *(("num_minibatches", bad) for bad in (0, -4, 2.0, True, "4", None)),
        ("hidden_sizes", [64]),
        ("hidden_sizes", (64, 0)),
        ("clip_value", 1),
        ("torso", "resnet50"),
        ("torso", None),
    ],
)
def test_a_bad_value_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"PPOConfig.{name} must be .*, got "):
        PPOConfig(**{name: value})
    with pytest.raises(ValueError, match=f"PPOConfig.{name} must be .*, got "):
        PPOConfig().replace(**{name: value})


@pytest.mark.parametrize(
    "values",
    [
        {"gamma": 0.0},
        {"gamma": 1},
        {"learning_rate": 0.0},
        {"max_grad_norm": float("inf")},
        {"gamma": jnp.array([0.0, 0.5, 1.0])},
        {"num_steps": 1},
    ],
)
def test_values_at_the_edge_are_accepted(values):
    config = PPOConfig(**values)
    assert all(getattr(config, name) is value for name, value in values.items())


def test_a_number_that_shapes_the_program_cannot_be_traced():
    with pytest.raises(ValueError, match=r"PPOConfig.initial_std must be a number > 0, got .*"):
        jax.vmap(lambda std: PPOConfig(initial_std=std).gamma)(jnp.array([0.5, 1.0]))


@pytest.mark.parametrize("number", [np.array(0.5), jnp.float32(0.5), np.float16(0.5)])
def test_a_number_that_shapes_the_program_is_kept_as_a_plain_one(number):
    assert type(PPOConfig(initial_std=number).initial_std) is float


def test_a_config_is_frozen():
    config: Any = PPOConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.gamma = 0.5
    assert config.replace(gamma=0.5).gamma == 0.5
    assert config.gamma == 0.99


def test_the_leaves_are_the_traced_numbers():
    def leaves(config):
        return [path[0].name for path, _ in jax.tree_util.tree_leaves_with_path(config)]

    assert sorted(leaves(PPOConfig())) == sorted(TRACED)
    assert sorted(leaves(PPOConfig(target_kl=0.1))) == sorted(TRACED | {"target_kl"})
    traced = {f.name for f in dataclasses.fields(PPOConfig) if not is_static(f)}
    assert traced == TRACED | {"target_kl"}


def test_jit_retraces_for_static_fields_only():
    traces = []

    @jax.jit
    def discounted(config):
        traces.append(config.num_steps)
        return config.gamma * config.num_steps

    for config in (PPOConfig(), PPOConfig(gamma=0.5), PPOConfig(learning_rate=1.0)):
        np.testing.assert_allclose(discounted(config), 128 * config.gamma, rtol=1e-6)
    assert traces == [128]
    np.testing.assert_allclose(discounted(PPOConfig(num_steps=10)), 9.9, rtol=1e-6)
    assert traces == [128, 10]


def test_a_config_of_arrays_is_a_population():
    gammas: Any = jnp.array([0.9, 0.5])
    axes = jax.tree_util.tree_map_with_path(
        lambda path, _: 0 if path[0].name == "gamma" else None, PPOConfig()
    )
    shared = jax.vmap(lambda c: c.gamma * c.gae_lambda, in_axes=(axes,))(PPOConfig(gamma=gammas))
    np.testing.assert_allclose(shared, gammas * 0.95, rtol=1e-6)
    full = jax.tree.map(lambda x: jnp.full(2, x), PPOConfig()).replace(gamma=gammas)
    np.testing.assert_allclose(jax.vmap(lambda c: c.gamma * c.gae_lambda)(full), shared)
    member = jax.tree.map(lambda x: x[1], full)
    assert (member.gamma, member.num_steps) == (0.5, 128)


@pytest.mark.parametrize("default", ["tanh", (8, 8)])
def test_a_traced_field_that_is_no_number_is_refused(default):
    class Own(fields.Config):
        own: Any = default

    message = rf"Own.own must be a number, .* by jaxrl.config.static\({re.escape(repr(default))}\)"
    with pytest.raises(ValueError, match=message):
        fields.config(Own)

    class Later(ToyConfig):
        own: Any = 0.0

    algo = toy(jaxrl.make("probe/Constant-v0", 2))
    make: Any = fields.config(Later)
    config = make(own=default)
    with pytest.raises(
        ValueError,
        match=rf"Later\.own must be a number, or .*static.*, got {re.escape(repr(default))}",
    ):
        jaxrl.train(algo, config, jax.random.key(0), 1)


def test_one_agent_takes_no_arrays():
    values: Any = {"learning_rate": np.array([0.1, 0.2]), "gamma": np.array([0.9, 0.9])}
    config = ToyConfig(**values)
    algo, message = toy(jaxrl.make("probe/Constant-v0", 2)), r"learning_rate must be one number for"
    train = functools.partial(jaxrl.train, algo, num_updates=1)
    for call in (
        lambda: jaxrl.run(algo, config, total_steps=8, num_evaluations=0),
        lambda: jax.eval_shape(train, config, jax.random.key(0)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    jax.eval_shape(jax.vmap(train), config, jax.random.split(jax.random.key(0), 2))


def test_trees_made_from_a_config_need_not_be_valid_configs():
    config = PPOConfig()
    zeros = jax.tree.map(lambda _: 0, config)  # such as axes of vmap
    assert set(jax.tree.leaves(zeros)) == {0}
    floats = jax.tree.map(jnp.float32, config)
    gradient = jax.grad(lambda c: -(c.gamma + c.max_grad_norm))(floats)
    assert (gradient.gamma, gradient.max_grad_norm, gradient.adam_eps) == (-1, -1, 0)


@pytest.mark.parametrize(
    "config",
    [
        PPOConfig(),
        PPOConfig(gamma=0.5, target_kl=0.1, num_steps=7, torso="mlp", hidden_sizes=(8, 9)),
        PPOConfig(max_grad_norm=float("inf"), clip_value=False, activation="relu"),
    ],
)
def test_a_config_survives_json(config):
    assert from_dict(PPOConfig, json.loads(json.dumps(to_dict(config)))) == config
    assert to_dict(config.replace(gamma=np.float32(0.5)))["gamma"] == 0.5
    assert to_dict(config.replace(gamma=jnp.float32(0.5)))["gamma"] == 0.5


def test_unknown_fields_are_refused_by_name():
    with pytest.raises(ValueError, match=r"PPOConfig has no fields \['gama'\]"):
        from_dict(PPOConfig, {"gama": 0.9, "gamma": 0.9})


def test_old_names_of_fields_are_brought_up_to_date():
    assert from_dict(PPOConfig, {"sees_last": True}) == PPOConfig(use_last_action_reward=True)
    saved: dict[str, Any] = {
        "config": {"sees_last": False},
        "trials": [{"values": {"sees_last": True}}],
        "n": 3,
    }
    assert with_current_names(saved) == {
        "config": {"use_last_action_reward": False},
        "trials": [{"values": {"use_last_action_reward": True}}],
        "n": 3,
    }


def test_removed_fields_are_dropped_unless_their_value_meant_something():
    assert from_dict(A2CConfig, {"min_training_batch": 1, "gamma": 0.9}) == A2CConfig(gamma=0.9)
    with pytest.raises(ValueError, match=r"A2CConfig has no fields \['min_training_batch'\]"):
        from_dict(A2CConfig, {"min_training_batch": 80})


@pytest.mark.parametrize("name", ADDED_FIELDS)
def test_configs_of_older_versions_get_the_fields_that_they_had_not(name):
    config_class = ALGORITHMS[name](jaxrl.make("CartPole-v1", 4)).config_class
    current = to_dict(config_class())
    older = {field: value for field, value in current.items() if field not in ADDED_FIELDS[name]}
    found = with_current_names({"algorithm": name, "config": older})
    assert found["config"] == current | ADDED_FIELDS[name]  # defaults may have changed since
    changed = with_current_names({"algorithm": name, "config": older | {"layer_norm": True}})
    assert changed["config"]["layer_norm"]


@pytest.mark.parametrize("algorithm", ALGORITHMS.values())
def test_help_lists_the_fields_of_a_config_with_their_documentation(algorithm):
    config_class = algorithm(jaxrl.make("CartPole-v1", 4)).config_class
    lines = (inspect.getdoc(config_class) or "").split("\nAttributes:\n")[1].split("\n")
    for field, line in zip(dataclasses.fields(config_class), lines, strict=True):
        kind = "static" if is_static(field) else "traced"
        start = f"  {field.name} ({field.type} = {field.default!r}, {kind}): "
        assert line.startswith(start)
        assert line[len(start) :].strip(), f"{config_class.__name__}.{field.name} has no docstring"


def test_static_fields_that_are_traced_say_so():
    for name, value in (("num_steps", 8), ("clip_value", True)):
        with pytest.raises(ValueError, match=rf"PPOConfig.{name} must be .* jit and vmap do not"):
            jax.jit(lambda x, name=name: PPOConfig(**{name: x}).gamma)(value)
