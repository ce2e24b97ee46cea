"""CMA-ES: it finds an optimum, and the same trials give the same values in any process."""

import json
import math

import numpy as np
import pytest

from jaxrl.tuning import Choice, Integer, LogUniform, QLogUniform, Uniform
from jaxrl.tuning.samplers import cma_es

pytest.importorskip("cmaes")
pytestmark = pytest.mark.smoke

SPACE = {"rate": LogUniform(1e-5, 1e-1), "gamma": Uniform(0.0, 1.0)}


def score(values):
    """Return a score whose optimum is far from the middle, and narrow."""
    return -((math.log10(values["rate"]) + 4.5) ** 2) - 9 * (values["gamma"] - 0.9) ** 2


def search(num_trials, seed=0):
    """Return the trials of a search, one after another."""
    ended = []
    for trial in range(num_trials):
        generation, values = cma_es.draw(SPACE, ended, seed * 1000 + trial)
        ended.append(cma_es.Solution(generation, values, score(values)))
    return ended


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_an_optimum(seed):
    ended = search(120, seed)
    assert np.mean([trial.score for trial in ended[:20]]) < -1
    assert max(trial.score for trial in ended[-20:]) > -0.02
    assert ended[-1].generation == 119 // 6


def test_the_same_trials_give_the_same_values_in_another_process():
    ended = search(20)
    again = [cma_es.Solution(*trial) for trial in json.loads(json.dumps(ended))]
    assert cma_es.draw(SPACE, again, 7) == cma_es.draw(SPACE, ended, 7)


def test_trials_of_other_samplers_and_late_ones_are_left_out():
    ended = search(12)
    generation, values = cma_es.draw(SPACE, ended, 7)
    assert generation == 2
    foreign = [
        cma_es.Solution(None, {"rate": 1e-3, "gamma": 0.5}, 9.0),
        cma_es.Solution("0", {"rate": 1e-3, "gamma": 0.5}, 9.0),
        cma_es.Solution(0, {"rate": 1e-3}, 9.0),
    ]
    late = cma_es.Solution(0, {"rate": 1e-3, "gamma": 0.5}, 9.0)
    assert cma_es.draw(SPACE, [*foreign, *ended, late], 7) == (generation, values)


def test_trials_without_a_score_rank_last():
    ended = [trial._replace(score=-math.inf) for trial in search(6)]
    generation, values = cma_es.draw(SPACE, ended, 7)
    assert generation == 1
    assert all(math.isfinite(value) for value in values.values())


@pytest.mark.parametrize(
    ("part", "values"),
    [
        (Uniform(-1.0, 3.0), (-1.0, 0.5, 3.0)),
        (LogUniform(1e-5, 1e-1), (1e-5, 2e-3, 1e-1)),
        (Integer(1, 8), (1, 5, 8)),
        (QLogUniform(2, 100, rungs=10), (2, 100)),
        (QLogUniform(4, 64, q=4), (4, 20, 64)),
    ],
)
def test_every_value_has_a_place_on_its_axis(part, values):
    for value in values:
        found = cma_es.at_place(part, cma_es.to_place(part, value))
        assert found == pytest.approx(value)
        assert type(found) is type(value)
    assert cma_es.at_place(part, 0.0) == part.low
    assert cma_es.at_place(part, 1.0) == part.high


def test_choices_have_no_axis():
    space = {"b": Choice((1, 2)), "c": Uniform(0, 1), "a": Integer(1, 2)}
    assert list(cma_es.searchable(space)) == ["a", "c"]
