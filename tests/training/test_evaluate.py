"""Evaluation: whole episodes, as many of each environment; the best agent by it."""

import time
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_algorithms import CONFIGS
from sweep_runs import toy_algorithm
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl.envs.host import callback
from jaxrl.files import seal
from jaxrl.rollouts.simulation import start
from jaxrl.training import loop
from jaxrl.training import manifest as manifests
from jaxrl.training.evaluate import BestAgent, Evaluation, evaluate_separately, frames


def test_each_environment_counts_the_same_number_of_episodes():
    env = jaxrl.make("probe/Episode-v0", num_envs=3, limit=7)
    algo, config, key = toy(env), ToyConfig(), jax.random.key(0)
    state = algo.init(config, key)
    scores = jaxrl.evaluate(algo, config, state, env, key, 2)
    assert scores.episode_return.tolist() == [7.0] * 6
    assert scores.episode_length.tolist() == [7.0] * 6
    cut = jaxrl.evaluate(algo, config, state, env, key, 2, False, 5)  # 10 steps of each
    assert np.isnan(np.asarray(cut.episode_return)).tolist() == [False, True] * 3


def test_a_score_has_all_its_digits_after_many_episodes():
    env = jaxrl.make("probe/Episode-v0", num_envs=3, limit=7)
    algo, config, key = toy(env), ToyConfig(), jax.random.key(0)
    state = algo.init(config, key)
    begun = start(env, key)
    large = begun.episodes._replace(return_sum=jnp.full(3, 1e9))  # where float32 has steps of 64
    simulation = begun._replace(episodes=large)
    scores = jaxrl.evaluate(algo, config, state, env, key, 2, simulation=simulation)
    assert scores.episode_return.tolist() == [7.0] * 6


def test_parameters_in_place_of_a_state_are_refused():
    algo, config = toy(), ToyConfig()
    state = algo.init(config, jax.random.key(0))
    with pytest.raises(ValueError, match=r"state must be a training state, as algo.init returns"):
        jaxrl.evaluate(algo, config, state.params, algo.env, jax.random.key(0))


def test_the_simulator_of_pictures_is_closed():
    algo, config, key = toy(), ToyConfig(), jax.random.key(0)
    state, before = algo.init(config, key), set(callback._groups)
    env = jaxrl.make("gymnasium/CartPole-v1", 1, vectorization_mode="sync").for_rendering()
    pictures: Any = frames(algo, config, state, env, key)
    assert next(pictures)[0].shape == (400, 600, 3)
    assert set(callback._groups) - before
    pictures.close()
    assert set(callback._groups) <= before


def test_an_evaluation_in_pieces_has_the_same_scores_and_can_be_stopped(monkeypatch):
    monkeypatch.setattr("jaxrl.training.evaluate.PIECE_STEPS", 7)

    def act(config, state, *arguments):  # of the parameters, so that it runs on their device
        memory, action = toy_algorithm().act(config, state, *arguments)
        return memory, action * (state.params[0] < jnp.inf)

    algo, config = toy_algorithm()._replace(act=act), ToyConfig()
    state = jax.device_put(algo.init(config, jax.random.key(0)), jax.devices()[-1])
    ended: list[int] = []
    programs, jit = [], jax.jit

    def record(function, *arguments, **options):
        program: Any = jit(function, *arguments, **options)
        programs.append((program, program._cache_size()))  # with those of other calls
        return program

    with monkeypatch.context() as patch:
        patch.setattr(jax, "jit", record)
        scores = evaluate_separately(algo, config, state, 20, 5, watch=ended.append)
    compiled = [program._cache_size() - before for program, before in programs]
    assert compiled == [1, 1]  # to play, and to begin
    whole = jaxrl.evaluate(algo, config, state, algo.env.for_evaluation(16), jax.random.key(5), 2)
    chex.assert_trees_all_equal(scores, jax.tree.map(lambda x: np.asarray(x)[:20], whole))
    assert len(ended) > 2
    assert ended == sorted(ended)

    def stop(num_ended):
        if num_ended:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_separately(algo, config, state, 20, 5, watch=stop)


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    """`evaluated(scores)`: a run of 12 updates whose evaluations have these mean returns."""

    def make(scores, algo=None, config=None, num_updates=12, **arguments):
        left = iter(scores)

        def evaluate(*_, **__):
            return Evaluation(jnp.full(1, next(left)), jnp.ones(1))

        monkeypatch.setattr(loop, "evaluate_separately", evaluate)
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


def test_an_agent_plays_in_environments_of_its_spaces_only():
    algo, config, key = toy(jaxrl.make("CartPole-v1", 2)), ToyConfig(), jax.random.key(0)
    state = algo.init(config, key)
    for name in ("Acrobot-v1", "Pendulum-v1", "probe/Episode-v0"):
        env = jaxrl.make(name, 2)
        with pytest.raises(ValueError, match=r"env must have the \w+_space of .*CartPole.*has "):
            jaxrl.evaluate(algo, config, state, env, key)


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
