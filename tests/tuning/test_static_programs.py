"""Programs of static fields: bad combinations of values are refused before any work."""

import pytest

import jaxrl
from jaxrl.tuning import Choice, Integer
from jaxrl.tuning.static_programs import StaticPrograms


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
