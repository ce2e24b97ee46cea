"""Axes of hyperparameters: positions of values and ticks."""

import math

import numpy as np
import pytest
from written_sweeps import SPACE

from jaxrl.analysis.sweep_axes import position, ticks


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("learning_rate", 1e-5, 0.0),
        ("learning_rate", 1e-4, 1 / 3),
        ("learning_rate", float(np.float32(1e-5)), 0.0),
        ("num_steps", math.sqrt(200), 0.5),
        ("entropy_cost", 0.0125, 0.25),
        ("num_epochs", 8, 1.0),
        ("gamma", 0.99, 0.5),
        ("gamma", 0.5, math.nan),
        ("core", None, 0.0),
        ("core", True, 0.4),
        ("core", [64, 64], 0.6),
        ("core", 1, math.nan),
        ("num_epochs", None, math.nan),
    ],
)
def test_positions_lie_on_the_axis_or_are_nan(name, value, expected):
    assert position(SPACE[name], value) == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_a_choice_of_one_value_is_in_the_middle():
    only = {"kind": "Choice", "values": [4]}
    assert position(only, 4.0) == 0.5
    assert ticks(only) == [(0.5, "4")]


def test_ticks_are_where_their_values_are():
    decades = [(pytest.approx(i / 3), label) for i, label in enumerate(["1e-05", "0.0001"])]
    assert ticks(SPACE["learning_rate"])[:2] == decades
    labels = [label for _, label in ticks(SPACE["num_steps"])]
    assert labels == ["2", "5", "10", "20", "50", "100"]
    assert ticks(SPACE["gamma"]) == [(0.0, "0.9"), (0.5, "0.99"), (1.0, "0.999")]
    for distribution in SPACE.values():
        places = [place for place, _ in ticks(distribution)]
        assert len(places) > 1
        assert min(np.diff(places)) > 0.05
        assert min(places) >= 0
        assert max(places) <= 1
    many = {"kind": "Choice", "values": list(range(100))}
    assert len(ticks(many)) <= 12
