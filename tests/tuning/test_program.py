"""A whole search as one program: the same trials and decisions as on the host, and it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweep_runs import (
    SEED,
    SPACE,
    scores_of_full_trials,
    search_of,
    searched,
    toy_algorithm,
)
from toy_algorithm import ToyConfig, quality, toy

import jaxrl
from jaxrl.tuning import (
    ASHA,
    PB2,
    ExpectedImprovement,
    Finals,
    HyperBand,
    HyperTrick,
    Integer,
    LogUniform,
    RandomSearch,
    Status,
    SuccessiveHalving,
    Uniform,
    objectives,
    pareto_front,
    search,
    simulate,
    trial_key,
    trial_values,
)

SCHEDULERS = [
    RandomSearch(7, 3),
    HyperTrick(14, 4),
    SuccessiveHalving(9, 9),
    HyperBand(9),
    ASHA(12, 9),
]
KEY = jax.random.key(SEED)


@pytest.mark.parametrize(
    "scheduler",
    [
        pytest.param(s, marks=[pytest.mark.slow] * isinstance(s, HyperBand), id=type(s).__name__)
        for s in SCHEDULERS
    ],
)
def test_the_program_decides_what_the_host_decides(scheduler):
    result = searched(scheduler)
    shape = (scheduler.num_trials, scheduler.num_phases)
    scores = scores_of_full_trials(SEED, *shape)
    spans, ledger = simulate(scheduler, 4, np.ones(shape), scores)
    np.testing.assert_array_equal(result.ledger.reported, ledger.reported)
    np.testing.assert_array_equal(result.ledger.status, ledger.status)
    np.testing.assert_allclose(result.ledger.scores, ledger.scores, rtol=1e-4)
    for span in spans:
        assert result.round[span.trial, span.phase] == round(span.begin)
        assert result.lane[span.trial, span.phase] == span.lane
    assert (np.asarray(result.lane) >= 0).sum() == len(spans)
    assert result.num_rounds == max(span.end for span in spans)
    last = trial_values(SPACE, KEY, scheduler.num_trials - 1)
    for name, values in result.values.items():
        np.testing.assert_allclose(values[-1], last[name], rtol=1e-6)


@pytest.mark.parametrize(
    "strategy",
    [
        "shard-vmap",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("map", "shard-map")),
    ],
)
def test_the_strategy_does_not_matter(strategy):
    halving = SCHEDULERS[2]  # its lanes begin trials, and resume paused ones
    expected, result = searched(halving), searched(halving, strategy=strategy)
    np.testing.assert_array_equal(result.ledger.status, expected.ledger.status)
    np.testing.assert_array_equal(result.lane, expected.lane)
    np.testing.assert_allclose(result.ledger.scores, expected.ledger.scores, rtol=1e-5)


def test_a_trial_does_not_depend_on_the_number_of_lanes():
    few, many = searched(SCHEDULERS[0]), searched(SCHEDULERS[0], 7)
    np.testing.assert_allclose(few.ledger.scores, many.ledger.scores, rtol=1e-5)
    assert few.num_rounds == 2 * 3  # seven trials of three phases, four at a time
    assert many.num_rounds == 3


@pytest.mark.parametrize(
    "scheduler",
    [pytest.param(HyperTrick(14, 4), marks=pytest.mark.exhaustive), SuccessiveHalving(9, 9)],
    ids=str,
)
def test_a_capped_search_is_the_beginning_of_the_whole_one(scheduler):
    # A phase has three updates of two steps of two environments.
    result = searched(scheduler, max_steps=10 * 3 * 4, finals=Finals(1, 2, 2.0))
    spent = int(result.ledger.reported.sum())
    assert 10 <= spent < 10 + 4
    whole = searched(scheduler)
    has_run = np.asarray(result.lane) >= 0
    np.testing.assert_array_equal(result.lane[has_run], whole.lane[has_run])
    np.testing.assert_array_equal(result.ledger.scores[has_run], whole.ledger.scores[has_run])
    assert np.isin(result.ledger.status, [Status.STOPPED, Status.COMPLETED]).all()
    assert np.isfinite(result.finals.scores).all()  # finals follow


@pytest.mark.parametrize("seeds_per_trial", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_keys_without_a_type_give_the_same_search(seeds_per_trial):
    run = search_of(SCHEDULERS[0], seeds_per_trial=seeds_per_trial)
    typed, raw = jax.jit(run)(jax.random.key(5)), jax.jit(run)(jax.random.PRNGKey(5))
    np.testing.assert_array_equal(raw.ledger.scores, typed.ledger.scores)


def test_a_cap_may_be_any_number_of_steps():
    run = search_of(SCHEDULERS[0], max_steps=2**63 - 1)
    assert jax.eval_shape(run, KEY).ledger.scores.shape == (7, 3)


def test_the_best_agent_is_the_one_that_scored_best():
    for scheduler in (SCHEDULERS[1], SCHEDULERS[4]):
        result = searched(scheduler)
        scores = np.asarray(result.ledger.scores)
        trial, phase = np.unravel_index(np.nanargmax(scores), scores.shape)
        assert result.best_trial == trial
        config = ToyConfig(learning_rate=float(result.values["learning_rate"][trial]))
        key = trial_key(KEY, int(trial))
        state, _ = jaxrl.train(toy_algorithm(), config, key, 3 * (int(phase) + 1))
        np.testing.assert_allclose(result.best_state.params, state.params, rtol=1e-5)
        assert quality(config.learning_rate) > 60


def test_diverged_trials_and_those_without_episodes_are_told_apart():
    space = {"learning_rate": LogUniform(1e-2, 50.0), "gamma": Uniform(0.0, 0.4)}
    result = jax.jit(search_of(HyperTrick(16, 2, 0.25), space=space))(KEY)
    scores = np.asarray(result.ledger.scores[:, 0])
    diverged = np.asarray(result.values["learning_rate"]) >= 0.5
    silent = np.asarray(result.values["gamma"]) < 0.2
    assert diverged.any()
    assert (silent & ~diverged).any()
    np.testing.assert_array_equal(np.isneginf(scores), diverged)
    np.testing.assert_array_equal(np.isnan(scores), silent & ~diverged)
    stopped = np.asarray(result.ledger.status) == Status.STOPPED
    assert not stopped[silent & ~diverged].any()
    finite = np.isfinite(scores)
    assert stopped[diverged].mean() > stopped[finite].mean()


@pytest.mark.parametrize("strategy", ["vmap", pytest.param("map", marks=pytest.mark.exhaustive)])
def test_a_score_may_be_that_of_greedy_episodes(strategy):
    """The reward is 1 for the right action and 0 for the wrong one."""

    def act(config, state, memory, obs, key, greedy):
        right = (obs[:, 0] > 0).astype(jnp.int32)
        return memory, right if greedy else 1 - right

    algo = toy(jaxrl.make("probe/Contextual-v0", num_envs=2))._replace(act=act)
    program = search_of(RandomSearch(3, 2), 2, algo=algo, strategy=strategy, evaluation_episodes=4)
    np.testing.assert_array_equal(jax.jit(program)(jax.random.key(0)).ledger.scores, 1.0)


def test_one_program_takes_traced_fields_only_and_says_so():
    space = SPACE | {"num_steps": Integer(1, 3)}
    with pytest.raises(ValueError, match=r"static fields \('num_steps',\).*jaxrl.tuning.sweep"):
        search(toy_algorithm(), ToyConfig(), space, HyperTrick(4, 2), 2, 3, KEY)
    with pytest.raises(ValueError, match="ToyConfig has no fields"):
        search(toy_algorithm(), ToyConfig(), {"lr": Uniform(0, 1)}, HyperTrick(4, 2), 2, 3, KEY)


@pytest.mark.slow
def test_a_search_is_vmapped_over_seeds():
    results = jax.jit(jax.vmap(search_of(SCHEDULERS[1])))(jnp.stack([jax.random.key(6), KEY]))
    np.testing.assert_array_equal(results.ledger.status[1], searched(SCHEDULERS[1]).ledger.status)


@pytest.mark.parametrize(
    "program",
    [
        search_of(PB2(8, 5, candidates=16), 8),
        search_of(RandomSearch(12, 2), sampler=ExpectedImprovement(4, candidates=32)),
    ],
    ids=["explorer", "sampler"],  # those with the most code
)
def test_a_search_is_one_program_without_callbacks(program):
    text = str(jax.make_jaxpr(program)(KEY))
    assert "while" in text
    assert "callback" not in text


@pytest.mark.exhaustive
def test_hypertrick_finds_more_than_random_search_of_the_same_budget():
    """Random search runs as many full trials as HyperTrick's phases cost, with 128 seeds each."""

    def search_with_seeds(scheduler):
        run = jax.vmap(search_of(scheduler, 16))
        return jax.device_get(jax.jit(run)(jax.random.split(KEY, 128)).ledger)

    found = search_with_seeds(HyperTrick(64, 8))
    budget = round(found.reported.sum(1).mean() / 8)
    other = search_with_seeds(RandomSearch(budget, 8))
    gain = np.nanmax(found.scores, (1, 2)) - np.nanmax(other.scores, (1, 2))
    assert gain.mean() > 3 * gain.std() / np.sqrt(len(gain))


@pytest.mark.slow
def test_several_objectives_are_stored_and_the_first_one_decides():
    several = {"z": objectives.lowest_return, "a": objectives.mean_return}
    rule, finals = HyperTrick(10, 3), Finals(top=2, repeats=2, share=0.5)

    def outcome(scheduler, objective, finals=None):
        scoring = {"seeds_per_trial": 2, "objective": objective, "finals": finals}
        return jax.jit(search_of(scheduler, **scoring))(KEY)

    result = outcome(rule, several, finals)
    lowest = outcome(rule, objectives.lowest_return, finals)
    jax.tree.map(np.testing.assert_array_equal, result.ledger, lowest.ledger)
    assert result.best_trial == lowest.best_trial
    assert list(result.objectives) == ["z", "a"]
    np.testing.assert_array_equal(result.objectives["z"], result.ledger.scores)
    whole = outcome(RandomSearch(10, 3), objectives.mean_return).ledger.scores
    has_run = np.asarray(result.lane) >= 0
    assert not has_run.all()
    np.testing.assert_allclose(result.objectives["a"], np.where(has_run, whole, np.nan), rtol=1e-5)
    assert result.finals is not None
    np.testing.assert_array_equal(result.finals.objectives["z"], result.finals.scores)
    assert (result.finals.objectives["a"] >= result.finals.scores).all()
    late = np.stack([late_means(x) for x in result.objectives.values()], 1)
    np.testing.assert_allclose(result.late_objectives, late, rtol=1e-5)
    front = np.flatnonzero(pareto_front(result.late_objectives))
    assert {late[:, 0].argmax(), late[:, 1].argmax()} <= {*front}
    assert not lowest.objectives
    np.testing.assert_allclose(lowest.late_objectives, late[:, :1], rtol=1e-5)


def late_means(scores):
    """Return the mean of the last two scores of each trial."""
    return [row[~np.isnan(row)][-2:].mean() for row in np.asarray(scores)]
