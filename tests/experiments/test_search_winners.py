"""The study of the winners of searches."""

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from sweep_runs import SPACE, toy_algorithm
from toy_algorithm import ToyConfig

import jaxrl
from jaxrl import tuning
from jaxrl.analysis.records import summarize_seeds
from jaxrl.tuning import RandomSearch, SearchResult
from jaxrl.tuning.schedulers import ledger as ledgers


def test_all_rules_cost_about_the_budget(experiment):
    study = experiment("search_winners")
    args = study.Args()
    for name, rule in study.rules(args).items():
        share = 1.0
        if name not in ("pbt", "pbt-finals"):
            share = (1 - 0.75**8) / (0.25 * 8)  # of HyperTrick, for exchangeable scores
        cost = share * rule.scheduler.num_trials * args.phases * rule.seeds_per_trial
        if rule.finals is not None:
            cost += args.phases * rule.finals.top * rule.finals.repeats
        assert cost == pytest.approx(args.budget, rel=0.1), name
    with pytest.raises(ValueError, match="--budget must be more than 192, got 190"):
        study.rules(study.Args(budget=190))


def test_rules_choose_by_the_highest_or_by_the_last_two_scores(experiment):
    study, scheduler = experiment("search_winners"), RandomSearch(2, 3)
    scores = jnp.array([[1.0, 9.0, 2.0], [1.0, 6.0, 7.0]])
    ledger = ledgers.start(scheduler)._replace(scores=scores, reported=jnp.array([3, 3]))
    fields: dict[str, Any] = dict.fromkeys(SearchResult._fields) | {
        "ledger": ledger,
        "parent": jnp.array([[0] * 3, [1] * 3]),
        "best_trial": 0,
    }
    result = SearchResult(**fields)
    assert study.choose(study.Rule(scheduler, by_highest=True), result) == (0, 9.0)
    assert study.choose(study.Rule(scheduler), result) == (1, 6.5)


def test_a_single_search_is_drawn_without_an_interval(experiment):
    study = experiment("search_winners")
    row = {name: summarize_seeds(np.array([3.0])) for name in ("claimed", "true")}
    study.draw(study.Args(searches=1), {"late": row}).canvas.draw()


def test_an_agent_that_diverged_counts_with_the_lowest_return(experiment, monkeypatch):
    study, scheduler = experiment("search_winners"), RandomSearch(1, 2)
    fields: dict[str, Any] = dict.fromkeys(SearchResult._fields) | {
        "ledger": ledgers.start(scheduler),  # without a score
        "parent": jnp.zeros((1, 2), int),
        "values_by_phase": {"gamma": jnp.ones((1, 2))},
    }
    result = SearchResult(**fields)
    monkeypatch.setattr(study, "run_searches", lambda *_: [result])
    returns = jnp.array([100.0, jnp.nan, 300.0, 200.0])
    monkeypatch.setattr(study, "compiled_retraining", lambda _: lambda schedule, keys: returns)
    measured = study.measure(study.Rule(scheduler), study.Args(lowest=-200.0, new_seeds=4))
    assert measured["true"]["by_seed"] == [100.0]
    assert measured["claimed"]["by_seed"] == [-200.0]


@pytest.mark.slow
def test_winners_are_measured_on_new_seeds(experiment, tmp_path, monkeypatch):
    study = experiment("search_winners")
    args = study.Args(
        searches=2, budget=60, phases=2, updates=2, num_steps=32, new_seeds=3, results=tmp_path
    )
    assert tuning.static_names(study.SPACE, type(study.config_of(args))) == ()
    monkeypatch.setattr(jaxrl, "ppo", lambda env: toy_algorithm())
    monkeypatch.setattr(study, "config_of", lambda args: ToyConfig())
    monkeypatch.setattr(study, "SPACE", SPACE)
    few = {name: study.rules(args)[name] for name in ("seeds", "pbt-finals")}
    monkeypatch.setattr(study, "rules", lambda args: few)
    study.main(args)
    record = json.loads((tmp_path / "search-winners-cartpole.json").read_text())
    assert (tmp_path / "search-winners-cartpole.png").exists()
    for row in record["rules"].values():
        assert len(row["true"]["by_seed"]) == len(row["claimed"]["by_seed"]) == 2
        assert all(0 < score < 110 for score in row["true"]["by_seed"])
        assert all(len(winner["gamma"]) == 2 for winner in row["winners"])
    assert record["rules"]["pbt-finals"]["phases"] == [60, 60]
