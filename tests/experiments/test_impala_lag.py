"""The study of IMPALA's lag, at a small size."""

import json

import pytest


@pytest.mark.exhaustive
def test_the_study_writes_its_record_and_picture(experiment, tmp_path):
    study = experiment("impala_lag")
    args = study.Args("cartpole", lags=(0, 2), seeds=2, total_steps=3200, results=tmp_path)
    study.main(args)
    result = json.loads((tmp_path / "impala-lag-cartpole.json").read_text())
    settings = [(x["lag"], x["off_policy_correction"]) for x in result["settings"]]
    assert settings == [(0, True), (2, True), (2, False)]
    assert (tmp_path / "impala-lag-cartpole.png").stat().st_size > 1000


@pytest.mark.parametrize("name", ["seeds", "total_steps"])
def test_nothing_to_train_is_refused(experiment, tmp_path, name):
    lag = experiment("impala_lag")
    with pytest.raises(ValueError, match=rf"--{name.replace('_', '-')} must be an integer >= 1"):
        lag.main(lag.Args("cartpole", results=tmp_path, **{name: 0}))
