"""Finals: which settings train again, that their seeds are new, and that they choose the winner."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweep_runs import SEED, UPDATES, search_of, searched, toy_algorithm
from toy_algorithm import ToyConfig

import jaxrl
from jaxrl.tuning import (
    ASHA,
    Finals,
    HyperTrick,
    RandomSearch,
    SuccessiveHalving,
    objectives,
    trial_key,
)
from jaxrl.tuning.finals import mean_of_last_two, retrain
from jaxrl.tuning.objectives import Scores
from jaxrl.tuning.search_result import FinalScores

KEY = jax.random.key(SEED)
FINALS = Finals(top=2, repeats=3, share=0.5)


def trained(values, key, num_phases):
    """Return an agent that was trained by itself, and its score of each phase."""
    config = ToyConfig().replace(**{name: float(x) for name, x in values.items()})
    state, metrics = jaxrl.train(toy_algorithm(), config, key, UPDATES * num_phases)
    names = ("episode_return_sum", "episode_count")
    returns, counts = (np.asarray(metrics[x]).reshape(-1, UPDATES).sum(1) for x in names)
    return state, returns / counts


def late_scores(ledger):
    """Return the mean of the last two scores of each trial."""
    rows = zip(np.asarray(ledger.scores), np.asarray(ledger.reported), strict=True)
    return np.array([scores[max(number - 2, 0) : number].mean() for scores, number in rows])


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheduler",
    [
        HyperTrick(14, 4),
        *(
            pytest.param(x, marks=pytest.mark.exhaustive)
            for x in (SuccessiveHalving(13, 9), ASHA(12, 9))
        ),
    ],
    ids=lambda scheduler: type(scheduler).__name__,
)
def test_the_best_settings_train_again_with_new_seeds(scheduler):
    result, without = searched(scheduler, finals=FINALS), searched(scheduler)
    for found, expected in zip(result.ledger, without.ledger, strict=True):
        np.testing.assert_array_equal(found, expected)  # finals change nothing before them
    expected = np.argsort(-late_scores(result.ledger), kind="stable")[:2]
    np.testing.assert_array_equal(result.finals.trial, expected)
    agents = {}
    for place, trial in enumerate(expected):
        values = {name: x[trial] for name, x in result.values.items()}
        for repeat in range(3):
            key = trial_key(KEY, scheduler.num_trials + 3 * place + repeat)
            agents[place, repeat], scores = trained(values, key, scheduler.num_phases)
            np.testing.assert_allclose(result.finals.scores[place, repeat], scores, rtol=1e-4)
    means = np.asarray(result.finals.scores)[..., -2:].mean((1, 2))
    np.testing.assert_allclose(result.finals.score, means, rtol=1e-5)
    for runs, mean, (low, high) in zip(
        result.finals.run_scores, means, result.finals.interval, strict=True
    ):
        spread = 4.302653 * np.std(runs, ddof=1) / np.sqrt(3)  # Student's t, two degrees of freedom
        np.testing.assert_allclose([low, high], [mean - spread, mean + spread], rtol=1e-4)
    winner = int(means.argmax())
    assert result.best_trial == expected[winner]
    np.testing.assert_allclose(result.best_state.params, agents[winner, 0].params, rtol=1e-5)


@pytest.mark.slow
def test_finals_take_as_many_rounds_as_their_lanes_need():
    scheduler = HyperTrick(14, 4)
    extra = searched(scheduler, finals=FINALS).num_rounds - searched(scheduler).num_rounds
    assert extra == 2 * 4  # six runs of four phases on four lanes


def test_finals_that_cost_more_than_their_share_are_refused():
    with pytest.raises(
        ValueError, match=r"20 runs, 0.4 times the 50 trials .*, more than share=0.2"
    ):
        searched(RandomSearch(50, 2), finals=Finals())
    with pytest.raises(ValueError, match="top must be at most 8, all trials, got 9"):
        searched(RandomSearch(8, 2), finals=Finals(top=9, repeats=1, share=9))


def test_their_share_is_of_the_steps_that_a_cap_allows():
    assert [Finals().most(100, allowed) for allowed in (np.inf, 200, 75, 25, 24.9)] == [
        4,
        4,
        3,
        1,
        0,
    ]
    phase_steps = 3 * 2 * 2  # updates, steps and environments of a phase
    capped = search_of(RandomSearch(50, 2))
    with pytest.raises(
        ValueError, match=r"4 runs, 0\.4 times the 10 whole trials that max_steps allows, more than"
    ):
        capped(KEY, finals=Finals(2, 2), max_steps=10 * 2 * phase_steps)
    jax.eval_shape(lambda: capped(KEY, finals=Finals(1, 2), max_steps=10 * 2 * phase_steps))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["vmap", pytest.param("map", marks=pytest.mark.exhaustive)])
def test_a_trial_of_several_seeds_scores_by_the_objective_over_them(strategy):
    scheduler = SuccessiveHalving(9, 9)  # its trials pause, and resume with all their agents
    result = searched(
        scheduler, finals=Finals(1, 2, 0.5), seeds_per_trial=3,
        objective=objectives.lowest_return, strategy=strategy,
    )  # fmt: skip
    reported = np.asarray(result.ledger.reported)
    assert len(set(reported)) > 1
    for trial in (int(reported.argmax()), int(reported.argmin())):
        values = {name: x[trial] for name, x in result.values.items()}
        keys = jax.random.split(trial_key(KEY, trial), 3)
        lowest = np.min([trained(values, key, 9)[1] for key in keys], 0)
        number = reported[trial]
        np.testing.assert_allclose(result.ledger.scores[trial, :number], lowest[:number], rtol=1e-4)
    values = {name: x[result.finals.trial[0]] for name, x in result.values.items()}
    keys = jax.random.split(trial_key(KEY, 9), 3)  # of the first run of the finals
    runs = [trained(values, key, 9) for key in keys]
    np.testing.assert_allclose(
        result.finals.scores[0, 0], np.min([scores for _, scores in runs], 0), rtol=1e-4
    )
    np.testing.assert_allclose(result.best_state.params, runs[0][0].params, rtol=1e-5)


def test_an_agent_trains_again_with_a_schedule():
    algo, config = toy_algorithm(), ToyConfig()
    result, key = searched(RandomSearch(3, 4)), trial_key(KEY, 2)
    schedule: dict[str, jax.Array] = {name: x[2] for name, x in result.schedule.items()}
    scores = retrain(algo, config, UPDATES, schedule, key)
    np.testing.assert_allclose(scores, result.ledger.scores[2], rtol=1e-4)
    name = "learning_rate"
    changed = schedule | {name: schedule[name].at[2:].multiply(0.5)}
    state, expected = algo.init(config, key), []
    for phase in range(4):
        now = config.replace(**{name: float(x[phase]) for name, x in changed.items()})
        returns = episodes = 0.0
        for _ in range(UPDATES):
            state, metrics = algo.update(now, state)
            returns += float(metrics["episode_return_sum"])
            episodes += float(metrics["episode_count"])
        expected.append(returns / episodes)
    assert not np.allclose(expected, scores)
    np.testing.assert_allclose(retrain(algo, config, UPDATES, changed, key), expected, rtol=1e-4)


def test_an_agent_that_trains_with_a_schedule_begins_with_its_first_values():
    algo = toy_algorithm()

    def init(config, key):
        state = algo.init(config, key)
        return state._replace(params=jnp.full(3, config.gamma))

    def update(config, state):
        state, metrics = algo.update(config, state)
        return state, metrics | {"episode_return_sum": state.params[0] * metrics["episode_count"]}

    own = algo._replace(init=init, update=update)
    schedule = {"gamma": jnp.array([0.5, 0.7]), "learning_rate": jnp.zeros(2)}
    scores = retrain(own, ToyConfig(), UPDATES, schedule, KEY)
    np.testing.assert_allclose(scores, [0.5, 0.5])


def test_the_last_two_scores_are_averaged():
    nan, inf = np.nan, np.inf
    scores = np.array([[[1.0, 2.0, 4.0], [1.0, 2.0, nan]], [[3.0, nan, nan], [nan, nan, nan]]])
    np.testing.assert_array_equal(mean_of_last_two(scores), [[3.0, 1.5], [3.0, -inf]])


def test_intervals_of_several_searches_are_those_of_each():
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 5, 4)))
    several = FinalScores(jnp.zeros((2, 3)), scores, Scores(), scores.mean((2, 3)))
    each = [FinalScores(jnp.zeros(3), x, Scores(), x.mean((1, 2))).interval for x in scores]
    assert several.interval.shape == (2, 3, 2)
    np.testing.assert_array_equal(several.interval, each)
