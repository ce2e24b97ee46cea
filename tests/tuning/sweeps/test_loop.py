"""The life of a sweep: it decides as one program does; a killed sweep resumes to the same end."""

import dataclasses
import errno
import io
import itertools
import json
import math
import os
import re
import shutil
import signal
from typing import Any

import jax.numpy as jnp
import numpy as np
import optuna
import pytest
from rich.console import Console
from shared_studies import stored_trials
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
    stop_after_reports,
    toy_algorithm,
)
from toy_algorithm import ToyConfig

import jaxrl
from jaxrl.files import seal
from jaxrl.files.intact import numbers
from jaxrl.files.urls import file_url
from jaxrl.training.loggers import JsonlSink, read_jsonl
from jaxrl.training.population import Strategy
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.checkpoint import Checkpoints
from jaxrl.tuning import (
    ASHA,
    PBT,
    Choice,
    HyperTrick,
    LogUniform,
    Phase,
    RandomSearch,
    Sobol,
    Status,
    SuccessiveHalving,
    Uniform,
    objectives,
    read_study,
)
from jaxrl.tuning.studies.study import SharedStudy
from jaxrl.tuning.sweeps import display, loop, sweep_file
from jaxrl.tuning.sweeps.lanes import Lanes
from jaxrl.tuning.sweeps.trials import Trials

THREE_SEEDS = {"seeds_per_trial": 3, "objective": objectives.lowest_return}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheduler", "scoring"),
    [
        pytest.param(HyperTrick(12, 4), {}, marks=pytest.mark.exhaustive),
        pytest.param(HyperTrick(12, 4), THREE_SEEDS, marks=pytest.mark.exhaustive),
        (HyperTrick(5, 3), {"evaluation_episodes": 4, "seeds_per_trial": 2}),
        pytest.param(SuccessiveHalving(9, 9), {}, marks=pytest.mark.exhaustive),
        pytest.param(SuccessiveHalving(9, 9), THREE_SEEDS, marks=pytest.mark.exhaustive),
    ],
    ids=["hypertrick", "hypertrick, seeds", "hypertrick, evaluated", "halving", "halving, seeds"],
)
def test_a_sweep_finds_what_one_program_finds_and_stores_it_in_the_study(
    tmp_path, scheduler, scoring
):
    expected = searched(scheduler, **scoring)
    url = f"sqlite:///{tmp_path / 'study.db'}"
    result = run(tmp_path / "x", scheduler, storage=url, study_name="s", **scoring)
    trials = stored_trials(url, "s")
    assert len(outcome(result)) == len(trials) == scheduler.num_trials
    for trial, stored in zip(outcome(result), trials, strict=True):
        index = trial["trial"]
        reported = int(expected.ledger.reported[index])
        scores = expected.ledger.scores[index, :reported]
        np.testing.assert_allclose(trial["scores"], scores, rtol=1e-5)
        assert trial["values"]["gamma"] == pytest.approx(float(expected.values["gamma"][index]))
        assert stored.user_attrs["index"] == index
        assert list(stored.intermediate_values.values()) == trial["scores"]
        states = {"completed": "COMPLETE", "stopped": "PRUNED"}
        assert stored.state.name == states[trial["status"]]
        assert stored.params == pytest.approx(trial["values"])
    assert result.best is not None
    assert result.best["trial"] == int(expected.best_trial)
    assert not result.interrupted


@pytest.mark.parametrize(
    "scheduler",
    [HyperTrick(6, 2), pytest.param(PBT(5, 2), marks=pytest.mark.exhaustive)],
    ids=str,
)
def test_points_of_sobol_are_those_of_one_program(tmp_path, scheduler):
    expected = searched(scheduler, 5, sampler=Sobol())
    trials = outcome(run(tmp_path / "x", scheduler, num_lanes=5, sampler="sobol"))
    for name, values in expected.values.items():
        np.testing.assert_allclose([t["values"][name] for t in trials], values, rtol=1e-6)
    scores = [score for trial in trials for score in trial["scores"]]
    np.testing.assert_allclose(
        scores, expected.ledger.scores[~np.isnan(expected.ledger.scores)], rtol=1e-5
    )


@pytest.mark.parametrize(
    ("phase", "updates"), [(Phase(3), 3), (Phase(17, "steps"), 5), (Phase(40, "episodes"), 16)]
)
def test_phases_are_counted_in_updates_steps_or_episodes(tmp_path, phase, updates):
    """An update has two steps of two environments, and three episodes end in it."""
    run(tmp_path / "x", RandomSearch(2, 2), phase=phase, num_lanes=1)
    rows = read_jsonl(tmp_path / "x" / "metrics.jsonl")
    assert {row["phase"] for row in rows} == {0, 1}
    assert max(r["trial_update"] for r in rows if r["phase"] == 0) == updates
    assert max(r["trial_update"] for r in rows if r["phase"] == 1) == 2 * updates


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheduler",
    [pytest.param(HyperTrick(12, 4), marks=pytest.mark.exhaustive), SuccessiveHalving(9, 9)],
    ids=str,
)
def test_a_capped_sweep_stops_its_trials_for_good(tmp_path, scheduler):
    """An update has four steps, and a chunk of four lanes at most a phase of three updates."""
    whole = outcome(run(tmp_path / "whole", scheduler))
    capped = run(tmp_path / "x", scheduler, max_steps=100, checkpoint_seconds=0.0)
    rows = read_jsonl(tmp_path / "x" / "metrics.jsonl")
    assert 100 <= sum(row["valid_steps"] for row in rows) < 100 + 4 * 3 * 4
    assert not [*tmp_path.glob("x*paused*/**/trial-*")]
    num_reports = [sum(len(t["scores"]) for t in trials) for trials in (outcome(capped), whole)]
    assert num_reports[0] < num_reports[1]
    assert {trial["status"] for trial in outcome(capped)} <= {"stopped", "completed"}
    for found, expected in zip(outcome(capped), whole, strict=False):
        assert found["scores"] == expected["scores"][: len(found["scores"])]
    again = run(tmp_path / "x", scheduler, max_steps=100, resume=True)
    assert outcome(again) == outcome(capped)
    more = {trial["trial"]: trial for trial in outcome(run(tmp_path / "x", scheduler, resume=True))}
    assert sorted(more) == [trial["trial"] for trial in whole]  # with those that had not begun
    assert [more[trial["trial"]] for trial in outcome(capped)] == outcome(capped)
    late = run(tmp_path / "late", scheduler, max_seconds=1e-9)
    assert outcome(late) == []


def test_the_best_agents_of_a_sweep_that_resumes_with_other_threads_are_the_same_runs(
    tmp_path, monkeypatch
):
    """Each score is 5, so the last agent of the trial is the best one.

    Its manifest says where the sweep began and went on.
    """
    config = jaxrl.PPOConfig(hidden_sizes=(4,), num_steps=8, num_epochs=1, num_minibatches=1)

    def sweep(num_threads, resume):
        env = jaxrl.make("envpool/CartPole-v1", 2, num_threads=num_threads, max_episode_steps=5)
        return run(
            tmp_path / "x", RandomSearch(1, 3), algo=jaxrl.ppo(env), config=config, num_lanes=1,
            keep_best=1, resume=resume,
        )  # fmt: skip

    with monkeypatch.context() as patched:
        stop_after_reports(patched, 1)
        assert sweep(1, resume=False).interrupted
    agent = tmp_path / "x" / "best" / "trial-0"
    before = manifests.read(agent)
    assert not sweep(2, resume=True).interrupted
    assert manifests.read(agent)["env"] == before["env"]
    assert "resumptions" not in before
    assert manifests.origin_of(manifests.read(agent)) == manifests.origin_of(before) | {
        "resumptions": sweep_file.read(tmp_path / "x")["resumptions"]
    }
    assert numbers(agent / "checkpoints") == [3 * UPDATES]


@pytest.mark.slow
@pytest.mark.parametrize(
    "checkpoint_seconds",
    [1e9, pytest.param(0.0, marks=pytest.mark.exhaustive)],
    ids=["unsaved", "saved"],
)
def test_a_sweep_that_was_capped_within_a_phase_goes_on_with_new_trials(
    tmp_path, checkpoint_seconds
):
    """A chunk is one update, of four steps; two lanes have done two of three when the cap ends."""
    arguments = {"num_lanes": 2, "chunk_seconds": 0.0, "checkpoint_seconds": checkpoint_seconds}
    scheduler, directory = RandomSearch(5, 2), tmp_path / "x"
    whole = outcome(run(tmp_path / "whole", scheduler, num_lanes=2))
    capped = run(directory, scheduler, max_steps=16, **arguments)
    assert [(t["scores"], t["status"]) for t in outcome(capped)] == [([], "stopped")] * 2
    resumed = run(directory, scheduler, resume=True, **arguments)
    assert outcome(resumed) == outcome(capped) + whole[2:]
    rows = read_jsonl(directory / "metrics.jsonl")
    updates = [max(r["trial_update"] for r in rows if r["trial"] == trial) for trial in range(5)]
    assert updates == [2, 2, 6, 6, 6]
    assert len(rows) == 2 + 3 * 2


@pytest.mark.exhaustive
def test_successive_halving_goes_on_without_the_trials_that_a_cap_ended(tmp_path):
    """A chunk is one update, of four steps; the first three trials end in their first phase."""
    scheduler, directory = SuccessiveHalving(9, 9), tmp_path / "x"
    arguments = {"num_lanes": 3, "chunk_seconds": 0.0}
    run(directory, scheduler, max_steps=10, **arguments)
    resumed = outcome(run(directory, scheduler, resume=True, **arguments))
    assert [trial["scores"] for trial in resumed[:3]] == [[]] * 3
    phases = sorted(len(trial["scores"]) for trial in resumed[3:])
    assert phases == [1, 1, 1, 3, 3, 9]  # three of six, then one of three


@pytest.mark.slow
def test_successive_halving_goes_on_without_the_trials_that_another_workers_cap_ended(tmp_path):
    shared = {"storage": f"sqlite:///{tmp_path / 'study.db'}", "study_name": "s", "num_lanes": 2}
    scheduler = SuccessiveHalving(9, 9)
    capped = run(tmp_path / "a", scheduler, worker="a", max_steps=5, chunk_seconds=0.0, **shared)
    assert [(t["scores"], t["status"]) for t in outcome(capped)] == [([], "stopped")] * 2
    other = outcome(run(tmp_path / "b", scheduler, worker="b", **shared))
    assert sorted(len(trial["scores"]) for trial in other) == [1, 1, 1, 1, 3, 3, 9]


@dataclasses.dataclass(frozen=True)
class StopBelowMedian:
    """A scheduler whose reports may stop other trials: those below the median of a phase."""

    num_trials: int
    pauses = False

    @property
    def num_phases(self):
        return 4

    def judge(self, ledger, trial):
        scores = ledger.scores[:, ledger.reported[trial] - 1]
        is_worse = (scores < jnp.nanmedian(scores)) & (ledger.status == Status.RUNNING)
        return jnp.where(is_worse, Status.STOPPED, ledger.status)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheduler",
    [ASHA(4, 2, 2), pytest.param(SuccessiveHalving(4, 2, 2), marks=pytest.mark.exhaustive)],
)
def test_a_sweep_that_is_killed_while_it_ends_a_paused_trial_ends_it_later(
    tmp_path, monkeypatch, scheduler
):
    def kill(index):
        raise KilledError

    original = SharedStudy.claim_to_end  # in the study, a claimed trial runs
    with monkeypatch.context() as patch:
        patch.setattr(SharedStudy, "claim_to_end", lambda *of: map(kill, original(*of)))
        with pytest.raises(KilledError):
            run(tmp_path / "x", scheduler, storage=None, checkpoint_seconds=0.0)
    result = run(tmp_path / "x", scheduler, storage=None, resume=True)
    stored = read_study(file_url(tmp_path / "x" / "study.db"))["trials"]
    assert stored == outcome(result)
    assert {trial["status"] for trial in stored} == {"stopped", "completed"}


@pytest.mark.slow
def test_a_killed_worker_trains_the_paused_trials_on_that_it_had_continued(tmp_path, monkeypatch):
    def stored_after(name, is_killed):
        url = file_url(tmp_path / f"{name}.db")
        train, save = loop.SweepLoop._train_chunk, loop.SweepLoop._save

        def train_until_killed(self):
            if self.state.chunks >= 6:
                raise KilledError
            train(self)

        def save_early(self):
            if self.state.chunks <= 3:
                save(self)

        options = {"storage": url, "study_name": "s", "checkpoint_seconds": 0.0}
        run(tmp_path / f"{name}-b", ASHA(9, 4, 2), num_lanes=1, max_steps=10, **options)
        if is_killed:
            with monkeypatch.context() as patch:
                patch.setattr(loop.SweepLoop, "_train_chunk", train_until_killed)
                patch.setattr(loop.SweepLoop, "_save", save_early)
                with pytest.raises(KilledError):
                    run(tmp_path / name, ASHA(9, 4, 2), num_lanes=2, **options)
        run(tmp_path / name, ASHA(9, 4, 2), num_lanes=2, resume=True, **options)
        return read_study(url)["trials"]

    assert stored_after("killed", True) == stored_after("whole", False)


@pytest.mark.parametrize("unit", ["updates", "episodes"])
def test_a_report_may_stop_trials_on_other_lanes(tmp_path, unit):
    scheduler = StopBelowMedian(8)
    result = run(tmp_path / "x", scheduler, phase=Phase(3, unit))
    status = [trial["status"] for trial in outcome(result)]
    assert len(status) == 8
    assert {"stopped"} <= set(status) <= {"stopped", "completed"}
    if unit == "updates":
        ledger = searched(scheduler).ledger
        assert status == [Status(x).name.lower() for x in ledger.status.tolist()]
        reported = [len(trial["scores"]) for trial in outcome(result)]
        assert reported == ledger.reported.tolist()


@pytest.mark.parametrize(
    "space", [SPACE, SPACE | {"num_steps": Choice((2, 3))}], ids=["one lane group", "four"]
)
def test_a_sweep_asks_once_where_no_trial_is_left_for_many_free_lanes(tmp_path, monkeypatch, space):
    """Four lanes train five trials of one phase: four, then one, then none."""
    found, original = [], Trials.begin_next

    def begin_next(self):
        begun = original(self)
        found.append(begun and begun.trial)
        return begun

    monkeypatch.setattr(Trials, "begin_next", begin_next)
    result = run(tmp_path / "x", RandomSearch(5, 1), space)
    assert found == [0, 1, 2, 3, 4, None, None]
    assert [trial["status"] for trial in outcome(result)] == ["completed"] * 5


def test_diverged_trials_and_those_without_episodes_are_stored_as_such(tmp_path):
    space = {"learning_rate": LogUniform(1e-2, 50.0), "gamma": Uniform(0.0, 0.4)}
    result = run(tmp_path / "x", HyperTrick(12, 2), space)
    for trial in outcome(result):
        diverged = trial["values"]["learning_rate"] >= 0.5
        silent = trial["values"]["gamma"] < 0.2
        if diverged or silent:
            assert set(trial["scores"]) == {"-inf" if diverged else None}
        else:
            assert all(math.isfinite(score) for score in trial["scores"])


# --- kill and resume -----------------------------------------------------------------------------


def test_a_sweep_that_has_ended_trains_nothing_again(tmp_path, monkeypatch):
    expected = run(tmp_path / "x", HyperTrick(5, 3))
    monkeypatch.setattr(loop.SweepLoop, "_train_chunk", None)
    again = run(tmp_path / "x", HyperTrick(5, 3), resume=True)
    assert outcome(again) == outcome(expected)
    assert again.summary["spans"] == expected.summary["spans"]


@pytest.mark.parametrize(
    ("scheduler", "space", "checkpoint_seconds", "seeds_per_trial"),
    [
        (HyperTrick(12, 4), SPACE, 1e9, 1),
        pytest.param(HyperTrick(12, 4), SPACE, 0.0, 1, marks=pytest.mark.exhaustive),
        pytest.param(SuccessiveHalving(9, 9), SPACE, 0.0, 2, marks=pytest.mark.exhaustive),
        pytest.param(ASHA(9, 9), STATIC, 0.0, 2, marks=pytest.mark.exhaustive),
        pytest.param(ASHA(9, 9), STATIC, 1e9, 1, marks=pytest.mark.exhaustive),
    ],
    ids=["hypertrick unsaved", "hypertrick", "halving", "asha static", "asha static unsaved"],
)
def test_a_killed_sweep_resumes_to_the_same_outcome(
    tmp_path, monkeypatch, scheduler, space, checkpoint_seconds, seeds_per_trial
):
    """The study is ahead of the last checkpoint; phases that run again count once."""
    several = {"seeds_per_trial": seeds_per_trial}
    expected = run(tmp_path / "whole", scheduler, space, **several)
    for chunks in (2, 3):
        with monkeypatch.context() as patch:
            kill_after_reports(patch, chunks)
            resume = (tmp_path / "cut").exists()
            others = {"checkpoint_seconds": checkpoint_seconds} | several
            with pytest.raises(KilledError):
                run(tmp_path / "cut", scheduler, space, resume=resume, **others)
    result = run(tmp_path / "cut", scheduler, space, resume=True, **several)
    assert outcome(result) == outcome(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheduler", "space"),
    [
        pytest.param(HyperTrick(5, 2), SPACE, marks=pytest.mark.exhaustive),
        (ASHA(4, 4, 2), STATIC),
    ],
    ids=["one", "many"],
)
def test_a_sweep_killed_within_a_phase_repeats_no_update(tmp_path, monkeypatch, scheduler, space):
    expected = run(tmp_path / "whole", scheduler, space, num_lanes=2)
    calls = iter(range(6))  # of three updates a phase, with a checkpoint after each
    original = loop.SweepLoop._train_chunk

    def killed(self):
        if next(calls) == 5:
            raise KilledError
        original(self)

    arguments = {"num_lanes": 2, "checkpoint_seconds": 0.0, "chunk_seconds": 0.0}
    with monkeypatch.context() as patch:
        patch.setattr(loop.SweepLoop, "_train_chunk", killed)
        with pytest.raises(KilledError):
            run(tmp_path / "cut", scheduler, space, **arguments)
    arguments["checkpoint_seconds"] = 1e9
    result = run(tmp_path / "cut", scheduler, space, resume=True, **arguments)
    assert outcome(result) == outcome(expected)
    rows = read_jsonl(tmp_path / "cut" / "metrics.jsonl")
    done = [(row["trial"], row["trial_update"]) for row in rows]
    assert len(set(done)) == len(done) == sum(len(t["scores"]) for t in outcome(result))


def test_a_resumed_sweep_keeps_the_strategy_that_it_measured(tmp_path, monkeypatch):
    """Another one rounds differently, and trials may end otherwise."""
    found = [Strategy("map"), Strategy("vmap")]
    monkeypatch.setattr(loop, "fastest", lambda *_: found.pop(0))
    arguments = {"strategy": "auto", "num_lanes": 2}

    def killed(self):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(loop.SweepLoop, "run", killed)
        with pytest.raises(KilledError):
            run(tmp_path / "x", RandomSearch(2, 2), **arguments)
    for _ in range(2):
        result = run(tmp_path / "x", RandomSearch(2, 2), resume=True, **arguments)
        assert result.summary["strategy"] == "map"
    elsewhere = sweep_file.read(tmp_path / "x")
    elsewhere["resumptions"][-1]["hardware"] = {"cpu": "another"}
    sweep_file.write(tmp_path / "x", elsewhere)
    again = run(tmp_path / "x", RandomSearch(2, 2), resume=True, **arguments)
    assert again.summary["strategy"] == "vmap"


@pytest.mark.exhaustive
@pytest.mark.parametrize("elsewhere", ["in a directory that was moved", "by another worker"])
def test_a_stopped_sweep_resumes_elsewhere(tmp_path, monkeypatch, elsewhere):
    scheduler, here = SuccessiveHalving(6, 4, 2), tmp_path / "cut"
    arguments: dict[str, Any] = {"num_lanes": 2, "storage": None, "heartbeat_seconds": 1}
    expected = run(tmp_path / "whole", scheduler, **arguments)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        stopped = run(here, scheduler, **arguments)
    assert stopped.interrupted
    assert "paused" in {trial["status"] for trial in outcome(stopped)}
    if elsewhere == "by another worker":
        run(here, scheduler, resume=True, worker="another", **arguments)
        found = read_study(f"sqlite:///{here / 'study.db'}")["trials"]
    else:
        here = here.rename(tmp_path / "moved")
        found = outcome(run(here, scheduler, resume=True, **arguments))
    assert found == outcome(expected)


@pytest.mark.slow
def test_a_sweep_resumes_with_its_own_study(tmp_path, monkeypatch):
    scheduler = HyperTrick(6, 3)
    shared = {"storage": f"sqlite:///{tmp_path / 'shared.db'}", "study_name": "s"}
    expected = run(tmp_path / "whole", scheduler)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        run(tmp_path / "cut", scheduler, **shared)
    other = f"sqlite:///{tmp_path / 'other.db'}"
    with pytest.raises(ValueError, match=r"it is not there, .* Resume with"):
        run(tmp_path / "cut", scheduler, resume=True, storage=other)
    resumed = run(tmp_path / "cut", scheduler, resume=True, storage=None)
    assert outcome(resumed) == outcome(expected)
    assert not (tmp_path / "cut" / "study.db").exists()


def checkpoints_of(directory):
    """Return the folders of a sweep's checkpoints, the newest first."""
    return [directory / "checkpoints" / str(n) for n in numbers(directory / "checkpoints")]


def kill_with_two_checkpoints(monkeypatch, directory, scheduler, **arguments):
    """Kill a sweep that saves after every chunk."""
    with monkeypatch.context() as patch:
        kill_after_reports(patch, 3)
        with pytest.raises(KilledError):
            run(directory, scheduler, checkpoint_seconds=0.0, **arguments)
    return checkpoints_of(directory)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves(tmp_path, monkeypatch):
    expected = run(tmp_path / "whole", HyperTrick(6, 3))
    newest, before = kill_with_two_checkpoints(monkeypatch, tmp_path / "cut", HyperTrick(6, 3))
    damage(max(newest.rglob("ocdbt.process_0/d/*"), key=lambda path: path.stat().st_size))
    message = rf"/{newest.name} is damaged: its file state/.* checkpoint {before.name} is used"
    with pytest.warns(UserWarning, match=message):
        resumed = run(tmp_path / "cut", HyperTrick(6, 3), resume=True)
    assert outcome(resumed) == outcome(expected)
    assert (tmp_path / "cut" / "damaged-checkpoints" / f"{newest.name}-1").is_dir()


def test_rows_that_are_not_as_the_checkpoint_recorded_them_are_told(tmp_path, monkeypatch):
    kill_with_two_checkpoints(monkeypatch, tmp_path, HyperTrick(6, 3))
    path = tmp_path / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *lines[2:]]))
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: .* recorded.*metrics\.damaged-1"):
        run(tmp_path, HyperTrick(6, 3), resume=True)
    assert path.read_bytes().startswith(lines[0] + lines[2])


@pytest.mark.parametrize(
    ("changes", "difference"),
    [({"seed": 6}, "seed: 5 -> 6"), ({}, "run_id: '.*' -> '.*'")],
    ids=["seed", "twin"],
)
def test_a_checkpoint_of_another_sweep_is_refused(tmp_path, monkeypatch, changes, difference):
    for name, different in (("a", {}), ("b", changes)):
        kill_with_two_checkpoints(monkeypatch, tmp_path / name, HyperTrick(6, 3), **different)
    for folder in checkpoints_of(tmp_path / "a"):
        shutil.rmtree(folder)
    newest = checkpoints_of(tmp_path / "b")[0]
    shutil.copytree(newest, tmp_path / "a" / "checkpoints" / newest.name)
    with pytest.raises(ValueError, match=rf"/{newest.name} belongs to another run.*{difference}"):
        run(tmp_path / "a", HyperTrick(6, 3), resume=True)


def test_the_same_signal_again_does_not_end_a_sweep_before_its_checkpoint(
    tmp_path, monkeypatch, signals_while_sealing
):
    report = loop.SweepLoop._report

    def report_and_signal(self, *arguments):
        report(self, *arguments)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(loop.SweepLoop, "_report", report_and_signal)
    assert run(tmp_path, HyperTrick(6, 3), keep_best=0).interrupted
    assert not signals_while_sealing
    (checkpoint,) = checkpoints_of(tmp_path)
    assert (checkpoint / seal.NAME).exists()


def test_a_sweep_resumes_with_another_timeout_of_simulators_and_no_other_option(tmp_path):
    run(tmp_path, RandomSearch(2, 1))
    before = sweep_file.read(tmp_path)
    resumed = before | {"env_options": before["env_options"] | {"timeout": 900.0}}
    with sweep_file.open_directory(tmp_path, resumed, True) as is_new:
        assert not is_new
    assert resumed["env_options"] == before["env_options"]  # seals have them
    other = before | {"env_options": {"max_episode_steps": 9}}
    with (
        pytest.raises(ValueError, match="these settings changed: env_options"),
        sweep_file.open_directory(tmp_path, other, True),
    ):
        pass


def test_a_state_that_the_sweep_could_not_have_saved_is_named(tmp_path, monkeypatch):
    newest, _ = kill_with_two_checkpoints(monkeypatch, tmp_path, HyperTrick(6, 3))
    path = newest / "progress" / "metadata"
    saved, entries = json.loads(path.read_text()), seal.read(newest / seal.NAME)
    for changes, message in (
        ({"chunks": saved["chunks"] + 1}, f"chunks must be {newest.name}, the number of"),
        ({"ledger": []}, "ledger must be scores, numbers of phases and statuses"),
        ({"runs": [{}]}, "runs must be a list, each element an object with trial"),
        ({"values": [[0]]}, "values must be a list"),
    ):
        path.write_text(json.dumps(saved | changes))
        seal.write(newest, {name: entries[name] for name in ("update", "identity", "rows")})
        with pytest.raises(
            ValueError, match=rf"{newest.name}/progress/metadata is damaged: {message}"
        ):
            run(tmp_path, HyperTrick(6, 3), resume=True)


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("strategy", "space"), [("vmap", SPACE), ("vmap", STATIC)])
def test_a_sweep_says_once_that_devices_are_unused(tmp_path, monkeypatch, capsys, strategy, space):
    monkeypatch.setattr(loop, "describe_unused", lambda used, _: f"uses {used} of 4")
    for number, has_bar in enumerate([True, False]):
        arguments = {"strategy": strategy, "progress_bar": has_bar}
        run(tmp_path / str(number), HyperTrick(2, 1), space, **arguments)
        assert capsys.readouterr().err.count("uses 1 of 4") == has_bar


# --- failures ------------------------------------------------------------------------------------


def test_a_study_that_cannot_be_written_is_one_error(tmp_path, monkeypatch):
    def fail(*_):
        raise optuna.exceptions.StorageInternalError("invalid data?") from OSError("disk is full")

    monkeypatch.setattr(SharedStudy, "report", fail)
    with pytest.raises(OSError, match=r"study at journal.* written: disk is full. .*resume once"):
        run(tmp_path / "x", HyperTrick(4, 2))


@pytest.mark.parametrize("failure", ["at the start", "of the last seal"])
def test_a_sweep_that_fails_closes_all_that_it_has_opened(tmp_path, monkeypatch, failure):
    def fail(*_):
        raise OSError(failure)

    closed = []

    def record(part):
        def close(self, original=part.close):
            closed.append(part)
            original(self)
            if part is Checkpoints and failure == "of the last seal":
                fail()

        monkeypatch.setattr(part, "close", close)

    parts = [Lanes, display.Display, SharedStudy, Checkpoints, JsonlSink]
    for part in parts:
        record(part)
    if failure == "at the start":
        monkeypatch.setattr(Trials, "take_in", fail)
        parts.remove(JsonlSink)  # it is opened last
    with pytest.raises(OSError, match=failure):
        run(tmp_path / "x", RandomSearch(2, 1), num_lanes=2, keep_best=0)
    assert list(dict.fromkeys(closed)) == parts


def test_a_sweep_on_a_full_disk_says_so_and_resumes_later(tmp_path, monkeypatch):
    expected = outcome(run(tmp_path / "whole", RandomSearch(6, 3)))
    real, rows = JsonlSink.write, itertools.count()

    def write(sink, row):
        if next(rows) == 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(sink, row)

    with monkeypatch.context() as patch:
        patch.setattr(JsonlSink, "write", write)
        with pytest.raises(OSError, match=r"cannot write to .*part: .*No space.* and resume"):
            run(tmp_path / "part", RandomSearch(6, 3), checkpoint_seconds=0)
    resumed = run(tmp_path / "part", RandomSearch(6, 3), resume=True)
    assert outcome(resumed) == expected


def test_a_sweeps_log_without_a_terminal_has_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("jaxrl.training.progress.bar.LOG_SECONDS", 0.01)
    monkeypatch.setattr(display, "SHARE", 1e-9)  # the last line is shown, however soon it comes
    run(tmp_path / "x", HyperTrick(4, 2), progress_bar=True)
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"[\d-]{10} [\d:]{8} 4/4 trials ended, .* steps/s.*, best score .*", last)


def test_the_display_has_the_trials_that_train(tmp_path, monkeypatch):
    shown, trained, train = [], [], loop.SweepLoop._train_chunk

    def train_chunk(sweep_loop):
        trained.append(shown[-1])
        train(sweep_loop)

    monkeypatch.setattr(display.Display, "show", lambda *arguments: shown.append(arguments[4]))
    monkeypatch.setattr(loop.SweepLoop, "_train_chunk", train_chunk)
    run(tmp_path / "x", RandomSearch(4, 1), num_lanes=2, chunk_seconds=100.0)
    assert {tuple(trial for _, trial, _ in running) for running in trained} == {(0, 1), (2, 3)}
    assert not shown[-1]


def test_runs_of_finals_are_named_as_such():
    scheduler = {"num_trials": 6, "num_phases": 1, "finalists": [3]}
    shown = display.Display({"scheduler": scheduler}, is_visible=True)
    shown.show(1.0, 0, lambda: 0, [], list)
    assert shown._line.startswith("0/6 runs of the finals ended, 0 under way")


def test_in_a_terminal_the_display_has_the_best_trials_and_those_on_lanes(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=40)
    monkeypatch.setattr(display, "Console", lambda **_: console)
    trials = [
        {"trial": i, "values": {"gamma": i / 8}, "scores": [float(i)], "status": "running"}
        for i in range(7)
    ]
    table = display.Display({"scheduler": {"num_trials": 8, "num_phases": 4}}, is_visible=True)
    table.show(10.0, 500, lambda: 0, [(0, 2, 1), (1, 6, 3)], lambda: trials)
    with console.capture() as shown:
        console.print(table._live.renderable)
    assert "best score 6.00" in shown.get()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.get().splitlines()]
    assert [row for row in rows if row] == [
        ["0", "2", "2/4", "2.00", "gamma 0.25"],
        ["1", "6", "4/4", "6.00", "gamma 0.75"],
        *([f"{i}.00", str(i), "1", "running", f"gamma {i / 8:.4g}"] for i in (6, 5, 4, 3, 2)),
    ]


def test_the_display_counts_the_steps_before_a_resume(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        run(tmp_path / "x", RandomSearch(4, 4))
    shown = []
    monkeypatch.setattr(
        display.Display, "show", lambda _, seconds, steps, *rest: shown.append(steps)
    )
    run(tmp_path / "x", RandomSearch(4, 4), resume=True)
    algo, config = toy_algorithm(), ToyConfig()
    assert shown[-1] == 4 * 4 * UPDATES * algo.env.num_envs * algo.num_steps(config)


def test_a_worker_without_trials_waits_for_others_until_its_sweep_is_over():
    shown = display.Display({"scheduler": {"num_trials": 8, "num_phases": 4}}, is_visible=True)
    shown.show(1.0, 0, lambda: 3, [], list)
    assert shown._line.endswith(", waiting for other workers")
    shown.show(1.0, 0, lambda: 3, [], list, is_last=True)
    assert not shown._line.endswith(", waiting for other workers")


def test_the_headline_counts_the_trials_of_this_worker_and_of_others():
    trials = [{"status": "completed"}, {"status": "stopped"}, {"status": "running"}]
    alone = display.headline(10.0, 500, 0, trials, 8)
    assert alone == "2/8 trials ended, 1 under way, 10 s, 50 steps/s"
    shared = display.headline(10.0, 500, 3, trials, 8)
    assert shared == "2/8 trials ended, 1 under way, 3 by other workers, 10 s, 50 steps/s"


@pytest.mark.parametrize(
    ("num_ended", "caps", "left"),
    [
        (2, (math.inf, math.inf), 30.0),  # a quarter of the trials took 10 s
        (2, (1000, math.inf), 10.0),  # half of the steps too, so that is what ends the sweep
        (2, (4000, 15.0), 5.0),
        (2, (500, 15.0), 0.0),
        (2, (400, math.inf), 0.0),  # the last chunk may take more steps than the cap
        (0, (2000, math.inf), 30.0),
        (0, (math.inf, math.inf), math.inf),
    ],
)
def test_the_time_that_is_left_ends_with_the_first_cap_or_the_last_trial(num_ended, caps, left):
    trials = [{"status": "completed"}] * num_ended + [{"status": "running"}]
    assert display.seconds_left(10.0, 500, trials, 8, *caps) == pytest.approx(left)


@pytest.mark.parametrize(
    ("others", "caps", "left"),
    [(0, {}, "about 10 s left"), (3, {}, None), (3, {"max_seconds": 14.0}, "about 4 s left")],
)
def test_the_display_tells_the_time_that_is_left(others, caps, left):
    trials = [{"trial": i, "scores": [], "status": "completed"} for i in range(4)]
    scheduler = {"num_trials": 8, "num_phases": 4}
    shown = display.Display({"scheduler": scheduler, **caps}, is_visible=True)
    shown.show(10.0, 500, lambda: others, [(0, 4, 0)], lambda: trials)
    assert re.findall(r"about .* s left", shown._line) == [left] * (left is not None)
    shown.show(10.0, 500, lambda: others, [], lambda: trials, is_last=True)
    assert "left" not in shown._line
