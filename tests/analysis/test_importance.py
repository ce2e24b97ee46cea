"""The importances of hyperparameters: their order, their sum, and sweeps without any."""

import sys

import pytest
from written_sweeps import SPACE, random_sweep, sweep_of, trial

from jaxrl.analysis.importance import importances


def test_the_hyperparameter_that_decides_the_score_is_the_most_important():
    pytest.importorskip("optuna")
    shares = importances(random_sweep(200))
    assert set(shares) == set(SPACE)
    assert next(iter(shares)) == "learning_rate"
    assert sum(shares.values()) == pytest.approx(1)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)


@pytest.mark.parametrize(
    ("scores_of", "decides"),
    [
        (lambda score: ["-inf"], True),
        (lambda score: [score, "-inf"], True),
        (lambda score: ["-inf", score], False),  # it became a copy of another agent
    ],
)
def test_trials_that_end_diverged_count_as_the_worst(scores_of, decides):
    """Check a gamma that decides which trials diverge, and nothing else."""
    pytest.importorskip("optuna")
    space = {name: SPACE[name] for name in ("gamma", "num_epochs")}
    trials = []
    for number in range(120):
        gamma, score = SPACE["gamma"]["values"][number % 3], float(number)
        scores = [score] if gamma == 0.9 else scores_of(score)
        trials.append(trial(number, scores, gamma=gamma, num_epochs=number // 3 % 8 + 1))
    assert (importances(sweep_of(trials, space=space))["gamma"] > 0.8) == decides


def test_divergence_is_charged_to_the_values_that_an_explorer_gave():
    pytest.importorskip("optuna")
    space = {name: SPACE[name] for name in ("gamma", "num_epochs")}
    trials = []
    for number in range(120):
        values = {"gamma": 0.9, "num_epochs": number // 3 % 8 + 1}
        later = values | {"gamma": SPACE["gamma"]["values"][number % 3]}
        scores = [float(number)] * 2 if later == values else [float(number), "-inf"]
        changes = [{"parent": number, "values": later}]
        trials.append(trial(number, scores, **values) | {"changes": changes})
    assert importances(sweep_of(trials, space=space))["gamma"] > 0.8


@pytest.mark.parametrize(
    ("scores", "space", "message"),
    [
        ([], SPACE, "4 trials with a score, but there are 0"),
        ([[1.0], ["-inf"], [None]], SPACE, "4 trials with a score, but there are 1"),
        ([[2.0]] * 8, SPACE, "all trials have the same score"),
        ([[float(n)] for n in range(8)], {}, "the best trials have the same values as all others"),
    ],
)
def test_sweeps_without_importances_are_refused(scores, space, message):
    pytest.importorskip("optuna")
    trials = [trial(number, of, gamma=0.9) for number, of in enumerate(scores)]
    with pytest.raises(ValueError, match=message):
        importances(sweep_of(trials, space=space))


def test_without_optuna_the_error_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"jaxrl\[tune\]"):
        importances(random_sweep(12))
