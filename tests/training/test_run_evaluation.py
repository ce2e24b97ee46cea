"""Evaluations during a run: their scores, signals, resumes and callbacks."""

import math
import signal
from typing import Any

import jax.numpy as jnp
import pytest
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl.envs.host import callback
from jaxrl.training import run_evaluation
from jaxrl.training.evaluate import EVALUATION_SEED, Evaluation
from jaxrl.training.loggers import read_jsonl

CONFIG = ToyConfig()
QUIET: dict[str, Any] = {"num_evaluations": 0, "chunk_updates": 2, "progress_bar": False}


def test_the_simulators_of_an_evaluation_are_closed():
    before = len(callback._groups)
    algo = toy(jaxrl.make("envpool/CartPole-v1", 2))
    arguments = QUIET | {"num_evaluations": 3, "eval_episodes": 2}
    result = jaxrl.run(algo, CONFIG, total_steps=3 * 4, **arguments)
    assert result.summary["eval_return"] > 0
    assert len(callback._groups) <= before + 1


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
    monkeypatch.setattr(run_evaluation, "evaluate_separately", lambda *_, **__: scores)
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

    monkeypatch.setattr(run_evaluation, "evaluate_separately", evaluate)
    arguments = QUIET | {"num_evaluations": 1, "eval_greedy": greedy}
    jaxrl.run(toy(), CONFIG, total_steps=4, run_dir=tmp_path / "x", **arguments)
    jaxrl.rerun(tmp_path / "x", tmp_path / "y", make_algorithm=toy)
    assert given == [greedy] * 2


@pytest.mark.parametrize("gamma", [0.1, 0.9])
def test_a_run_says_that_no_episode_ended_before_it_evaluates(monkeypatch, capsys, gamma):
    scores = Evaluation(*jnp.ones((2, 2)))
    monkeypatch.setattr(run_evaluation, "evaluate_separately", lambda *_: scores)
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

    monkeypatch.setattr(run_evaluation, "evaluate_separately", evaluate)
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

    monkeypatch.setattr(run_evaluation, "evaluate_separately", evaluate)
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

    monkeypatch.setattr(run_evaluation, "evaluate_separately", evaluate)
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

    monkeypatch.setattr(run_evaluation, "evaluate_separately", evaluate)
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
