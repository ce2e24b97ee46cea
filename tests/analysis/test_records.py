"""Summaries that records keep."""

import json

import numpy as np
import pytest

from jaxrl.analysis.records import (
    describe_scores,
    keep_record,
    rounded_curve,
    save_record,
    summarize_seeds,
)


def test_seeds_are_summarized_with_their_interval():
    summary = summarize_seeds(np.array([1.0, 2.0, 6.0]))
    assert summary["value"] == 3.0
    assert 1.0 <= summary["low"] < 3.0 < summary["high"] <= 6.0
    assert summary["by_seed"] == [1.0, 2.0, 6.0]


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
