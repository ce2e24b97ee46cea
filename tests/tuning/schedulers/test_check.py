"""The contract of schedulers: all of jaxrl's keep it, and violations are named."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.tuning import (
    ASHA,
    PBT,
    HyperBand,
    HyperTrick,
    RandomSearch,
    Status,
    SuccessiveHalving,
    check_scheduler,
)
from jaxrl.tuning.schedulers.contract import MEMBERS


@pytest.mark.parametrize(
    "scheduler",
    [
        RandomSearch(5, 2), HyperTrick(9, 3), SuccessiveHalving(6, 4, eta=2), HyperBand(4, eta=2),
        ASHA(8, 4, eta=2), PBT(4, 2),
    ],
    ids=lambda scheduler: type(scheduler).__name__,
)  # fmt: skip
def test_every_scheduler_keeps_the_contract(scheduler):
    check_scheduler(scheduler)


class Own(RandomSearch):
    """A scheduler whose status is changed by a function."""

    change = staticmethod(lambda ledger, trial: ledger.status)

    def judge(self, ledger, trial):
        return self.change(ledger, trial)


def judged(change):
    return type("Judged", (Own,), {"change": staticmethod(change)})(4, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ledger, trial: ledger.status[:2], r"the status must be int32\[4\], is int32\[2\]"),
        (lambda ledger, trial: ledger.scores[:, 0], r"must be int32\[4\], is float32\[4\]"),
        (
            lambda ledger, trial: np.sort(ledger.status),
            r"judge\(ledger, trial\) must compute by jax",
        ),
        (lambda ledger, trial: ledger.status if trial else 0, "failed with TracerBool"),
        (lambda ledger, trial: ledger.status.at[trial].set(9), "some are no Status"),
        (
            lambda ledger, trial: jnp.minimum(ledger.status, Status.STOPPED),
            "a trial that has ended changes its status",
        ),
        (lambda ledger, trial: ledger.status.at[trial].set(Status.WAITING), "that has begun"),
        (lambda ledger, trial: ledger.status.at[0].set(Status.RUNNING), "that has no lane"),
        (lambda ledger, trial: ledger.status.at[3].set(Status.COMPLETED), "not reported all"),
        (lambda ledger, trial: ledger.status.at[trial].set(Status.COMPLETED), "not reported all"),
        (lambda ledger, trial: ledger.status.at[trial].set(Status.PAUSED), "`pauses` is False"),
    ],
)
def test_bad_decisions_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        check_scheduler(judged(change))


def test_other_errors_of_judge_keep_their_traceback():
    with pytest.raises(AttributeError, match="statuss"):
        check_scheduler(judged(lambda ledger, trial: ledger.statuss))


def test_decisions_that_differ_from_trace_to_trace_are_named():
    traces = []

    def change(ledger, trial):
        traces.append(trial)
        answer = (Status.RUNNING, Status.STOPPED)[len(traces) % 2]
        return ledger.status.at[trial].set(jnp.int32(answer))

    with pytest.raises(ValueError, match="otherwise the next time, or under vmap"):
        check_scheduler(judged(change))


def test_what_is_no_scheduler_is_named():
    with pytest.raises(ValueError, match="it is a class: make an instance"):
        check_scheduler(RandomSearch)  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ValueError, match="it has no num_trials, num_phases, pauses, judge"):
        check_scheduler("random")  # pyrefly: ignore[bad-argument-type]
    plain = type("Plain", (), {name: getattr(RandomSearch(4, 2), name) for name in MEMBERS})()
    with pytest.raises(ValueError, match="it is no dataclass"):
        check_scheduler(plain)
    mutable = dataclasses.make_dataclass("Mutable", [], bases=(), namespace={
        "num_trials": 2.0, "num_phases": 0, "pauses": 1, "judge": Own.judge
    })  # fmt: skip
    with pytest.raises(ValueError, match="cannot be hashed") as error:
        check_scheduler(mutable())
    for name in ("num_trials must be", "num_phases must be", "pauses must be True or False"):
        assert name in str(error.value)
