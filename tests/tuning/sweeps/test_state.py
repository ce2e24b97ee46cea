"""The state of a sweep: scores of phases, and a damaged `sweep.json`."""

import json
import math

import pytest
from sweep_runs import run

from jaxrl.tuning import HyperTrick, schedulers
from jaxrl.tuning.sweeps.state import PhaseRun, SweepState


def test_infinite_returns_are_the_worst_score():
    metrics = {"episode_count": 2.0, "episode_return_sum": math.inf, "loss": 0.0}
    phase_run = PhaseRun(0, 0.0, 0)
    assert math.isnan(phase_run.score)
    phase_run.count(metrics, 1)
    assert phase_run.score == -math.inf


def test_the_state_of_an_older_version_counts_steps_from_0(tmp_path):
    state = SweepState(schedulers.start(HyperTrick(2, 1)), [None], num_steps=7, chunks=3)
    saved = json.loads(json.dumps(state.to_json(1.0)))
    assert SweepState.from_json(saved, 3, tmp_path).num_steps == 7
    del saved["num_steps"]
    assert SweepState.from_json(saved, 3, tmp_path).num_steps == 0


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
