"""Levels of MiniWorld's rooms."""

import gymnasium
import numpy as np
import pytest


class Recorder(gymnasium.Env):
    """An environment that keeps the seeds of its episodes."""

    observation_space = gymnasium.spaces.Discrete(1)
    action_space = gymnasium.spaces.Discrete(1)

    def __init__(self):
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        return 0, {}


@pytest.fixture
def levels(experiment):
    return experiment("miniworld_levels").Levels


def seeds_of(env, seed, number=40):
    env.reset(seed=seed)
    for _ in range(number - 1):
        env.reset()
    return env.unwrapped.seeds


def test_episodes_take_place_on_the_levels_asked_for(levels):
    seeds = seeds_of(levels(Recorder(), first_level=7, num_levels=3), seed=0)
    assert set(seeds) == {7, 8, 9}
    assert seeds == seeds_of(levels(Recorder(), 7, 3), seed=0)
    assert seeds != seeds_of(levels(Recorder(), 7, 3), seed=1)


def test_all_levels_are_many(levels):
    seeds = np.array(seeds_of(levels(Recorder(), first_level=0, num_levels=0), seed=0))
    assert len(set(seeds)) == len(seeds)
    assert (seeds >= 0).all()
    assert seeds.max() < 2**31


@pytest.mark.usefixtures("miniworld")
def test_a_room_is_the_same_on_the_same_level(experiment):
    env = experiment("miniworld_levels").miniworld(first_level=3, num_levels=1)
    first, _ = env.reset(seed=0)
    for _ in range(5):
        env.step(2)
    np.testing.assert_array_equal(env.reset()[0], first)
    assert first.shape == (60, 80, 3)
