"""A whole study in the form of `sweep.json`: all workers' trials together."""

import datetime
import sqlite3
from contextlib import closing

import optuna
import pytest
import sweep_runs
from shared_studies import end, optuna_storage

from jaxrl.files.urls import file_url
from jaxrl.tuning import Choice, HyperTrick, Status, read_study
from jaxrl.tuning.studies.events import BEGUN, REPORTED, STOPPED, Event, trial_of_event
from jaxrl.tuning.studies.heartbeat import requeue
from jaxrl.tuning.studies.storage import change_state
from jaxrl.tuning.studies.study import SharedStudy


@pytest.fixture
def swept(tmp_path):
    """The summary of a sweep of one worker, and the URL of its study."""
    url = file_url(tmp_path / "study.db")
    result = sweep_runs.run(
        tmp_path / "a", HyperTrick(6, 2), sweep_runs.STATIC, storage=url, study_name="s"
    )
    return result.summary, url


def test_a_study_of_one_worker_holds_what_its_sweep_wrote(swept):
    summary, url = swept
    found = read_study(url)
    assert found["trials"] == summary["trials"]
    assert found["owners"] == {row["trial"]: summary["worker"] for row in summary["trials"]}
    shared = ("algorithm", "env", "num_envs", "config", "scheduler", "phase", "space", "study")
    assert {name: found[name] for name in shared} == {name: summary[name] for name in shared}
    assert found["workers"] == {summary["worker"]: 6}
    assert found["lost"] == 0
    assert 0 < found["occupancy"] <= 1

    def phases(spans):
        return sorted((span["trial"], span["phase"]) for span in spans)

    assert phases(found["spans"]) == phases(summary["spans"])
    assert 1 <= found["lanes"] <= 4


def open_worker(url, worker, num_phases=1):
    sizes = ((2,), (4, 2))
    search = {
        "algorithm": "toy", "env": "probe/x", "phase": {"length": 1, "unit": "updates"},
        "scheduler": {"name": "RandomSearch", "num_trials": 3, "num_phases": num_phases},
        "space": {"hidden_sizes": {"kind": "Choice", "values": [list(size) for size in sizes]}},
    }  # fmt: skip
    draw = lambda index: {"hidden_sizes": sizes[index % 2]}  # noqa: E731
    space = {"hidden_sizes": Choice(sizes)}
    return SharedStudy(url, "s", space, 3, draw, worker=worker, search=search)


def claim(study):
    claimed = study.claim(())
    assert claimed is not None
    return claimed[0]


def test_lost_trials_count_once(tmp_path):
    url = file_url(tmp_path / "s.db")
    with closing(open_worker(url, "a")) as a, closing(open_worker(url, "b")) as b:
        lost = claim(a)
        change_state(a._storage, a._claimed[lost], "FAIL")
        requeue(a._study, a._study.trials[lost])
        for study in (b, a):
            end(study, claim(study))
        claim(b)
        a._study.add_trial(optuna.create_trial(state=optuna.trial.TrialState.WAITING))
        assert a.claim(()) is None  # one trial too many, as workers may add at the same time
        assert [t.state.name for t in a._study.trials].count("FAIL") == 2
        found = read_study(url, "s")
    assert found["workers"] == {"b": 2, "a": 1}
    assert found["lost"] == 1
    assert [trial["status"] for trial in found["trials"]] == ["completed", "completed", "running"]
    assert [trial["values"]["hidden_sizes"] for trial in found["trials"]] == [[2], [4, 2], [2]]
    assert [trial["scores"] for trial in found["trials"]] == [[0.0], [1.0], []]


def test_phases_lie_on_free_lanes_of_their_workers_at_the_times_of_the_events(tmp_path):
    """Trial 0 pauses after a phase on worker a, and goes on with b, in another time zone."""
    url, noon = file_url(tmp_path / "s.db"), datetime.datetime(2026, 1, 1, 12)
    events = (  # kind, trial, phases, worker, seconds
        (BEGUN, 0, 0, "a", 0), (BEGUN, 1, 0, "a", 0), (REPORTED, 1, 0, "a", 4),
        (REPORTED, 0, 0, "a", 5), (BEGUN, 2, 0, "a", 6), (REPORTED, 1, 1, "a", 7),
        (REPORTED, 2, 0, "a", 8), (BEGUN, 0, 1, "b", 3601), (REPORTED, 0, 1, "b", 3606),
        (STOPPED, 1, 2, "a", 9), (BEGUN, 2, 0, "a", 10), (REPORTED, 2, 0, "a", 11),
    )  # fmt: skip
    with closing(open_worker(url, "a", num_phases=3)) as a:
        for kind, trial, phases, worker, seconds in events:
            number = 3 if seconds in (10, 11) else trial  # trial 2 is repeated
            stored = trial_of_event(Event(kind, trial, number, phases, worker, score=1.0))
            stored.datetime_start = noon
            stored.datetime_complete = noon + datetime.timedelta(seconds=seconds)
            a.log._study.add_trial(stored)
        found = read_study(url, "s")
    expected = [  # lane, trial, phase, begin, end
        (0, 1, 0, 0, 4), (1, 0, 0, 0, 5), (0, 1, 1, 4, 7), (0, 2, 0, 10, 11), (2, 0, 1, 3601, 3606)
    ]  # fmt: skip
    assert [tuple(span.values()) for span in found["spans"]] == expected


def test_a_study_has_the_status_of_trials(tmp_path):
    url = file_url(tmp_path / "s.db")
    with closing(open_worker(url, "a", num_phases=3)) as a:
        for scores in ([1.0], [5.0, 5.0, 2.0], [2.0, 4.0]):
            index = claim(a)
            for phase, score in enumerate(scores):
                a.report(index, phase, score)
            if len(scores) > 1:
                is_whole = len(scores) == 3
                a.finish(index, Status.COMPLETED if is_whole else Status.STOPPED, scores)
        a.pause(0, 1)
        found = read_study(url, "s")
    assert [trial["status"] for trial in found["trials"]] == ["paused", "completed", "stopped"]


def test_reading_changes_nothing(tmp_path):
    """A typo, or a stranger's directory, may name any file."""
    notes, database = tmp_path / "notes.txt", tmp_path / "other.db"
    for text in (b"a line\nanother one", b"{"):
        notes.write_bytes(text)
        with pytest.raises(ValueError, match=r"notes\.txt is no journal|must be one of \[\]"):
            read_study(f"journal:///{notes}")
        assert notes.read_bytes() == text
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("create table mine (x)")
    before = database.read_bytes()
    with pytest.raises(ValueError, match=r"other\.db' cannot be opened: .*no such table"):
        read_study(file_url(database))
    assert database.read_bytes() == before


def test_a_study_is_read_while_a_worker_writes(tmp_path):
    url = file_url(tmp_path / "s.db")
    with closing(open_worker(url, "a", num_phases=3)) as a:
        claim(a)
        with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as other:
            other.execute("begin immediate")
            assert len(read_study(url, "s")["trials"]) == 1


def test_only_a_study_of_a_sweep_is_read(tmp_path, swept):
    _, url = swept
    with pytest.raises(FileNotFoundError, match=r"no study in .*missing\.db"):
        read_study(file_url(tmp_path / "missing.db"))
    assert not (tmp_path / "missing.db").exists()
    with pytest.raises(ValueError, match=r"must be one of \['s'\].*got 'other'"):
        read_study(url, "other")
    with optuna_storage(url) as storage:
        optuna.create_study(storage=storage, study_name="foreign")
    with pytest.raises(ValueError, match=r"must be one of \['foreign', 's'\].*got None"):
        read_study(url)
    with pytest.raises(ValueError, match=r"'foreign'.*its search is not one of jaxrl's"):
        read_study(url, "foreign")
    other = file_url(tmp_path / "other.db")
    with optuna_storage(other) as storage:
        optuna.create_study(storage=storage, study_name="alone")
    with pytest.raises(ValueError, match=r"the study 'alone' at .* not one of jaxrl's"):
        read_study(other)
