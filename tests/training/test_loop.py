"""The training loop: chunks, evaluations and losses that are not finite."""

import itertools
import math
import shutil
import signal
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl.envs.host import callback
from jaxrl.envs.host.pools import HostTime
from jaxrl.files import intact
from jaxrl.training import loop
from jaxrl.training.compilation import train_chunk
from jaxrl.training.evaluate import EVALUATION_SEED, Evaluation
from jaxrl.training.loggers import read_jsonl
from jaxrl.training.progress import LoopSettings, Progress, chunk_length
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.checkpoint import Checkpoints

CONFIG = ToyConfig()
QUIET: dict[str, Any] = {"num_evaluations": 0, "chunk_updates": 2, "progress_bar": False}


@pytest.mark.parametrize(
    ("settings", "done", "seconds_per_update", "length"),
    [
        ({"chunk_updates": 7}, 0, None, 7),
        ({}, 0, None, 1),  # the first one, whose speed is unknown
        ({}, 1, 0.1, 20),
        ({}, 1, 1e-9, 1024),  # the buffer of metrics
        ({"log_every": 6}, 1, 0.1, 17),  # ends with a row
        ({"log_every": 1000}, 1000, 1e-9, 1000),
        ({"num_evaluations": 500}, 3, 0.1, 7),
        ({}, 4995, 0.1, 5),
    ],
)
def test_the_length_of_a_chunk(settings, done, seconds_per_update, length):
    defaults = LoopSettings(5000, 4, 1, 0, 4, False, None, 2.0, 10.0)
    unfinished = done % settings.get("log_every", 1)
    progress = Progress(update=done, row={"loss": [0.0] * unfinished})
    assert chunk_length(defaults._replace(**settings), progress, seconds_per_update) == length


@pytest.mark.parametrize(
    ("num_updates", "number", "at"),
    [
        (10, 0, []),
        (10, 1, [10]),
        (10, 3, [4, 7, 10]),
        (3, 10**12, [1, 2, 3]),  # at most one after each update
    ],
)
def test_evaluations_are_evenly_spaced_and_the_last_one_is_at_the_end(num_updates, number, at):
    settings = LoopSettings(num_updates, 4, 1, number, 4, False, None, 2.0, 10.0)
    found, update = [], settings.next_evaluation(0)
    while update is not None:
        found.append(update)
        update = settings.next_evaluation(update)
    assert found == at


def test_one_program_does_chunks_of_any_length():
    algo = toy()
    state = algo.init(CONFIG, jax.random.key(0))
    texts = {train_chunk.lower(algo, CONFIG, state, jnp.int32(n)).as_text() for n in (1, 1000)}
    assert len(texts) == 1


def test_a_row_has_the_waiting_times_of_all_its_chunks(tmp_path, monkeypatch):
    """The program waits for three seconds of four, in three chunks, and not at all in the last."""
    waits = iter([1.0, 1.0, 1.0, 0.0])
    total = HostTime(0.0, 0.0, 0.0)
    is_before = itertools.cycle([True, False])

    def simulator_time(state):
        nonlocal total
        if not next(is_before):
            wait = next(waits)
            total = HostTime(total.elapsed + 1, total.waited + wait, total.simulated + wait)
        return total

    monkeypatch.setattr(loop, "simulator_time", simulator_time)
    arguments = QUIET | {"log_every": 4, "chunk_updates": 1}
    jaxrl.run(toy(), CONFIG, total_steps=4 * 4, run_dir=tmp_path / "x", **arguments)
    (row,) = read_jsonl(tmp_path / "x" / "metrics.jsonl")
    assert (row["simulator_wait"], row["simulator_idle"]) == (0.75, 0.25)


def test_the_simulators_of_an_evaluation_are_closed():
    before = len(callback._groups)
    algo = toy(jaxrl.make("envpool/CartPole-v1", 2))
    arguments = QUIET | {"num_evaluations": 3, "eval_episodes": 2}
    result = jaxrl.run(algo, CONFIG, total_steps=3 * 4, **arguments)
    assert result.summary["eval_return"] > 0
    assert len(callback._groups) <= before + 1


def test_training_goes_on_from_the_state_of_a_run_on_simulators(tmp_path):
    algo = jaxrl.ppo(jaxrl.make("envpool/CartPole-v1", 2))
    config = jaxrl.PPOConfig(num_steps=4, num_minibatches=1, num_epochs=1, hidden_sizes=(4,))
    update = jax.jit(algo.update)
    for total_steps, resume in ((16, False), (32, True)):
        arguments = QUIET | {"total_steps": total_steps, "resume": resume}
        result = jaxrl.run(algo, config, run_dir=tmp_path, **arguments)
        state, metrics = update(config, result.state)
        assert metrics["valid_steps"] > 0
        assert state.num_updates == result.summary["updates"] + 1
        callback.release(state)


def test_a_run_that_fails_closes_its_simulators():
    def fail(update, state, row):
        raise OSError("the disk is gone")

    before = set(callback._groups)
    algo = toy(jaxrl.make("envpool/CartPole-v1", 2))
    with pytest.raises(OSError, match="the disk is gone"):
        jaxrl.run(algo, CONFIG, total_steps=4, callbacks=[fail], **QUIET)
    assert set(callback._groups) <= before


def test_a_resume_that_fails_closes_its_simulators(tmp_path, monkeypatch):
    def fail(checkpoints, like, whole):
        raise ValueError("the checkpoint is damaged")

    algo = toy(jaxrl.make("envpool/CartPole-v1", 2))
    jaxrl.run(algo, CONFIG, total_steps=4, run_dir=tmp_path, **QUIET)
    before = set(callback._groups)
    monkeypatch.setattr(Checkpoints, "restore", fail)
    with pytest.raises(ValueError, match="the checkpoint is damaged"):
        jaxrl.run(algo, CONFIG, total_steps=8, run_dir=tmp_path, resume=True, **QUIET)
    assert set(callback._groups) <= before


def test_a_resumed_run_has_one_replay_in_memory(tmp_path, monkeypatch):
    def large_arrays():
        return {id(x) for x in jax.live_arrays() if x.nbytes >= 1_000_000}

    def restore(checkpoints, like, whole):
        kept.append(large_arrays())
        return original(checkpoints, like, whole)

    algo = jaxrl.dqn(jaxrl.make("CartPole-v1", 2))
    config = jaxrl.DQNConfig(replay_size=100_000, hidden_sizes=(8,))
    jaxrl.run(algo, config, total_steps=16, run_dir=tmp_path, **QUIET)
    original, kept = Checkpoints.restore, [large_arrays()]
    monkeypatch.setattr(Checkpoints, "restore", restore)
    result = jaxrl.run(algo, config, total_steps=32, run_dir=tmp_path, resume=True, **QUIET)
    assert kept[1] <= kept[0]
    assert large_arrays() - kept[0]  # the replay is one
    assert result.summary["updates"] == 16


def test_one_slow_checkpoint_does_not_make_all_later_ones_rare(monkeypatch):
    clock, saves = [0.0], []

    def tick():
        clock[0] += 0.5
        return clock[0]

    def save(training_loop, state):
        clock[0] += 0.0 if saves else 2.0
        saves.append(training_loop.progress.update)

    monkeypatch.setattr(loop, "time", types.SimpleNamespace(perf_counter=tick))
    monkeypatch.setattr(loop.TrainingLoop, "save", save)
    jaxrl.run(toy(), CONFIG, total_steps=4 * 200, checkpoint_seconds=10.0, **QUIET)
    first, late, *others = np.diff([0, *saves[:-1]])
    assert late > 2 * first
    assert all(gap == pytest.approx(first, abs=2) for gap in others)
    assert len(others) > 2


@pytest.mark.parametrize(
    ("returns", "lengths", "expected"),
    [
        ([math.nan] * 2, [math.nan] * 2, {"eval_return": None, "eval_return_std": None}),
        (
            [1, math.nan, 3], [10, math.nan, 30],
            {"eval_return": 2, "eval_return_std": 1, "eval_episode_length": 20},
        ),
    ],
)  # fmt: skip
def test_an_evaluation_has_the_scores_of_the_episodes_that_ended(
    tmp_path, monkeypatch, returns, lengths, expected
):
    scores = Evaluation(jnp.array(returns), jnp.array(lengths))
    monkeypatch.setattr(loop, "evaluate_separately", lambda *_, **__: scores)
    arguments = QUIET | {"num_evaluations": 1, "run_dir": tmp_path}
    result = jaxrl.run(toy(), CONFIG, total_steps=4, **arguments)
    assert {name: result.summary[name] for name in expected} == expected
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize("greedy", [False, True])
def test_an_evaluation_is_greedy_if_the_run_asks_for_it(tmp_path, monkeypatch, greedy):
    given = []

    def evaluate(algo, config, agent, num_episodes, seed, greedy, watch):
        given.append(greedy)
        return Evaluation(*jnp.ones((2, num_episodes)))

    monkeypatch.setattr(loop, "evaluate_separately", evaluate)
    arguments = QUIET | {"num_evaluations": 1, "eval_greedy": greedy}
    jaxrl.run(toy(), CONFIG, total_steps=4, run_dir=tmp_path / "x", **arguments)
    jaxrl.rerun(tmp_path / "x", tmp_path / "y", make_algorithm=toy)
    assert given == [greedy] * 2


@pytest.mark.parametrize("gamma", [0.1, 0.9])
def test_a_run_says_that_no_episode_ended_before_it_evaluates(monkeypatch, capsys, gamma):
    scores = Evaluation(*jnp.ones((2, 2)))
    monkeypatch.setattr(loop, "evaluate_separately", lambda *_: scores)
    arguments = QUIET | {"num_evaluations": 1, "progress_bar": True}
    jaxrl.run(toy(), CONFIG.replace(gamma=gamma), total_steps=8, **arguments)
    text = "no episode has ended in 8 steps, so the evaluation may take up to 100,000 steps"
    assert (text in " ".join(capsys.readouterr().err.split())) == (gamma == 0.1)


@pytest.mark.parametrize("stopped", [1, 2])
def test_a_signal_stops_an_evaluation_which_a_resume_repeats(tmp_path, monkeypatch, stopped):
    seeds = []

    def evaluate(algo, config, agent, num_episodes, seed, greedy, watch):
        seeds.append(seed)
        watch(0)
        if len(seeds) == stopped:
            signal.raise_signal(signal.SIGTERM)
            watch(1)
        return Evaluation(*jnp.full((2, num_episodes), len(seeds)))

    monkeypatch.setattr(loop, "evaluate_separately", evaluate)
    arguments: dict[str, Any] = QUIET | {
        "num_evaluations": 2, "run_dir": tmp_path, "total_steps": 16, "seed": 3,
        "checkpoint_seconds": 0.0,
    }  # fmt: skip
    begun = jaxrl.run(toy(), CONFIG, **arguments)
    assert (begun.interrupted, begun.summary["updates"]) == (True, 2 * stopped)
    saved = {path.name for path in (tmp_path / "checkpoints").glob("*")}
    assert saved == {str(2 * number) for number in range(1, stopped + 1)}  # no update is lost
    for _ in range(2):  # nothing is left for the second one
        ended = jaxrl.run(toy(), CONFIG, resume=True, **arguments)
        assert (ended.interrupted, ended.summary["eval_return"]) == (False, 3.0)
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert [row["update"] for row in rows if "eval_return" in row] == [2, 4]
    assert (tmp_path / "best" / "4").is_dir()
    assert seeds == [EVALUATION_SEED - 3] * 3


def test_an_evaluation_without_an_end_is_not_repeated_by_each_resume(tmp_path, monkeypatch):
    seeds = []

    def evaluate(algo, config, agent, num_episodes, seed, greedy, watch):
        seeds.append(seed)
        return Evaluation(*jnp.full((2, num_episodes), jnp.nan))

    monkeypatch.setattr(loop, "evaluate_separately", evaluate)
    arguments: dict[str, Any] = QUIET | {
        "num_evaluations": 1, "run_dir": tmp_path, "total_steps": 4, "resume": True,
    }  # fmt: skip
    for _ in range(2):
        assert jaxrl.run(toy(), CONFIG, **arguments).summary["eval_return"] is None
    assert len(seeds) == 1
    *_, row = read_jsonl(tmp_path / "metrics.jsonl")
    assert row == {"update": 1, "steps": 4, "eval_episode_count": 0}


def test_callbacks_of_a_repeated_evaluation_get_the_row_of_the_updates_before(
    tmp_path, monkeypatch
):
    calls, rows = [], []

    def evaluate(algo, config, agent, num_episodes, seed, greedy, watch):
        calls.append(seed)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGTERM)
        watch(0)
        return Evaluation(*jnp.ones((2, num_episodes)))

    monkeypatch.setattr(loop, "evaluate_separately", evaluate)
    arguments: dict[str, Any] = QUIET | {
        "num_evaluations": 1, "run_dir": tmp_path, "total_steps": 4, "resume": True,
    }  # fmt: skip
    for _ in range(2):
        jaxrl.run(toy(), CONFIG, callbacks=[lambda _, __, row: rows.append(row)], **arguments)
    (row,) = rows
    assert (row["eval_return"], row["loss"], row["update"]) == (1.0, 1.0, 1)


def test_an_evaluation_that_a_resume_repeated_is_kept_if_the_run_is_killed_then(
    tmp_path, monkeypatch
):
    seeds = []

    def evaluate(algo, config, agent, num_episodes, seed, greedy, watch):
        seeds.append(seed)
        if len(seeds) == 1:
            signal.raise_signal(signal.SIGTERM)
        watch(0)
        return Evaluation(*jnp.full((2, num_episodes), len(seeds)))

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "evaluate_separately", evaluate)
    arguments: dict[str, Any] = QUIET | {
        "num_evaluations": 2, "run_dir": tmp_path, "total_steps": 16, "resume": True,
    }  # fmt: skip
    assert jaxrl.run(toy(), CONFIG, **arguments).interrupted
    with pytest.raises(KeyboardInterrupt):
        jaxrl.run(toy(), CONFIG, callbacks=[die], **arguments)
    assert (tmp_path / "best" / "2").is_dir()
    ended = jaxrl.run(toy(), CONFIG, **arguments)
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    scores = {row["update"]: row["eval_return"] for row in rows if "eval_return" in row}
    assert scores == {2: 2.0, 4: 3.0}
    assert ended.summary["eval_return"] == 3.0


def test_a_resumed_run_without_a_checkpoint_says_that_it_begins_anew(tmp_path, capsys):
    arguments: dict[str, Any] = QUIET | {"total_steps": 16, "progress_bar": True}
    jaxrl.run(toy(), CONFIG, run_dir=tmp_path, **arguments)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "summary.json").unlink()  # as after a kill
    capsys.readouterr()
    jaxrl.run(toy(), CONFIG, run_dir=tmp_path, resume=True, **arguments)
    assert "there is no checkpoint: the run begins anew" in capsys.readouterr().err


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_checkpoints(tmp_path):
    algo = toy()

    def update(config, state):
        state, metrics = algo.update(config, state)
        return state, metrics | {"loss": jnp.where(state.num_updates > 4, jnp.nan, 1.0)}

    with pytest.raises(FloatingPointError, match="loss is nan in update 5 of toy on gymnax/"):
        jaxrl.run(
            algo._replace(update=update), CONFIG, total_steps=10 * 4, run_dir=tmp_path,
            checkpoint_seconds=0.0, log_every=8, **QUIET,
        )  # fmt: skip
    identity = manifests.identity(manifests.read(tmp_path))
    checkpoints = Checkpoints(tmp_path / "checkpoints", identity)
    assert checkpoints.latest() == 4
    checkpoints.close()


def test_parameters_that_are_not_finite_are_not_saved(tmp_path):
    algo = toy()

    def update(config, state):
        state, metrics = algo.update(config, state)  # whose loss is finite
        return state._replace(params=state.params / (state.num_updates < 5)), metrics

    for run_dir in (tmp_path, None):
        with pytest.raises(FloatingPointError, match=r"parameters of toy .* after update \d+;"):
            jaxrl.run(
                algo._replace(update=update), CONFIG, total_steps=10 * 4, run_dir=run_dir,
                checkpoint_seconds=0.0, **QUIET,
            )  # fmt: skip
    assert intact.numbers(tmp_path / "checkpoints") == [4, 2]


def test_a_run_says_once_that_devices_are_unused(monkeypatch, capsys):
    monkeypatch.setattr(loop, "describe_unused", lambda used, _: f"uses {used} of 4")
    for progress_bar in (True, False):
        arguments = QUIET | {"progress_bar": progress_bar}
        jaxrl.run(toy(), CONFIG, total_steps=40, **arguments)
        assert capsys.readouterr().err.count("uses 1 of 4") == progress_bar
