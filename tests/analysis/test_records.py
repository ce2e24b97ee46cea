"""Summaries that records keep."""

import numpy as np

from jaxrl.analysis.records import summarize_seeds


def test_seeds_are_summarized_with_their_interval():
    summary = summarize_seeds(np.array([1.0, 2.0, 6.0]))
    assert summary["value"] == 3.0
    assert 1.0 <= summary["low"] < 3.0 < summary["high"] <= 6.0
    assert summary["by_seed"] == [1.0, 2.0, 6.0]
