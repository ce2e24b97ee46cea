"""The best agent: kept through kills and resumes, intact or moved away."""

import time

import jax.numpy as jnp
import numpy as np
import pytest
from small_algorithms import CONFIGS
from sweep_runs import toy_algorithm
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl.files import seal
from jaxrl.training import run_evaluation
from jaxrl.training.evaluate import Evaluation
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.best_agent import BestAgent


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    """`evaluated(scores)`: a run of 12 updates whose evaluations have these mean returns."""

    def make(scores, algo=None, config=None, num_updates=12, **arguments):
        left = iter(scores)

        def evaluate(*_, **__):
            return Evaluation(jnp.full(1, next(left)), jnp.ones(1))

        monkeypatch.setattr(run_evaluation, "evaluate_separately", evaluate)
        algo, config = algo or toy_algorithm(), config or ToyConfig()
        return jaxrl.run(
            algo, config, total_steps=num_updates * algo.env.num_envs * algo.num_steps(config),
            run_dir=tmp_path / "run", num_evaluations=len(scores), progress_bar=False, **arguments,
        )  # fmt: skip

    return make


def load(result, which="best"):
    make_algorithm = lambda env, network: toy(env)  # noqa: E731
    return jaxrl.load_policy(result.run_dir, which=which, make_algorithm=make_algorithm)


def test_the_best_agent_is_kept_and_of_equal_ones_the_last(evaluated):
    params = {}

    def note(update, state, row):
        params[update] = np.array(state.params)

    result = evaluated([1.0, 5.0, 5.0, 3.0], callbacks=[note])
    policy = load(result)
    assert policy.state.num_updates == 9
    np.testing.assert_array_equal(policy.state.params, params[9])
    assert policy(np.zeros((3, 4))).shape == (3,)
    assert load(result, "newest").state.num_updates == 12


def test_a_resumed_run_forgets_best_agents_of_updates_that_it_repeats(evaluated):
    result = evaluated([1.0, 5.0, 4.0], checkpoint_seconds=0.0)
    identity = manifests.identity(manifests.read(result.run_dir))
    before = BestAgent(result.run_dir, identity, update=7)
    before.offer(8, result.state, 0.5)
    before.save()
    before.close()
    assert load(result).state.num_updates == 4
    before = BestAgent(result.run_dir, identity, update=7)
    before.offer(8, result.state, 1.5)
    before.save()
    before.close()
    assert sorted(path.name for path in (result.run_dir / "best").glob("[0-9]*")) == ["4", "8"]


def test_the_best_agent_is_sealed_before_the_run_goes_on(evaluated, monkeypatch):
    def write_late(folder, entries):
        time.sleep(0.2)
        write(folder, entries)

    result, write = evaluated([1.0]), seal.write
    monkeypatch.setattr(seal, "write", write_late)
    best = BestAgent(result.run_dir, manifests.identity(manifests.read(result.run_dir)), update=7)
    best.offer(8, result.state, 1.5)
    best.save()
    assert (result.run_dir / "best" / "8" / seal.NAME).exists()
    best.close()


def test_a_killed_run_keeps_the_best_agent_before_its_checkpoint(evaluated):
    def fail(update, state, row):
        if update == 12:
            raise InterruptedError

    result = evaluated([3.0], num_updates=4)
    with pytest.raises(InterruptedError):
        evaluated([1.0, 4.0, 5.0], resume=True, callbacks=[fail], checkpoint_seconds=1e9)
    assert load(result).state.num_updates == 4


def test_damaged_best_agents_are_moved_and_do_not_stop_a_run(evaluated):
    result = evaluated([1.0, 5.0], checkpoint_seconds=0.0)
    for path in (result.run_dir / "best").rglob("metadata"):
        path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"no checkpoint in .*best is intact"):
        load(result)
    with pytest.warns(UserWarning, match=r"the best agent is lost.*damaged-best"):
        evaluated([2.0] * 2, resume=True)
    assert len([*(result.run_dir / "damaged-best").iterdir()]) == 2


def test_a_best_agent_has_no_replay(evaluated):
    config = CONFIGS["dqn"].replace(num_steps=4)
    result = evaluated([1.0], jaxrl.dqn(jaxrl.make("CartPole-v1", num_envs=4)), config)
    policy = jaxrl.load_policy(result.run_dir, which="best")
    assert policy.state.replay is None
    newest = jaxrl.load_policy(result.run_dir)
    obs = np.random.default_rng(0).normal(size=(50, 4))
    assert (policy(obs) == newest(obs)).all()


def test_a_run_that_was_not_evaluated_has_no_best_agent(evaluated):
    result = evaluated([])
    with pytest.raises(FileNotFoundError, match=r"no best agent in .*not evaluated"):
        load(result)
    with pytest.raises(ValueError, match="which must be one of"):
        load(result, "last")
