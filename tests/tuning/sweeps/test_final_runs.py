"""Finals of a sweep: those of one program, after kills too, and shared by workers."""

import shutil
from typing import Any

import numpy as np
import optuna
import pytest
from shared_studies import optuna_storage
from sweep_runs import UPDATES, KilledError, outcome, run, searched, stop_after

from jaxrl.analysis.sweep_report import write_report
from jaxrl.training.loggers import read_jsonl
from jaxrl.tuning import Finals, HyperTrick, LogUniform, RandomSearch
from jaxrl.tuning.sweeps import final_runs, loop, sweep_file

FINALS = Finals(top=2, repeats=3, share=0.5)
RULE = HyperTrick(12, 2)


@pytest.mark.exhaustive
def test_they_are_those_of_one_program(tmp_path):
    result = run(tmp_path / "x", RULE, finals=FINALS, keep_best=1)
    expected = searched(RULE, finals=FINALS)
    finals = expected.finals
    order = np.argsort(-np.asarray(finals.score))
    rows = result.summary["finals"]
    assert [row["trial"] for row in rows] == finals.trial[order].tolist()
    np.testing.assert_allclose([row["score"] for row in rows], finals.score[order], rtol=1e-4)
    runs = np.asarray(finals.scores)[order][..., -2:].mean(-1)
    np.testing.assert_allclose([row["scores"] for row in rows], runs, rtol=1e-4)
    assert result.best is not None
    assert result.best["trial"] == expected.best_trial
    assert result.best["values"] == outcome(result)[result.best["trial"]]["values"]
    assert sweep_file.read(tmp_path / "x")["finals"] == rows
    assert (tmp_path / "x" / "finals" / "best").is_dir()


@pytest.mark.slow
def test_a_sweep_that_is_killed_in_its_finals_resumes_there(tmp_path, monkeypatch):
    expected = run(tmp_path / "whole", RULE, finals=FINALS)
    original, reports = loop.SweepLoop._report, []

    def report(self, *arguments):
        original(self, *arguments)
        if self.settings.run_dir.name == "finals":
            reports.append(arguments)
            if len(reports) == 9:
                raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(loop.SweepLoop, "_report", report)
        with pytest.raises(KilledError):
            run(tmp_path / "killed", RULE, finals=FINALS, checkpoint_seconds=0.0)
    assert "finals" not in sweep_file.read(tmp_path / "killed")
    resumed = run(tmp_path / "killed", RULE, finals=FINALS, resume=True)
    assert outcome(resumed) == outcome(expected)
    assert resumed.summary["finals"] == expected.summary["finals"]
    later = run(tmp_path / "without", RULE)
    assert "finals" not in later.summary
    for finals in (FINALS, None):  # those that a sweep has stay
        later = run(tmp_path / "without", RULE, finals=finals, resume=True)
        assert later.summary["finals"] == expected.summary["finals"]
        assert outcome(later) == outcome(expected)
    assert sweep_file.read(tmp_path / "without")["finals"] == expected.summary["finals"]
    with monkeypatch.context() as patch:
        stop_after(patch, 0)
        assert run(tmp_path / "without", RULE, finals=FINALS, resume=True).interrupted
    assert sweep_file.read(tmp_path / "without")["finals"] == expected.summary["finals"]


@pytest.mark.slow
def test_finals_are_in_the_file_at_each_moment_of_a_resumed_sweep(tmp_path, monkeypatch):
    rule, write, written = RandomSearch(12, 1), sweep_file.write, []

    def write_and_note(directory, summary):
        written.append((directory, summary))
        write(directory, summary)

    finals = run(tmp_path, rule, finals=FINALS).summary["finals"]
    monkeypatch.setattr(sweep_file, "write", write_and_note)
    assert run(tmp_path, rule, resume=True).summary["finals"] == finals
    assert written
    assert all(summary["finals"] == finals for _, summary in written)


@pytest.mark.slow
def test_other_finals_than_those_in_the_directory_are_refused(tmp_path):
    held_finals, other, rule = Finals(1, 2, 0.5), Finals(2, 1, 0.5), RandomSearch(4, 1)
    run(tmp_path / "x", rule, finals=held_finals, storage=None)
    held = "2 runs of the settings of the trials .* remove it"
    with pytest.raises(ValueError, match=f"{held} to train these"):
        run(tmp_path / "x", rule, finals=other, storage=None, resume=True)

    shared = {"storage": f"sqlite:///{tmp_path / 'study.db'}", "study_name": "s"}
    run(tmp_path / "a", rule, worker="a", finals=held_finals, **shared)
    with pytest.raises(
        ValueError, match=r"(?s)another .*scheduler.finalists.*which all workers share"
    ):
        run(tmp_path / "b", rule, worker="b", finals=other, **shared)
    studies = r"'s-finals' and 's-finals \(events\)'"
    advice = (
        rf"{held}, and the studies {studies} from its storage \(optuna.delete_study\), to train"
    )
    with pytest.raises(ValueError, match=advice):
        run(tmp_path / "a", rule, worker="a", finals=other, resume=True, **shared)
    shutil.rmtree(tmp_path / "a" / "finals")
    with optuna_storage(shared["storage"]) as storage:
        for name in ("s-finals", "s-finals (events)"):
            optuna.delete_study(study_name=name, storage=storage)
    again = run(tmp_path / "a", rule, worker="a", finals=other, resume=True, **shared)
    alone = run(tmp_path / "alone", rule, finals=other)
    assert again.summary["finals"] == alone.summary["finals"]


@pytest.mark.slow
def test_workers_share_them(tmp_path):
    shared = {"storage": f"sqlite:///{tmp_path / 'study.db'}", "study_name": "s"}
    first = run(tmp_path / "a", RULE, worker="a", finals=FINALS, **shared)
    finalists = sweep_file.read(tmp_path / "a" / "finals")["scheduler"]["finalists"]
    runs = [list(final_runs.runs_of(tmp_path / "a", trial)) for trial in finalists]
    assert runs == [[0, 1, 2], [3, 4, 5]]
    assert not final_runs.runs_of(tmp_path / "a", 99)
    assert not final_runs.runs_of(tmp_path / "a" / "finals", finalists[0])  # as without finals
    late = run(tmp_path / "b", RULE, worker="b", finals=FINALS, **shared)
    assert late.summary["trials"] == []
    assert late.summary["finals"] == first.summary["finals"]
    assert late.best is not None
    assert late.best == first.best
    page = write_report(late.summary, tmp_path / "b").read_text()
    assert f"trial {late.best['trial']}, score" in page


def test_bad_finals_are_refused_before_any_work(tmp_path):
    with pytest.raises(
        ValueError, match=r"20 runs, 1\.67 times the 12 trials .*, more than share=0.2"
    ):
        run(tmp_path / "x", RULE, finals=Finals())
    with pytest.raises(ValueError, match=r"finals must be jaxrl.tuning.Finals.* got 4"):
        run(tmp_path / "x", RULE, finals=4)
    with pytest.raises(ValueError, match="finals compare all trials of a study, but max_steps and"):
        run(tmp_path / "x", RULE, finals=FINALS, max_steps=1000)
    with pytest.raises(ValueError, match="finals compare all trials of a study"):
        run(tmp_path / "x", RULE, finals=FINALS, max_steps=100)  # a higher cap would not help
    with pytest.raises(ValueError, match=r"6 runs, .* whole trials that max_steps allows, more"):
        run(tmp_path / "x", RULE, finals=FINALS, max_steps=100, storage=None)
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_they_follow_a_capped_search(tmp_path):
    finals = Finals(top=2, repeats=3, share=2.0)
    result = run(tmp_path / "x", RULE, finals=finals, max_steps=100, storage=None)
    spent = sum(row["valid_steps"] for row in read_jsonl(tmp_path / "x" / "metrics.jsonl"))
    assert 100 <= spent < 100 + 4 * 2 * 2 * UPDATES  # a phase of each lane
    assert [len(row["scores"]) for row in result.summary["finals"]] == [3, 3]


def test_trials_without_a_score_are_no_finalists(tmp_path):
    diverging = {"learning_rate": LogUniform(1.0, 2.0)}
    result = run(tmp_path / "x", RULE, space=diverging, finals=FINALS)
    assert "finals" not in result.summary
    assert result.best is None
    trials = [
        {"trial": 0, "scores": [9.0, None, "-inf"]},
        {"trial": 1, "scores": [None, None]},
        {"trial": 2, "scores": [1.0, 3.0, 5.0]},
        {"trial": 3, "scores": [3.0, None]},
        {"trial": 4, "scores": [4.0]},
    ]
    found = final_runs.choose_finalists(trials, FINALS)
    assert [trial["trial"] for trial in found] == [2, 4]


def test_settings_are_ranked_by_the_mean_of_their_runs():
    finalists = [
        {"trial": 7, "values": {"x": 1}, "scores": [1.0, 2.0, 6.0]},
        {"trial": 3, "values": {"x": 2}, "scores": [3.0]},
    ]
    scores = ([1.0], [2.0, 4.0, 2.0], [5.0], [6.0], [None, 4.0], [8.0])
    runs: list[Any] = [{"trial": run, "scores": list(x)} for run, x in enumerate(scores)]
    rows = final_runs.summarize_finals(finalists, finalists, runs, FINALS)
    half = 4.302653 * 2 / np.sqrt(3)  # quantile of Student's t with two degrees of freedom
    assert rows == [
        {"trial": 3, "values": {"x": 2}, "scores": [6.0, 4.0, 8.0], "score": 6.0, "search": 3.0,
         "interval": pytest.approx([6 - half, 6 + half])},
        {"trial": 7, "values": {"x": 1}, "scores": [1.0, 3.0, 5.0], "score": 3.0, "search": 4.0,
         "interval": pytest.approx([3 - half, 3 + half])},
    ]  # fmt: skip
    runs[1]["scores"] = ["-inf"]
    lost = final_runs.summarize_finals(finalists, finalists, runs[:5], FINALS)
    assert [row["score"] for row in lost] == ["-inf", "-inf"]
    assert [row["interval"] for row in lost] == [[None, None]] * 2
    single = final_runs.summarize_finals(finalists, finalists[:1], runs[:1], Finals(1, 1))
    assert [(row["score"], row["interval"]) for row in single] == [(1.0, [None, None])]
