"""Several studies of Optuna in memory: what they propose, and that they learn from what is told."""

import numpy as np
import pytest

from jaxrl.tuning import LogUniform, Uniform
from jaxrl.tuning.studies.samplers import AskTell

SPACE = {"learning_rate": LogUniform(1e-6, 0.1), "value_coef": Uniform(0.0, 1.0)}


def unit(asked):
    """Return the values as places within their bounds, [S, number, 2]."""
    places = np.log(asked["learning_rate"] / 1e-6) / np.log(0.1 / 1e-6), asked["value_coef"]
    return np.stack(places, 2)


def test_points_of_sobol_fill_the_space_evenly_from_the_first_on():
    studies = AskTell(SPACE, "sobol", range(3))
    batches = []
    for number in (3, 5):
        batches.append(unit(studies.ask(number)))
        studies.tell(np.zeros((3, number)))
    points = np.concatenate(batches, 1)
    # Each eighth of each axis has one of the first eight points.
    eighths = np.sort(np.floor(points * 8), 1)
    np.testing.assert_array_equal(eighths, np.broadcast_to(np.arange(8)[:, None], (3, 8, 2)))
    assert len(np.unique(points[:, 0, 1])) == 3
    np.testing.assert_array_equal(unit(AskTell(SPACE, "sobol", range(1, 3)).ask(3)), points[1:, :3])


def test_tpe_learns_from_what_is_told():
    studies, distances = AskTell(SPACE, "tpe", range(4)), []
    for _ in range(15):
        distances.append(np.abs(unit(studies.ask(4)) - [0.8, 0.2]).sum(2))
        studies.tell(-distances[-1])
    assert np.mean(distances[-5:]) < 0.6 * np.mean(distances[:3])


def test_other_samplers_are_refused():
    with pytest.raises(ValueError, match=r"sampler must be one of \('tpe', 'sobol'\), got 'grid'"):
        AskTell(SPACE, "grid", range(1))
