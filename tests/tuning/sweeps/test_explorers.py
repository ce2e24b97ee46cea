"""Explorers in a sweep: the decisions of one program, exact copies, the same end after kills."""

import contextlib
import functools
import json
import sqlite3
import time

import jax
import numpy as np
import optuna
import pytest
from small_algorithms import as_numpy
from sweep_runs import (
    SPACE,
    STATIC,
    UPDATES,
    KilledError,
    kill_after_reports,
    outcome,
    run,
    searched,
    stop_after,
    toy_algorithm,
)
from toy_algorithm import ToyConfig

import jaxrl
from jaxrl.analysis.sweep_report import write_report
from jaxrl.envs.host import callback
from jaxrl.training.loggers import read_jsonl
from jaxrl.tuning import (
    MFPBT,
    PB2,
    PBT,
    Choice,
    Finals,
    LogUniform,
    Phase,
    Uniform,
    When,
    read_study,
    sweep,
)
from jaxrl.tuning.studies.heartbeat import requeue
from jaxrl.tuning.studies.storage import change_state
from jaxrl.tuning.studies.study import SharedStudy
from jaxrl.tuning.sweeps import sweep_file
from jaxrl.tuning.sweeps.lane_group import LaneGroup, Placement
from jaxrl.tuning.trial_start import trial_key

CONDITIONAL = {
    "gamma": Choice((0.9, 0.99)),
    "learning_rate": When("gamma", 0.9, Uniform(0.1, 0.2)),
}
N, P = 8, 4
PLAIN = PBT(N, P)
EXPLORERS = [PLAIN, PB2(N, P, candidates=16), MFPBT(N, P, periods=(1, 2))]


def explore(directory, explorer=PLAIN, space=SPACE, **arguments):
    return run(directory, explorer, space, **{"num_lanes": N} | arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("explorer", "arguments"),
    [
        (PLAIN, {"finals": Finals(2, 2, share=1.0)}),
        pytest.param(EXPLORERS[1], {}, marks=pytest.mark.exhaustive),
        pytest.param(EXPLORERS[2], {"seeds_per_trial": 2}, marks=pytest.mark.exhaustive),
    ],
    ids=["pbt, finals", "pb2", "mfpbt, seeds"],
)
def test_a_sweep_decides_as_one_program_and_the_study_has_all_of_it(tmp_path, explorer, arguments):
    expected, url = searched(explorer, N, **arguments), f"sqlite:///{tmp_path / 'study.db'}"
    result = explore(tmp_path / "x", explorer, storage=url, **arguments)
    trials = outcome(result)
    assert {trial["status"] for trial in trials} == {"completed"}
    parent = np.array([[change["parent"] for change in trial["changes"]] for trial in trials])
    np.testing.assert_array_equal(parent, expected.parent[:, :-1])
    assert (parent != np.arange(N)[:, None]).any(0).all()
    np.testing.assert_allclose(
        [trial["scores"] for trial in trials], expected.ledger.scores, rtol=1e-5
    )
    for name, by_phase in expected.values_by_phase.items():
        found = [[t["values"][name], *(c["values"][name] for c in t["changes"])] for t in trials]
        np.testing.assert_allclose(found, by_phase, rtol=1e-6)
    best = result.best
    assert best is not None
    assert best["trial"] == int(expected.best_trial)
    if "finals" in arguments:
        assert len(best["schedule"]) == P
        for name, values in expected.schedule.items():
            found = [step["values"][name] for step in best["schedule"]]
            np.testing.assert_allclose(found, values[best["trial"]], rtol=1e-6)
        scores = {row["trial"]: row["score"] for row in result.summary["finals"]}
        assert expected.finals is not None
        found = [scores[int(trial)] for trial in expected.finals.trial]
        np.testing.assert_allclose(found, expected.finals.score, rtol=1e-5)
    study = read_study(url, "x") | {"finals": result.summary.get("finals", [])}
    assert study["trials"] == trials
    page = write_report(study, tmp_path).read_text()
    assert "<h2>Schedule of the winner</h2>" in page
    assert "by its schedule, below" in page


def small_ppo(env):
    config = jaxrl.PPOConfig(hidden_sizes=(4,), num_steps=8, num_epochs=1, num_minibatches=1)
    return jaxrl.ppo(env), config


def arrays(tree):
    """Return copies of the leaves as NumPy's arrays."""
    return [x.copy() for x in as_numpy(tree)]


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "envpool/CartPole-v1"])
def test_copies_are_exact_but_for_keys_and_environments_on_the_host(env):
    algo, config = small_ppo(jaxrl.make(env, num_envs=2))
    lanes, parents = LaneGroup(3, "vmap"), [0, 2, 2]
    lanes.place(algo, {i: Placement(config, trial_key(jax.random.key(3), i)) for i in range(3)})
    lanes.train(2, [True] * 3)

    def parts():
        whole = lanes._states
        world = whole.simulation if algo.env.checkpointable else whole.simulation.timestep
        learner = whole._replace(key=(), simulation=())
        return arrays(whole.key), arrays(world), arrays(learner)

    (key, world, learner) = parts()
    (running,) = arrays(lanes._states.simulation.episodes.running_length)
    lanes.copy([config] * 3, parents)
    new_key, new_world, new_learner = parts()
    np.testing.assert_array_equal(new_key, key)
    assert any((x[1] != x[2]).any() for x in learner)
    for new, old in zip(new_learner, learner, strict=True):
        np.testing.assert_array_equal(new, old[parents])
    if algo.env.checkpointable:
        for new, old in zip(new_world, world, strict=True):
            np.testing.assert_array_equal(new, old[parents])
        return
    for new, old in zip(new_world, world, strict=True):
        np.testing.assert_array_equal(new[[0, 2]], old[[0, 2]])
    running[1] = 0
    now = lanes._states.simulation.episodes.running_length
    np.testing.assert_array_equal(now, running)


def test_lanes_without_copies_take_their_new_configs_and_keep_their_states():
    algo, config = toy_algorithm(), ToyConfig(learning_rate=0.25)
    lanes = LaneGroup(2, "vmap")
    lanes.place(algo, {i: Placement(config, trial_key(jax.random.key(3), i)) for i in range(2)})
    lanes.train(1, [True] * 2)
    (before,) = arrays(lanes._states.params)
    lanes.copy([config, config.replace(learning_rate=0.125)], [0, 1])
    lanes.train(1, [True] * 2)
    (after,) = arrays(lanes._states.params)
    np.testing.assert_allclose(after - before, [[0.25] * 3, [0.125] * 3], atol=1e-6)


@pytest.mark.slow
def test_environments_on_the_host_stay_in_one_pool(tmp_path, monkeypatch):
    made, add = [], callback._add
    monkeypatch.setattr(callback, "_add", lambda group: made.append(group) or add(group))
    env = jaxrl.make("envpool/CartPole-v1", num_envs=2, num_threads=1, max_episode_steps=5)
    space = {"learning_rate": LogUniform(1e-4, 1e-2), "gamma": Choice((0.9, 0.99))}
    algo, config = small_ppo(env)
    result = sweep(
        algo, config, space, PBT(4, 3), num_lanes=4, phase=Phase(2), run_dir=tmp_path / "x",
        strategy="vmap", progress_bar=False,
    )  # fmt: skip
    parents = [[change["parent"] for change in trial["changes"]] for trial in outcome(result)]
    assert (np.array(parents) != np.arange(4)[:, None]).sum(0).tolist() == [1, 1]
    assert all(None not in trial["scores"] for trial in outcome(result))
    assert (tmp_path / "x" / "best").is_dir()
    assert [group.members for group in made] == [4]


def test_a_phase_of_episodes_lasts_until_the_last_trial_has_ended_them(tmp_path):
    """Three episodes end in an update; a trial of gamma below 0.2 ends none, until it diverges."""
    explore(tmp_path / "x", PBT(4, 3), phase=Phase(40, "episodes"))
    rows = read_jsonl(tmp_path / "x" / "metrics.jsonl")
    ends = {(r["trial"], r["phase"]): r["trial_update"] for r in rows}
    assert {(trial, phase) for trial, phase in ends} == {(t, p) for t in range(4) for p in range(3)}
    assert all(update == 16 * (phase + 1) for (_, phase), update in ends.items())


# --- kill and resume -----------------------------------------------------------------------------


def agents_in(directory):
    """Return the configs and parameters of a sweep's best agents."""
    policies = {
        folder.name: jaxrl.load_policy(folder, make_algorithm=lambda *_: toy_algorithm())
        for folder in (directory / "best").iterdir()
    }
    return {name: (p.config, p.state.params.tolist()) for name, p in policies.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("explorer", "checkpoint_seconds"),
    [
        (PLAIN, 0.0),
        pytest.param(PLAIN, 1e9, marks=pytest.mark.exhaustive),
        pytest.param(EXPLORERS[1], 0.0, marks=pytest.mark.exhaustive),
        pytest.param(EXPLORERS[2], 0.0, marks=pytest.mark.exhaustive),
    ],
    ids=["pbt", "pbt unsaved", "pb2", "mfpbt"],
)
def test_a_killed_sweep_resumes_to_the_same_outcome(
    tmp_path, monkeypatch, explorer, checkpoint_seconds
):
    arguments = {"finals": Finals(1, 2, share=1.0), "keep_best": 1}
    expected = explore(tmp_path / "whole", explorer, **arguments)
    cut = functools.partial(
        explore, tmp_path / "cut", explorer, checkpoint_seconds=checkpoint_seconds, **arguments
    )
    for chunks in (2, 3):
        with monkeypatch.context() as patch:
            kill_after_reports(patch, chunks)
            with pytest.raises(KilledError):
                cut(resume=(tmp_path / "cut").exists())
    result = cut(resume=True)
    assert outcome(result) == outcome(expected)
    assert result.summary["finals"] == expected.summary["finals"]
    assert agents_in(tmp_path / "cut") == agents_in(tmp_path / "whole")


def test_a_sweep_that_is_killed_while_it_stores_changes_resumes(tmp_path, monkeypatch):
    expected = explore(tmp_path / "whole")
    stored, original = [], SharedStudy.change

    def change(self, *arguments):
        stored.append(arguments)
        if len(stored) == N + 3:
            raise KilledError
        original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(SharedStudy, "change", change)
        with pytest.raises(KilledError):
            explore(tmp_path / "cut", checkpoint_seconds=0.0)
    assert outcome(explore(tmp_path / "cut", resume=True)) == outcome(expected)
    url = f"journal:///{tmp_path / 'cut.log'}"
    assert read_study(url)["trials"] == outcome(expected)


def test_an_interrupted_sweep_shows_its_schedule_so_far_and_goes_on(tmp_path, monkeypatch):
    expected = explore(tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, 2 * UPDATES + 1)  # chunks of one update each
        stopped = explore(tmp_path / "cut", chunk_seconds=0.0)
    assert stopped.interrupted
    assert {len(trial["changes"]) for trial in outcome(stopped)} == {2}
    assert sweep_file.read(tmp_path / "cut")["trials"] == outcome(stopped)
    assert outcome(explore(tmp_path / "cut", resume=True)) == outcome(expected)


@pytest.mark.slow
def test_a_population_that_was_taken_for_dead_begins_anew(tmp_path, monkeypatch):
    expected, url = explore(tmp_path / "whole"), f"sqlite:///{tmp_path / 'study.db'}"
    shared = {"storage": url, "study_name": "s"}
    with monkeypatch.context() as patch:
        kill_after_reports(patch, 3)
        with pytest.raises(KilledError):
            explore(tmp_path / "cut", checkpoint_seconds=0.0, **shared)
    storage = optuna.storages.RDBStorage(url)
    study = optuna.load_study(study_name="s", storage=storage)
    for trial in study.trials:
        change_state(storage, trial, "FAIL")
        requeue(study, study.trials[trial.number])
    storage.engine.dispose()
    assert outcome(explore(tmp_path / "cut", resume=True, **shared)) == outcome(expected)


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_lanes": 4}, "num_lanes must be at least 8, got 4: PBT compares"),
        ({"space": STATIC}, r"PBT changes values .* \('activation', 'num_steps'\) are static"),
        ({"space": CONDITIONAL}, r"but \['learning_rate'\] have none in some: search them without"),
        ({"max_steps": 100}, r"max_steps must be left out, got 100.* fewer trials or phases"),
        ({"max_steps": 100, "finals": Finals(2, 2)}, "max_steps must be left out, got 100"),
        ({"max_seconds": 9.0}, "max_seconds must be left out, got 9.0: PBT stops no trial"),
        ({"sampler": "tpe"}, "sampler must be 'random' or 'sobol', got 'tpe': the trials of PBT"),
        ({"keep_best_per": "gamma"}, "keep_best_per must be left out, got 'gamma'"),
        ({"finals": Finals(3, 3, 2.0)}, r"num_lanes must be at least 9, got 8: the 3 \* 3 finals"),
    ],
)
def test_arguments_that_no_explorer_can_have_are_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        explore(tmp_path / "x", **arguments)
    assert not (tmp_path / "x").exists()


@pytest.mark.exhaustive
def test_a_second_worker_is_refused(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    shared = {"storage": url, "study_name": "s", "heartbeat_seconds": 1}
    message = "study 's' has trials of another worker than 'b', but this scheduler compares all"
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        explore(tmp_path / "a", worker="a", **shared)
    time.sleep(2.5)  # now a worker that takes part would run its trials
    with pytest.raises(ValueError, match=message):
        explore(tmp_path / "b", worker="b", **shared)
    assert not any((tmp_path / "b").iterdir())
    assert read_study(url, "s")["lost"] == 0
    result = explore(tmp_path / "a", worker="a", resume=True, **shared)
    assert {trial["status"] for trial in outcome(result)} == {"completed"}


def test_a_worker_that_begins_at_the_same_time_as_another_is_refused(tmp_path, monkeypatch):
    """Both find a study without trials, and claim some."""
    shared = {"storage": f"sqlite:///{tmp_path / 'study.db'}", "study_name": "s"}
    original, claims = SharedStudy.claim, []

    def claim(self, *arguments):
        claims.append(arguments)
        return original(self, *arguments) if len(claims) <= 3 else None

    with monkeypatch.context() as patch:
        patch.setattr(SharedStudy, "claim", claim)
        with pytest.raises(ValueError, match="has trials of another worker than 'a'"):
            explore(tmp_path / "a", worker="a", **shared)


def test_a_study_with_damaged_changes_is_refused(tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    explore(tmp_path / "x", PBT(2, 3), storage=url, study_name="s")
    where = "key = 'before phase 2' order by trial_id desc limit 1"
    for change in (3, {"parent": -1, "values": {}}, {"parent": 99, "values": {}}, None):
        with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as database, database:
            ((row,),) = database.execute(f"select rowid from trial_user_attributes where {where}")
            update = "update trial_user_attributes set value_json = ? where rowid = ?"
            database.execute(update, [json.dumps(change), row])
        with pytest.raises(ValueError, match=r"damaged .* trial 1"):
            read_study(url, "s")
