"""`jaxrl report`: the page of a study, from a sweep's directory or from its storage."""

import contextlib
import shutil
from pathlib import Path

import optuna
import pytest
import sweep_runs
from shared_studies import optuna_storage
from written_sweeps import sweep_of, trial

from jaxrl.cli import report
from jaxrl.tuning import HyperTrick, ranking
from jaxrl.tuning.sweeps import sweep_file

STORAGE = "sqlite:///study.db"


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    directory = tmp_path_factory.mktemp("swept")
    with contextlib.chdir(directory):
        for name in ("a", "b"):
            sweep_runs.run(Path(name), HyperTrick(4, 2), storage=STORAGE, study_name="toys")
    return directory


@pytest.fixture
def workers(swept, tmp_path, monkeypatch):
    """The directories of two workers of one study; the second one came when all was done."""
    shutil.copytree(swept, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return STORAGE, tmp_path


def test_a_report_has_the_trials_of_all_workers(workers, swept, capsys):
    storage, directory = workers
    assert report.main(["b"]) == 0
    page = directory / "b" / "study" / "report.html"
    first, settings, last = capsys.readouterr().out.splitlines()
    best = ranking.ranked(sweep_file.read(directory / "a")["trials"])[0]
    assert first.startswith(f"winner: trial {best['trial']}, score ")
    assert first.endswith(f"of worker {sweep_file.read(directory / 'a')['worker']}")
    assert settings.startswith("settings: ")
    assert f"learning_rate={best['values']['learning_rate']!r}" in settings
    assert last == f"page: {page.relative_to(directory)}"
    text = page.read_text()
    assert text.count("data:image/png") == 5
    assert f"{swept / 'a'}: 4 trials" in text
    assert storage in text
    assert report.main([storage, "--study", "toys", "--out", "whole"]) == 0
    assert (directory / "whole" / "report.html").read_text() == text
    assert report.main([storage]) == 0
    assert (directory / "runs" / "toys" / "study" / "report.html").exists()


@pytest.mark.usefixtures("no_pictures")
def test_finals_are_on_the_page_of_their_own_study_only(workers):
    storage, directory = workers
    sweep_runs.run(directory / "c", HyperTrick(4, 2), storage=storage, study_name="others")
    sweep = sweep_file.read(directory / "a")
    (best, *_) = ranking.ranked(sweep["trials"])
    (final,) = finals = [{"trial": best["trial"], "values": best["values"], "scores": [1.0]}]
    final |= {"score": 1.0, "search": 2.0}
    sweep_file.write(directory / "a", sweep | {"finals": finals})
    page = directory / "a" / "study" / "report.html"
    for study, has_finals in (("toys", True), ("others", False)):
        assert report.main(["a", "--study", study]) == 0
        assert ("<h2>Finals</h2>" in page.read_text()) == has_finals


def test_a_report_of_nothing_is_refused(workers):
    _, directory = workers
    with pytest.raises(FileNotFoundError, match=r"missing.*sweep\.json"):
        report.main(["missing"])
    with pytest.raises(FileNotFoundError, match="no study in"):
        report.main(["a", "--storage", f"sqlite:///{directory / 'other.db'}"])


def test_a_study_without_a_score_has_no_winner(capsys):
    report.print_winner({"trials": [], "finals": []})
    assert capsys.readouterr().out == "no winner: no trial has a finite score\n"
    report.print_winner({"trials": [], "finals": [{"trial": 0, "score": "-inf"}]})
    assert "no winner: in the finals each setting has a run that" in capsys.readouterr().out


@pytest.mark.parametrize("status", ["completed", "running", "paused"])
def test_a_study_that_goes_on_has_a_best_trial_so_far(capsys, status):
    trials = [trial(0, [3.0], gamma=0.9), trial(1, [2.0], status)]
    report.print_winner(sweep_of(trials, owners={0: "a"}))
    what = "winner" if status == "completed" else "best so far"
    first, settings = capsys.readouterr().out.splitlines()
    assert (first, settings) == (f"{what}: trial 0, score 3, of worker a", "settings: gamma=0.9")


def test_two_storages_are_refused():
    with pytest.raises(ValueError, match="the source is a storage already: leave --storage out"):
        report.main(["sqlite:///a.db", "--storage", "sqlite:///b.db"])


def test_a_directory_does_not_choose_the_database_that_gets_a_password(workers):
    _, directory = workers
    sweep = sweep_file.read(directory / "a")
    sweep_file.write(directory / "a", sweep | {"storage": "postgresql://me@elsewhere/x"})
    with pytest.raises(ValueError, match="give --storage postgresql://me@elsewhere/x"):
        report.main(["a"])


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("name", ["../escaped", "/escaped", "..", "a/b"])
def test_a_study_does_not_choose_where_its_page_goes(workers, name):
    storage, directory = workers
    with optuna_storage(storage) as opened:
        optuna.copy_study(
            from_study_name="toys", from_storage=opened, to_storage=opened, to_study_name=name
        )
    with pytest.raises(ValueError, match="cannot name a directory; give --out"):
        report.main([storage, "--study", name])
    assert report.main([storage, "--study", name, "--out", "here"]) == 0
    assert (directory / "here" / "report.html").exists()


def test_a_directory_without_a_sweep_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"not a sweep's directory: it has no sweep\.json"):
        report.main([str(tmp_path)])
