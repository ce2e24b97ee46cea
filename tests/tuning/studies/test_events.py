"""The events of a study: one order for all workers, from which all decisions follow."""

import contextlib
import itertools
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from shared_studies import open_study

from jaxrl.tuning import ASHA, HyperTrick, Status
from jaxrl.tuning.studies.events import (
    BEGUN,
    REPORTED,
    STOPPED,
    Event,
    event_of,
    judge,
    read_events,
    replay,
    trial_of_event,
)


def begun(trial, number=None, phases=0):
    return Event(BEGUN, trial, trial if number is None else number, phases, "a")


def reported(trial, score, number=None, phases=0):
    return Event(REPORTED, trial, trial if number is None else number, phases, "a", score)


def test_the_state_of_trials_is_read_from_the_ledger():
    events = [begun(0), begun(1), reported(0, 2.0), reported(0, 3.0, phases=1)]
    judged = judge(HyperTrick(3, 2, 0.0), events)
    assert [judged.status(trial).name for trial in range(3)] == ["COMPLETED", "RUNNING", "WAITING"]
    assert [judged.reported(trial) for trial in range(3)] == [2, 0, 0]
    assert [judged.scores(trial) for trial in range(3)] == [[2.0, 3.0], [], []]
    assert judged.has_ended.tolist() == [True, False, False]


def statuses(scheduler, events):
    return [Status(x).name for x in replay(scheduler, events).status.tolist()]


def test_asha_and_hypertrick_decide_by_the_order_of_reports():
    begin = [begun(0), begun(1), begun(2)]
    rising = [reported(trial, float(trial)) for trial in range(3)]
    asha = ASHA(3, 3, 2)
    assert statuses(asha, begin + rising) == ["PAUSED", "READY", "READY"]
    assert statuses(asha, begin + rising[::-1]) == ["PAUSED", "PAUSED", "READY"]
    hypertrick = HyperTrick(3, 2, 0.25)  # of three trials, the earliest 1.5 go on in any case
    assert statuses(hypertrick, begin + rising) == ["RUNNING"] * 3
    assert statuses(hypertrick, begin + rising[::-1]) == ["STOPPED", "STOPPED", "RUNNING"]


def test_a_repeated_trial_begins_from_its_pause_and_late_or_double_events_change_nothing():
    scheduler = HyperTrick(2, 4, 0.0)
    events = [begun(0), *(reported(0, float(p), phases=p) for p in range(3))]
    events += [begun(0, number=7, phases=1)]
    ledger = replay(scheduler, events)
    np.testing.assert_array_equal(ledger.scores[0], [0.0, np.nan, np.nan, np.nan])
    assert ledger.reported.tolist() == [1, 0]
    late = [reported(0, 9.0, phases=3), begun(0), Event(STOPPED, 0, 0, 1, "a")]
    double = [reported(0, 9.0, number=7, phases=0)]
    for mine, other in zip(replay(scheduler, events + late + double), ledger, strict=True):
        np.testing.assert_array_equal(mine, other)
    stopped = [*events, Event(STOPPED, 0, 7, 1, "a"), begun(0, number=7, phases=1)]
    assert statuses(scheduler, stopped) == ["STOPPED", "WAITING"]


@pytest.mark.parametrize("score", [1.5, float("nan"), float("-inf")])
def test_an_event_is_stored_as_it_is(score):
    event = reported(3, score, number=8, phases=2)
    np.testing.assert_equal(event_of(trial_of_event(event)), event)


def test_workers_that_append_at_once_read_the_same_order(tmp_path):
    url = f"sqlite:///{tmp_path / 's.db'}"
    opened = [open_study(url, worker) for worker in "abc"]

    def work(place):
        log, name = opened[place].log, "abc"[place]
        events = [Event(BEGUN, place, place, phases, name) for phases in range(5)]
        assert all(log.place_of(event) is None for event in events)
        return [log.append(event) for event in events]

    with ThreadPoolExecutor(3) as pool:
        places = list(pool.map(work, range(3)))
    assert sorted(itertools.chain(*places)) == list(range(15))
    expected = read_events(url, "s")
    assert [[expected.index(e) for e in expected if e.worker == name] for name in "abc"] == places
    for study in opened:
        study.log.read()
        np.testing.assert_equal(study.log.events, expected)
        study.close()


def test_events_of_a_file_or_study_that_does_not_exist_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no study in .*typo\.db"):
        read_events(f"sqlite:///{tmp_path / 'typo.db'}", "s")
    assert not list(tmp_path.iterdir())
    url = f"sqlite:///{tmp_path / 's.db'}"
    open_study(url, "a").close()
    with pytest.raises(ValueError, match=r"study_name must be one of \['s'\].*got 'typo'"):
        read_events(url, "typo")


def test_damaged_events_are_one_error_that_names_the_study(tmp_path):
    url = f"sqlite:///{tmp_path / 's.db'}"
    study = open_study(url, "a")
    study.log.append(begun(0))
    study.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "s.db")) as database, database:
        changed = "update trial_user_attributes set value_json = '[]' where key = 'event'"
        assert database.execute(changed).rowcount == 1
    with pytest.raises(ValueError, match=r"the study 's' at sqlite:///.* is damaged or not this"):
        read_events(url, "s")
