"""HyperTrick as Optuna's pruner stops the trials that HyperTrick stops."""

import numpy as np
import optuna
import pytest

from jaxrl.tuning import HyperTrick, hypertrick_pruner, simulate


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("rate", [0.0, 0.25, 0.6])
def test_the_pruner_stops_the_trials_that_the_scheduler_stops(direction, rate):
    shape = num_trials, num_phases = 20, 4
    sign = 1 if direction == "maximize" else -1
    # Few distinct values, so that some are equal; some trials have no score.
    scores = np.random.default_rng(0).integers(0, 12, shape).astype(float)
    scores[::7] = np.nan
    _, ledger = simulate(HyperTrick(*shape, rate), 1, np.ones(shape), scores)

    def objective(trial):
        for phase in range(num_phases):
            trial.report(sign * scores[trial.number, phase], phase)
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
