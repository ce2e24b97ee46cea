"""Workers' views of a small shared study, for tests of the study and its heartbeats."""

from jaxrl.tuning import Status, Uniform
from jaxrl.tuning.studies.study import SharedStudy


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
