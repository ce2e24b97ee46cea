"""Programs of static fields: bad combinations of values are refused before any work."""

import functools
from typing import Any

import gymnasium
import jax
import pytest

import jaxrl
from jaxrl.networks.build import PolicyConfig, actor_critic, q_network
from jaxrl.tuning import Choice, Integer, When
from jaxrl.tuning.static_programs import StaticPrograms, network_fields


@pytest.mark.parametrize(
    ("num_envs", "num_steps", "space", "message"),
    [
        (4, 16, {"num_minibatches": Choice((4, 8, 7))}, r"64 is not divisible .*batches = 7"),
        # Too many combinations to try all.
        (2, 8, {"num_epochs": Integer(1, 32), "num_minibatches": Choice((1, 3, 2, 8))},
         r"16 is not divisible .*batches = 3"),
    ],
)  # fmt: skip
def test_static_values_that_a_program_refuses_are_refused(num_envs, num_steps, space, message):
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs))
    config = jaxrl.PPOConfig(num_steps=num_steps, hidden_sizes=(4,))
    with pytest.raises(ValueError, match=message):
        StaticPrograms(algo, config, space).check(space)


def test_trials_share_a_program_if_their_static_values_are_equal():
    algo = jaxrl.a2c(jaxrl.make("CartPole-v1", num_envs=2))
    space = {"num_steps": Choice((4, 8)), "num_envs": Choice((2, 3)), "gamma": Choice((0.9, 1.0))}
    programs = StaticPrograms(algo, jaxrl.A2CConfig(), space)
    config, first = programs.find({"num_steps": 4, "num_envs": 3, "gamma": 0.9})
    assert (config.num_steps, config.gamma, first.steps_per_update) == (4, 0.9, 12)
    assert first.algo.env.num_envs == 3
    _, second = programs.find({"num_steps": 4, "num_envs": 3, "gamma": 1.0})
    _, third = programs.find({"num_steps": 8, "num_envs": 3, "gamma": 0.9})
    assert second.algo is first.algo
    assert third.algo is not first.algo


def test_fields_that_a_network_of_the_caller_leaves_unused_are_refused():
    env = jaxrl.make("CartPole-v1", num_envs=2)
    network = actor_critic(env.observation_space, env.action_space)
    space = {
        "num_steps": Choice((4, 8)),
        "core": Choice((None, "gru")),
        "hidden_sizes": When("num_steps", 4, Choice(((4,), (8,)))),
    }
    config = jaxrl.PPOConfig(num_minibatches=1)
    StaticPrograms(jaxrl.ppo(env), config, space).check(space)
    with pytest.raises(
        ValueError, match=r"\['core', 'hidden_sizes'\] describe .* own, FeedForward"
    ):
        StaticPrograms(jaxrl.ppo(env, network), config, space).check(space)


OTHER = {
    "torso": "mlp", "hidden_sizes": (3,), "activation": "relu", "layer_norm": True,
    "compute_dtype": "bfloat16", "core": "gru", "core_size": 7, "use_last_action_reward": True,
    "initial_std": 2.0, "dueling": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("make", "build"),
    [(jaxrl.ppo, actor_critic), (jaxrl.dqn, q_network)],
)
def test_fields_that_describe_the_network_change_nothing_of_a_callers_own(make, build):
    """All but `core`, which is refused for a network without a memory."""
    env = jaxrl.make("CartPole-v1", num_envs=2)
    algo = make(env, build(env.observation_space, env.action_space, PolicyConfig()))
    config = algo.config_class()
    assert network_fields(config) == {*OTHER} & {*vars(config)}
    changed = config.replace(**{name: OTHER[name] for name in network_fields(config) - {"core"}})
    programs = []
    for each in (config, changed):
        state = jax.eval_shape(algo.init, each, jax.random.key(0))
        programs.append(str(jax.make_jaxpr(functools.partial(algo.update, each))(state)))
    assert programs[0] == programs[1]


def with_gravity(function, gravity):
    @functools.wraps(function)
    def make():
        env = function()
        env.unwrapped.gravity = gravity
        return env

    return make


def cartpole():
    return gymnasium.make("CartPole-v1")


def test_other_numbers_of_environments_are_of_the_same_environments():
    env = jaxrl.make(with_gravity(cartpole, 50.0), num_envs=2, vectorization_mode="sync")
    programs = StaticPrograms(jaxrl.a2c(env), jaxrl.A2CConfig(), {"num_envs": Choice((2, 4))})
    found = programs.find({"num_envs": 4})[1].algo.env
    assert found.num_envs == 4
    assert found.make().unwrapped.gravity == 50.0


class Wrapped:
    """Environments that are no dataclass."""

    def __init__(self, env):
        self._env = env

    def __getattr__(self, name):
        return getattr(self._env, name)


def test_environments_whose_number_cannot_be_changed_are_refused():
    env: Any = Wrapped(jaxrl.make("CartPole-v1", num_envs=2))
    algo = jaxrl.a2c(env)
    space = {"num_envs": Choice((2, 4))}
    with pytest.raises(
        ValueError, match=r"num_envs is searched, .* gymnax/CartPole-v1, a Wrapped, are no"
    ):
        StaticPrograms(algo, jaxrl.A2CConfig(), space).check(space)
