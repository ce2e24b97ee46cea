"""Heartbeats: the trials of dead workers return to the queue."""

import pytest
from shared_studies import DiedError, die, end, states
from waiting import wait_until

from jaxrl.tuning.studies.heartbeat import lost_trials, requeue
from jaxrl.tuning.studies.storage import change_state
from jaxrl.tuning.studies.stored_trials import indexed_trials, paused_after


def claim_in_time(study):
    """Claim a trial as soon as one is in the queue."""
    return wait_until(lambda: study.claim(()), 20)


def test_a_trial_of_a_worker_that_died_while_taking_it_returns_to_the_queue(studies, monkeypatch):
    dead = studies("dead", num_trials=1, heartbeat_seconds=60)
    monkeypatch.setattr(dead, "_begin", die)
    with pytest.raises(DiedError):
        dead.claim(())
    assert states(dead) == ["RUNNING"]
    dead.close()
    alive = studies("alive", num_trials=1, heartbeat_seconds=1)
    assert any(alive.unfinished_elsewhere())
    assert claim_in_time(alive) == (0, {"gamma": pytest.approx(0.3)})
    end(alive, 0)
    assert states(alive) == ["FAIL", "COMPLETE"]
    assert alive.claim(()) is None
    assert not any(alive.unfinished_elsewhere())


def test_a_worker_that_dies_while_it_requeues_a_trial_does_not_lose_it(studies):
    slow = studies("slow", num_trials=1, heartbeat_seconds=60)
    index, _ = slow.claim(())
    change_state(slow._storage, slow._claimed[index], "FAIL")  # and no repetition is added
    alive = studies("alive", num_trials=1, heartbeat_seconds=1)
    assert claim_in_time(alive)[0] == index
    assert slow.report(index, 0, 1.0) is None  # it was alive after all
    end(alive, index)
    assert states(alive) == ["FAIL", "COMPLETE"]


def test_a_trial_that_is_lost_while_the_study_is_read_is_still_unfinished(studies, monkeypatch):
    """No state between two readings, where the trial has failed and is not repeated, is missed."""
    slow = studies("slow", num_trials=1, heartbeat_seconds=60)
    index, _ = slow.claim(())
    alive = studies("alive", num_trials=1, heartbeat_seconds=60)
    read = alive._study.get_trials

    def fail_after_reading(deepcopy=True):
        trials = read(deepcopy=True)
        change_state(slow._storage, slow._claimed[index], "FAIL")
        return trials

    monkeypatch.setattr(alive._study, "get_trials", fail_after_reading)
    assert any(alive.unfinished_elsewhere())
    assert any(alive.unfinished_elsewhere())


def test_of_two_repetitions_the_one_that_ran_is_repeated_again(studies):
    """Two heartbeats repeat a trial at once; a worker pauses the first of them, and dies."""
    first, other = studies("a"), studies("b")
    first.claim(())
    change_state(first._storage, first._study.trials[0], "FAIL")
    requeue(first._study, first._study.trials[0])
    requeue(first._study, first._study.trials[0])
    other.claim(())
    other.report(0, 0, 1.0)
    assert other.pause(0, 1)
    other.claim_paused(0)
    assert states(other) == ["FAIL", "RUNNING", "FAIL"]
    change_state(other._storage, other._study.trials[1], "FAIL")
    lost = lost_trials(indexed_trials(first._study), 1)[0]
    assert (lost.number, paused_after(lost)) == (1, 1)


def test_a_repeated_trial_is_not_owned_by_the_worker_that_lost_it(studies):
    first, other = studies("a"), studies("b")
    index, values = first.claim(())
    first.close()
    change_state(other._storage, other._study.trials[0], "FAIL")
    requeue(other._study, other._study.trials[0])
    assert not studies("a")._unclaimed
    assert other.claim(()) == (index, values)
