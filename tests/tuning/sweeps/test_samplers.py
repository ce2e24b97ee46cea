"""Samplers: Optuna's learn from trials, and values that are chosen again are the same."""

import math

import numpy as np
import optuna
import pytest
from sweep_runs import outcome, run

from jaxrl.tuning import QLogUniform, RandomSearch, Uniform
from jaxrl.tuning.sweeps import samplers
from jaxrl.tuning.sweeps.storage import study_view
from jaxrl.tuning.sweeps.study import SharedStudy


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize(
    ("sampler", "needs"), [("tpe", "optuna"), ("cmaes", "cmaes"), ("gp", "torch")]
)
def test_optunas_samplers_choose_the_values(tmp_path, sampler, needs):
    pytest.importorskip(needs)
    result = run(tmp_path / "x", RandomSearch(30, 1), sampler=sampler, num_lanes=2)
    rates = [trial["values"]["learning_rate"] for trial in outcome(result)]
    distance = np.abs(np.log10(np.array(rates) / 1e-3))
    assert distance[-10:].mean() < distance[:10].mean()
    assert all(1e-5 <= rate <= 1e-1 for rate in rates)


@pytest.mark.usefixtures("quick_compilation")
def test_the_study_has_the_rungs_that_were_trained(tmp_path):
    space = {"num_steps": QLogUniform(1, 64, rungs=3)}
    url = f"sqlite:///{tmp_path / 'study.db'}"
    result = run(tmp_path / "x", RandomSearch(4, 1), space, sampler="tpe", storage=url)
    stored = optuna.load_study(study_name="x", storage=url).trials
    assert [trial.params for trial in stored] == [trial["values"] for trial in outcome(result)]


def test_samplers_rank_trials_without_a_score_last():
    study = optuna.create_study(direction="maximize")
    for scores in ({0: math.nan, 1: math.nan}, {0: 3.0}, {0: math.nan, 1: 3.0}):
        pruned = optuna.trial.TrialState.PRUNED
        study.add_trial(optuna.create_trial(state=pruned, intermediate_values=scores))
    view = study_view(study, samplers.rank_silent_trial_last)
    viewed = [trial.intermediate_values for trial in view.trials]
    assert viewed[0] == {0: -math.inf}
    assert viewed[1] == {0: 3.0}
    assert viewed[2][1] == 3.0
    assert set(study.trials[0].intermediate_values) == {0, 1}


class DiedError(Exception):
    pass


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_values_chosen_again_after_a_kill_are_the_same(tmp_path, monkeypatch, sampler):
    space = {"gamma": Uniform(0, 1), "rate": Uniform(0, 1), "size": Uniform(0, 1)}

    def study(name):
        url = f"journal:///{tmp_path / name}.log"
        drawn = {"gamma": 0.1, "rate": 0.2, "size": 0.3}
        return SharedStudy(url, "s", space, 4, lambda index: drawn, sampler, worker="a")

    def die(*_):
        raise DiedError

    claims = [study("whole").claim(())]
    for num_chosen in (1, 2):
        steps = iter([samplers.suggest] * num_chosen + [die])
        with monkeypatch.context() as patch:
            patch.setattr(samplers, "suggest", lambda *args, steps=steps: next(steps)(*args))
            with pytest.raises(DiedError):
                study(f"{num_chosen}").claim(())
        claims.append(study(f"{num_chosen}").claim(()))
    assert claims[0] == claims[1] == claims[2]
    assert claims[0] is not None
    assert len(set(claims[0][1].values())) == 3


def test_a_field_that_was_renamed_keeps_its_name_in_an_old_study(tmp_path, monkeypatch):
    url = f"journal:///{tmp_path / 'study.log'}"

    def claim(name):
        study = SharedStudy(url, "s", {name: Uniform(0, 1)}, 1, lambda index: {name: 0.5})
        claimed = study.claim(())
        assert claimed is not None
        return claimed[1], study._study.trials[0].params

    assert claim("old") == ({"old": 0.5}, {"old": 0.5})
    monkeypatch.setattr(samplers, "RENAMED_FIELDS", {"old": "new"})
    assert claim("new") == ({"new": 0.5}, {"old": 0.5})
