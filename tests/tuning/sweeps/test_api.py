"""Calls of `sweep` that are refused by name, the directory of a sweep, and its description."""

import functools
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optuna
import pytest
from shared_studies import optuna_storage
from sweep_runs import STATIC, outcome, run, stop_after
from toy_algorithm import toy

import jaxrl
from jaxrl.analysis.sweep_report import write_report
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.directory import directory_lock
from jaxrl.tuning import (
    ASHA,
    Choice,
    Finals,
    HyperBand,
    HyperTrick,
    Phase,
    RandomSearch,
    SuccessiveHalving,
    Uniform,
    objectives,
    read_study,
)
from jaxrl.tuning.schedulers.wrapper import Capped
from jaxrl.tuning.studies import storage
from jaxrl.tuning.sweeps import loop, sweep_file

HALF: Any = Phase(3)._replace(length=2.5)  # pyrefly: ignore[bad-argument-type]


def score_of_typo(metrics):
    return metrics["returns"].sum()


def score_of_agents(metrics):
    return metrics["episode_return_sum"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_lanes": 0}, "num_lanes must be an integer >= 1, got 0"),
        ({"phase": HALF}, "Phase.length must be an integer >= 1, got 2.5"),
        ({"phase": Phase(3, "hours")}, "Phase.unit must be one of .*, got 'hours'"),
        ({"sampler": "grid"}, "sampler must be one of .*, got 'grid'"),
        ({"keep_best_per": "lambda"}, "keep_best_per must be one of .*, got 'lambda'"),
        (  # of which each trial has another value
            {"keep_best_per": "learning_rate"},
            r"keep_best_per must be one of \(.*\), got 'learning_rate'",
        ),
        ({"strategy": "pmap", "space": STATIC}, "strategy must be one of .*, got 'pmap'"),
        ({"strategy": "pmap"}, r"strategy must be one of \('auto', .*, got 'pmap'"),
        ({"seed": -1}, "seed must be an integer from 0 to .*, got -1"),
        (
            {"objective": functools.partial(objectives.mean_return)},
            "objective must be a function with a name",
        ),
        (
            {"objective": score_of_typo},
            r"finds no 'returns'; the metrics of a phase are \['episode",
        ),
        (
            {"objective": score_of_agents, "seeds_per_trial": 2, "space": STATIC},
            r"must return one number, but .* an array \[2, 1\]",
        ),
        ({"keep_best": -1}, "keep_best must be an integer >= 0, got -1"),
        ({"objective": objectives.mean_minus_deviations}, r"mean_minus_deviations\(1.0\), with"),
        ({"objective": lambda metrics: metrics["loss"].mean()}, "must be a function with a name"),
        ({"storage": "study.db"}, r"^the storage study.db cannot be read .* as sqlite:///runs/stu"),
    ],
)
def test_bad_arguments_are_refused_by_name_and_leave_nothing(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "x", HyperTrick(4, 2), **arguments)
    assert not (tmp_path / "x").exists() or not any((tmp_path / "x").iterdir())


def test_a_directory_holds_one_sweep_of_one_process(tmp_path):
    first = run(tmp_path / "x", HyperTrick(4, 2))
    with pytest.raises(ValueError, match="already holds a sweep"):
        run(tmp_path / "x", HyperTrick(4, 2))
    with pytest.raises(ValueError, match=r"changed: scheduler.num_trials: 4 -> 5. It began with: "):
        run(tmp_path / "x", HyperTrick(5, 2), resume=True)
    again = directory_lock(tmp_path / "x")
    with again, pytest.raises(ValueError, match="another process works in"):
        run(tmp_path / "x", HyperTrick(4, 2), resume=True)
    assert outcome(run(tmp_path / "x", HyperTrick(4, 2), resume=True)) == outcome(first)


def test_a_resumed_sweep_keeps_its_origin_and_notes_that_of_the_resume(tmp_path, monkeypatch):
    run(tmp_path, HyperTrick(4, 2))
    first = sweep_file.read(tmp_path)
    assert "resumptions" not in first
    monkeypatch.setattr(manifests, "_git_commit", lambda: "later")
    for number in (1, 2):
        run(tmp_path, HyperTrick(4, 2), resume=True)
        resumed = sweep_file.read(tmp_path)
        assert {name: resumed[name] for name in manifests.ORIGIN} == {
            name: first[name] for name in manifests.ORIGIN
        }
        assert [each["git_commit"] for each in resumed["resumptions"]] == ["later"] * number


def test_a_sweep_that_is_killed_while_it_writes_its_first_file_begins_again(tmp_path):
    for folder, finals in (("x", None), ("x/finals", Finals(1, 2, share=0.5))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / ".sweep.json.0").write_text('{"run_id": "0')
        result = run(tmp_path / "x", HyperTrick(4, 2), finals=finals, resume=True)
    assert len(result.summary["finals"]) == 1


def test_a_directory_that_is_emptied_halfway_can_still_begin_its_sweep(tmp_path, monkeypatch):
    def stop(path):
        raise KeyboardInterrupt

    names = ["sweep.json", "checkpoints"]
    monkeypatch.setattr(Path, "iterdir", lambda path: iter([path / name for name in names]))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "sweep.json").touch()
    monkeypatch.setattr(shutil, "rmtree", stop)
    with pytest.raises(KeyboardInterrupt):
        sweep_file.clear(tmp_path)
    assert (tmp_path / "sweep.json").exists()


def test_a_sweep_in_the_working_directory_names_its_study_after_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    storage = f"journal:///{tmp_path / 'study.log'}"
    assert run(Path(), RandomSearch(2, 1), storage=storage).summary["study"] == "mine"


def test_a_worker_joins_no_other_search_and_counts_other_workers_trials(tmp_path):
    shared = {"storage": f"sqlite:///{tmp_path / 'study.db'}", "study_name": "s"}
    run(tmp_path / "a", HyperTrick(4, 2), worker="a", **shared)
    late = run(tmp_path / "b", HyperTrick(4, 2), worker="b", **shared)
    assert (late.summary["trials"], late.summary["elsewhere"]) == ([], 4)
    with pytest.raises(ValueError, match=r"(?s)'s' at .* of another search.*scheduler.num_trials"):
        run(tmp_path / "c", HyperTrick(5, 2), worker="c", **shared)
    with pytest.raises(ValueError, match=r"(?s)of another search.* seed: 5 -> 6"):
        run(tmp_path / "e", HyperTrick(4, 2), worker="e", seed=6, **shared)
    with pytest.raises(ValueError, match=r"(?s)of another search.* sampler: 'random' -> 'sobol'"):
        run(tmp_path / "f", HyperTrick(4, 2), worker="f", sampler="sobol", **shared)
    shorter = toy(jaxrl.make("CartPole-v1", num_envs=2, max_steps_in_episode=20))
    with pytest.raises(ValueError, match=r"(?s)of another search.*env_options\.\S+: None -> 20"):
        run(tmp_path / "d", HyperTrick(4, 2), algo=shorter, **shared)


def test_a_study_that_no_sweep_made_is_refused(tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    with optuna_storage(url) as storage:
        optuna.create_study(study_name="s", storage=storage, direction="minimize")
    with pytest.raises(ValueError, match=r"'s' at .* was not made by a sweep of jaxrl; choose"):
        run(tmp_path / "x", HyperTrick(4, 2), storage=url, study_name="s")


@pytest.mark.slow
def test_a_new_study_takes_no_events_of_a_deleted_one(tmp_path):
    rule, url = RandomSearch(3, 2), f"sqlite:///{tmp_path / 'study.db'}"
    run(tmp_path / "a", rule, storage=url, study_name="s")
    with optuna_storage(url) as storage:
        optuna.delete_study(study_name="s", storage=storage)
    message = (
        r"'s' has no trials, but 's \(events\)' has the events of a deleted study: delete both"
    )
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            run(tmp_path / "b", rule, seed=6, storage=url, study_name="s")
    with optuna_storage(url) as storage:
        for name in ("s", "s (events)"):
            optuna.delete_study(study_name=name, storage=storage)
    again = run(tmp_path / "b", rule, seed=6, storage=url, study_name="s")
    assert outcome(again) == outcome(run(tmp_path / "alone", rule, seed=6))


def test_a_file_that_is_no_database_is_named_without_sql(tmp_path, monkeypatch):
    (tmp_path / "study.db").write_text("no database")
    monkeypatch.setattr(storage, "OPENING_ATTEMPTS", 1)
    with pytest.raises(ValueError, match=r"study\.db' cannot be opened: file is not a database$"):
        run(tmp_path / "x", HyperTrick(4, 2), storage=f"sqlite:///{tmp_path / 'study.db'}")


def test_passwords_are_shown_in_no_error_and_no_command(tmp_path, monkeypatch):
    url = "nosuchdb://me:secret:x@host/db"
    monkeypatch.setattr(sys, "orig_argv", ["python", "sweep.py", "--storage", url, "--study", "s"])
    monkeypatch.setattr(storage, "OPENING_ATTEMPTS", 1)
    message = "storage 'nosuchdb://me@host/db' cannot be opened"
    with pytest.raises(ValueError, match=message) as refused:
        run(tmp_path / "x", HyperTrick(4, 2), storage=url)
    assert "secret" not in str(refused.value)
    assert manifests.provenance()["command"].endswith("--storage nosuchdb://me@host/db --study s")
    with pytest.raises(ValueError, match=r"nosuchdb://\*\*\* cannot be read as a URL") as refused:
        run(tmp_path / "x", HyperTrick(4, 2), storage="nosuchdb://me:x@secret@host/db")
    assert "secret" not in str(refused.value)
    assert not (tmp_path / "x").exists() or not any((tmp_path / "x").iterdir())


def test_secrets_of_the_storage_are_written_to_no_file(tmp_path, monkeypatch):
    url = f"sqlite:///file:{tmp_path / 'study.db'}?uri=true&mode=rwc&key=s3kr1t"
    monkeypatch.setattr(sys, "orig_argv", ["python", "sweep.py", f"--storage={url}"])
    result = run(tmp_path / "x", RandomSearch(2, 1), storage=url, keep_best=1)
    write_report(result.summary, result.run_dir)
    written = [path for path in (tmp_path / "x").rglob("*") if path.is_file()]
    assert {"sweep.json", "report.html", "manifest.json"} <= {path.name for path in written}
    assert [path for path in written if b"s3kr1t" in path.read_bytes()] == []
    assert result.summary["storage"].endswith("study.db?mode=rwc&uri=true")


@pytest.mark.parametrize("name", ["a?b%20{x}", "%]b[#é&c=:@"])
def test_directories_of_any_name_hold_their_own_study(name, tmp_path):
    run(tmp_path / name, RandomSearch(2, 1), storage=None)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name / "study.db").exists()
    resumed = run(tmp_path / name, RandomSearch(2, 1), storage=None, resume=True)
    assert len(resumed.summary["trials"]) == 2


@pytest.mark.usefixtures("no_pictures")
def test_a_scheduler_within_a_scheduler_is_recorded_and_compared(tmp_path):
    result = run(tmp_path / "x", Capped(HyperTrick(4, 2), 5))
    inner = {"name": "HyperTrick", "num_trials": 4, "num_phases": 2, "eviction_rate": 0.25}
    found = sweep_file.read(tmp_path / "x")["scheduler"]
    assert found == {
        "name": "Capped", "num_trials": 4, "num_phases": 2, "search": inner, "max_phases": 5
    }  # fmt: skip
    assert "Capped(num_trials=4" in write_report(result.summary, tmp_path / "x").read_text()
    run(tmp_path / "x", Capped(HyperTrick(4, 2), 5), resume=True)
    with pytest.raises(ValueError, match=r"changed: scheduler.search: .* 0.25.* -> .* 0.5"):
        run(tmp_path / "x", Capped(HyperTrick(4, 2, 0.5), 5), resume=True)


def test_numbers_of_numpy_are_searched(tmp_path):
    space = {
        "gamma": Uniform(*np.array([0.5, 0.75], np.float32)),
        "num_steps": Choice(tuple(np.array([1, 2]))),
    }
    run(tmp_path / "x", RandomSearch(2, 1), space)


def test_processes_that_train_one_agent_do_not_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="2 are joined; start a worker in each, not joined"):
        run(tmp_path / "x", HyperTrick(4, 2))
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheduler",
    [
        SuccessiveHalving(4, 4, 2),
        pytest.param(ASHA(4, 4, 2), marks=pytest.mark.exhaustive),
        pytest.param(HyperBand(4, 2), marks=pytest.mark.exhaustive),
    ],
)
def test_a_second_worker_continues_the_trials_that_another_paused(tmp_path, monkeypatch, scheduler):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    shared = {"storage": url, "study_name": "s", "num_lanes": 2, "heartbeat_seconds": 1}
    expected = {t["trial"]: t for t in outcome(run(tmp_path / "whole", scheduler, num_lanes=2))}
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        first = run(tmp_path / "a", scheduler, worker="a", **shared)
    assert "paused" in {trial["status"] for trial in outcome(first)}
    second = run(tmp_path / "b", scheduler, worker="b", **shared)
    assert second.summary["elsewhere"] + len(outcome(second)) == scheduler.num_trials
    assert any(span["phase"] and span["trial"] in {t["trial"] for t in outcome(first)}
               for span in second.summary["spans"])  # fmt: skip
    found = {trial["trial"]: trial for trial in read_study(url)["trials"]}
    for index, trial in expected.items():
        assert found[index]["status"] == trial["status"]
        np.testing.assert_allclose(found[index]["scores"], trial["scores"], rtol=1e-5)
    late = run(tmp_path / "a", scheduler, worker="a", resume=True, **shared)
    assert {t["status"] for t in outcome(late)} <= {"stopped", "completed"}
    names = [{t["trial"] for t in outcome(each)} for each in (second, late)]
    assert not names[0] & names[1]


def test_a_second_worker_without_the_folder_of_paused_agents_is_refused(tmp_path):
    shared = {"storage": f"sqlite:///{tmp_path / 'study.db'}", "study_name": "s"}
    run(tmp_path / "a", ASHA(2, 2, 2), worker="a", agents_dir=tmp_path / "x", **shared)
    with pytest.raises(ValueError, match=r"not in .*study-paused: .*agents_dir, --agents-dir"):
        run(tmp_path / "b", ASHA(2, 2, 2), worker="b", **shared)
    assert not any((tmp_path / "b").iterdir())
    run(tmp_path / "b", ASHA(2, 2, 2), worker="b", agents_dir=tmp_path / "x", **shared)
    run(tmp_path / "a", ASHA(2, 2, 2), worker="a", resume=True, **shared)  # it remembers


def test_a_sweep_whose_start_failed_begins_again_with_its_folder_of_paused_agents(
    tmp_path, monkeypatch
):
    """As with a database on a server, which no start removes."""
    shared = {"storage": f"sqlite:///{tmp_path / 'study.db'}", "agents_dir": tmp_path / "x/paused"}

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "fastest", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "x", ASHA(2, 2, 2), strategy="auto", **shared)
    assert not any((tmp_path / "x").iterdir())
    result = run(tmp_path / "x", ASHA(2, 2, 2), **shared)
    assert len(outcome(result)) == 2


def test_a_storage_in_sweep_json_that_is_no_url_names_the_file(tmp_path):
    run(tmp_path / "sweep", RandomSearch(1, 1))
    file = tmp_path / "sweep" / "sweep.json"
    sweep_file.write(
        tmp_path / "sweep", sweep_file.read(tmp_path / "sweep") | {"storage": "no url"}
    )
    with pytest.raises(ValueError, match=rf"{file} is damaged: the storage .* cannot be read"):
        run(tmp_path / "sweep", RandomSearch(1, 1), resume=True, storage=None)
