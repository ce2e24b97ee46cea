"""The metrics of each algorithm's first updates, as recorded in `golden_metrics.json`.

A difference means that an algorithm learns otherwise than before. If that is intended, say so in
the changelog and record anew, from the root of the repository:

    PYTHONPATH=tests python tests/algos/test_golden.py
"""

import json
from pathlib import Path

import numpy as np
import pytest
from small_algorithms import CONFIGS, learn, start

pytestmark = pytest.mark.slow
RECORD = Path(__file__).with_name("golden_metrics.json")
NUM_UPDATES = 20


def metrics_of(name):
    """Return each metric of the first updates, `[20]`."""
    _, metrics = learn(name, CONFIGS[name], start(name), NUM_UPDATES)
    return {metric: np.asarray(values) for metric, values in sorted(metrics.items())}


@pytest.mark.parametrize("name", CONFIGS)
def test_an_algorithm_learns_as_it_did_before(name):
    golden, metrics = json.loads(RECORD.read_text())[name], metrics_of(name)
    assert set(metrics) == set(golden)
    for metric, values in metrics.items():
        # Processors and versions of XLA round differently.
        np.testing.assert_allclose(values, golden[metric], rtol=1e-3, atol=1e-4, err_msg=metric)
    assert {"loss", "episode_length_sum"} <= set(metrics)
    assert metrics["episode_count"].sum() > 0
    assert (metrics["valid_steps"] <= 8).all()
    # CartPole pays 1 a step.
    np.testing.assert_array_equal(metrics["episode_return_sum"], metrics["episode_length_sum"])


if __name__ == "__main__":
    rows = (
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(
            f"  {json.dumps(metric)}: {json.dumps([float(f'{x:.6g}') for x in values])}"
            for metric, values in metrics_of(name).items()
        )
        + "\n}"
        for name in CONFIGS
    )
    RECORD.write_text("{\n" + ",\n".join(rows) + "\n}\n")
