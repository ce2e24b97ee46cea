"""The minimal PPO learns CartPole within its budget."""

import pytest


@pytest.mark.learning
def test_it_learns_cartpole(experiment):
    assert experiment("minimal_ppo").main(seed=0)[-1] >= 475
