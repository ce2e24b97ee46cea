"""Sweeps driven from the host: what one program finds, with a store, checkpoints and any field."""

import dataclasses
import errno
import functools
import itertools
import math
import shutil
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optuna
import pytest
from toy_algorithm import InterruptAfter, ToyConfig, toy

import jaxrl
from jaxrl.envs import envpool
from jaxrl.envs.host import callback
from jaxrl.training import manifest as manifests
from jaxrl.training.loggers import JsonlSink, read_jsonl
from jaxrl.training.run_dir import directory_lock
from jaxrl.tuning import (
    ASHA,
    Choice,
    HyperTrick,
    Integer,
    LogUniform,
    Phase,
    QLogUniform,
    RandomSearch,
    Status,
    SuccessiveHalving,
    Uniform,
    search,
    sweep,
)
from jaxrl.tuning.sweeps import loop, samplers, state
from jaxrl.tuning.sweeps.best_agents import BestAgents
from jaxrl.tuning.sweeps.lanes import LaneGroup, Lanes
from jaxrl.tuning.sweeps.study import SharedStudy

pytestmark = pytest.mark.usefixtures("quick_compilation")

SPACE = {"learning_rate": LogUniform(1e-5, 1e-1), "gamma": Uniform(0.3, 0.9)}
HALF: Any = Phase(3)._replace(length=2.5)  # pyrefly: ignore[bad-argument-type]
STATIC = SPACE | {"num_steps": QLogUniform(1, 8, rungs=3), "activation": Choice(("tanh", "relu"))}


@functools.cache
def toy_algorithm():
    return toy()


def run(directory, scheduler, space=SPACE, **arguments):
    defaults: dict[str, Any] = {
        "num_lanes": 4,
        "phase": Phase(3),
        "seed": 5,
        "strategy": "vmap",
        "progress_bar": False,
        "checkpoint_seconds": 1e9,
        "storage": f"journal:///{directory.parent / (directory.name + '.log')}",
    }
    return sweep(
        toy_algorithm(), ToyConfig(), space, scheduler, run_dir=directory, **defaults | arguments
    )


def outcome(result):
    """What must not depend on interruptions: trials, values, scores, decisions."""
    return result.summary["trials"]


@pytest.mark.parametrize("scheduler", [HyperTrick(14, 4), SuccessiveHalving(9, 9)], ids=str)
def test_a_sweep_finds_what_the_one_program_finds(tmp_path, scheduler):
    program = functools.partial(search, toy_algorithm(), ToyConfig(), SPACE, scheduler, 4, 3)
    expected = jax.jit(program)(jax.random.key(5))
    result = run(tmp_path / "x", scheduler)
    assert len(outcome(result)) == scheduler.num_trials
    for trial in outcome(result):
        index = trial["trial"]
        reported = int(expected.ledger.reported[index])
        np.testing.assert_allclose(
            trial["scores"], expected.ledger.scores[index, :reported], rtol=1e-5
        )
        assert trial["values"]["gamma"] == pytest.approx(float(expected.values["gamma"][index]))
    assert result.best is not None
    assert result.best["trial"] == int(expected.best_trial)
    assert not result.interrupted


def test_the_store_has_every_score_and_decision(tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    result = run(tmp_path / "x", HyperTrick(12, 4), storage=url, study_name="toy_algorithm")
    study = optuna.load_study(study_name="toy_algorithm", storage=url)
    assert len(study.trials) == 12
    for trial, stored in zip(outcome(result), study.trials, strict=True):
        assert stored.user_attrs["index"] == trial["trial"]
        assert list(stored.intermediate_values.values()) == trial["scores"]
        state = {"completed": "COMPLETE", "stopped": "PRUNED"}[trial["status"]]
        assert stored.state.name == state
        assert stored.params == pytest.approx(trial["values"])
    assert study.best_value == max(
        t["scores"][-1] for t in outcome(result) if len(t["scores"]) == 4
    )


def test_static_fields_form_groups_that_lanes_move_between(tmp_path):
    result = run(tmp_path / "x", HyperTrick(12, 3), STATIC, num_lanes=3)
    trials = {t["trial"]: t for t in outcome(result)}
    assert {t["values"]["num_steps"] for t in trials.values()} == {1, 3, 8}
    assert {t["values"]["activation"] for t in trials.values()} == {"tanh", "relu"}
    for trial in trials.values():  # `toy` adds num_steps to its score
        config = ToyConfig(**trial["values"])
        assert abs(trial["scores"][0] - config.num_steps) < 100
    groups_of_lane = {
        lane: {
            (trials[s["trial"]]["values"]["num_steps"], trials[s["trial"]]["values"]["activation"])
            for s in result.summary["spans"]
            if s["lane"] == lane
        }
        for lane in range(3)
    }
    assert max(len(groups) for groups in groups_of_lane.values()) > 1


def test_lanes_of_groups_on_several_devices_find_what_they_find_on_one(tmp_path, monkeypatch):
    used = set()
    original = LaneGroup.train

    def train(self, *arguments):
        metrics = original(self, *arguments)
        used.update(metrics["loss"].devices())
        return metrics

    monkeypatch.setattr(LaneGroup, "train", train)
    outcomes = []
    for strategy, devices in (("vmap", 1), ("auto", 2), ("shard-vmap", 2)):
        used.clear()
        result = run(
            tmp_path / strategy, RandomSearch(9, 2), STATIC, num_lanes=4, strategy=strategy
        )
        assert len(used) == min(devices, jax.local_device_count())
        outcomes.append(outcome(result))
    assert len(outcomes[0]) == 9
    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
def test_a_device_that_takes_long_keeps_no_other_waiting(tmp_path, monkeypatch):
    """One device's first update begins when the other has done eight trials, in nine chunks."""
    original = Lanes._train_group
    others = threading.Event()
    chunks = itertools.count(1)

    def train(self, gang, *arguments):
        if gang == 0:
            assert others.wait(60)
        elif next(chunks) == 10:
            others.set()
        return original(self, gang, *arguments)

    monkeypatch.setattr(Lanes, "_train_group", train)
    result = run(
        tmp_path / "x", RandomSearch(12, 1), STATIC,
        num_lanes=2, strategy="shard-vmap", chunk_seconds=1e9,
    )  # fmt: skip
    lanes = [span["lane"] for span in result.summary["spans"]]
    assert len(outcome(result)) == 12
    assert lanes[:8] == [1] * 8
    assert lanes.count(0) > 0


@pytest.mark.parametrize(
    ("phase", "updates"), [(Phase(3), 3), (Phase(17, "steps"), 5), (Phase(40, "episodes"), 16)]
)
def test_phases_are_counted_in_updates_steps_or_episodes(tmp_path, phase, updates):
    """Two environments times two steps an update; three episodes end in each."""
    run(tmp_path / "x", RandomSearch(2, 2), phase=phase, num_lanes=1)
    rows = read_jsonl(tmp_path / "x" / "metrics.jsonl")
    assert {row["phase"] for row in rows} == {0, 1}
    assert max(r["trial_update"] for r in rows if r["phase"] == 0) == updates
    assert max(r["trial_update"] for r in rows if r["phase"] == 1) == 2 * updates


class KilledError(Exception):
    pass


def killed_after(monkeypatch, chunks):
    """Sweeps die, as by SIGKILL, while lanes report for this time."""
    original = loop.SweepLoop._report
    counted = []

    def report(self, *arguments):
        original(self, *arguments)
        if self.state.chunks not in counted:
            counted.append(self.state.chunks)
        if len(counted) == chunks:
            raise KilledError

    monkeypatch.setattr(loop.SweepLoop, "_report", report)


@pytest.mark.parametrize("every", [0.0, 1e9], ids=["saved each chunk", "never saved"])
@pytest.mark.parametrize(
    ("scheduler", "space"),
    [(HyperTrick(12, 4), SPACE), (SuccessiveHalving(9, 9), SPACE), (ASHA(9, 9), STATIC)],
    ids=["hypertrick", "halving", "asha of groups"],
)
def test_a_killed_sweep_resumes_to_the_same_leaderboard(
    tmp_path, monkeypatch, scheduler, space, every
):
    """The store is ahead of the last checkpoint: what is run again counts once."""
    expected = run(tmp_path / "whole", scheduler, space)
    for chunks in (2, 3):
        with monkeypatch.context() as patch:
            killed_after(patch, chunks)
            with pytest.raises(KilledError):
                run(
                    tmp_path / "cut",
                    scheduler,
                    space,
                    checkpoint_seconds=every,
                    resume=(tmp_path / "cut").exists(),
                )
    result = run(tmp_path / "cut", scheduler, space, resume=True)
    assert outcome(result) == outcome(expected)


@pytest.mark.parametrize(
    ("scheduler", "space"), [(HyperTrick(12, 4), SPACE), (ASHA(9, 9), STATIC)], ids=["one", "many"]
)
def test_a_sweep_killed_within_a_phase_repeats_no_update(tmp_path, monkeypatch, scheduler, space):
    expected = run(tmp_path / "whole", scheduler, space)
    calls = iter(range(6))  # of three updates a phase, with a checkpoint after each
    original = loop.SweepLoop._train_chunk

    def killed(self):
        if next(calls) == 5:
            raise KilledError
        original(self)

    always = {"checkpoint_seconds": 0.0, "chunk_seconds": 0.0}
    with monkeypatch.context() as patch:
        patch.setattr(loop.SweepLoop, "_train_chunk", killed)
        with pytest.raises(KilledError):
            run(tmp_path / "cut", scheduler, space, **always)
    result = run(tmp_path / "cut", scheduler, space, resume=True, **always)
    assert outcome(result) == outcome(expected)
    rows = read_jsonl(tmp_path / "cut" / "metrics.jsonl")
    done = [(row["trial"], row["trial_update"]) for row in rows]
    assert len(set(done)) == len(done) == sum(3 * len(t["scores"]) for t in outcome(result))


def test_a_sweep_on_several_devices_goes_on_after_a_kill(tmp_path, monkeypatch):
    scheduler = ASHA(9, 9)  # of which trials pause, and may go on on another device
    with monkeypatch.context() as patch:
        killed_after(patch, 3)
        with pytest.raises(KilledError):
            run(tmp_path / "x", scheduler, STATIC, strategy="auto", checkpoint_seconds=0.0)
    result = run(tmp_path / "x", scheduler, STATIC, strategy="auto", resume=True)
    spans = [(span["trial"], span["phase"]) for span in result.summary["spans"]]
    reported = [(t["trial"], phase) for t in outcome(result) for phase in range(len(t["scores"]))]
    assert sorted(spans) == sorted(reported)
    assert {trial["status"] for trial in outcome(result)} == {"completed", "stopped"}


@pytest.mark.parametrize("every", [0.0, 1e9], ids=["saved each chunk", "saved when stopped"])
def test_a_stopped_sweep_resumes_to_the_same_leaderboard(tmp_path, monkeypatch, every):
    scheduler = HyperTrick(12, 4)
    expected = run(tmp_path / "whole", scheduler)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "Interrupt", lambda: InterruptAfter(3))
        stopped = run(tmp_path / "cut", scheduler, checkpoint_seconds=every)
    assert stopped.interrupted
    assert len(outcome(stopped)) < 12
    assert outcome(run(tmp_path / "cut", scheduler, resume=True)) == outcome(expected)


@pytest.mark.parametrize("elsewhere", ["in a directory that was moved", "by another worker"])
def test_a_stopped_sweep_resumes_elsewhere(tmp_path, monkeypatch, elsewhere):
    scheduler, here = SuccessiveHalving(6, 4, 2), tmp_path / "cut"
    arguments: dict[str, Any] = {"num_lanes": 2, "storage": None, "heartbeat_seconds": 1}
    expected = run(tmp_path / "whole", scheduler, **arguments)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "Interrupt", lambda: InterruptAfter(2))
        stopped = run(here, scheduler, **arguments)
    assert "paused" in {trial["status"] for trial in outcome(stopped)}
    if elsewhere == "by another worker":
        arguments["worker"] = "another"
    else:
        here = here.rename(tmp_path / "moved")
    assert outcome(run(here, scheduler, resume=True, **arguments)) == outcome(expected)


def test_a_sweep_goes_on_with_its_own_study(tmp_path, monkeypatch):
    scheduler = HyperTrick(6, 3)
    shared = {"storage": f"sqlite:///{tmp_path / 'shared.db'}", "study_name": "s"}
    expected = run(tmp_path / "whole", scheduler)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "Interrupt", lambda: InterruptAfter(2))
        run(tmp_path / "cut", scheduler, **shared)
    other = f"sqlite:///{tmp_path / 'other.db'}"
    with pytest.raises(ValueError, match=r"lacks the checkpoint's trials \[0, .*\]; resume with"):
        run(tmp_path / "cut", scheduler, resume=True, storage=other)
    resumed = run(tmp_path / "cut", scheduler, resume=True, storage=None)
    assert outcome(resumed) == outcome(expected)
    assert not (tmp_path / "cut" / "study.db").exists()


@dataclasses.dataclass(frozen=True)
class StopsOthers:
    """Whoever is below the median of a phase stops, whenever that becomes so."""

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
def test_a_scheduler_may_stop_trials_that_others_outdo(tmp_path, unit):
    scheduler = StopsOthers(8)
    result = run(tmp_path / "x", scheduler, phase=Phase(3, unit))
    status = [trial["status"] for trial in outcome(result)]
    assert len(status) == 8
    assert {"stopped"} <= set(status) <= {"stopped", "completed"}
    if unit == "updates":
        expected = jax.jit(
            functools.partial(search, toy_algorithm(), ToyConfig(), SPACE, scheduler, 4, 3)
        )
        ledger = expected(jax.random.key(5)).ledger
        assert status == [Status(x).name.lower() for x in ledger.status.tolist()]
        reported = [len(trial["scores"]) for trial in outcome(result)]
        assert reported == ledger.reported.tolist()


def test_the_study_has_the_rungs_that_were_trained(tmp_path):
    space = {"num_steps": QLogUniform(1, 64, rungs=3)}
    url = f"sqlite:///{tmp_path / 'study.db'}"
    result = run(
        tmp_path / "x", RandomSearch(4, 1), space, sampler="tpe", storage=url, study_name="s"
    )
    stored = [trial.params for trial in optuna.load_study(study_name="s", storage=url).trials]
    assert stored == [trial["values"] for trial in outcome(result)]


def test_infinite_returns_are_the_worst():
    metrics = {"episode_count": 2.0, "episode_return_sum": math.inf, "loss": 0.0}
    trial = state.PhaseRun(0, 0.0)
    assert math.isnan(trial.score)
    trial.count(metrics, 1)
    assert trial.score == -math.inf


def test_samplers_take_trials_without_a_score_for_the_worst():
    study = optuna.create_study(direction="maximize")
    for scores in ({0: math.nan, 1: math.nan}, {0: 3.0}, {0: math.nan, 1: 3.0}):
        pruned = optuna.trial.TrialState.PRUNED
        study.add_trial(optuna.create_trial(state=pruned, intermediate_values=scores))
    seen = [
        trial.intermediate_values for trial in map(samplers.rank_silent_trial_last, study.trials)
    ]
    assert seen[0] == {0: -math.inf}
    assert seen[1] == {0: 3.0}
    assert seen[2][1] == 3.0
    assert set(study.trials[0].intermediate_values) == {0, 1}


def test_a_finished_sweep_can_be_resumed_to_no_effect(tmp_path):
    first = run(tmp_path / "x", HyperTrick(6, 2))
    again = run(tmp_path / "x", HyperTrick(6, 2), resume=True)
    assert outcome(again) == outcome(first)


@pytest.mark.parametrize(
    ("sampler", "needs"), [("tpe", "optuna"), ("cmaes", "cmaes"), ("gp", "torch")]
)
def test_optunas_samplers_choose_the_values(tmp_path, sampler, needs):
    pytest.importorskip(needs)
    result = run(tmp_path / "x", RandomSearch(30, 1), sampler=sampler, num_lanes=2)
    rates = [trial["values"]["learning_rate"] for trial in outcome(result)]
    distance = np.abs(np.log10(np.array(rates) / 1e-3))
    assert distance[-10:].mean() < distance[:10].mean()
    assert all(1e-5 <= rate <= 1e-1 for rate in rates)


def test_diverged_trials_and_those_without_episodes_are_stored_as_such(tmp_path):
    space = {"learning_rate": LogUniform(1e-2, 50.0), "gamma": Uniform(0.0, 0.4)}
    result = run(tmp_path / "x", HyperTrick(12, 2), space)
    for trial in outcome(result):
        diverged = trial["values"]["learning_rate"] >= 0.5
        silent = trial["values"]["gamma"] < 0.2
        expected = "-inf" if diverged else None
        if diverged or silent:
            assert set(trial["scores"]) == {expected}
        else:
            assert all(math.isfinite(score) for score in trial["scores"])


def test_the_best_agents_are_kept_and_can_be_loaded(tmp_path):
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=2))
    config = jaxrl.PPOConfig(num_steps=64, hidden_sizes=(8,), num_minibatches=1, num_epochs=1)
    space = {"learning_rate": LogUniform(1e-4, 1e-2), "gamma": Choice((0.9, 0.99))}
    result = sweep(
        algo,
        config,
        space,
        RandomSearch(5, 2),
        num_lanes=2,
        phase=Phase(2),
        run_dir=tmp_path / "x",
        strategy="vmap",
        keep_best=1,
        seed=1,
        keep_best_per="gamma",
        progress_bar=False,
    )
    kept = sorted((tmp_path / "x" / "best").iterdir())
    assert 2 <= len(kept) <= 3
    assert result.best is not None
    directory = tmp_path / "x" / "best" / f"trial-{result.best['trial']}"
    assert directory in kept
    policy = jaxrl.load_policy(directory)
    assert policy.config.learning_rate == pytest.approx(result.best["values"]["learning_rate"])
    assert policy(np.zeros(4)).shape == ()
    assert {jaxrl.load_policy(path).config.gamma for path in kept} == {0.9, 0.99}


def test_atari_lanes_share_one_pool_through_refills(tmp_path, monkeypatch):
    made = []
    original = envpool.Pool.__init__

    def counted(self, name, keywords, seeds):
        made.append(len(seeds))
        original(self, name, keywords, seeds)

    monkeypatch.setattr(envpool.Pool, "__init__", counted)
    env = jaxrl.make("Pong-v5", num_envs=2, num_threads=1, max_episode_steps=6)
    algo = jaxrl.a2c(env)
    result = sweep(
        algo,
        jaxrl.A2CConfig(torso="mlp", hidden_sizes=(8,)),
        {"learning_rate": LogUniform(1e-5, 1e-2), "gamma": Choice((0.9, 0.99))},
        HyperTrick(10, 3, 0.4),
        num_lanes=4,
        phase=Phase(2),
        run_dir=tmp_path / "x",
        strategy="vmap",
        progress_bar=False,
    )
    assert made == [4 * 2]
    assert {trial["status"] for trial in outcome(result)} == {"completed", "stopped"}
    assert len(outcome(result)) == 10
    assert all(None not in trial["scores"] for trial in outcome(result))
    lanes = [{s["trial"] for s in result.summary["spans"] if s["lane"] == i} for i in range(4)]
    assert min(len(trials) for trials in lanes) >= 2


def test_lanes_of_many_groups_have_pools_of_their_own(tmp_path):
    """More than are kept by default; those of groups that a lane has left are closed."""
    algo = jaxrl.a2c(jaxrl.make("envpool/CartPole-v1", num_envs=2, num_threads=1))
    space = {"learning_rate": LogUniform(1e-4, 1e-2), "num_steps": Choice((20, 30))}
    before = len(callback._groups)
    result = sweep(
        algo,
        jaxrl.A2CConfig(hidden_sizes=(8,)),
        space,
        HyperTrick(18, 2, 0.4),
        num_lanes=10,
        phase=Phase(3),
        run_dir=tmp_path / "x",
        progress_bar=False,
    )
    assert len(outcome(result)) == 18
    assert all(None not in trial["scores"] for trial in outcome(result))
    assert len(callback._groups) <= max(before, 10) + 1


def test_the_best_agents_that_are_left_stay(tmp_path):
    """Those that ended just before a kill have scores, and no agents."""
    best = BestAgents(tmp_path, 1, None)

    def trials(*scores):
        return [{"trial": i, "scores": [score]} for i, score in enumerate(scores)]

    def describe(trial, score):
        return True, {"trial": trial}

    assert best.is_among_best(0, 5.0, trials(5.0))
    best.keep(0, 5.0, 1, {"x": jnp.zeros(2)})
    best.write(trials(5.0), describe)
    resumed = BestAgents(tmp_path, 1, None)
    resumed.write(trials(5.0, 9.0), describe)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["trial-0"]
    assert not resumed.is_among_best(2, 4.0, trials(5.0, 9.0, 4.0))
    assert resumed.is_among_best(3, 7.0, trials(5.0, 9.0, 4.0, 7.0))
    resumed.keep(3, 7.0, 1, {"x": jnp.zeros(2)})
    resumed.write(trials(5.0, 9.0, 4.0, 7.0), describe)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["trial-3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_lanes": 0}, "num_lanes must be an integer >= 1, got 0"),
        ({"phase": HALF}, "a phase's length must be an integer >= 1, got 2.5"),
        ({"phase": Phase(3, "hours")}, "a phase.s unit must be one of .*, got 'hours'"),
        ({"sampler": "grid"}, "sampler must be one of .*, got 'grid'"),
        ({"keep_best_per": "lambda"}, "keep_best_per = 'lambda' is not searched"),
        ({"strategy": "pmap", "space": STATIC}, "strategy must be one of .*, got 'pmap'"),
        ({"storage": "nosuchdb://x"}, "storage 'nosuchdb://x' cannot be opened"),
        ({"strategy": "pmap"}, "strategy must be one of .*, got 'pmap'"),
        ({"seed": -1}, "seed must be an integer from 0 to .*, got -1"),
        ({"keep_best": -1}, "keep_best must be >= 0, got -1"),
    ],
)
def test_bad_arguments_are_refused_by_name_and_leave_nothing(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "x", HyperTrick(4, 2), **arguments)
    run(tmp_path / "x", HyperTrick(2, 1))


@pytest.mark.parametrize(
    ("num_envs", "num_steps", "space", "message"),
    [
        (4, 16, {"num_minibatches": Choice((4, 8, 7))}, r"64 is not divisible .*batches = 7"),
        # Too many combinations to try all.
        (2, 8, {"num_epochs": Integer(1, 32), "num_minibatches": Choice((1, 3, 2, 8))},
         r"16 is not divisible .*batches = 3"),
    ],
)  # fmt: skip
def test_static_values_that_a_program_refuses_are_refused_before_any_work(
    tmp_path, num_envs, num_steps, space, message
):
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs))
    config = jaxrl.PPOConfig(num_steps=num_steps, hidden_sizes=(4,))
    with pytest.raises(ValueError, match=message):
        sweep(
            algo,
            config,
            space,
            HyperTrick(4, 2),
            num_lanes=2,
            phase=Phase(1),
            run_dir=tmp_path / "x",
        )
    assert not (tmp_path / "x").exists()


def test_one_process_at_a_time_sweeps_in_a_directory(tmp_path):
    run(tmp_path, HyperTrick(4, 2))
    with directory_lock(tmp_path), pytest.raises(ValueError, match="another process works in"):
        run(tmp_path, HyperTrick(4, 2), resume=True)
    run(tmp_path, HyperTrick(4, 2), resume=True)


def test_a_study_of_others_is_refused(tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    optuna.create_study(study_name="s", storage=url, direction="minimize")
    with pytest.raises(ValueError, match=r"'s' was not made by a sweep of jaxrl; choose"):
        run(tmp_path / "x", HyperTrick(4, 2), storage=url, study_name="s")


def test_a_study_that_cannot_be_written_is_one_error(tmp_path, monkeypatch):
    def fail(*_):
        raise optuna.exceptions.StorageInternalError("invalid data?") from OSError("disk is full")

    monkeypatch.setattr(SharedStudy, "report", fail)
    with pytest.raises(OSError, match=r"study at journal.* written: disk is full. .*resume once"):
        run(tmp_path / "x", HyperTrick(4, 2))


def test_a_sweep_on_a_full_disk_says_so_and_goes_on_later(tmp_path, monkeypatch):
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


def test_passwords_are_kept_in_no_file_and_told_to_nobody(tmp_path, monkeypatch):
    url = "nosuchdb://me:secret:x@host/db"
    monkeypatch.setattr(sys, "orig_argv", ["python", "sweep.py", "--storage", url, "--study", "s"])
    with pytest.raises(
        ValueError, match="storage 'nosuchdb://me@host/db' cannot be opened"
    ) as told:
        run(tmp_path / "x", HyperTrick(4, 2), storage=url)
    assert "secret" not in str(told.value)
    assert manifests.provenance()["command"].endswith("--storage nosuchdb://me@host/db --study s")
    assert manifests.without_passwords("sqlite:///a:b@c.db") == "sqlite:///a:b@c.db"


def test_numbers_of_numpy_are_searched(tmp_path):
    space = {
        "gamma": Uniform(*np.array([0.5, 0.75], np.float32)),
        "num_steps": Choice(tuple(np.array([1, 2]))),
    }
    run(tmp_path / "x", RandomSearch(2, 1), space)
    with pytest.raises(ValueError, match="low and high must be integers"):
        Integer(1, 4.0)  # pyrefly: ignore[bad-argument-type]


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves(tmp_path, monkeypatch):
    arguments = {"checkpoint_seconds": 0.0, "resume": True}
    expected = run(tmp_path / "whole", HyperTrick(12, 4))
    with monkeypatch.context() as patch:
        killed_after(patch, 3)
        with pytest.raises(KilledError):
            run(tmp_path / "cut", HyperTrick(12, 4), **arguments)
    newest = max((tmp_path / "cut" / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in newest.rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match=f"{newest.name} is damaged or .* Delete that folder"):
        run(tmp_path / "cut", HyperTrick(12, 4), **arguments)
    shutil.rmtree(newest)
    assert outcome(run(tmp_path / "cut", HyperTrick(12, 4), **arguments)) == outcome(expected)


def test_a_damaged_record_is_named(tmp_path):
    run(tmp_path / "x", HyperTrick(2, 1))
    path = tmp_path / "x" / "sweep.json"
    text = path.read_text()
    for damaged, message in ((text[:20], "is damaged: "), ("[]", r"it lacks \['algorithm'")):
        path.write_text(damaged)
        with pytest.raises(ValueError, match=rf"sweep.json.*{message}"):
            run(tmp_path / "x", HyperTrick(2, 1), resume=True)


def test_a_worker_joins_no_other_search_and_knows_of_others_trials(tmp_path):
    shared = {"storage": f"sqlite:///{tmp_path / 'study.db'}", "study_name": "s"}
    run(tmp_path / "a", HyperTrick(4, 2), worker="a", **shared)
    late = run(tmp_path / "b", HyperTrick(4, 2), worker="b", seed=6, **shared)
    assert (late.summary["trials"], late.summary["elsewhere"]) == ([], 4)
    with pytest.raises(ValueError, match=r"(?s)'s' is of another search.*scheduler: .*num_trials"):
        run(tmp_path / "c", HyperTrick(5, 2), worker="c", **shared)


def test_workers_of_other_environments_are_refused(tmp_path):
    shared = {"storage": f"sqlite:///{tmp_path / 'study.db'}", "study_name": "s"}
    run(tmp_path / "a", HyperTrick(4, 2), worker="a", **shared)
    shorter = toy(jaxrl.make("CartPole-v1", num_envs=2, max_steps_in_episode=20))
    with pytest.raises(ValueError, match=r"(?s)of another search.*env_options: \{\} -> .*: 20"):
        sweep(
            shorter,
            ToyConfig(),
            SPACE,
            HyperTrick(4, 2),
            num_lanes=4,
            phase=Phase(3),
            run_dir=tmp_path / "b",
            **shared,
        )


def test_processes_that_train_one_agent_do_not_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="2 are joined; start a worker in each, not joined"):
        run(tmp_path / "x", HyperTrick(4, 2))
    assert not (tmp_path / "x").exists()


def test_another_sweep_in_the_same_directory_is_refused(tmp_path):
    run(tmp_path / "x", HyperTrick(4, 2))
    with pytest.raises(ValueError, match="already holds a sweep"):
        run(tmp_path / "x", HyperTrick(4, 2))
    with pytest.raises(ValueError, match=r"these settings changed: scheduler: .*'num_trials': 5"):
        run(tmp_path / "x", HyperTrick(5, 2), resume=True)
