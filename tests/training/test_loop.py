"""The training loop: its chunks, rows and checkpoints, and the simulators that it closes."""

import itertools
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
from jaxrl.training import loop
from jaxrl.training.compilation import train_chunk
from jaxrl.training.loggers import read_jsonl

CONFIG = ToyConfig()
QUIET: dict[str, Any] = {"num_evaluations": 0, "chunk_updates": 2, "progress_bar": False}


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
