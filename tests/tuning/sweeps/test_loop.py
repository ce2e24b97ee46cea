"""The life of a sweep: it decides as one program does; a killed sweep resumes to the same end."""

import dataclasses
import errno
import functools
import itertools
import math
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optuna
import pytest
from sweep_runs import (
    SPACE,
    STATIC,
    KilledError,
    kill_after_reports,
    outcome,
    run,
    stop_after,
    toy_algorithm,
)
from toy_algorithm import ToyConfig

from jaxrl.training.loggers import JsonlSink, read_jsonl
from jaxrl.tuning import (
    ASHA,
    HyperTrick,
    LogUniform,
    Phase,
    RandomSearch,
    Status,
    SuccessiveHalving,
    Uniform,
    search,
)
from jaxrl.tuning.sweeps import loop
from jaxrl.tuning.sweeps.study import SharedStudy

pytestmark = pytest.mark.usefixtures("quick_compilation")


def searched(scheduler):
    program = functools.partial(search, toy_algorithm(), ToyConfig(), SPACE, scheduler, 4, 3)
    return jax.jit(program)(jax.random.key(5))


@pytest.mark.parametrize("scheduler", [HyperTrick(12, 4), SuccessiveHalving(9, 9)], ids=str)
def test_a_sweep_finds_what_one_program_finds_and_stores_it_in_the_study(tmp_path, scheduler):
    expected = searched(scheduler)
    url = f"sqlite:///{tmp_path / 'study.db'}"
    result = run(tmp_path / "x", scheduler, storage=url, study_name="s")
    study = optuna.load_study(study_name="s", storage=url)
    assert len(outcome(result)) == len(study.trials) == scheduler.num_trials
    for trial, stored in zip(outcome(result), study.trials, strict=True):
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
    ("phase", "updates"), [(Phase(3), 3), (Phase(17, "steps"), 5), (Phase(40, "episodes"), 16)]
)
def test_phases_are_counted_in_updates_steps_or_episodes(tmp_path, phase, updates):
    """An update has two steps of two environments, and three episodes end in it."""
    run(tmp_path / "x", RandomSearch(2, 2), phase=phase, num_lanes=1)
    rows = read_jsonl(tmp_path / "x" / "metrics.jsonl")
    assert {row["phase"] for row in rows} == {0, 1}
    assert max(r["trial_update"] for r in rows if r["phase"] == 0) == updates
    assert max(r["trial_update"] for r in rows if r["phase"] == 1) == 2 * updates


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


@pytest.mark.parametrize(
    ("scheduler", "space", "checkpoint_seconds"),
    [
        (HyperTrick(12, 4), SPACE, 1e9),
        (HyperTrick(12, 4), SPACE, 0.0),
        (SuccessiveHalving(9, 9), SPACE, 0.0),
        pytest.param(ASHA(9, 9), STATIC, 0.0, marks=pytest.mark.slow),
        pytest.param(ASHA(9, 9), STATIC, 1e9, marks=pytest.mark.slow),
    ],
    ids=["hypertrick unsaved", "hypertrick", "halving", "asha static", "asha static unsaved"],
)
def test_a_killed_sweep_resumes_to_the_same_outcome(
    tmp_path, monkeypatch, scheduler, space, checkpoint_seconds
):
    """The study is ahead of the last checkpoint; phases that run again count once."""
    expected = run(tmp_path / "whole", scheduler, space)
    for chunks in (2, 3):
        with monkeypatch.context() as patch:
            kill_after_reports(patch, chunks)
            resume = (tmp_path / "cut").exists()
            times = {"checkpoint_seconds": checkpoint_seconds}
            with pytest.raises(KilledError):
                run(tmp_path / "cut", scheduler, space, resume=resume, **times)
    result = run(tmp_path / "cut", scheduler, space, resume=True)
    assert outcome(result) == outcome(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheduler", "space"),
    [(HyperTrick(5, 2), SPACE), (ASHA(4, 4, 2), STATIC)],
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
    assert len(set(done)) == len(done) == sum(3 * len(t["scores"]) for t in outcome(result))


@pytest.mark.slow
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
        arguments["worker"] = "another"
    else:
        here = here.rename(tmp_path / "moved")
    assert outcome(run(here, scheduler, resume=True, **arguments)) == outcome(expected)


def test_a_sweep_resumes_with_its_own_study(tmp_path, monkeypatch):
    scheduler = HyperTrick(6, 3)
    shared = {"storage": f"sqlite:///{tmp_path / 'shared.db'}", "study_name": "s"}
    expected = run(tmp_path / "whole", scheduler)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        run(tmp_path / "cut", scheduler, **shared)
    other = f"sqlite:///{tmp_path / 'other.db'}"
    with pytest.raises(ValueError, match=r"lacks the checkpoint's trials \[0, .*\]; resume with"):
        run(tmp_path / "cut", scheduler, resume=True, storage=other)
    resumed = run(tmp_path / "cut", scheduler, resume=True, storage=None)
    assert outcome(resumed) == outcome(expected)
    assert not (tmp_path / "cut" / "study.db").exists()


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves(tmp_path, monkeypatch):
    arguments = {"checkpoint_seconds": 0.0, "resume": True}
    expected = run(tmp_path / "whole", HyperTrick(6, 3))
    with monkeypatch.context() as patch:
        kill_after_reports(patch, 3)
        with pytest.raises(KilledError):
            run(tmp_path / "cut", HyperTrick(6, 3), **arguments)
    newest = max((tmp_path / "cut" / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in newest.rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match=f"{newest.name} is damaged or .* Delete that folder"):
        run(tmp_path / "cut", HyperTrick(6, 3), **arguments)
    shutil.rmtree(newest)
    assert outcome(run(tmp_path / "cut", HyperTrick(6, 3), **arguments)) == outcome(expected)


# --- failures ------------------------------------------------------------------------------------


def test_a_study_that_cannot_be_written_is_one_error(tmp_path, monkeypatch):
    def fail(*_):
        raise optuna.exceptions.StorageInternalError("invalid data?") from OSError("disk is full")

    monkeypatch.setattr(SharedStudy, "report", fail)
    with pytest.raises(OSError, match=r"study at journal.* written: disk is full. .*resume once"):
        run(tmp_path / "x", HyperTrick(4, 2))


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
