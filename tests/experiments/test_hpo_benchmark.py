"""The benchmark of hyperparameter optimizers: equal budgets, resumption, and its report."""

import json

import numpy as np
import pytest
from sweep_runs import SPACE, toy_algorithm
from toy_algorithm import ToyConfig

import jaxrl
from jaxrl import tuning
from jaxrl.tuning.schedulers import ledger as ledgers
from jaxrl.tuning.timeline import expected_phases


@pytest.fixture
def study(experiment):
    return experiment("hpo_benchmark")


@pytest.mark.parametrize("num_phases", [3, 9])
def test_all_schedulers_cost_the_budget_or_have_trials_in_reserve(study, num_phases):
    budget = study.hyperband_budget(num_phases, 3)
    for name, optimizer in study.OPTIMIZERS.items():
        if isinstance(optimizer, study.Sampler | study.ProgramSampler):
            continue
        match optimizer(budget):
            case tuning.SuccessiveHalving() | tuning.HyperBand() as search:
                assert expected_phases(search) == budget.total, name
            case study.Extended(search=search, total=total):
                assert expected_phases(search) == pytest.approx(budget.total, rel=0.03), name
                assert total == budget.total
            case tuning.ASHA(num_trials):
                assert num_trials == budget.total  # enough if each trains for one phase only
            case scheduler:
                assert scheduler.num_trials * scheduler.num_phases == budget.total, name


@pytest.mark.parametrize(("planned", "num_spared"), [(4, 2), (8, 4)])
def test_reserves_do_not_change_the_rule_of_hypertrick(study, planned, num_spared):
    scheduler = study.Extended(tuning.HyperTrick(planned, 2), 8)
    ledger = ledgers.start(scheduler)
    for trial in range(8):  # each is worse than all before
        ledger = ledgers.report(scheduler, ledgers.begin(ledger, trial), trial, -trial)
    stopped = np.asarray(ledger.status) == tuning.Status.STOPPED
    np.testing.assert_array_equal(stopped, np.arange(8) >= num_spared)


def test_a_budget_of_hyperbands_can_be_spent_by_all(study):
    # Of 9 phases: 9 trials for 1, 3 for 3, 1 for 9; 5 for 3, 1 for 9; 3 for 9.
    hyperband = (9 + 3 * 2 + 6) + (5 * 3 + 6) + 3 * 9
    # 31 trials for 1, 10 for 3, 3 for 9.
    assert hyperband == 31 + 10 * 2 + 3 * 6
    budget = study.hyperband_budget(9, 3)
    assert budget == study.Budget(9, 3, 31, 3 * hyperband)
    assert budget.whole_trials * 9 == budget.total
    with pytest.raises(ValueError, match="costs the 51 phases of 3 HyperBands of 5 phases; use 3"):
        study.hyperband_budget(5, 3)
    with pytest.raises(ValueError, match="costs the 138 phases of 2 HyperBands of 9 phases"):
        study.hyperband_budget(9, 2)


def test_the_best_score_so_far_is_read_in_the_order_of_the_rounds(study):
    task, nan, inf = study.Task("CartPole-v1", 1, -9.0), np.nan, np.inf
    scores = np.array([[nan, 2.0], [1.0, nan], [5.0, -inf]])
    order = np.array([[0, 1], [0, -1], [1, 2]])
    assert study.best_so_far(task, scores, order) == [1.0, 5.0]
    assert study.at_least(task, np.array([nan, -inf, 3.0])).tolist() == [-9.0, -9.0, 3.0]


def test_bad_arguments_are_refused(study, tmp_path):
    with pytest.raises(ValueError, match=r"--tasks takes CartPole-v1, .*; got Pong"):
        study.main(study.Args(tasks=("Pong",), cells=tmp_path))
    with pytest.raises(ValueError, match="--new-seeds must be an integer >= 1, got 0"):
        study.main(study.Args(new_seeds=0, cells=tmp_path))


def test_the_agents_of_all_tasks_fit_and_their_names_tell_the_cells_apart(study):
    assert len({name.lower() for name in study.TASKS}) == len(study.TASKS)
    for name, task in study.TASKS.items():
        problem = study.Problem(name, study.Args())
        assert name.startswith("dqn-") == (problem.algo.name == "dqn")
        jaxrl.types.check_agent(problem.algo, problem.config)
        assert not tuning.static_names(problem.space, type(problem.config)), name
        assert 9 * problem.phase_steps == pytest.approx(task.total_steps, rel=0.03), name
        assert problem.settings["space"].keys() == problem.space.keys()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "algorithm", "env_id", "small"),
    [
        ("dqn-CartPole-v1", "dqn", "gymnax/CartPole-v1", {"replay_size": 64, "batch_size": 4}),
        ("DoorKey-5x5", "ppo", "envpool/MiniGrid-DoorKey-5x5-v0", {"num_minibatches": 1}),
    ],
)
def test_dqn_and_simulators_are_searched(
    study, tmp_path, monkeypatch, name, algorithm, env_id, small
):
    task = study.TASKS[name]
    config = task.agent.config.replace(num_steps=4, hidden_sizes=(4,), **small)
    agent = task.agent._replace(config=config)
    monkeypatch.setitem(study.TASKS, name, task._replace(total_steps=24, num_envs=2, agent=agent))
    args = study.Args(
        (name,), ("asha",), seeds=2, new_seeds=2, phases=3, finals_top=2, finals_repeats=1,
        at_once=1000, cells=tmp_path,
    )  # fmt: skip
    study.main(args)
    cell = json.loads((tmp_path / f"{name}-asha.json".lower()).read_text())
    assert cell["manifest"]["algorithm"] == algorithm
    assert cell["manifest"]["env"]["id"] == env_id
    assert cell["steps"] == [8 * (33 + 2 * 3)] * 2
    assert np.shape(cell["on_new_seeds"]) == (2, 2)
    assert cell["winners"].keys() == agent.space.keys()


def test_cells_that_were_made_elsewhere_keep_their_origins(experiment, capsys):
    here = {"git_commit": "a", "versions": {"jax": "1"}, "hardware": {"cpu": "x"}, "command": "c"}
    places = {
        "asha": here,
        "pbt": here | {"command": "d"},
        "tpe": here | {"versions": {"jax": "2"}},
    }
    cells = {"Task": {name: {"manifest": place} for name, place in places.items()}}
    found = experiment("hpo_report").origins(cells)
    assert found == {"Task": here, "Task tpe": places["tpe"]}
    assert capsys.readouterr().out == "Task tpe was made elsewhere:\n  versions.jax: '1' -> '2'\n"


def test_a_single_search_is_drawn_without_an_interval(experiment):
    report = experiment("hpo_report")
    cell = {
        "settings": {"phase_steps": 8, "phases": 2}, "best_so_far": [[1.0, 2.0]], "steps": [16],
        "on_new_seeds": [[1.0, 3.0]], "in_finals": [2.0], "trials": [2], "winners": {},
        "seconds": {"search": 1.0, "finals": 1.0}, "cpu_seconds": 2.0,
    }  # fmt: skip
    tasks = {"Task": {"asha": report.summarize(cell)}}
    report.draw(tasks).canvas.draw()
    table = report.tables(tasks, report.mean_ranks(tasks), 1)[1]
    assert [*table.columns[1].cells] == ["2.0"]


@pytest.mark.slow
def test_a_small_benchmark_is_run_resumed_and_reported(study, experiment, tmp_path, monkeypatch):
    agent = study.Agent(lambda env: toy_algorithm(), SPACE, ToyConfig())
    monkeypatch.setitem(study.TASKS, "CartPole-v1", study.Task("CartPole-v1", 192, 0.0, 2, agent))
    some = ("tpe", "hypertrick", "pb2", "improvement")
    args = study.Args(
        ("CartPole-v1",), some[:2], seeds=2, new_seeds=4, phases=3, finals_top=2, finals_repeats=2,
        at_once=4, cells=tmp_path / "cells",
    )  # fmt: skip
    study.main(args)
    files = {name: tmp_path / "cells" / f"cartpole-v1-{name}.json" for name in some}
    before = {name: files[name].stat().st_mtime_ns for name in some[:2]}
    study.main(study.dataclasses.replace(args, optimizers=some))
    assert {name: files[name].stat().st_mtime_ns for name in some[:2]} == before
    cells = {name: json.loads(path.read_text()) for name, path in files.items()}
    # 33 phases of the search and 4 runs of the finals, 64 steps each
    assert {tuple(cell["steps"]) for cell in cells.values()} == {(64 * (33 + 4 * 3),) * 2}
    assert all(cells[name]["trials"] == [11, 11] for name in some if name != "hypertrick")
    for cell in cells.values():
        assert np.shape(cell["on_new_seeds"]) == (2, 4)
        assert (np.diff(cell["best_so_far"]) >= 0).all()
        assert np.shape(cell["best_so_far"]) == (2, 11)
        for name, part in agent.space.items():
            values = np.array(cell["winners"][name])  # [searches, phases]
            assert values.shape == (2, 3)
            assert (values >= np.float32(part.low)).all()
            assert (values <= np.float32(part.high)).all()
    with pytest.raises(ValueError, match=r"made with other settings; .*\n  new_seeds: 4 -> 5"):
        study.main(study.dataclasses.replace(args, new_seeds=5))

    report = experiment("hpo_report")
    report.main(report.Args(tmp_path / "cells", tmp_path / "results", "small"))
    assert (tmp_path / "results" / "small.png").exists()
    record = json.loads((tmp_path / "results" / "small.json").read_text())
    ranks = [row["value"] for row in record["ranks"].values()]
    assert ranks == sorted(ranks)
    assert np.mean(ranks) == pytest.approx(2.5)
    assert "beats_random" not in record["ranks"]["tpe"]  # random search has no cell
    row = record["tasks"]["CartPole-v1"]["pb2"]["on_new_seeds"]
    by_seed = np.mean(cells["pb2"]["on_new_seeds"], 1)
    np.testing.assert_allclose(row["by_seed"], by_seed, atol=1e-4)
    assert row["value"] == pytest.approx(by_seed.mean(), abs=1e-4)
    (tmp_path / "late").mkdir()
    files["improvement"].rename(tmp_path / "late" / "cartpole-v1-improvement.json")
    report.main(report.Args(tmp_path / "cells", tmp_path / "results", "early"))
    early, late = tmp_path / "results" / "early.json", tmp_path / "late"
    report.main(report.Args(late, tmp_path / "results", "both", beside=early))
    both = json.loads((tmp_path / "results" / "both.json").read_text())
    assert (both["ranks"], both["tasks"]) == (record["ranks"], record["tasks"])
    assert both["manifests"].keys() == {"CartPole-v1", "CartPole-v1 improvement"}
    early.write_text(early.read_text().replace('"times": 3', '"times": 6'))
    with pytest.raises(ValueError, match=r"other settings of CartPole-v1; .*\n  times: 6 -> 3"):
        report.main(report.Args(late, tmp_path / "results", beside=early))
    early.write_text(early.read_text().replace("CartPole-v1", "Acrobot-v1"))
    with pytest.raises(ValueError, match="has the tasks Acrobot-v1, the cells CartPole-v1; both"):
        report.main(report.Args(late, tmp_path / "results", beside=early))
    early.write_text("[]")
    with pytest.raises(ValueError, match=r"early\.json is no record of this benchmark"):
        report.main(report.Args(late, tmp_path / "results", beside=early))
    (late / "cartpole-v1-improvement.json").rename(files["improvement"])

    for name, cell in cells.items():
        other = cell | {"settings": cell["settings"] | {"task": "Acrobot-v1", "seeds": 3}}
        (tmp_path / "cells" / f"acrobot-v1-{name}.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match=r"different --seeds, {.*'Acrobot-v1': 3"):
        report.main(report.Args(tmp_path / "cells", tmp_path / "results"))
    for name in set(some) - {"hypertrick"}:
        (tmp_path / "cells" / f"acrobot-v1-{name}.json").unlink()
    files["hypertrick"].unlink()
    cell = cells["hypertrick"] | {
        "settings": cells["hypertrick"]["settings"] | {"task": "Acrobot-v1"}
    }
    (tmp_path / "cells" / "acrobot-v1-hypertrick.json").write_text(json.dumps(cell))
    with pytest.raises(ValueError, match=r"lacks Acrobot-v1 .*, CartPole-v1 hypertrick; run"):
        report.main(report.Args(tmp_path / "cells", tmp_path / "results"))
