"""The minimal PPO standardizes advantages, and learns CartPole within its budget."""

import jax
import jax.numpy as jnp
import pytest

import jaxrl


def test_the_level_of_advantages_does_not_matter(experiment):
    ppo = experiment("minimal_ppo")
    zeros, yes, steps = jnp.zeros((1, 8)), jnp.ones((1, 8), bool), jnp.arange(8.0)[None]
    obs = jax.random.normal(jax.random.key(0), (1, 8, 4))
    params = ppo.network.init(jax.random.key(1), obs[0])
    inputs = jaxrl.Inputs(obs, ~yes, zeros.astype(int), zeros)
    extras = (-steps / 8, zeros)  # old log probabilities, so that ratios differ
    trajectory = jaxrl.Trajectory(inputs, zeros.astype(int), zeros, ~yes, ~yes, yes, extras)
    losses = [ppo.loss(params, ppo.Batch(trajectory, x, zeros))[0] for x in (steps, steps + 9)]
    assert float(losses[0]) == pytest.approx(float(losses[1]), abs=1e-5)


@pytest.mark.learning
def test_it_learns_cartpole(experiment, monkeypatch):
    ppo = experiment("minimal_ppo")
    monkeypatch.setattr(ppo, "NUM_UPDATES", 150)  # a sixth
    assert ppo.main(seed=0)[-1] >= 300
