"""Lanes: programs of static fields, several devices, and pools of environments on the host."""

import itertools
import threading
from collections import OrderedDict

import jax
import pytest
from sweep_runs import (
    STATIC,
    UPDATES,
    KilledError,
    kill_after_reports,
    outcome,
    run,
    stop_after_reports,
    toy_algorithm,
)
from toy_algorithm import ToyConfig

import jaxrl
from jaxrl.envs import envpool
from jaxrl.envs.host import callback
from jaxrl.tuning import (
    ASHA,
    Choice,
    HyperTrick,
    LogUniform,
    Phase,
    RandomSearch,
    sweep,
    trial_key,
)
from jaxrl.tuning.sweeps.lane_group import LaneGroup
from jaxrl.tuning.sweeps.lanes import Lanes
from jaxrl.tuning.sweeps.loop import SweepLoop


def first_score(trial, config):
    """Return the score of a trial's first phase, trained by itself."""
    _, metrics = jaxrl.train(toy_algorithm(), config, trial_key(jax.random.key(5), trial), UPDATES)
    return float(metrics["episode_return_sum"].sum() / metrics["episode_count"].sum())


def test_lanes_change_between_the_programs_of_static_fields(tmp_path):
    result = run(tmp_path / "x", HyperTrick(12, 3), STATIC, num_lanes=3)
    trials = {t["trial"]: t for t in outcome(result)}
    assert {t["values"]["num_steps"] for t in trials.values()} == {1, 3, 8}
    assert {t["values"]["activation"] for t in trials.values()} == {"tanh", "relu"}
    for number, trial in trials.items():
        config = ToyConfig(**trial["values"])
        assert trial["scores"][0] == pytest.approx(first_score(number, config), rel=1e-4)
    programs_of_lane = {lane: set() for lane in range(3)}
    for span in result.summary["spans"]:
        values = trials[span["trial"]]["values"]
        programs_of_lane[span["lane"]].add((values["num_steps"], values["activation"]))
    assert max(len(programs) for programs in programs_of_lane.values()) > 1


def test_the_first_chunk_of_another_program_is_one_update(tmp_path, monkeypatch):
    """The speed of the program before says nothing: it may be a hundred times as fast."""
    original, chunks = Lanes._train_group, []

    def train(self, group, *arguments):
        trained = original(self, group, *arguments)
        chunks.append((self.groups[group].algo, trained.num_updates))
        return trained

    monkeypatch.setattr(Lanes, "_train_group", train)
    space = {"num_steps": Choice((1, 8))}
    run(tmp_path / "x", RandomSearch(8, 1), space, num_lanes=1, phase=Phase(50))
    first = [n for (before, _), (now, n) in itertools.pairwise(chunks) if now is not before]
    assert first
    assert set(first) == {1}
    assert max(n for _, n in chunks) > 1


@pytest.mark.slow
def test_lanes_on_several_devices_find_what_they_find_on_one(tmp_path, monkeypatch):
    used = set()
    original = LaneGroup.train

    def train(self, *arguments):
        metrics = original(self, *arguments)
        used.update(metrics["loss"].devices())
        return metrics

    monkeypatch.setattr(LaneGroup, "train", train)
    outcomes = []
    for strategy, devices in (("vmap", 1), ("auto", 2)):
        used.clear()
        result = run(
            tmp_path / strategy, RandomSearch(5, 2), STATIC, num_lanes=4, strategy=strategy
        )
        assert len(used) == min(devices, jax.local_device_count())
        outcomes.append(outcome(result))
    assert len(outcomes[0]) == 5
    assert outcomes[0] == outcomes[1]


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
def test_no_device_waits_for_a_slow_one(tmp_path, monkeypatch):
    """One device's first update begins when the other has done eight trials."""
    train_group, report_trial = Lanes._train_group, SweepLoop._report
    has_other_trained = threading.Event()
    reports = itertools.count(1)

    def train(self, group, *arguments):
        if group == 0:
            assert has_other_trained.wait(60)
        return train_group(self, group, *arguments)

    def report(self, *arguments):
        report_trial(self, *arguments)
        if next(reports) == 8:
            has_other_trained.set()

    monkeypatch.setattr(Lanes, "_train_group", train)
    monkeypatch.setattr(SweepLoop, "_report", report)
    arguments = {"num_lanes": 2, "strategy": "shard-vmap", "chunk_seconds": 1e9}
    result = run(tmp_path / "x", RandomSearch(12, 1), STATIC, **arguments)
    lanes = [span["lane"] for span in result.summary["spans"]]
    assert len(outcome(result)) == 12
    assert lanes[:8] == [1] * 8
    assert lanes.count(0) > 0


@pytest.mark.exhaustive
def test_a_killed_sweep_on_several_devices_resumes(tmp_path, monkeypatch):
    scheduler = ASHA(4, 4, 2)  # pauses trials, which may continue on another device
    with monkeypatch.context() as patch:
        kill_after_reports(patch, 3)
        with pytest.raises(KilledError):
            run(tmp_path / "x", scheduler, STATIC, strategy="auto", checkpoint_seconds=0.0)
    result = run(tmp_path / "x", scheduler, STATIC, strategy="auto", resume=True)
    spans = [(span["trial"], span["phase"]) for span in result.summary["spans"]]
    reported = [(t["trial"], phase) for t in outcome(result) for phase in range(len(t["scores"]))]
    assert sorted(spans) == sorted(reported)
    assert {trial["status"] for trial in outcome(result)} == {"completed", "stopped"}


@pytest.mark.slow
def test_atari_lanes_share_one_pool_through_refills(tmp_path, monkeypatch):
    made = []
    original = envpool.EnvpoolPool.__init__

    def counted(self, name, keywords, seeds):
        made.append(len(seeds))
        original(self, name, keywords, seeds)

    monkeypatch.setattr(envpool.EnvpoolPool, "__init__", counted)
    env = jaxrl.make("Pong-v5", num_envs=2, num_threads=1, max_episode_steps=6)
    result = sweep(
        jaxrl.a2c(env),
        jaxrl.A2CConfig(torso="mlp", hidden_sizes=(8,)),
        {"learning_rate": LogUniform(1e-5, 1e-2), "gamma": Choice((0.9, 0.99))},
        HyperTrick(6, 3, 0.4),
        num_lanes=2,
        phase=Phase(2),
        run_dir=tmp_path / "x",
        strategy="vmap",
        progress_bar=False,
    )
    assert made == [2 * 2]
    assert {trial["status"] for trial in outcome(result)} == {"completed", "stopped"}
    assert len(outcome(result)) == 6
    assert all(None not in trial["scores"] for trial in outcome(result))
    lanes = [{s["trial"] for s in result.summary["spans"] if s["lane"] == i} for i in range(2)]
    assert min(len(trials) for trials in lanes) >= 2


@pytest.mark.slow
def test_lanes_of_static_fields_have_pools_of_their_own(tmp_path, monkeypatch):
    """There are more lanes than pools are kept by default; unused pools are closed."""
    monkeypatch.setattr(callback, "_groups", OrderedDict())
    monkeypatch.setattr(callback, "_least_kept", 1)
    kept, original = [], callback._add

    def counted(group):
        added = original(group)
        kept.append(len(callback._groups))
        return added

    monkeypatch.setattr(callback, "_add", counted)
    env = jaxrl.make("envpool/CartPole-v1", num_envs=1, num_threads=1, max_episode_steps=3)
    space = {"learning_rate": LogUniform(1e-4, 1e-2), "num_steps": Choice((4, 6))}
    num_lanes = callback.max_groups() + 2
    result = sweep(
        jaxrl.a2c(env),
        jaxrl.A2CConfig(hidden_sizes=(2,)),
        space,
        HyperTrick(num_lanes + 4, 2, 0.4),
        num_lanes=num_lanes,
        phase=Phase(2),
        run_dir=tmp_path / "x",
        strategy="vmap",
        progress_bar=False,
    )
    assert len(outcome(result)) == num_lanes + 4
    assert all(None not in trial["scores"] for trial in outcome(result))
    assert max(kept) <= num_lanes + 1
    assert not callback._groups  # finals and other sweeps of the process have pools of their own


@pytest.mark.slow
def test_simulators_of_a_resumed_sweep_differ_between_lanes_and_from_those_before(
    tmp_path, monkeypatch
):
    seeds, original = [], envpool.EnvpoolPool.__init__

    def noted(self, name, keywords, own_seeds):
        seeds.extend(own_seeds.tolist())
        original(self, name, keywords, own_seeds)

    monkeypatch.setattr(envpool.EnvpoolPool, "__init__", noted)
    env = jaxrl.make("envpool/CartPole-v1", num_envs=2, num_threads=1, max_episode_steps=3)
    space = {"learning_rate": LogUniform(1e-4, 1e-2), "num_steps": Choice((4, 6))}

    algo, config = jaxrl.a2c(env), jaxrl.A2CConfig(hidden_sizes=(2,))

    def search(**arguments):
        scheduler = RandomSearch(2, 4)
        return run(tmp_path / "x", scheduler, space, algo, config, num_lanes=2, **arguments)

    for _ in range(2):
        with monkeypatch.context() as patch:
            stop_after_reports(patch, 1)
            assert search(resume=True).interrupted
    assert not search(resume=True).interrupted
    assert len(seeds) == len(set(seeds)) == 3 * 2 * 2
