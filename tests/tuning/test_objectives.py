"""Objectives equal to NumPy's statistics of the agents' returns, and fronts to a plain loop."""

import warnings

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl.tuning import objectives, pareto_front

RETURNS = [
    [1.0],
    [3.0, 1.0, 7.0, 2.0, 9.0],
    [3.0, np.nan, 7.0, 2.0, 9.0],
    [np.nan, np.nan, np.nan],
    [3.0, -np.inf, 7.0, 2.0, 9.0],
    [-np.inf, np.nan],
]


def metrics_of(returns):
    """Return metrics `[K, 2]` of a phase with these mean returns: episodes end in both updates."""
    returns = np.asarray(returns)
    finite = np.where(np.isfinite(returns), returns, 0.0)
    counts = np.where(np.isnan(returns), 0, 1)[:, None] * np.array([1, 3])
    loss = np.stack([np.zeros(len(returns)), np.where(np.isneginf(returns), np.nan, 0)], 1)
    sums = np.stack([finite - 6, 3 * finite + 6], 1) * (counts > 0)
    return {
        "episode_return_sum": jnp.array(sums),
        "episode_count": jnp.array(counts),
        "loss": jnp.array(loss),
    }


def interquartile_mean(x):
    x = np.sort(x[~np.isnan(x)])
    cut = len(x) // 4
    return x[cut : len(x) - cut].mean()


def mean_minus_two_deviations(x):
    return -np.inf if np.isneginf(x).any() else np.nanmean(x) - 2 * np.nanstd(x)


@pytest.mark.parametrize("returns", RETURNS)
@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (objectives.mean_return, np.nanmean),
        (objectives.median_return, np.nanmedian),
        (objectives.interquartile_mean_return, interquartile_mean),
        (objectives.lowest_return, np.nanmin),
        (objectives.mean_minus_deviations(2), mean_minus_two_deviations),
    ],
)
def test_objectives_are_statistics_of_the_agents_with_ended_episodes(objective, expected, returns):
    metrics = metrics_of(returns)
    np.testing.assert_allclose(objectives.agent_returns(metrics), returns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about agents of which none has a return
        value = expected(np.array(returns))
    np.testing.assert_allclose(objective(metrics), value, rtol=1e-6)


def test_agents_without_a_loss_do_not_diverge():
    metrics = {name: x for name, x in metrics_of(RETURNS[1]).items() if name != "loss"}
    np.testing.assert_allclose(objectives.agent_returns(metrics), RETURNS[1])


def test_episodes_on_the_host_are_not_evaluated():
    algo = jaxrl.ppo(jaxrl.make("envpool/CartPole-v1", num_envs=2))
    assert objectives.check_evaluation(algo, 0) == 0
    with pytest.raises(ValueError, match=r"evaluation_episodes=3 needs environments on the device"):
        objectives.check_evaluation(algo, 3)


def test_deviations_are_not_negative():
    with pytest.raises(ValueError, match="number must be a number >= 0, got -1"):
        objectives.mean_minus_deviations(-1)


def front_of(scores):
    """Return which rows are on the front, by comparing each row with each other one."""
    found = []
    for own in scores:
        rivals = [other for other in scores if np.isfinite(other).all()]
        is_beaten = any(
            all(x >= y for x, y in zip(other, own, strict=True))
            and any(x > y for x, y in zip(other, own, strict=True))
            for other in rivals
        )
        found.append(bool(np.isfinite(own).all()) and not is_beaten)
    return found


LEVELS = st.sampled_from([0.0, 1.0, 2.0, 3.0, np.nan, -np.inf, np.inf])  # few, so that some tie


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3).flatmap(
        lambda m: st.lists(st.lists(LEVELS, min_size=m, max_size=m), min_size=7, max_size=7)
    )
)
def test_the_front_is_that_of_a_loop(scores):
    assert pareto_front(jnp.array(scores)).tolist() == front_of(scores)


def test_equal_rows_are_on_the_front_together_under_jit_and_vmap_too():
    scores = jnp.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [1.0, 1.0], [9.0, jnp.nan]])
    expected = [True, True, True, False, False]
    assert jax.jit(pareto_front)(scores).tolist() == expected
    both = jax.vmap(pareto_front)(jnp.stack([scores, -scores]))
    assert both.tolist() == [expected, [False, False, False, True, False]]
    assert pareto_front(jnp.zeros((0, 2))).shape == (0,)
    with pytest.raises(
        ValueError, match=r"scores must be an array \[N, M\], got one of shape \(3,\)"
    ):
        pareto_front(jnp.zeros(3))
    with pytest.raises(ValueError, match="got scores by name; give a SearchResult's late_objec"):
        pareto_front(objectives.Scores({"return": jnp.zeros((3, 2))}))  # pyrefly: ignore[bad-argument-type]


def test_the_first_of_several_objectives_compares_trials():
    several = {"z": objectives.lowest_return, "a": objectives.mean_return}
    metrics = metrics_of(RETURNS[1])
    compared, scores = jax.jit(lambda: objectives.score(several, metrics))()
    assert list(scores) == objectives.names_of(several) == ["z", "a"]
    assert (compared, scores["z"]) == (1.0, 1.0)
    assert scores["a"] == pytest.approx(np.mean(RETURNS[1]))
    compared, scores = objectives.score(objectives.mean_return, metrics)
    assert compared == pytest.approx(np.mean(RETURNS[1]))
    assert not scores
    assert not objectives.names_of(objectives.mean_return)


def test_a_score_is_one_number_below_infinity():
    metrics, returns = metrics_of(RETURNS[1]), objectives.agent_returns
    assert objectives.score(lambda metrics: jnp.array(jnp.inf), metrics)[0] == -np.inf
    for objective in (returns, {"mean": objectives.mean_return, "all": returns}):
        with pytest.raises(ValueError, match=r"one number, but .*agent_returns.* an array \[5\]"):
            objectives.score(objective, metrics)
    with pytest.raises(ValueError, match=r"must return one number, but .* returned None"):
        objectives.score(lambda metrics: None, metrics)  # pyrefly: ignore[bad-argument-type]
    available = r"\['episode_count', 'episode_return_sum', 'loss'\]"
    with pytest.raises(ValueError, match=rf"finds no 'returns'; the metrics .* are {available}"):
        objectives.score({"a": objectives.mean_return, "b": lambda x: x["returns"].sum()}, metrics)


@pytest.mark.parametrize(
    "objective",
    [
        lambda metrics: float(metrics["episode_return_sum"].sum()),
        lambda metrics: 1.0 if metrics["episode_count"].sum() > 0 else 0.0,
        lambda metrics: np.asarray(metrics["loss"]).mean(),
    ],
    ids=["float", "if", "numpy"],
)
def test_an_objective_that_cannot_be_compiled_is_refused(objective):
    with pytest.raises(ValueError, match=r"objective .* must compute by jax\.numpy"):
        jax.jit(lambda metrics: objectives.score(objective, metrics))(metrics_of(RETURNS[1]))


def test_an_objective_is_checked_by_the_metrics_that_a_sweep_gives_it():
    """Without training, and of an agent that is evaluated with the metrics of that too."""
    algo, seen = toy(), []

    def objective(metrics):
        assert all(isinstance(x, jax.core.Tracer) for x in metrics.values())
        seen.append({name: (x.shape, x.dtype) for name, x in metrics.items()})
        return metrics["episode_return_sum"].sum()

    names = ["episode_count", "episode_length_sum", "episode_return_sum", "loss", "valid_steps"]
    for num_episodes in (0, 2):
        objectives.check_score(objective, algo, ToyConfig(), num_episodes, 3)
    assert seen == [dict.fromkeys(names, ((3, 1), jnp.float32))] * 2


def test_an_objective_is_checked_without_starting_a_simulator():
    made = []

    def make():
        made.append(gymnasium.make("CartPole-v1"))
        return made[-1]

    algo = jaxrl.ppo(jaxrl.make(make, num_envs=2, vectorization_mode="sync"))
    before = len(made)
    config = jaxrl.PPOConfig(num_steps=8)
    objectives.check_score(objectives.mean_return, algo, config, 0, 1)
    with pytest.raises(ValueError, match=r"finds no 'returns'; the metrics of a phase are"):
        objectives.check_score(lambda metrics: metrics["returns"], algo, config, 0, 1)
    assert len(made) == before


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("mean", "objective must be a function, or a dictionary of two or more .*, got 'mean'"),
        ({"mean": objectives.mean_return}, "dictionary of two or more functions by name, got {"),
        ({"mean": objectives.mean_return, 3: len}, "name of objective must be .*, got 3"),
        (
            {"mean": objectives.mean_return, "x": 1.0},
            r"objective\['x'\] must be a function, got 1.0",
        ),
    ],
)
def test_what_is_no_objective_is_refused(objective, message):
    with pytest.raises(ValueError, match=message):
        objectives.check_objective(objective)
