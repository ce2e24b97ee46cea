"""The state of a sweep: scores of phases, and a damaged `sweep.json`."""

import math

import pytest
from sweep_runs import run

from jaxrl.tuning import HyperTrick
from jaxrl.tuning.sweeps.state import PhaseRun


def test_infinite_returns_are_the_worst_score():
    metrics = {"episode_count": 2.0, "episode_return_sum": math.inf, "loss": 0.0}
    phase_run = PhaseRun(0, 0.0)
    assert math.isnan(phase_run.score)
    phase_run.count(metrics, 1)
    assert phase_run.score == -math.inf


@pytest.mark.usefixtures("quick_compilation")
def test_a_damaged_sweep_json_is_named(tmp_path):
    run(tmp_path / "x", HyperTrick(2, 1))
    path = tmp_path / "x" / "sweep.json"
    text = path.read_text()
    for damaged, message in (
        (text[:20], "is damaged: "),
        ("[]", "must be an object"),
        ("{}", "it lacks algorithm, "),
    ):
        path.write_text(damaged)
        with pytest.raises(ValueError, match=rf"sweep.json.*{message}"):
            run(tmp_path / "x", HyperTrick(2, 1), resume=True)
