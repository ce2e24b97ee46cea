"""Progress: rows and totals of a run, from the metrics of its updates."""

import numpy as np

from jaxrl.training.progress.rows import Progress


def metrics(**columns):
    defaults = {
        "valid_steps": [8, 6], "episode_count": [0, 2], "episode_return_sum": [0.0, 30.0],
        "episode_length_sum": [0, 40], "gradient_steps": [4, 4], "loss": [1.0, 2.0],
    }  # fmt: skip
    return {name: np.array(values) for name, values in (defaults | columns).items()}


def test_a_row_adds_counts_and_averages_losses():
    progress = Progress()
    assert progress.mean_return is None
    progress.add(metrics(), seconds=2.0)
    assert progress.row_updates == 2
    assert progress.mean_return == 15.0  # of the row that has not ended
    assert progress.end_row(steps_per_update=8) == {
        "update": 2, "steps": 14, "seconds": 2.0, "steps_per_second": 7.0, "episode_count": 2.0,
        "episode_return": 15.0, "episode_length": 20.0, "loss": 1.5,
        "predictions_per_second": 8.0, "trainings_per_second": 4.0,
    }  # fmt: skip
    assert progress.row_updates == 0


def test_the_mean_return_is_over_the_last_hundred_episodes():
    progress = Progress()
    for total in (0.0, 600.0, 120.0, 60.0):
        progress.add(metrics(episode_count=[60, 0], episode_return_sum=[total, 0.0]), seconds=1.0)
        progress.end_row(8)
    assert progress.mean_return == 180 / 120
