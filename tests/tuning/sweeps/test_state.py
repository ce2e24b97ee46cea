"""The state of a sweep: scores of phases, and a damaged `sweep.json`."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweep_runs import run

from jaxrl.tuning import HyperTrick, objectives
from jaxrl.tuning.sweeps.state import PhaseRun


def test_a_phase_has_the_sums_and_means_of_each_agent():
    phase_run = PhaseRun(0, 0.0, 0)
    assert phase_run.episodes == 0
    counts, returns, losses = (
        np.array([[1, 0], [2, 3]]),
        np.ones((2, 2)),
        np.array([[1, 2], [3, 5]]),
    )
    for _ in range(2):
        metrics = {"episode_count": counts, "episode_return_sum": returns, "loss": losses}
        phase_run.count(metrics, 2)
    assert (phase_run.updates, phase_run.episodes) == (4, 2)
    found = phase_run.metrics()
    np.testing.assert_array_equal(found["episode_count"], [[2], [10]])
    np.testing.assert_array_equal(found["episode_return_sum"], [[4], [4]])
    np.testing.assert_array_equal(found["loss"], [[1.5], [4]])
    phase_run.count(metrics | {"loss": np.array([[0.0, math.nan], [0.0, 0.0]])}, 2)
    assert phase_run.episodes == 15  # of the other agent
    again = PhaseRun(**json.loads(json.dumps(dataclasses.asdict(phase_run))))
    of_phase = jax.tree.map(jnp.asarray, again.metrics())
    assert objectives.mean_return(of_phase) == -math.inf
    returns = np.asarray(objectives.agent_returns(of_phase))
    np.testing.assert_allclose(returns, [-math.inf, 6 / 15])
    phase_run.count(metrics | {"loss": np.full((2, 2), math.inf)}, 2)
    assert phase_run.episodes == math.inf


def test_a_damaged_sweep_json_is_named(tmp_path):
    run(tmp_path / "x", HyperTrick(2, 1))
    path = tmp_path / "x" / "sweep.json"
    text = path.read_text()
    edited = {name: x for name, x in json.loads(text).items() if name != "digest"}
    edited["finals"] = [{"trial": 0, "values": {}, "scores": [None], "score": None}]
    for damaged, message in (
        (text[:20], "is damaged: "),
        ("[]", "must be an object"),
        ("{}", "it lacks run_id, algorithm, "),
        (json.dumps(edited), "finals must be a list"),
    ):
        path.write_text(damaged)
        with pytest.raises(ValueError, match=rf"sweep.json.*{message}"):
            run(tmp_path / "x", HyperTrick(2, 1), resume=True)
