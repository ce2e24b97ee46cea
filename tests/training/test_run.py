"""`jaxrl.run`: its arguments, the files that it leaves, and how it resumes."""

import errno
import functools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import numpy as np
import pytest
from sweep_runs import RUN, toy_algorithm
from tensorboardX.record_writer import RecordWriter
from toy_algorithm import InterruptAfter, ToyConfig, toy
from waiting import wait_until

import jaxrl
from jaxrl.distributed import processes
from jaxrl.training import loop
from jaxrl.training.loggers import read_jsonl
from jaxrl.training.run import row_length
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.directory import read_summary

pytestmark = pytest.mark.smoke

CONFIG = ToyConfig()
STEPS = 2 * 2  # of an update: environments x steps


def run(num_updates, run_dir=None, algo=None, **changes):
    arguments = RUN | {"total_steps": num_updates * STEPS, "run_dir": run_dir} | changes
    return jaxrl.run(algo or toy_algorithm(), **arguments)


def rows_of(run_dir):
    """Rows without the columns that depend on the machine's speed."""
    return [
        {k: v for k, v in row.items() if k != "seconds" and not k.endswith("_per_second")}
        for row in read_jsonl(run_dir / "metrics.jsonl")
    ]


# --- files ---------------------------------------------------------------------------------------


def test_a_run_directory_holds_what_is_promised(tmp_path):
    result = run(20, tmp_path / "run", num_evaluations=2, eval_episodes=4)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "manifest.json", "metrics.jsonl", "tensorboard", "checkpoints", "summary.json", "curve.png",
        "best",
    }  # fmt: skip
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    updates = [row for row in rows if "loss" in row]
    assert [row["update"] for row in updates] == list(range(1, 21))
    assert [row["update"] for row in rows if "eval_return" in row] == [10, 20]
    summary = read_summary(tmp_path / "run")
    assert summary == result.summary
    assert summary["valid_steps"] == updates[-1]["steps"] == 20 * STEPS
    assert summary["episodes"] == sum(row["episode_count"] for row in updates)
    assert summary["steps_per_second"] > 0
    assert summary["eval_return"] == rows[-1]["eval_return"] > 0
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    manifest = manifests.read(tmp_path / "run")
    assert manifest["seed"] == 3
    assert manifest["versions"]["jax"] == jax.__version__
    assert {"command", "git_commit", "hardware", "created"} <= set(manifest)
    again = run(20, tmp_path / "run", num_evaluations=2, eval_episodes=4, resume=True)
    assert again.summary["eval_return"] == summary["eval_return"]  # though it evaluates no more


def test_rerun_reproduces_the_metrics(tmp_path):
    run(8, tmp_path / "a", config=ToyConfig(gamma=0.7), num_evaluations=1, eval_episodes=2)
    jaxrl.rerun(
        tmp_path / "a", tmp_path / "b", progress_bar=False,
        make_algorithm=lambda env, network: toy(env),
    )  # fmt: skip
    assert rows_of(tmp_path / "a") == rows_of(tmp_path / "b")
    assert manifests.differences(*(manifests.read(tmp_path / d) for d in "ab")) == []
    with pytest.raises(ValueError, match=r"env must be 2 environments, as the run had, got 3"):
        jaxrl.rerun(
            tmp_path / "a", tmp_path / "c", env=jaxrl.make("CartPole-v1", 3),
            make_algorithm=lambda env, network: toy(env),
        )  # fmt: skip


def test_a_full_disk_is_reported_with_the_directory(tmp_path, monkeypatch):
    real, failures = RecordWriter.flush, [OSError(errno.ENOSPC, "No space left on device")]

    def flush(self):
        if failures:
            raise failures.pop()
        real(self)

    monkeypatch.setattr(RecordWriter, "flush", flush)
    with pytest.raises(OSError, match=r"cannot write to .*run: .*No space left.* and resume"):
        run(4, tmp_path / "run")


def test_a_run_resumes_after_a_full_disk_at_its_start(tmp_path, monkeypatch):
    def replace(path, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(OSError, match="No space left"):
            run(1, tmp_path / "run")
    (tmp_path / "run" / ".manifest.json.0").touch()  # another try was killed
    run(1, tmp_path / "run", resume=True, seed=np.int64(3))
    assert manifests.read(tmp_path / "run")["seed"] == 3


def test_extending_a_run_removes_its_summary_until_the_end(tmp_path, monkeypatch):
    def die(*_):
        raise SystemExit

    run(1, tmp_path)
    assert (tmp_path / "summary.json").exists()
    monkeypatch.setattr(loop.TrainingLoop, "log", die)
    with pytest.raises(SystemExit):
        run(4, tmp_path, resume=True)
    assert not (tmp_path / "summary.json").exists()


def test_a_run_whose_directory_is_deleted_ends(tmp_path, monkeypatch):
    def delete(self, *_):
        shutil.rmtree(tmp_path / "run")

    monkeypatch.setattr(loop.TrainingLoop, "log", delete)
    with pytest.raises(FileNotFoundError, match="run was moved or deleted during the run"):
        run(4, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- arguments -----------------------------------------------------------------------------------


def test_run_learns_what_train_learns():
    train = jax.jit(jaxrl.train, static_argnums=(0, 3))
    expected, _ = train(toy(), CONFIG, jax.random.key(3), 6)
    chex.assert_trees_all_equal(run(6).state, expected)


def test_total_steps_are_rounded_up_to_whole_updates():
    assert run(5, total_steps=5 * STEPS - 1).summary["updates"] == 5


@pytest.mark.parametrize(("num_updates", "log_every"), [(999, 1), (5000, 5), (10**7, 1024)])
def test_long_runs_have_rows_that_fit_into_a_chunk(num_updates, log_every):
    assert row_length(None, num_updates, None) == log_every


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"total_steps": 0}, "total_steps must be an integer from 1"),
        ({"total_steps": 2**31 * STEPS}, "8,589,934,592 are 2,147,483,648 updates of 4 steps"),
        ({"log_every": 0}, "log_every must be an integer from 1 to 1,024"),
        ({"log_every": 10**11}, "log_every must be an integer from 1 to 1,024"),
        ({"chunk_updates": 0}, "chunk_updates must be an integer >= 1"),
        ({"seed": -1}, "seed must be an integer from 0"),
        ({"seed": 1.5}, "seed must be an integer from 0 .*, got 1.5"),
        ({"seed": 2**32}, r"seed must be an integer from 0 to 2\^32 - 1, got 4294967296"),
        ({"num_evaluations": -1}, "num_evaluations must be an integer >= 0"),
        ({"eval_episodes": 0}, "eval_episodes must be an integer >= 1"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(tmp_path, bad, message):
    with pytest.raises(ValueError, match=message):
        run(1, tmp_path / "run", **bad)
    assert not (tmp_path / "run").exists()


# --- resuming ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk_updates", "stops_after"),
    [
        pytest.param(1, 2, marks=pytest.mark.exhaustive),
        (2, 4),
        pytest.param(5, 6, marks=pytest.mark.exhaustive),
    ],
)
def test_rows_depend_neither_on_chunks_nor_on_stops(
    tmp_path, monkeypatch, chunk_updates, stops_after
):
    arguments: dict[str, Any] = {"log_every": 3, "num_evaluations": 2, "eval_episodes": 2}
    whole = run(14, tmp_path / "whole", **arguments, chunk_updates=None)
    arguments |= {"run_dir": tmp_path / "parts", "chunk_updates": chunk_updates}
    with monkeypatch.context() as patch:
        patch.setattr(loop, "Interrupt", lambda: InterruptAfter(2))
        stopped = run(14, **arguments)
    assert stopped.interrupted
    assert stopped.summary["updates"] == stops_after  # a chunk of 5 ends with a row of 3
    resumed = run(14, resume=True, **arguments)
    chex.assert_trees_all_equal(resumed.state, whole.state)
    assert rows_of(tmp_path / "parts") == rows_of(tmp_path / "whole")
    updates = [row["update"] for row in rows_of(tmp_path / "whole") if "loss" in row]
    assert updates == [3, 6, 7, 10, 13, 14]
    for name in ("episodes", "mean_return", "valid_steps", "eval_return"):
        assert resumed.summary[name] == whole.summary[name]


class SignalAfter:
    """A sink that sends this process a signal with its third row."""

    def write(self, row):
        if row["update"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    def close(self):
        pass


class FailsToClose:
    """A sink that takes rows and cannot be closed."""

    def write(self, row):
        pass

    def close(self):
        raise OSError("cannot be closed")


def test_a_sink_that_cannot_be_closed_leaves_a_whole_run_and_nothing_open(tmp_path, monkeypatch):
    closed, close = [], loop.Checkpoints.close
    with monkeypatch.context() as patch:
        patch.setattr(loop.Checkpoints, "close", lambda self: closed.append(close(self)))
        with pytest.raises(OSError, match="cannot be closed"):
            run(4, tmp_path, sinks=[FailsToClose()])
    assert len(closed) == 1
    assert read_summary(tmp_path)["updates"] == 4
    resumed = run(6, tmp_path, resume=True)
    chex.assert_trees_all_equal(resumed.state, run(6).state)


def test_the_same_signal_again_does_not_end_a_run_before_its_checkpoint(
    tmp_path, signals_while_sealing
):
    result = run(10, tmp_path, sinks=[SignalAfter()], checkpoint_seconds=1000.0)
    assert result.interrupted
    assert not signals_while_sealing
    assert (tmp_path / "checkpoints" / "4" / "seal.json").exists()


def test_sigterm_stops_after_the_chunk_with_a_checkpoint(tmp_path):
    handler = signal.getsignal(signal.SIGTERM)
    result = run(10, tmp_path, sinks=[SignalAfter()], checkpoint_seconds=1000.0)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert result.interrupted
    assert result.summary["updates"] == 4
    assert json.loads((tmp_path / "summary.json").read_text())["interrupted"]
    assert run(10, tmp_path, resume=True).summary["updates"] == 10


def test_a_host_environment_resumes_with_an_exact_learner(tmp_path):
    algo = toy(jaxrl.make("envpool/CartPole-v1", 2))
    first = run(4, tmp_path, algo)
    again = run(4, tmp_path, algo, resume=True)
    chex.assert_trees_all_equal(
        again.state._replace(simulation=None), first.state._replace(simulation=None)
    )
    assert not (again.state.simulation.timestep.obs == first.state.simulation.timestep.obs).any()
    assert int(run(6, tmp_path, algo, resume=True).state.num_updates) == 6


def test_a_run_resumes_with_other_pools_and_no_other_option(tmp_path):
    """The manifest keeps the options that the run began with."""
    make = functools.partial(jaxrl.make, "envpool/CartPole-v1", 2)
    run(2, tmp_path, toy(make(num_threads=1)))
    pools = toy(make(num_threads=2, num_pools=2, asynchronous=True))
    assert int(run(4, tmp_path, pools, resume=True).state.num_updates) == 4
    assert manifests.read(tmp_path)["env"]["options"] == {"num_threads": 1}
    saved = manifests.read(tmp_path)
    patient = saved | {"env": saved["env"] | {"options": {"timeout": 900.0}}}
    assert not manifests.differences(saved, patient)
    with pytest.raises(ValueError, match=r"env.options: .* -> {.*'max_episode_steps': 9"):
        run(6, tmp_path, toy(make(max_episode_steps=9)), resume=True)


PROGRAM = """
import sys, jaxrl
from toy_algorithm import ToyConfig, toy
jaxrl.run(
    toy(), ToyConfig(), seed=3, total_steps=10**9, run_dir=sys.argv[1], num_evaluations=0,
    log_every=1, chunk_updates=2, checkpoint_seconds=0.0, progress_bar=False,
)
"""


@pytest.mark.process
def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / "run")])
    wait_until(lambda: len(rows_of(tmp_path / "run")) >= 5 or process.poll() is not None, 120)
    assert process.poll() is None, "the run ended early"
    process.kill()
    process.wait()
    num_updates = len(rows_of(tmp_path / "run")) + 6
    with warnings.catch_warnings():  # it may be killed before its newest checkpoint is sealed
        warnings.filterwarnings("ignore", ".*seal.json is missing; perhaps the process was killed")
        resumed = run(num_updates, tmp_path / "run", resume=True, log_every=1)
    whole = run(num_updates, tmp_path / "whole", log_every=1)
    chex.assert_trees_all_equal(resumed.state, whole.state)
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole")
    for name in ("episodes", "mean_return"):
        assert resumed.summary[name] == whole.summary[name]


def test_callbacks_get_the_state_and_the_newest_row_between_chunks():
    calls = []

    def callback(update, state, row):
        calls.append((update, int(state.num_updates), row.get("update")))

    result = run(5, callbacks=[callback], log_every=2)
    assert calls == [(2, 2, 2), (4, 4, 4), (5, 5, 5)]
    with pytest.raises(ValueError, match="callbacks must be a list of functions, got 3"):
        run(5, callbacks=[3])
    with pytest.raises(ValueError, match="a callback must return None, got False; to stop the run"):
        run(5, callbacks=[lambda update, state, row: False])
    assert repr(result).startswith("RunResult(summary={'updates': 5, 'valid_steps': ")
    assert len(repr(result)) < 200


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_callback_ends_a_run_after_a_last_evaluation_and_a_resume_trains_on(tmp_path, number):
    calls, arguments = [], {"num_evaluations": number, "eval_episodes": 2}

    def stop_after_four(update, state, row):
        calls.append(update)
        if update == 4:  # where the second of three evaluations is due
            raise jaxrl.StopRun

    callbacks = [stop_after_four, lambda update, state, row: calls.append(update)]
    result = run(6, tmp_path, callbacks=callbacks, **arguments)
    assert (calls, result.summary["updates"], result.interrupted) == ([2, 2, 4, 4], 4, False)
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    evaluated = [row["update"] for row in rows if "eval_return" in row]
    assert evaluated == {0: [], 1: [4], 3: [2, 4]}[number]
    assert read_summary(tmp_path)["eval_return"] == result.summary["eval_return"]
    resumed = run(6, tmp_path, resume=True, **arguments)
    assert resumed.summary["updates"] == 6
    whole = run(6, tmp_path / "whole", **arguments)
    chex.assert_trees_all_equal(resumed.state, whole.state)
    assert resumed.summary["eval_return"] == whole.summary["eval_return"]


def test_a_signal_during_the_evaluation_after_a_stop_interrupts_the_run(tmp_path, monkeypatch):
    def stop(update, state, row):
        raise jaxrl.StopRun

    def evaluate(*arguments):
        signal.raise_signal(signal.SIGTERM)
        arguments[-1](1)

    monkeypatch.setattr("jaxrl.training.run_evaluation.evaluate_separately", evaluate)
    result = run(4, tmp_path, callbacks=[stop], num_evaluations=1)
    assert (result.summary["updates"], result.interrupted) == (2, True)
    assert (tmp_path / "checkpoints" / "2").exists()


def test_a_callback_after_an_evaluation_sees_the_row_before_it_too():
    rows = []
    run(4, callbacks=[lambda update, state, row: rows.append(row)], log_every=1, num_evaluations=2)
    assert {"eval_return", "loss"} <= rows[-1].keys()
    assert ["eval_return" in row for row in rows] == [row["update"] in (2, 4) for row in rows]


def test_a_label_is_kept_and_may_change(tmp_path):
    run(2, tmp_path, label="first")
    assert json.loads((tmp_path / "manifest.json").read_text())["label"] == "first"
    run(4, tmp_path, resume=True)
    assert json.loads((tmp_path / "manifest.json").read_text())["label"] == "first"
    run(6, tmp_path, resume=True, label="second")
    assert json.loads((tmp_path / "manifest.json").read_text())["label"] == "second"


def test_memory_does_not_grow_with_the_number_of_steps():
    kept = []  # megabytes after each chunk; the peak of the process is that of an earlier test
    page = resource.getpagesize() / 2**20

    def measure(*_):
        kept.append(int(Path("/proc/self/statm").read_text().split()[1]) * page)

    run(40_000, chunk_updates=None, callbacks=[measure])
    assert len(kept) > 20
    assert max(kept) - max(kept[: len(kept) // 10]) < 30


def test_a_signal_while_the_last_checkpoint_is_written_does_not_lose_it(tmp_path, monkeypatch):
    save = loop.TrainingLoop.save

    def interrupted_save(self, state):
        os.kill(os.getpid(), signal.SIGINT)
        save(self, state)

    monkeypatch.setattr(loop.TrainingLoop, "save", interrupted_save)
    result = run(4, tmp_path, checkpoint_seconds=1e6)
    assert (result.summary["updates"], result.interrupted) == (4, False)
    assert (tmp_path / "checkpoints" / "4").exists()


class Bare(NamedTuple):
    params: Any


def test_sinks_of_a_run_that_is_refused_are_closed(tmp_path):
    class Sink:
        closed = 0

        def write(self, row):
            pass

        def close(self):
            self.closed += 1

    sink = Sink()
    run(2, tmp_path, sinks=[sink])
    assert sink.closed == 1
    with pytest.raises(ValueError, match="already holds a run"):
        run(2, tmp_path, sinks=[sink])
    assert sink.closed == 2
    with pytest.raises(ValueError, match="total_steps must be"):
        run(0, sinks=[sink])
    assert sink.closed == 3


def test_algorithms_that_break_the_contract_are_refused(tmp_path):
    algo = toy()

    def lacking(config, state):
        state, metrics = algo.update(config, state)
        return state, {"loss": metrics["loss"]}

    def stateless(config, key, simulation=None):
        return Bare(algo.init(config, key, simulation))

    wrong = {
        r"env must be environments": (algo._replace(env=None), CONFIG),
        r"config must be a pytree: .* jaxrl\.config\.config": (
            algo._replace(config_class=None),
            object(),
        ),
        r"state of algo\.init must be a NamedTuple": (algo._replace(init=stateless), CONFIG),
        r"number of steps must be an integer >= 1, got 0": (
            algo._replace(num_steps=lambda config: 0),
            CONFIG,
        ),
        r"the num_steps of 'toy' fails \(.*'horizon'\)": (
            algo._replace(num_steps=lambda config: config.horizon),
            CONFIG,
        ),
        r"update lack episode_count, .* valid_steps": (algo._replace(update=lacking), CONFIG),
    }
    for message, (own, config) in wrong.items():
        with pytest.raises(ValueError, match=message):
            jaxrl.run(own, config, total_steps=16, progress_bar=False)
        if "lack" not in message:  # found while compiling, in a directory
            with pytest.raises(ValueError, match=message):
                jaxrl.run(own, config, total_steps=16, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "error", [jax.errors.JaxRuntimeError("Gloo failed"), OSError("full"), KeyboardInterrupt()]
)
def test_an_error_of_one_process_ends_the_others(monkeypatch, error):
    def raise_error(*_):
        raise error

    class Others:
        def fail(self):
            raise SystemExit(75)

    monkeypatch.setattr(loop.TrainingLoop, "run", raise_error)
    monkeypatch.setattr(processes, "_liveness", Others())
    with pytest.raises(SystemExit, match="75"):
        run(1)
