"""The shared study: each trial runs once, also if a worker dies between two writes."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from shared_studies import DiedError, die, end, open_study, states

from jaxrl.tuning import Status
from jaxrl.tuning.studies import study, trial_queue
from jaxrl.tuning.studies.heartbeat import requeue
from jaxrl.tuning.studies.storage import change_state
from jaxrl.tuning.studies.study import SharedStudy


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_worker_that_dies_while_it_takes_a_trial_has_it_after_a_restart(
    tmp_path, monkeypatch, kind
):
    url = f"{kind}:///{tmp_path / 'study'}"
    steps = ((trial_queue, "change_state"), "WAITING"), ((SharedStudy, "_begin"), "RUNNING")
    for step, state in steps:
        dying = open_study(url, "a", num_trials=2)
        with monkeypatch.context() as patch:
            patch.setattr(*step, die)
            with pytest.raises(DiedError):
                dying.claim(())
        assert states(dying)[-1] == state
        dying.close()
    again = open_study(url, "a", num_trials=2)
    claims = [again.claim(()), again.claim(())]
    assert sorted(filter(None, claims)) == [(0, {"gamma": 0.3}), (1, {"gamma": 0.31})]
    assert again.claim(()) is None
    for index in (0, 1):
        end(again, index)
    assert states(again) == ["COMPLETE"] * 2
    again.close()


def test_a_trial_that_two_workers_added_runs_once(studies):
    first = studies("a", num_trials=2)
    first.claim(())
    lost = first._study.trials[0]
    change_state(first._storage, lost, "FAIL")
    requeue(first._study, lost)
    requeue(first._study, lost)
    for _ in range(2):  # one more than there are trials
        first._study.add_trial(study.import_optuna().create_trial(state=first._state.WAITING))
    other = studies("b", num_trials=2)
    assert [other.claim(())[0] for _ in range(2)] == [0, 1]
    assert other.claim(()) is None
    assert states(other) == ["FAIL", "RUNNING", "FAIL", "RUNNING", "FAIL"]


def test_a_worker_that_comes_back_in_time_keeps_its_trials(studies):
    first, other = studies("a", num_trials=3), studies("b", num_trials=3)
    claims = [first.claim(()), first.claim(())]
    end(first, 0)
    other.claim(())
    first.close()
    again = studies("a", num_trials=3)
    assert again.ended_values() == {0: claims[0][1]}
    assert again.claim(again.ended_values()) == claims[1]
    assert again.claim(again.ended_values()) is None
    assert any(again.unfinished_elsewhere())
    end(again, 1)
    end(other, 2)
    assert states(other) == ["COMPLETE"] * 3
    assert not any(again.unfinished_elsewhere())


def test_a_trial_that_ended_earlier_before_a_restart_is_not_lost(studies):
    first = studies("a", num_trials=1)
    index, values = first.claim(())
    first.report(index, 0, 3.0)
    first.finish(index, Status.STOPPED, [3.0])
    first.close()
    again = studies("a", num_trials=1)
    assert again.claim(()) == (index, values)  # it is alone, and runs what its checkpoint lacks
    assert again.report(index, 0, 3.0) == 3.0
    assert again.ended_values() == {}
    assert again.report(index, 1, 4.0) is None
    assert again.ended_values() == {index: values}


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.STOPPED])
def test_a_trial_that_is_taken_from_a_worker_while_it_ends_it_stays_failed(
    studies, monkeypatch, status
):
    slow = studies("a", num_trials=1)
    index, _ = slow.claim(())
    slow.report(index, 0, 3.0)

    def fail(*_):  # as another worker's heartbeat, after `finish` has read the trial
        change_state(slow._storage, slow._claimed[index], "FAIL")

    monkeypatch.setattr(slow, "fill", fail)
    slow.finish(index, status, [3.0])
    assert states(slow) == ["FAIL"]
    assert slow.claimed() == []


def restarted_beside_another(studies):
    """Return a paused trial's index and values, its worker after a restart, and another one."""
    first = studies("a", num_trials=1)
    index, values = first.claim(())
    first.report(index, 0, 3.0)
    first.pause(index, 1)
    first.close()
    return index, values, studies("a", num_trials=1), studies("b", num_trials=1)


@pytest.mark.parametrize("has_stored_its_name", [False, True])
def test_a_paused_trial_that_another_worker_took_is_not_claimed_after_a_restart(
    studies, monkeypatch, has_stored_its_name
):
    index, _, again, other = restarted_beside_another(studies)
    if has_stored_its_name:
        assert other.claim_paused(index) is not None
    else:
        with monkeypatch.context() as patch:
            patch.setattr(other, "_begin", die)
            with pytest.raises(DiedError):
                other.claim_paused(index)
    assert again.claim_paused(index) is None
    assert again.claimed() == []
    assert other._study.trials[index].user_attrs["worker"] == ("b" if has_stored_its_name else "a")


def test_a_paused_trial_is_claimed_after_a_restart(studies):
    index, values, again, other = restarted_beside_another(studies)
    assert again.claim_paused(index) == (index, values)
    assert other.claim_paused(index) is None
    assert again.paused_after(index) == 1
    assert states(again) == ["RUNNING"]


def test_workers_that_look_at_the_same_time_take_different_trials_of_sqlite(tmp_path, monkeypatch):
    url, together = f"sqlite:///{tmp_path / 's.db'}", threading.Barrier(6)
    first = threading.local()
    opened = [open_study(url, worker, num_trials=40) for worker in "abcdef"]
    original = trial_queue.trials_since

    def look(*arguments):
        trials = original(*arguments)
        if not hasattr(first, "waited"):  # later some claim while others still look
            first.waited = together.wait(60)
        return trials

    monkeypatch.setattr(trial_queue, "trials_since", look)
    with ThreadPoolExecutor(len(opened)) as pool:
        claims = list(pool.map(lambda each: [each.claim(()) for _ in range(3)], opened))
    indices = [index for index, _ in itertools.chain(*claims)]
    assert len(set(indices)) == len(indices) == 18
    for each in opened:
        each.close()
