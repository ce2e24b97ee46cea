"""The best agents of a sweep: which are kept, and that they can be loaded."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.tuning import Choice, LogUniform, Phase, RandomSearch, sweep
from jaxrl.tuning.sweeps.best_agents import BestAgents


@pytest.mark.usefixtures("quick_compilation")
def test_the_best_agents_are_kept_and_can_be_loaded(tmp_path):
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=2))
    config = jaxrl.PPOConfig(num_steps=64, hidden_sizes=(8,), num_minibatches=1, num_epochs=1)
    space = {"learning_rate": LogUniform(1e-4, 1e-2), "gamma": Choice((0.9, 0.99))}
    result = sweep(
        algo,
        config,
        space,
        RandomSearch(5, 2),
        num_lanes=2,
        phase=Phase(2),
        run_dir=tmp_path / "x",
        strategy="vmap",
        keep_best=1,
        seed=1,
        keep_best_per="gamma",
        progress_bar=False,
    )
    kept = sorted((tmp_path / "x" / "best").iterdir())
    assert 2 <= len(kept) <= 3
    assert result.best is not None
    directory = tmp_path / "x" / "best" / f"trial-{result.best['trial']}"
    assert directory in kept
    policy = jaxrl.load_policy(directory)
    assert policy.config.learning_rate == pytest.approx(result.best["values"]["learning_rate"])
    assert policy(np.zeros(4)).shape == ()
    assert {jaxrl.load_policy(path).config.gamma for path in kept} == {0.9, 0.99}


def test_the_best_of_the_agents_that_were_kept_stay_after_a_kill(tmp_path):
    """Trials that ended shortly before a kill have scores, but no agents."""
    best = BestAgents(tmp_path, 1, None)

    def trials(*scores):
        return [{"trial": i, "scores": [score]} for i, score in enumerate(scores)]

    def describe(trial, score):
        return True, {"trial": trial}

    assert best.is_among_best(0, 5.0, trials(5.0))
    best.keep(0, 5.0, 1, {"x": jnp.zeros(2)})
    best.write(trials(5.0), describe)
    resumed = BestAgents(tmp_path, 1, None)
    resumed.write(trials(5.0, 9.0), describe)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["trial-0"]
    assert not resumed.is_among_best(2, 4.0, trials(5.0, 9.0, 4.0))
    assert resumed.is_among_best(3, 7.0, trials(5.0, 9.0, 4.0, 7.0))
    resumed.keep(3, 7.0, 1, {"x": jnp.zeros(2)})
    resumed.write(trials(5.0, 9.0, 4.0, 7.0), describe)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["trial-3"]
