"""Searches by samplers on the host, asked for several trials at a time."""

import sys

import numpy as np
import pytest

from jaxrl.tuning import Choice, Integer, LogUniform, Uniform
from jaxrl.tuning.samplers.ask_tell import AskTell

SPACE = {"learning_rate": LogUniform(1e-6, 0.1), "value_coef": Uniform(0.0, 1.0)}


def in_unit_square(asked):
    """Return the values as places within their bounds, [S, number, 2]."""
    places = np.log(asked["learning_rate"] / 1e-6) / np.log(0.1 / 1e-6), asked["value_coef"]
    return np.stack(places, 2)


def search(sampler, seeds, batches):
    """Return the distances from the best setting of all trials, [S, batches, 4]."""
    searches, distances = AskTell(SPACE, sampler, seeds, 4 * batches, 4), []
    for _ in range(batches):
        distances.append(np.abs(in_unit_square(searches.ask(4)) - [0.8, 0.2]).sum(2))
        searches.tell(-distances[-1])
    return np.stack(distances, 1)


def test_points_of_sobol_fill_the_space_evenly_from_the_first_on():
    searches = AskTell(SPACE, "sobol", range(3), 8, 5)
    batches = []
    for number in (3, 5):
        batches.append(in_unit_square(searches.ask(number)))
        searches.tell(np.zeros((3, number)))
    points = np.concatenate(batches, 1)
    # Each eighth of each axis has one of the first eight points.
    eighths = np.sort(np.floor(points * 8), 1)
    np.testing.assert_array_equal(eighths, np.broadcast_to(np.arange(8)[:, None], (3, 8, 2)))
    assert len(np.unique(points[:, 0, 1])) == 3
    again = AskTell(SPACE, "sobol", range(1, 3), 3, 3)
    np.testing.assert_array_equal(in_unit_square(again.ask(3)), points[1:, :3])


def test_tpe_learns_from_what_is_told():
    distances = search("tpe", range(4), 15)
    assert distances[:, -5:].mean() < 0.6 * distances[:, :3].mean()


def test_smac_learns_from_what_is_told_and_repeats_itself():
    pytest.importorskip("smac", reason="SMAC is not installed")
    distances = search("smac", range(2), 6)
    # All distances differ: no setting is tried twice, and the seeds search apart.
    assert len(np.unique(distances)) == distances.size
    assert distances[:, -3:].mean() < 0.6 * distances[:, :2].mean()
    np.testing.assert_array_equal(search("smac", range(1, 2), 6)[0], distances[1])


def test_smac_searches_integers_and_choices():
    pytest.importorskip("smac", reason="SMAC is not installed")
    asked = AskTell(
        {"num_steps": Integer(4, 8), "gamma": Choice((0.9, 0.99))}, "smac", range(2), 16, 4
    ).ask(4)
    assert np.isin(asked["num_steps"], range(4, 9)).all()
    assert set(np.unique(asked["gamma"])) == {0.9, 0.99}


def test_a_missing_smac_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "smac", None)
    with pytest.raises(ImportError, match="pip install smac"):
        AskTell(SPACE, "smac", range(1), 4, 4)


def test_other_samplers_are_refused():
    with pytest.raises(ValueError, match=r"sampler must be one of .*'smac'\), got 'grid'"):
        AskTell(SPACE, "grid", range(1), 4, 4)
