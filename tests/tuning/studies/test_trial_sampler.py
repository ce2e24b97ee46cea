"""Samplers: they learn from trials, and values that are chosen again are the same."""

import math
from contextlib import closing

import numpy as np
import optuna
import pytest
from shared_studies import DiedError, die, end, stored_trials
from sweep_runs import KilledError, kill_after_reports, outcome, run

from jaxrl.tuning import QLogUniform, RandomSearch, Uniform
from jaxrl.tuning.studies import trial_sampler
from jaxrl.tuning.studies.storage import study_view
from jaxrl.tuning.studies.study import SharedStudy


@pytest.mark.parametrize(
    ("sampler", "needs"), [("tpe", "optuna"), ("cmaes", "cmaes"), ("gp", "torch")]
)
def test_samplers_that_learn_choose_the_values(tmp_path, sampler, needs):
    pytest.importorskip(needs)
    result = run(tmp_path / "x", RandomSearch(30, 1), sampler=sampler, num_lanes=2)
    rates = [trial["values"]["learning_rate"] for trial in outcome(result)]
    distance = np.abs(np.log10(np.array(rates) / 1e-3))
    assert distance[-10:].mean() < distance[:10].mean()
    assert all(1e-5 <= rate <= 1e-1 for rate in rates)


def test_the_study_has_the_rungs_that_were_trained(tmp_path):
    space = {"num_steps": QLogUniform(1, 64, rungs=3)}
    url = f"sqlite:///{tmp_path / 'study.db'}"
    result = run(tmp_path / "x", RandomSearch(4, 1), space, sampler="tpe", storage=url)
    stored = stored_trials(url, "x")
    assert [trial.params for trial in stored] == [trial["values"] for trial in outcome(result)]


def test_a_value_that_single_precision_rounds_beyond_its_bounds_is_stored(tmp_path):
    gamma = Uniform(0.9999, 0.99999)
    drawn = float(np.float32(gamma.low))
    assert drawn < gamma.low

    def open_worker():
        url = f"sqlite:///{tmp_path / 's.db'}"
        return SharedStudy(url, "s", {"gamma": gamma}, 1, lambda _: {"gamma": gamma.value(drawn)})

    with closing(open_worker()) as before:
        claimed = before.claim(())
    with closing(open_worker()) as again:
        assert again.claim(()) == claimed == (0, {"gamma": 0.9999})


def test_samplers_rank_trials_without_a_score_last():
    study = optuna.create_study(direction="maximize")
    for scores in ({0: math.nan, 1: math.nan}, {0: 3.0}, {0: math.nan, 1: 3.0}):
        pruned = optuna.trial.TrialState.PRUNED
        study.add_trial(optuna.create_trial(state=pruned, intermediate_values=scores))
    view = study_view(study, trial_sampler.rank_silent_trial_last)
    viewed = [trial.intermediate_values for trial in view.trials]
    assert viewed[0] == {0: -math.inf}
    assert viewed[1] == {0: 3.0}
    assert viewed[2][1] == 3.0
    assert set(study.trials[0].intermediate_values) == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("reports", [3, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_a_killed_sweep_of_cmaes_resumes_with_the_same_values(tmp_path, monkeypatch, reports):
    arguments = {"sampler": "cmaes", "num_lanes": 2, "checkpoint_seconds": 0.0}
    expected = run(tmp_path / "whole", RandomSearch(20, 1), **arguments)
    with monkeypatch.context() as patch:
        kill_after_reports(patch, reports)
        with pytest.raises(KilledError):
            run(tmp_path / "cut", RandomSearch(20, 1), **arguments)
    resumed = run(tmp_path / "cut", RandomSearch(20, 1), resume=True, **arguments)
    assert outcome(resumed) == outcome(expected)


@pytest.mark.parametrize("num_ended", [0, 12])
@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_values_chosen_again_after_a_kill_are_the_same(tmp_path, monkeypatch, sampler, num_ended):
    space = {"gamma": Uniform(0, 1), "rate": Uniform(0, 1), "size": Uniform(0, 1)}

    def study(name):
        url = f"journal:///{tmp_path / name}.log"
        drawn = {"gamma": 0.1, "rate": 0.2, "size": 0.3}
        return SharedStudy(url, "s", space, 16, lambda index: drawn, sampler, worker="a")

    for name in ("whole", "1", "2"):
        with closing(study(name)) as begun:
            for index in range(num_ended):
                assert begun.claim(()) is not None
                end(begun, index)
    claims = [study("whole").claim(())]
    for num_chosen in (1, 2):
        steps = iter([trial_sampler.suggest] * num_chosen + [die])
        with monkeypatch.context() as patch:
            patch.setattr(trial_sampler, "suggest", lambda *args, steps=steps: next(steps)(*args))
            with pytest.raises(DiedError):
                study(f"{num_chosen}").claim(())
        claims.append(study(f"{num_chosen}").claim(()))
    assert claims[0] == claims[1] == claims[2]
    assert claims[0] is not None
    assert len(set(claims[0][1].values())) == 3
