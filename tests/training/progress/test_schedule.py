"""The lengths of chunks, and the times of evaluations."""

import pytest

from jaxrl.training.progress.rows import Progress
from jaxrl.training.progress.schedule import LoopSettings, chunk_length


@pytest.mark.parametrize(
    ("settings", "done", "seconds_per_update", "length"),
    [
        ({"chunk_updates": 7}, 0, None, 7),
        ({}, 0, None, 1),  # the first one, whose speed is unknown
        ({}, 1, 0.1, 20),
        ({}, 1, 1e-9, 1024),  # the buffer of metrics
        ({"log_every": 6}, 1, 0.1, 17),  # ends with a row
        ({"log_every": 1000}, 1000, 1e-9, 1000),
        ({"num_evaluations": 500}, 3, 0.1, 7),
        ({}, 4995, 0.1, 5),
    ],
)
def test_the_length_of_a_chunk(settings, done, seconds_per_update, length):
    defaults = LoopSettings(5000, 4, 1, 0, 4, False, None, 2.0, 10.0)
    unfinished = done % settings.get("log_every", 1)
    progress = Progress(update=done, row={"loss": [0.0] * unfinished})
    assert chunk_length(defaults._replace(**settings), progress, seconds_per_update) == length


@pytest.mark.parametrize(
    ("num_updates", "number", "at"),
    [
        (10, 0, []),
        (10, 1, [10]),
        (10, 3, [4, 7, 10]),
        (3, 10**12, [1, 2, 3]),  # at most one after each update
    ],
)
def test_evaluations_are_evenly_spaced_and_the_last_one_is_at_the_end(num_updates, number, at):
    settings = LoopSettings(num_updates, 4, 1, number, 4, False, None, 2.0, 10.0)
    found, update = [], settings.next_evaluation(0)
    while update is not None:
        found.append(update)
        update = settings.next_evaluation(update)
    assert found == at
