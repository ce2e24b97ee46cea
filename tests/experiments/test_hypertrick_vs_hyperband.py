"""The comparison of schedulers: how it counts, and small searches on device and host."""

import dataclasses
import json
import shlex
import types
from pathlib import Path

import numpy as np
import pytest
import tyro
from sweep_runs import SPACE
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl import tuning

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
SMALL = ("num_steps=32", "num_minibatches=2", "num_epochs=1", "hidden_sizes=(8,)")


@pytest.fixture
def comparison(experiment, monkeypatch):
    module = experiment("hypertrick_vs_hyperband")
    monkeypatch.setattr(module, "split_cpu", lambda: None)  # JAX runs already
    return module


ON_HOST = pytest.param("envpool/CartPole-v1", marks=pytest.mark.exhaustive)


@pytest.mark.slow
def test_each_scheduler_has_the_same_expected_cost(comparison):
    args = comparison.Args(phases=9, eta=3)
    chosen = comparison.make_schedulers(args)
    assert tuple(chosen) == args.schedulers
    budget = comparison.expected_phases(chosen["hyperband"])
    # Of 9 rounds: 9 trials for 1, 3 for 3, 1 for 9; 5 for 3, 1 for 9; 3 for 9.
    assert budget == (9 + 3 * 2 + 6) + (5 * 3 + 6) + 3 * 9
    for scheduler in chosen.values():
        expected = comparison.expected_phases(scheduler)
        assert abs(expected - budget) <= scheduler.num_phases / 2
    assert comparison.expected_phases(tuning.HyperTrick(100, 10, 0.25)) == pytest.approx(
        100 * 10 * 0.3775, rel=1e-3
    )


@pytest.mark.parametrize(("phases", "eviction"), [(3, 0.25), (9, 0.0)])
def test_costs_are_positive_at_the_limits_of_the_flags(comparison, phases, eviction):
    schedulers = ("hypertrick", "hyperband", "halving", "random")
    args = comparison.Args(phases=phases, eviction=eviction, schedulers=schedulers)
    chosen = comparison.make_schedulers(args)
    for scheduler in chosen.values():
        assert scheduler.num_phases == phases
        assert comparison.expected_phases(scheduler) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "env_id", [pytest.param("gymnax/CartPole-v1", marks=pytest.mark.exhaustive), ON_HOST]
)
def test_a_search_without_a_score_says_so(comparison, tmp_path, env_id):
    args = comparison.Args(
        env_id=env_id, num_envs=2, set=(*SMALL[1:], "num_steps=2"), seeds=1, lanes=2, phases=2,
        eta=2, updates_per_phase=1, strategy="vmap", schedulers=("random",),
        results=tmp_path / "results", runs=tmp_path / "runs",
    )  # fmt: skip
    with pytest.raises(ValueError, match="no trial or run of the finals has a score"):
        comparison.main(args)
    assert not (tmp_path / "results").exists()
    with pytest.raises(ValueError, match="--seeds must be an integer >= 1, got 0"):
        comparison.main(comparison.Args(seeds=0))


def test_scores_and_rounds_become_an_outcome(comparison):
    nan = np.nan
    scores = np.array([[1.0, 5.0], [2.0, nan], [nan, nan], [4.0, 3.0]])
    when = {(0, 0): 0, (1, 0): 0, (0, 1): 1, (3, 0): 1, (3, 1): 2}
    found = comparison.make_outcome(scores, when, {"gamma": 0.9}, 7.0, 2, "vmap", [3.0])
    assert found.best_by_phase == [1, 2, 5, 5, 5]
    assert found.best_by_round == [2, 5, 5]
    assert (found.best_score, found.rounds, found.rounds_to_best) == (5, 3, 2)
    assert (found.phases, found.trials, found.occupancy) == (5, 3, 5 / 6)
    assert found.final_scores == [3.0]
    assert [found.best_within(budget) for budget in (1, 2, 9)] == [1, 2, 5]


def test_phases_that_run_side_by_side_are_one_round(comparison):
    spans = [  # two lanes, then a phase that begins alone
        {"trial": 0, "phase": 0, "begin": 0.0, "end": 1.0},
        {"trial": 1, "phase": 0, "begin": 0.0, "end": 1.001},
        {"trial": 0, "phase": 1, "begin": 1.0, "end": 1.011},
        {"trial": 2, "phase": 0, "begin": 1.001, "end": 1.012},
        {"trial": 2, "phase": 1, "begin": 1.012, "end": 2.0},
    ]
    expected = {(0, 0): 0, (1, 0): 0, (0, 1): 1, (2, 0): 1, (2, 1): 2}
    assert comparison.assign_rounds(spans[::-1]) == expected


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["gymnax/CartPole-v1", ON_HOST])
def test_schedulers_are_compared_on_device_and_host(
    comparison, tmp_path, monkeypatch, capsys, env_id
):
    search = comparison.Search(toy, ToyConfig(), SPACE)
    monkeypatch.setitem(comparison.SEARCHES, "ppo", search)
    args = comparison.Args(
        env_id=env_id, num_envs=4, set=("num_steps=4",), seeds=1, lanes=2, phases=2, eta=2,
        updates_per_phase=2, strategy="vmap", schedulers=("hypertrick", "random"), finals=1,
        final_runs=2, results=tmp_path / "results", runs=tmp_path / "runs",
    )  # fmt: skip
    comparison.main(args)
    assert "hypertrick: 4 trials" in capsys.readouterr().out
    (path,) = (tmp_path / "results").rglob("*.json")
    result = json.loads(path.read_text())
    assert path.with_suffix(".png").stat().st_size > 1000
    for kept in result["schedulers"].values():
        (search,) = kept["searches"]
        assert 0 < search["occupancy"] <= 1
        assert search["trials"] == kept["num_trials"]
        assert search["best_by_phase"] == sorted(search["best_by_phase"])
        assert search["best_by_phase"][-1] == search["best_score"] > 5
        assert set(search["best_values"]) == set(SPACE)
        assert search["strategy"] == "vmap"
        assert len(search["final_scores"]) == 2
        assert np.isfinite(search["final_scores"]).all()
    comparison.main(dataclasses.replace(args, add=True))
    more = json.loads(path.read_text())
    assert len(more["manifest"]["resumptions"]) == 1
    for name, kept in more["schedulers"].items():
        assert kept["searches"][:1] == result["schedulers"][name]["searches"]
        assert kept["searches"][1]["best_values"] != kept["searches"][0]["best_values"]
    with pytest.raises(ValueError, match=r"made with other settings; .*\n  lanes: 2 -> 3"):
        comparison.main(dataclasses.replace(args, add=True, lanes=3))


@pytest.mark.parametrize(("name", "most"), [("hyperband", None), ("hypertrick", 7 * 40)])
def test_a_cap_cuts_no_phase_of_hyperband_off(comparison, name, most):
    """Check HyperBand of 2 phases: 3 of trials of which one stops, and 4 of two trials."""
    algo = toy(jaxrl.make("gymnax/CartPole-v1", 2))
    args = comparison.Args(phases=2, eta=2, updates_per_phase=5, capped=True)
    problem = comparison.Problem(algo, ToyConfig(num_steps=4), SPACE, "vmap", args)
    assert problem.most_steps(name) == most
    uncapped = problem._replace(args=dataclasses.replace(args, capped=False))
    assert uncapped.most_steps(name) is None


def test_a_sweep_chooses_its_strategy_itself(comparison, tmp_path, monkeypatch):
    """A restarted sweep keeps to its own choice, which a new measurement might not repeat."""
    found = []

    def sweep(*_, strategy, **__):
        found.append(strategy)
        raise InterruptedError

    monkeypatch.setitem(comparison.SEARCHES, "ppo", comparison.Search(toy, ToyConfig(), SPACE))
    monkeypatch.setattr(comparison.tuning, "sweep", sweep)
    monkeypatch.setattr(comparison.populations, "choose", None)
    args = comparison.Args(env_id="envpool/CartPole-v1", num_envs=2, phases=2, eta=2, runs=tmp_path,
                           schedulers=("random",))  # fmt: skip
    with pytest.raises(InterruptedError):
        comparison.main(args)
    assert found == ["auto"]


def test_a_search_that_other_processes_ran_names_them(comparison, tmp_path, monkeypatch):
    summary = {
        "trials": [{"trial": 0, "values": {"gamma": 0.9}, "scores": [1.0, 2.0]}],
        "spans": [
            {"trial": 0, "phase": phase, "begin": phase, "end": phase + 1} for phase in (0, 1)
        ],
        "finals": [{"trial": 0, "values": {"gamma": 0.9}, "scores": [3.0], "score": 3.0}],
        "seconds": 2.0, "strategy": "vmap", "command": "first", "git_commit": "a",
        "resumptions": [{"command": "second", "git_commit": "b"}],
    }  # fmt: skip
    ended = tuning.SweepResult(summary, False, tmp_path)
    monkeypatch.setattr(comparison.tuning, "sweep", lambda *_, **__: ended)
    args = comparison.Args(env_id="envpool/CartPole-v1", phases=2, eta=2, runs=tmp_path)
    algo = toy(jaxrl.make("gymnax/CartPole-v1", 2))
    problem = comparison.Problem(algo, ToyConfig(), SPACE, "auto", args)
    found = comparison.search_by_sweep(problem, "random", tuning.RandomSearch(1, 2))(1)
    assert found.origin == {
        name: summary[name] for name in ("command", "git_commit", "resumptions")
    }


@pytest.mark.parametrize("name", ["breakout-minatar", "pong-v5"])
def test_older_records_can_be_continued(comparison, tmp_path, name):
    """Check the record's own flags, with the settings that they have today."""
    file = f"hypertrick-vs-hyperband-{name}.json"
    record = json.loads((RESULTS / file).read_text())
    flags = shlex.split(record["manifest"]["command"])[2:]
    args = dataclasses.replace(tyro.cli(comparison.Args, args=flags), results=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no record .* to add to; leave --add out, or"):
        comparison.read_record(args, record["manifest"], {})
    (tmp_path / file).write_text(json.dumps(record))
    env = comparison.make_environment(args.env_id, args.num_envs, args.env_options)
    search = comparison.SEARCHES[args.algorithm]
    config = comparison.set_fields(search.config, args.set)
    manifest = comparison.describe(args, search.make(env), config)
    chosen = {
        name: types.SimpleNamespace(num_trials=part["num_trials"])
        for name, part in record["schedulers"].items()
    }
    before, searches = comparison.read_record(args, manifest, chosen)
    assert len(before["resumptions"]) == 1
    assert {k: len(v) for k, v in searches.items()} == {
        k: len(v["searches"]) for k, v in record["schedulers"].items()
    }
    assert searches["random"][0].strategy is None
    assert searches["random"][0].origin is None
    for change in ({"capped": not args.capped}, {"finals": 3}, {"lanes": 7}):
        with pytest.raises(ValueError, match=r"made with other settings; .*\n  \w+: .* -> "):
            comparison.read_record(args, manifest | change, chosen)
    chosen["random"].num_trials += 1  # as by another --eta
    with pytest.raises(ValueError, match=r"made with other settings; .*\n  trials.random: "):
        comparison.read_record(args, manifest, chosen)


@pytest.mark.exhaustive
def test_the_paper_s_search_of_a2c_takes_equal_steps_and_continues(comparison, tmp_path):
    small = ("torso=mlp", "hidden_sizes=(8,)", "num_minibatches=4")
    args = comparison.Args(
        algorithm="a2c", env_id="envpool/CartPole-v1", num_envs=4, set=small, seeds=1, lanes=2,
        phases=2, eta=2, updates_per_phase=20, capped=True, schedulers=("hypertrick",),
        results=tmp_path / "results", runs=tmp_path / "runs",
    )  # fmt: skip
    comparison.main(args)
    (path,) = (tmp_path / "results").rglob("*.json")
    first = json.loads(path.read_text())["schedulers"]
    for kept in first.values():
        assert set(kept["searches"][0]["best_values"]) == set(tuning.GA3C_SPACE)
        budget = comparison.expected_phases(tuning.HyperBand(2, 2))
        assert kept["searches"][0]["phases"] <= budget + args.lanes
    comparison.main(args)  # the sweeps have ended
    again = json.loads(path.read_text())["schedulers"]
    for name, kept in first.items():
        before, after = kept["searches"][0], again[name]["searches"][0]
        assert len(after["origin"]["resumptions"]) == 1
        assert after | {name: before[name] for name in ("seconds", "origin")} == before
