"""HyperTrick as Optuna's pruner stops the trials that HyperTrick stops."""

import numpy as np
import optuna
import pytest

from jaxrl.tuning import HyperTrick, hypertrick_pruner, simulate


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize(
    ("rate", "steps"), [(0.0, range(4)), (0.25, range(4)), (0.6, range(4)), (0.25, (1, 50, 70, 99))]
)
def test_the_pruner_stops_the_trials_that_the_scheduler_stops(direction, rate, steps):
    num_trials = 20
    shape = (num_trials, len(steps))
    sign = 1 if direction == "maximize" else -1
    # Few distinct values, so that some are equal; some trials have no score.
    scores = np.random.default_rng(0).integers(0, 12, shape).astype(float)
    scores[::7] = np.nan
    _, ledger = simulate(HyperTrick(*shape, rate), 1, np.ones(shape), scores)

    def objective(trial):
        for phase, step in enumerate(steps):
            trial.report(sign * scores[trial.number, phase], step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return 0.0

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = hypertrick_pruner(num_trials, rate)
    assert isinstance(pruner, optuna.pruners.BasePruner)
    study = optuna.create_study(direction=direction, pruner=pruner)
    study.optimize(objective, n_trials=num_trials)
    assert [len(t.intermediate_values) for t in study.trials] == ledger.reported.tolist()
    assert any(t.state.name == "PRUNED" for t in study.trials) == (rate > 0)
