"""The configs of all algorithms: every field has its effect, its limits and its errors."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_algorithms import (
    CONFIGS,
    algorithm,
    described,
    few_in_every_run,
    learn,
    same,
    start,
)

import jaxrl
from jaxrl.config import is_static
from jaxrl.networks.build import NetworkConfig

# The algorithms with the most features: together they use every field.
NAMES = ["ppo-gru", "a2c-lstm", "impala-lstm", "dqn-prioritized", "pqn-lstm", "r2d2"]
FOR_MEMORY = ("core", "core_size", "use_last_action_reward")
FOR_IMAGES = ("torso", "frame_stack")
OF_NETWORKS = {field.name for field in dataclasses.fields(NetworkConfig)}
BUILDERS = ("ppo-gru", "r2d2")
"""One algorithm for each function that builds networks; the others call the same two."""


class Values(NamedTuple):
    """Values of a config's field, other than True and False."""

    other: Any  # one that changes what is learned
    bad: tuple[Any, ...]  # some that are refused
    extremes: tuple[float, ...] = ()  # some with which all numbers stay finite


VALUES = {
    "torso": Values("mlp", ("resnet50", None)),
    "hidden_sizes": Values((9,), ((8, 0), 8)),
    "activation": Values("swish", ("sine",)),
    "compute_dtype": Values("bfloat16", ("float16", None)),
    "core": Values("gru", ("transformer",)),
    "core_size": Values(9, (0,)),
    "initial_std": Values(0.5, (0.0, None)),
    "learning_rate": Values(0.02, (-1e-3, None), (0.0,)),
    "anneal_updates": Values(3, (math.inf, -1), (1,)),
    "gamma": Values(0.5, (-0.5, jnp.array([0.9, 1.1])), (0.0, 1.0)),
    "max_grad_norm": Values(0.01, (0.0,), (1e-8, 1e8)),
    "num_steps": Values(2, (0, 2.0)),
    "value_coef": Values(0.1, ("half",), (0.0, 1e3)),
    "entropy_coef": Values(0.5, (math.inf,), (0.0, 1e3)),
    "final_entropy_coef": Values(0.5, (-0.1,), (1e3,)),
    "gae_lambda": Values(0.5, (-0.1,), (0.0, 1.0)),
    "clip_epsilon": Values(1e-3, (0.0,), (1e-8, 1e8)),
    "adam_eps": Values(0.2, (0.0,), (1e-30,)),
    "target_kl": Values(1e-9, (0.0,), (1e-20,)),
    "num_epochs": Values(1, (0,)),
    "num_minibatches": Values(1, ("4",)),
    "rmsprop_decay": Values(0.5, (-0.1, 1.1), (0.0, 1.0)),
    "rmsprop_eps": Values(0.2, (0.0, -1.0), (1e-30,)),
    "rmsprop_initial": Values(1.0, (-1.0,), (1e8,)),
    "log_eps": Values(0.9, (-1e-6,), (0.0, 1e-30, 1.0)),
    "trace_lambda": Values(0.5, (1.5,), (0.0,)),
    "reward_scale": Values(0.5, (0.0, -1.0), (1e-8, 1e8)),
    "rho_bar": Values(0.5, (0.0,), (1e-8, math.inf)),
    "c_bar": Values(0.5, (math.nan,), (1e-8, math.inf)),
    "policy_rho_bar": Values(0.5, (-1.0,), (1e-8, math.inf)),
    "lag": Values(2, (-1, True)),
    "initial_epsilon": Values(0.5, (1.5,), (0.0,)),
    "final_epsilon": Values(0.9, (-0.1,), (0.0, 1.0)),
    "exploration_steps": Values(10.0, (0.0,), (1e-8, 1e12)),
    "learning_starts": Values(40, (-1,), (0, 10**9)),
    "target_period": Values(3, (0,), (1, 10**9)),
    "priority_exponent": Values(0.2, (-0.5,), (0.0, 10.0)),
    "importance_exponent": Values(1.0, (2.0,), (0.0, 1.0)),
    "num_gradient_steps": Values(2, (True,)),
    "batch_size": Values(8, ("64",)),
    "replay_size": Values(64, (-5, 1e6)),
    "frame_stack": Values(4, (0,)),
    "n_step": Values(1, (0,)),
    "epsilon_base": Values(0.9, (1.5,), (0.0, 1.0)),
    "epsilon_exponent": Values(1.0, (0.0,), (1e-8, 1e8)),
    "priority_max_share": Values(0.1, (1.1,), (0.0, 1.0)),
    "burn_in": Values(1, (-1,)),
    "unroll_length": Values(5, (0,)),
}
FIELDS = [(name, field) for name in NAMES for field in dataclasses.fields(CONFIGS[name])]


def changed(name, *fields):
    """Return the config of an algorithm with other values of some fields."""
    config = CONFIGS[name]
    others = {field: VALUES[field].other for field in fields if field in VALUES}
    if "core" in fields and config.core == "gru":
        others["core"] = "lstm"
    if "num_minibatches" in fields and config.num_minibatches == 1:
        others["num_minibatches"] = 2
    switched = {field: not getattr(config, field) for field in fields if field not in VALUES}
    return config.replace(**others | switched)


def of_fields(static):
    return pytest.mark.parametrize(
        ("name", "field"),
        [
            (name, field.name)
            for name, field in FIELDS
            # DQN refuses a memory.
            if is_static(field) == static
            and not (name == "dqn-prioritized" and field.name in FOR_MEMORY)
            and (name in BUILDERS or field.name not in OF_NETWORKS)
            # A number in the parameters of continuous policies: tests/networks/test_heads.py.
            and field.name != "initial_std"
        ],
    )


def test_every_field_of_every_config_has_values():
    assert {type(CONFIGS[name]) for name in NAMES} == {type(config) for config in CONFIGS.values()}
    fields = {field.name: field for _, field in FIELDS}
    assert set(VALUES) == {n for n, field in fields.items() if type(field.default) is not bool}
    for name, values in VALUES.items():
        assert bool(values.extremes) != is_static(fields[name])


@functools.cache
def learned(name, *fields):
    """Return the parameters that are learned with other values of some fields."""
    config = changed(name, *fields)
    return learn(name, config, start(name, 0, config))[0].params


@pytest.mark.slow
@of_fields(static=False)
def test_every_traced_field_changes_what_is_learned(name, field):
    assert not same(learned(name), learned(name, field))


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
    # Without a lag, as IMPALA's has here, there is nothing to correct.
    if field not in (*FOR_MEMORY, "lag", "off_policy_correction") and name != "dqn-prioritized":
        name = name.partition("-")[0]
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


@pytest.mark.parametrize("name", NAMES)
def test_traced_fields_do_not_retrace_and_static_ones_do(name):
    traces = 0

    @jax.jit
    def count(config):
        nonlocal traces
        traces += 1

    for field in dataclasses.fields(CONFIGS[name]):
        if not is_static(field):
            count(changed(name, field.name))
    assert traces == 1
    count(changed(name, "activation"))
    assert traces == 2


@few_in_every_run(*NAMES)
def test_whole_numbers_do_for_every_traced_field_and_the_state_keeps_its_shapes_and_dtypes(name):
    traced = [field.name for field in dataclasses.fields(CONFIGS[name]) if not is_static(field)]
    state, _ = shapes(name, "CartPole-v1")
    whole = CONFIGS[name].replace(**dict.fromkeys(traced, 1))
    after, _ = jax.eval_shape(algorithm(name).update, whole, state)
    assert described(after) == described(state)


@pytest.mark.slow
@few_in_every_run(*NAMES)
def test_extreme_but_legal_values_give_finite_numbers(name):
    config, state = CONFIGS[name], start(name)
    for field, values in VALUES.items():
        if getattr(config, field, None) is None:
            continue
        for value in values.extremes:
            after, metrics = learn(name, config.replace(**{field: value}), state)
            finite = [np.isfinite(x).all() for x in jax.tree.leaves((after.params, metrics))]
            assert all(finite), (field, value)
            if field == "learning_rate":
                assert same(after.params, state.params)


@pytest.mark.parametrize(("name", "field"), [(name, field.name) for name, field in FIELDS])
def test_bad_values_are_refused_by_name(name, field):
    config_class = type(CONFIGS[name])
    for value in VALUES[field].bad if field in VALUES else (1, None, "yes"):
        for make in (config_class, config_class().replace):
            message = f"{config_class.__name__}.{field} must be .*, got "
            with pytest.raises(ValueError, match=message):
                make(**{field: value})


def test_dqn_with_a_memory_is_refused_by_name():
    with pytest.raises(ValueError, match=r"DQN has no memory, got core='gru'; use jaxrl.r2d2"):
        jaxrl.DQNConfig(core="gru")


@pytest.mark.parametrize(
    ("name", "env_id", "changes", "message"),
    [
        ("r2d2", "CartPole-v1", {"core": None}, "R2D2 needs a .* of core='lstm', got FeedForward"),
        (
            "dqn", "CartPole-v1", {"replay_size": 10},
            "DQNConfig.replay_size = 10 must be at least 12: 6 steps of each of 2 environments",
        ),
        (
            "dqn", "CartPole-v1", {"n_step": 12},
            r"replay_size = 32 must be at least 34: .* num_steps \+ n_step \+ frame_stack = 17",
        ),
        (
            "r2d2", "CartPole-v1", {"replay_size": 22},
            "R2D2Config.replay_size = 22 must be at least 24: .* = 7 steps .*num_steps = 4",
        ),
        ("dqn", "CartPole-v1", {"frame_stack": 4}, r"DQNConfig.frame_stack = 4.*shape \(4,\)"),
        ("r2d2", "CartPole-v1", {"frame_stack": 4}, r"R2D2Config.frame_stack = 4.*shape \(4,\)"),
        ("dqn", "Breakout-MinAtar", {"frame_stack": 3}, r"frame_stack = 3.*shape \(10, 10, 4\)"),
        ("r2d2", "Breakout-MinAtar", {"frame_stack": 3}, r"frame_stack = 3.*shape \(10, 10, 4\)"),
        (
            "dqn", "Breakout-MinAtar", {"frame_stack": 4},
            "DQNConfig.frame_stack = 4, .* gymnax/Breakout-MinAtar have dtype",
        ),
        (
            "r2d2", "Breakout-MinAtar", {"frame_stack": 4},
            "R2D2Config.frame_stack = 4, .* gymnax/Breakout-MinAtar have dtype",
        ),
        (
            "dqn", "envpool/gfootball/academy_empty_goal_close-v1", {"frame_stack": 4},
            "frame_stack = 4, .*_close-v1 have planes that are no frames; leave frame_stack = 1",
        ),
        ("dqn", "Pendulum-v1", {}, "needs Discrete actions, got the space Box"),
        ("pqn", "Pendulum-v1", {}, "needs Discrete actions, got the space Box"),
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
    assert state.replay.capacity >= 6
