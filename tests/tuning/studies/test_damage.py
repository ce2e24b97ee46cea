"""Damaged, foreign and deleted studies: each is one error that names it."""

import contextlib
import shutil
import sqlite3
from pathlib import Path

import optuna
import pytest
from shared_studies import end, open_study, optuna_storage
from sweep_runs import outcome, run, stop_after_reports
from waiting import wait_until

from jaxrl.tuning import HyperTrick, Uniform
from jaxrl.tuning.studies import events
from jaxrl.tuning.studies import study as studies_module
from jaxrl.tuning.studies.damage import DamagedStudyError, explain_storage_failure
from jaxrl.tuning.studies.storage import close_storage, open_storage
from jaxrl.tuning.studies.study import SharedStudy


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Files of studies of which one trial ended and one runs, and no worker is left."""
    directory = tmp_path_factory.mktemp("studies")
    for url in (f"sqlite:///{directory}/s.db", f"journal:///{directory}/s.log"):
        study = open_study(url, "a")
        study.claim(())
        end(study, 0)
        study.claim(())
        study.close()
    return directory


@pytest.fixture
def database(prepared, tmp_path):
    """A database that a test may damage."""
    return Path(shutil.copy(prepared / "s.db", tmp_path))


@pytest.fixture
def journal(prepared, tmp_path):
    """A journal that a test may damage."""
    return Path(shutil.copy(prepared / "s.log", tmp_path))


def change(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def reopen(url):
    study = open_study(url, "a")
    try:
        while study.claim(()) is not None:
            pass
        assert not any(study.unfinished_elsewhere())
    finally:
        study.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("update trial_user_attributes set value_json = '[['", "JSONDecodeError"),
        ("update trial_user_attributes set value_json = '-1' where key = 'index'", "the index -1"),
        ("update trial_user_attributes set value_json = '3' where key = 'index'", "the index 3"),
        ("update trial_user_attributes set value_json = '3' where key = 'worker'", "the worker 3"),
        ("delete from trial_user_attributes", "trial 1 has no worker, but runs"),
        ("delete from trials where number = 0", "it lacks trial 0"),
        ("update trials set state = 'x'", "LookupError"),
        ("update trials set datetime_complete = null", "no time of its end"),
        ("update trial_params set param_value = 7.0", "ValueError: .*'gamma'"),
        ("update trial_params set distribution_json = replace(distribution_json, '0.9', '0.8')",
         "trial 0 has gamma of FloatDistribution"),
        ("update trial_values set value = 'x'", "TypeError"),
        ("update trial_intermediate_values set step = -1", r"the phases \[-1\]"),
        ("update trial_intermediate_values set intermediate_value = 'x'", r"the scores \['x'\]"),
        ("insert into trial_system_attributes (trial_id, key, value_json)"
         " values (2, 'failed_trial', '7')", "trial 1 has the index .*, but trial 7"),
    ],
)  # fmt: skip
def test_damaged_content_of_a_database_is_one_error(database, statement, message):
    change(database, statement)
    with pytest.raises(ValueError, match=message):
        reopen(f"sqlite:///{database}")


@pytest.mark.parametrize(
    ("number", "line", "message"),
    [
        (1, "[[", "JSONDecodeError"),
        (1, "{}", "KeyError: 'op_code'"),
        (0, '{"op_code": 99, "worker_id": "x"}', "AssertionError"),
        (-1, "[" * 100_000 + "\n", "RecursionError"),
    ],
)
def test_damaged_lines_of_a_journal_are_one_error(journal, number, line, message):
    lines = journal.read_text().splitlines()
    lines[number] = line
    journal.write_text("\n".join(lines) + "\n")
    with pytest.raises(DamagedStudyError, match=message):
        reopen(f"journal:///{journal}")


def test_attributes_of_another_type_are_one_error(journal):
    text = journal.read_text()
    assert '"system_attrs":{}' in text
    journal.write_text(text.replace('"system_attrs":{}', '"system_attrs":[]'))
    with pytest.raises(DamagedStudyError, match="AttributeError"):
        reopen(f"journal:///{journal}")


def test_what_a_full_disk_left_at_the_end_of_a_journal_is_removed(journal):
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":7,"worker_id":"5958')
    reopen(f"journal:///{journal}")
    assert journal.read_bytes().startswith(whole + b'{"op_code":')
    reopen(f"journal:///{journal}")


def test_the_error_names_the_study_and_the_way_out_but_no_password():
    message = (
        "the study 's' at postgresql://u@h/d is damaged or not this sweep's: KeyError: 3. "
        "Resume with .*, restore a copy of them, or begin a new sweep in another directory"
    )
    failures = explain_storage_failure("postgresql://u:secret@h/d", "s")
    with pytest.raises(ValueError, match=message), failures:  # `match`: without the password
        raise DamagedStudyError("KeyError: 3")


def test_a_foreign_study_of_several_objectives_is_refused(tmp_path):
    url = f"sqlite:///{tmp_path / 's.db'}"
    with optuna_storage(url) as storage:
        optuna.create_study(storage=storage, study_name="s", directions=["maximize", "minimize"])
    with pytest.raises(ValueError, match=r"'s' at sqlite:.*s\.db was not made by a sweep of jaxrl"):
        SharedStudy(url, "s", {}, 1, lambda index: {}, search={"env": "x"})


def test_the_connection_is_closed_if_a_study_cannot_be_opened(database, monkeypatch):
    closed = []
    monkeypatch.setattr(studies_module, "close_storage", closed.append)
    change(database, "delete from trials where number = 0")
    with pytest.raises(DamagedStudyError):
        open_study(f"sqlite:///{database}", "a")
    (storage,) = closed
    close_storage(storage)


def test_errors_of_jaxrl_are_not_taken_for_damage(tmp_path):
    def draw(index):
        raise KeyError("draw")

    space = {"gamma": Uniform(0.3, 0.9)}
    study = SharedStudy(f"journal:///{tmp_path / 's.log'}", "s", space, 1, draw)
    with pytest.raises(KeyError, match="draw"):
        study.claim(())
    study.close()


def test_damage_that_the_heartbeat_meets_ends_the_sweep(studies, tmp_path):
    study = studies("a", heartbeat_seconds=1)
    index, _ = study.claim(())
    change(tmp_path / "s.db", "update trial_heartbeats set heartbeat = 'x'")
    wait_until(lambda: study._heartbeat._failure, 20)
    for call in (lambda: study.report(index, 0, 1.0), study.unfinished_elsewhere):
        with pytest.raises(DamagedStudyError, match="ValueError"):
            call()


def test_a_damaged_trial_that_is_added_later_is_found_at_the_next_claim(studies):
    study = studies("a")
    study.claim(())
    waiting = optuna.trial.TrialState.WAITING
    study._study.add_trial(optuna.create_trial(state=waiting, user_attrs={"index": 7}))
    with pytest.raises(DamagedStudyError, match="trial 1 has the index 7"):
        study.claim(())


@pytest.mark.parametrize(
    ("trial", "phases", "kind"), [(4, 0, "begun"), (0, 3, "reported"), (0, 4, "begun")]
)
def test_events_of_trials_and_phases_that_the_sweep_has_not_are_damage(trial, phases, kind):
    event = events.Event(kind, trial, 0, phases, "a", 1.0)
    with pytest.raises(DamagedStudyError, match=r"event 0 is .* has 4 trials of 3 phases"):
        events.replay(HyperTrick(4, 3), [event])


@pytest.mark.parametrize(
    "statement",
    [
        "update trial_user_attributes set value_json = '[1]' where key = 'event'",
        "update trial_user_attributes set value_json = replace(value_json, 'begun', 'else')",
        "update trial_user_attributes set value_json = replace(value_json, '1,', '-1,')",
        "delete from trial_intermediate_values",
        "delete from trials where number = 0",
    ],
)
def test_damaged_events_are_one_error(studies, tmp_path, statement):
    log = studies("a").log
    for phases, kind in ((0, "begun"), (0, "reported")):
        log.append(events.Event(kind, 1, 1, phases, "a", 2.0))
    change(tmp_path / "s.db", statement)
    with pytest.raises(DamagedStudyError, match="event"):
        studies("b")


# --- resumed sweeps ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A sweep that was stopped, with its study in a database, and one that ended."""
    directory = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        stop_after_reports(patch, 1)
        run(directory / "cut", HyperTrick(6, 3), storage=None)
    run(directory / "ended", HyperTrick(2, 1), storage=None)
    shutil.rmtree(directory / "ended" / "checkpoints")  # as of older versions
    return directory


def resume(stopped: Path, tmp_path: Path, *statements: str, name: str = "cut"):
    scheduler = HyperTrick(6, 3) if name == "cut" else HyperTrick(2, 1)
    shutil.copytree(stopped / name, tmp_path / name)
    if statements:
        change(tmp_path / name / "study.db", *statements)
    else:
        (tmp_path / name / "study.db").unlink()
    return run(tmp_path / name, scheduler, storage=None, resume=True, study_name=name)


@pytest.mark.parametrize("name", ["cut", "ended"])
def test_a_study_that_was_deleted_is_not_begun_anew(stopped, tmp_path, name):
    """Without a checkpoint, `sweep.json` lists the trials."""
    assert (stopped / name / "checkpoints").exists() == (name == "cut")
    with pytest.raises(ValueError, match=rf"study '{name}' at .*{tmp_path}.*: it is not there"):
        resume(stopped, tmp_path, name=name)
    assert not (tmp_path / name / "study.db").exists()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("delete from trials", r"it lacks the trials \[0, 1"),
        ("update trials set state = 'WAITING', datetime_complete = null",
         "trial 0 has the status waiting, but the checkpoint "),
        ("update trial_intermediate_values set intermediate_value = 3.5",
         r"trial 0 has the scores \[3.5.*\], but the checkpoint \["),
        ("update trial_params set param_value = 0.5 where param_name = 'gamma'",
         "trial 0 has the values .*'gamma': 0.5"),
        ("delete from trial_params where param_name = 'gamma'", r"lacks its values of \['gamma'\]"),
    ],
)  # fmt: skip
def test_a_study_that_differs_from_the_checkpoint_is_refused(stopped, tmp_path, statement, message):
    with pytest.raises(ValueError, match=message):
        resume(stopped, tmp_path, statement)


def test_an_intact_study_resumes(stopped, tmp_path):
    expected = run(tmp_path / "whole", HyperTrick(6, 3))
    assert outcome(resume(stopped, tmp_path, "select 1")) == outcome(expected)


@pytest.mark.parametrize("scheme", ["sqlite", "journal"])
def test_a_folder_that_is_not_there_is_named(tmp_path, scheme):
    url = f"{scheme}:///{tmp_path / 'typo' / 'study.db'}"
    with pytest.raises(OSError, match=rf"there is no folder .*typo \(after {scheme}:/// a path"):
        open_storage(url, 60)


def test_a_journal_in_a_folder_that_is_read_only_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(OSError, match=r"study.log cannot be written: its folder is read-only"):
        open_storage(f"journal:///{tmp_path / 'study.log'}", 60)
