"""Workers' views of a small shared study, and what Optuna finds in the storage of any study."""

import contextlib

import optuna

from jaxrl.tuning import Status, Uniform
from jaxrl.tuning.studies.storage import close_storage
from jaxrl.tuning.studies.study import SharedStudy


@contextlib.contextmanager
def optuna_storage(url):
    """Open a database as Optuna does, and close it, which Optuna leaves to garbage collection.

    From Python 3.13 on, SQLite warns of a connection that is not closed.
    """
    storage = optuna.storages.get_storage(url)
    try:
        yield storage
    finally:
        close_storage(storage)


def stored_trials(url, study_name):
    """Return the trials that a database has of a study."""
    with optuna_storage(url) as storage:
        return optuna.load_study(study_name=study_name, storage=storage).trials


def open_study(url, worker, num_trials=4, heartbeat_seconds=60):
    """Open a study whose trial i has gamma = 0.3 + 0.01 i."""

    def draw(index):
        return {"gamma": 0.3 + 0.01 * index}

    space = {"gamma": Uniform(0.3, 0.9)}
    worker_options = {"worker": worker, "heartbeat_seconds": heartbeat_seconds}
    return SharedStudy(url, "s", space, num_trials, draw, **worker_options)


def end(study, index):
    """Report a claimed trial's only score, and complete it."""
    assert study.report(index, 0, float(index)) == float(index)
    study.finish(index, Status.COMPLETED, [float(index)])


def states(study):
    """Return the states of all trials in the order of their numbers."""
    return [trial.state.name for trial in study._study.trials]


class DiedError(Exception):
    """Raised where a worker dies."""


def die(*_):
    """Stand in for a function during which a worker dies."""
    raise DiedError
