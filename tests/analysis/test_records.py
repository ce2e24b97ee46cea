"""Summaries that records keep."""

import json

import numpy as np
import pytest

from jaxrl.analysis.records import (
    describe_scores,
    interval_text,
    keep_record,
    rounded_curve,
    save_record,
    summarize_seeds,
)
from jaxrl.ops import statistics


def test_seeds_are_summarized_with_their_interval():
    summary = summarize_seeds(np.array([1.0, 2.0, 6.0]))
    assert summary["value"] == 3.0
    # Student's: the 0.975 quantile of two degrees of freedom is 4.3027, the deviation sqrt(7).
    half = 4.3027 * np.sqrt(7 / 3)
    assert (summary["low"], summary["high"]) == pytest.approx((3 - half, 3 + half), abs=1e-3)
    assert summary["by_seed"] == [1.0, 2.0, 6.0]
    assert interval_text(summary, 1) == "3.0 (-3.6 to 9.6)"


def test_other_statistics_than_means_have_the_interval_of_a_bootstrap():
    scores = np.array([1.0, 2.0, 3.0, 4.0, 9.0])
    summary = summarize_seeds(scores, statistics.interquartile_mean)
    expected = statistics.estimate(statistics.interquartile_mean, scores[:, None])
    found = [summary[name] for name in ("value", "low", "high")]
    assert found == pytest.approx([*expected], abs=1e-4)


@pytest.mark.parametrize("statistic", [statistics.mean, statistics.interquartile_mean])
def test_a_single_seed_has_no_interval(statistic):
    summary = summarize_seeds(np.array([2.5]), statistic)
    assert summary == {"value": 2.5, "low": None, "high": None, "by_seed": [2.5]}
    assert interval_text(summary, 1) == "2.5"


def test_parts_without_episodes_are_null_in_json():
    curve = rounded_curve(np.array([np.nan, 1.23456, 2.0]))
    assert json.dumps(curve, allow_nan=False) == "[null, 1.235, 2.0]"


def test_records_are_written_whole(tmp_path):
    save_record(tmp_path / "results", "study", {"a": 1})
    assert save_record(tmp_path / "results", "study", {"a": 2}).name == "study.png"
    assert json.loads((tmp_path / "results" / "study.json").read_text()) == {"a": 2}
    assert len(list((tmp_path / "results").iterdir())) == 1
    with pytest.raises(TypeError):
        save_record(tmp_path / "results", "study", {"a": object()})
    assert json.loads((tmp_path / "results" / "study.json").read_text()) == {"a": 2}


def test_records_of_the_same_settings_are_made_once(tmp_path):
    def fail():
        raise RuntimeError("made again")

    with pytest.raises(RuntimeError):
        keep_record(tmp_path, "part", {"seeds": 2}, fail)
    made = keep_record(tmp_path, "part", {"seeds": 2}, lambda: {"scores": [1.0, 2.0]})
    assert made == {"settings": {"seeds": 2}, "scores": [1.0, 2.0]}
    assert keep_record(tmp_path, "part", {"seeds": 2}, fail) == made
    with pytest.raises(ValueError, match=r"part.json was made with other settings.*\n.*2 -> 3"):
        keep_record(tmp_path, "part", {"seeds": 3}, fail)


def test_episodes_that_were_cut_short_have_no_mean():
    with pytest.raises(ValueError, match="1 of 3 episodes were cut short"):
        describe_scores(np.array([1.0, np.nan, 2.0]))
