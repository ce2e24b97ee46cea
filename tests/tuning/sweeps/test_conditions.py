"""Conditional fields in sweeps: searched in some trials, absent from the values of the others."""

import json

import pytest
from shared_studies import DiedError, die, stored_trials
from sweep_runs import outcome, run

from jaxrl.analysis.importance import importances
from jaxrl.analysis.sweep_report import write_report
from jaxrl.files.urls import file_url
from jaxrl.tuning import Choice, Integer, LogUniform, RandomSearch, When, read_study
from jaxrl.tuning.studies import trial_sampler
from jaxrl.tuning.studies.study import SharedStudy

SPACE = {
    "activation": Choice(("tanh", "relu")),
    "num_steps": When("activation", "relu", Choice((30, 40))),
    "learning_rate": LogUniform(9e-4, 1.1e-3),
    "gamma": When("activation", "tanh", Choice((0.4, 0.5))),
}


def check(trials):
    """Check which values trials have, and that they trained with them or the config's.

    A toy's score is about 19 at these rates, plus its number of steps.
    """
    assert {trial["values"]["activation"] for trial in trials} == {"tanh", "relu"}
    for trial in trials:
        values = trial["values"]
        inactive = "gamma" if values["activation"] == "relu" else "num_steps"
        assert set(values) == set(SPACE) - {inactive}
        assert trial["scores"][0] - values.get("num_steps", 2) == pytest.approx(19, abs=4)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["random", pytest.param("tpe", marks=pytest.mark.exhaustive)])
def test_trials_have_values_of_their_active_fields(tmp_path, sampler):
    url = file_url(tmp_path / "study.db")
    arguments = {"sampler": sampler, "storage": url, "study_name": "s", "num_lanes": 3}
    result = run(tmp_path / "x", RandomSearch(12, 1), SPACE, **arguments)
    check(outcome(result))
    stored = stored_trials(url, "s")
    assert [trial.params for trial in stored] == [trial["values"] for trial in outcome(result)]
    described = {"kind": "Choice", "values": [30, 40], "when": {"activation": "relu"}}
    assert result.summary["space"]["num_steps"] == described
    assert read_study(url)["trials"] == result.summary["trials"]
    page = write_report(result.summary, tmp_path / "x").read_text()
    assert "when={&#39;activation&#39;: &#39;relu&#39;}" in page
    assert set(importances(result.summary)) == set(SPACE)
    resumed = run(tmp_path / "x", RandomSearch(12, 1), SPACE, resume=True, **arguments)
    assert outcome(resumed) == outcome(result)
    assert json.dumps(resumed.summary["space"]) == json.dumps(result.summary["space"])


def test_the_best_of_each_value_is_kept_of_trials_that_have_one(tmp_path):
    result = run(tmp_path / "x", RandomSearch(6, 1), SPACE, keep_best=0, keep_best_per="num_steps")
    kept = {int(path.name.removeprefix("trial-")) for path in (tmp_path / "x/best").iterdir()}
    searched = [trial["values"].get("num_steps") for trial in outcome(result)]
    assert {searched[trial] for trial in kept} == set(searched) - {None}
    assert len(kept) == len(set(searched) - {None})


def test_what_was_stored_decides_which_fields_are_active(tmp_path, monkeypatch):
    """A worker died after it had chosen the first value; it goes on with other draws."""
    url = f"journal:///{tmp_path / 's.log'}"

    def claim(activation):
        drawn = {"activation": activation, "gamma": 0.4, "learning_rate": 1e-3, "num_steps": 40}
        claimed = SharedStudy(url, "s", SPACE, 4, lambda index: drawn, worker="a").claim(())
        assert claimed is not None
        return claimed[1]

    steps = iter([trial_sampler.suggest, die])
    with monkeypatch.context() as patch:
        patch.setattr(trial_sampler, "suggest", lambda *args: next(steps)(*args))
        with pytest.raises(DiedError):
            claim("relu")
    assert claim("tanh") == {"activation": "relu", "learning_rate": 1e-3, "num_steps": 40}


def test_cma_es_refuses_conditional_fields(tmp_path):
    pytest.importorskip("cmaes")
    space = {"gamma": Choice((0.4, 0.5)), "num_steps": When("gamma", 0.5, Integer(1, 2))}
    with pytest.raises(ValueError, match=r"'cmaes' cannot search .* \['num_steps'\]: use"):
        run(tmp_path / "x", RandomSearch(4, 1), space, sampler="cmaes")
