"""The driver: what a run leaves behind, and that stopping it in any way loses little."""

import errno
import fcntl
import importlib
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import chex
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.record_writer import RecordWriter
from toy_algorithm import InterruptAfter

import jaxrl
from jaxrl.distributed import spread
from jaxrl.envs.host import pools
from jaxrl.training import loop
from jaxrl.training import manifest as manifests
from jaxrl.training import run as run_module
from jaxrl.training.checkpoint import Checkpoints
from jaxrl.training.evaluate import Evaluation
from jaxrl.training.loggers import JsonlSink, ProgressBar, TensorBoardSink, read_jsonl
from jaxrl.training.loop import train_chunk

CONFIG = jaxrl.PPOConfig(num_steps=16, num_minibatches=2, num_epochs=2)
STEPS_PER_UPDATE = 4 * 16


def algorithm(env_id="CartPole-v1"):
    return jaxrl.ppo(jaxrl.make(env_id, num_envs=4))


def quiet(**changes):
    return {
        "seed": 3,
        "num_evaluations": 0,
        "chunk_updates": 2,
        "checkpoint_seconds": 0.0,
        "progress_bar": False,
    } | changes


def learned(state):
    return [np.asarray(x) for x in jax.tree.leaves((state.params, state.opt_state))]


def same(a, b):
    return all((x == y).all() for x, y in zip(a, b, strict=True))


def without_timing(rows):
    return [
        {k: v for k, v in row.items() if k != "seconds" and not k.endswith("_per_second")}
        for row in rows
    ]


def test_a_run_directory_holds_what_is_promised(tmp_path):
    result = jaxrl.run(
        algorithm(),
        CONFIG,
        total_steps=20 * STEPS_PER_UPDATE,
        run_dir=tmp_path / "run",
        **quiet(num_evaluations=2, eval_episodes=4),
    )
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "manifest.json", "metrics.jsonl", "tensorboard", "checkpoints", "summary.json", "curve.png"
    }  # fmt: skip
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    updates = [row for row in rows if "loss" in row]
    assert [row["update"] for row in updates] == list(range(1, 21))
    assert [row["update"] for row in rows if "eval_return" in row] == [10, 20]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary == result.summary
    assert summary["valid_steps"] == updates[-1]["steps"] <= 20 * STEPS_PER_UPDATE
    assert summary["episodes"] == sum(row["episode_count"] for row in updates)
    assert summary["steps_per_second"] > 0
    assert summary["eval_return"] == rows[-1]["eval_return"] > 0
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    written = manifests.read(tmp_path / "run")
    assert written["seed"] == 3
    assert written["versions"]["jax"] == jax.__version__
    assert {"command", "git_commit", "hardware", "created"} <= set(written)


def test_the_driver_learns_what_train_learns():
    state = jaxrl.run(algorithm(), CONFIG, total_steps=6 * STEPS_PER_UPDATE, **quiet()).state
    train = jax.jit(jaxrl.train, static_argnums=(0, 3))
    expected, _ = train(algorithm(), CONFIG, jax.random.key(3), 6)
    for a, b in zip(learned(state), learned(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_steps_are_rounded_up_to_whole_updates_and_chunks_do_not_matter():
    results = [
        jaxrl.run(algorithm(), CONFIG, total_steps=5 * STEPS_PER_UPDATE - 1, **quiet(**changes))
        for changes in ({}, {"chunk_updates": 5}, {"chunk_updates": None}, {"log_every": 3})
    ]
    assert [result.summary["updates"] for result in results] == [5] * 4
    for result in results[1:]:
        assert same(learned(result.state), learned(results[0].state))


@pytest.mark.parametrize("chunk_updates", [pytest.param(1, marks=pytest.mark.slow), 2, 5])
def test_rows_do_not_depend_on_chunks_nor_on_stops_within_them(
    tmp_path, monkeypatch, chunk_updates
):
    arguments: dict[str, Any] = quiet(log_every=3, num_evaluations=2, eval_episodes=2)
    arguments |= {"total_steps": 14 * STEPS_PER_UPDATE}
    whole = jaxrl.run(
        algorithm(), CONFIG, run_dir=tmp_path / "whole", **arguments | {"chunk_updates": 3}
    )
    arguments |= {"run_dir": tmp_path / "parts", "chunk_updates": chunk_updates}
    with monkeypatch.context() as patch:
        patch.setattr(loop, "Interrupt", lambda: InterruptAfter(2))
        stopped = jaxrl.run(algorithm(), CONFIG, **arguments)
    assert stopped.interrupted
    assert stopped.summary["updates"] == {1: 2, 2: 4, 5: 6}[chunk_updates]  # whole rows of 3
    resumed = jaxrl.run(algorithm(), CONFIG, resume=True, **arguments)
    rows = [read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("whole", "parts")]
    assert without_timing(rows[0]) == without_timing(rows[1])
    assert [row["update"] for row in rows[0] if "loss" in row] == [3, 6, 7, 10, 13, 14]
    for name in ("episodes", "mean_return", "valid_steps"):
        assert resumed.summary[name] == whole.summary[name]


@pytest.mark.parametrize(("num_updates", "log_every"), [(999, 1), (5000, 5), (10**7, 1024)])
def test_long_runs_have_rows_of_what_fits_into_a_chunk(num_updates, log_every):
    assert run_module._row_length(None, num_updates, None) == log_every


def test_the_simulators_of_an_evaluation_are_closed():
    before = len(pools._entries)
    algo = algorithm("envpool/CartPole-v1")
    arguments = quiet(num_evaluations=3, eval_episodes=2)
    result = jaxrl.run(algo, CONFIG, total_steps=3 * STEPS_PER_UPDATE, **arguments)
    assert result.summary["eval_return"] > 0
    assert len(pools._entries) <= before + 1


def test_an_evaluation_without_an_end_is_no_number(tmp_path, monkeypatch):
    nothing = Evaluation(jnp.full(2, jnp.nan), jnp.full(2, jnp.nan))
    monkeypatch.setattr(loop, "evaluate", lambda *args, **kwargs: nothing)
    arguments = quiet(num_evaluations=1, eval_episodes=2, run_dir=tmp_path / "run")
    result = jaxrl.run(algorithm(), CONFIG, total_steps=STEPS_PER_UPDATE, **arguments)
    assert result.summary["eval_return"] is None
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_tensorboard_reads_the_curves(tmp_path):
    event_pb2: Any = importlib.import_module("tensorboardX.proto.event_pb2")
    sink = TensorBoardSink(tmp_path, resume_from=20)
    sink.write({"update": 1, "steps": 30, "loss": 3.0})
    (path,) = tmp_path.iterdir()
    data, events = path.read_bytes(), []  # which are there before it is closed
    while data:  # records of a length, its checksum, the event, its checksum
        (length,) = struct.unpack("<Q", data[:8])
        events.append(event_pb2.Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    sink.close()
    version, begin, scalar = events
    assert version.file_version == "brain.Event:2"
    assert (begin.step, begin.session_log.status) == (21, event_pb2.SessionLog.START)
    (value,) = scalar.summary.value
    assert (scalar.step, value.tag, value.simple_value) == (30, "loss", 3.0)
    assert abs(scalar.wall_time - time.time()) < 100


def test_curves_on_a_full_disk_are_an_error_at_once(tmp_path, monkeypatch):
    real, fails = RecordWriter.flush, [OSError(errno.ENOSPC, "No space left on device")]

    def flush(self):
        if fails:
            raise fails.pop()
        real(self)

    monkeypatch.setattr(RecordWriter, "flush", flush)
    with pytest.raises(OSError, match=r"run could not be written to: .*No space left.* and resume"):
        jaxrl.run(
            algorithm(), CONFIG, total_steps=4 * STEPS_PER_UPDATE, run_dir=tmp_path / "run",
            **quiet(),
        )  # fmt: skip


def test_a_run_that_saved_nothing_may_be_begun_otherwise(tmp_path):
    algo, directory = algorithm(), tmp_path / "run"
    arguments = {"seed": 3, "total_steps": 64, "log_every": 1, "num_evaluations": 0}
    manifest = manifests.describe(algo, CONFIG, arguments | {"eval_episodes": 1})
    with run_module.open_run_dir(directory, manifest, False):
        pass
    other = CONFIG.replace(gamma=0.5)
    jaxrl.run(algo, other, total_steps=STEPS_PER_UPDATE, run_dir=directory, resume=True, **quiet())
    assert manifests.read(directory)["config"]["gamma"] == 0.5
    with pytest.raises(ValueError, match="was started otherwise"):
        jaxrl.run(algo, CONFIG, total_steps=64, run_dir=directory, resume=True, **quiet())


HOLDER = """
import fcntl, os, sys, time
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def test_one_process_at_a_time_works_in_a_directory(tmp_path):
    arguments = quiet(total_steps=STEPS_PER_UPDATE, run_dir=tmp_path)
    jaxrl.run(algorithm(), CONFIG, **arguments)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match=r"another process is at work in .*; wait until"):
            jaxrl.run(algorithm(), CONFIG, **arguments, resume=True)
        other.kill()
    assert "resumptions" not in manifests.read(tmp_path)
    jaxrl.run(algorithm(), CONFIG, **arguments, resume=True)


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", flock)
    with run_module.directory_lock(tmp_path), run_module.directory_lock(tmp_path):
        pass


def test_what_a_full_disk_left_of_a_beginning_is_no_obstacle(tmp_path, monkeypatch):
    def replace(path, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    arguments = quiet(total_steps=STEPS_PER_UPDATE, run_dir=tmp_path / "run", seed=np.int64(3))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(OSError, match="No space left"):
            jaxrl.run(algorithm(), CONFIG, **arguments)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".manifest.json"]
    jaxrl.run(algorithm(), CONFIG, **arguments, resume=True)
    assert manifests.read(tmp_path / "run")["seed"] == 3


def test_a_longer_run_that_dies_is_not_finished(tmp_path, monkeypatch):
    arguments = quiet(run_dir=tmp_path / "run", resume=True)
    jaxrl.run(algorithm(), CONFIG, total_steps=STEPS_PER_UPDATE, **arguments)
    assert (tmp_path / "run" / "summary.json").exists()

    def die(*_):
        raise SystemExit

    monkeypatch.setattr(loop.Runner, "log", die)
    with pytest.raises(SystemExit):
        jaxrl.run(algorithm(), CONFIG, total_steps=4 * STEPS_PER_UPDATE, **arguments)
    assert not (tmp_path / "run" / "summary.json").exists()


def test_options_that_are_tuples_are_so_again(tmp_path):
    lake = jaxrl.make("gymnasium/FrozenLake-v1", 4, desc=("SF", "FG"), vectorization_mode="sync")
    arguments = quiet(total_steps=STEPS_PER_UPDATE, run_dir=tmp_path / "run")
    jaxrl.run(jaxrl.ppo(lake), CONFIG, **arguments)
    assert jaxrl.load_policy(tmp_path / "run").algo.env == lake


def test_a_policy_for_an_environment_of_ones_own_is_loaded_with_it(tmp_path):
    algo = algorithm()
    jaxrl.run(algo, CONFIG, total_steps=STEPS_PER_UPDATE, run_dir=tmp_path / "a", **quiet())
    manifest = manifests.read(tmp_path / "a")
    manifest["env"]["id"] = "own/Corridor"
    manifests.write(tmp_path / "a", manifest)
    with pytest.raises(ValueError, match=r"own/Corridor, cannot be made again; .* as env=\.\.\."):
        jaxrl.load_policy(tmp_path / "a")
    policy = jaxrl.load_policy(tmp_path / "a", env=algo.env)
    assert policy(jnp.zeros(4)).shape == ()
    jaxrl.rerun(tmp_path / "a", tmp_path / "b", env=algo.env, progress_bar=False)
    assert manifests.read(tmp_path / "b")["config"] == manifest["config"]


PROGRAM = """
import sys, jaxrl
env_id, steps, directory = sys.argv[1:]
algo = jaxrl.ppo(jaxrl.make(env_id, num_envs=4))
config = jaxrl.PPOConfig(num_steps=16, num_minibatches=2, num_epochs=2)
result = jaxrl.run(
    algo, config, seed=3, total_steps=int(steps), run_dir=directory,
    num_evaluations=0, log_every=1, chunk_updates=2, checkpoint_seconds=0.0, progress_bar=False,
)
print("interrupted" if result.interrupted else "finished", flush=True)
"""


def start_program(tmp_path, env_id, num_updates):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    arguments = [env_id, str(num_updates * STEPS_PER_UPDATE), str(tmp_path / "run")]
    return subprocess.Popen(
        [sys.executable, str(program), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(jaxrl.__file__).parents[1])},
    )


def wait_for_rows(run_dir, count, process):
    deadline = time.monotonic() + 120
    while len(read_jsonl(run_dir / "metrics.jsonl")) < count:
        assert process.poll() is None, "the run ended early"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    process = start_program(tmp_path, "CartPole-v1", 100_000)
    wait_for_rows(tmp_path / "run", 5, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    killed_at = len(read_jsonl(tmp_path / "run" / "metrics.jsonl"))
    total = (killed_at + 6) * STEPS_PER_UPDATE
    arguments = quiet(log_every=1)
    resumed = jaxrl.run(
        algorithm(), CONFIG, total_steps=total, run_dir=tmp_path / "run", resume=True, **arguments
    )
    whole = jaxrl.run(
        algorithm(), CONFIG, total_steps=total, run_dir=tmp_path / "whole", **arguments
    )
    assert same(
        [np.asarray(x) for x in jax.tree.leaves(resumed.state._replace(key=0))],
        [np.asarray(x) for x in jax.tree.leaves(whole.state._replace(key=0))],
    )
    assert (jax.random.key_data(resumed.state.key) == jax.random.key_data(whole.state.key)).all()
    rows = [without_timing(read_jsonl(tmp_path / d / "metrics.jsonl")) for d in ("run", "whole")]
    assert rows[0] == rows[1]
    assert resumed.summary["episodes"] == whole.summary["episodes"]
    assert resumed.summary["mean_return"] == whole.summary["mean_return"]


def test_sigterm_stops_after_the_chunk_with_a_checkpoint(tmp_path):
    process = start_program(tmp_path, "CartPole-v1", 100_000)
    wait_for_rows(tmp_path / "run", 3, process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert output.strip().endswith("interrupted")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    assert summary["interrupted"]
    assert checkpoints.latest() == summary["updates"]
    checkpoints.close()


def test_a_host_environment_resumes_with_an_exact_learner(tmp_path):
    arguments = quiet(run_dir=tmp_path / "run", resume=True)
    algo = algorithm("envpool/CartPole-v1")
    first = jaxrl.run(algo, CONFIG, total_steps=4 * STEPS_PER_UPDATE, **arguments)
    again = jaxrl.run(algo, CONFIG, total_steps=4 * STEPS_PER_UPDATE, **arguments)
    assert same(learned(first.state), learned(again.state))
    assert (jax.random.key_data(first.state.key) == jax.random.key_data(again.state.key)).all()
    begun = [again.state.simulation, jax.jit(algo.init)(CONFIG, jax.random.key(3)).simulation]
    assert not same(*([np.asarray(x.timestep.obs)] for x in begun))  # other episodes than before
    more = jaxrl.run(algo, CONFIG, total_steps=6 * STEPS_PER_UPDATE, **arguments)
    assert int(more.state.num_updates) == 6


def test_rerunning_a_manifest_reproduces_the_metrics(tmp_path):
    jaxrl.run(
        algorithm(),
        CONFIG.replace(gamma=0.9),
        total_steps=8 * STEPS_PER_UPDATE,
        run_dir=tmp_path / "a",
        **quiet(num_evaluations=1, eval_episodes=2),
    )
    jaxrl.rerun(tmp_path / "a", tmp_path / "b", progress_bar=False)
    rows = [without_timing(read_jsonl(tmp_path / d / "metrics.jsonl")) for d in "ab"]
    assert rows[0] == rows[1]
    assert manifests.differences(*(manifests.read(tmp_path / d) for d in "ab")) == []


def test_a_second_run_in_the_same_directory_is_refused(tmp_path):
    arguments = quiet(run_dir=tmp_path / "run")
    jaxrl.run(algorithm(), CONFIG, total_steps=64, **arguments)
    with pytest.raises(ValueError, match="already holds a run; resume it"):
        jaxrl.run(algorithm(), CONFIG, total_steps=64, **arguments)
    changed = CONFIG.replace(gamma=0.5)
    with pytest.raises(ValueError, match=r"config\.gamma: 0\.99 -> 0\.5"):
        jaxrl.run(algorithm(), changed, total_steps=64, **(arguments | {"resume": True}))
    with pytest.raises(ValueError, match="seed: 3 -> 4"):
        jaxrl.run(algorithm(), CONFIG, total_steps=64, **(arguments | {"resume": True, "seed": 4}))


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="not empty and holds no run"):
        jaxrl.run(algorithm(), CONFIG, total_steps=64, run_dir=tmp_path, **quiet())


def test_a_damaged_checkpoint_is_named(tmp_path):
    jaxrl.run(algorithm(), CONFIG, total_steps=64, run_dir=tmp_path / "run", **quiet())
    for path in (tmp_path / "run" / "checkpoints").rglob("*"):
        if path.is_file() and path.stat().st_size > 200:
            path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match="is damaged or belongs to another"):
        jaxrl.load_policy(tmp_path / "run")


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    jaxrl.run(algorithm(), CONFIG, total_steps=64, run_dir=tmp_path / "run", **quiet())
    path = tmp_path / "run" / manifests.NAME
    manifest = json.loads(path.read_text())
    manifest["config"]["hidden_sizes"] = [32, 32]
    path.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="checkpoint"):
        jaxrl.load_policy(tmp_path / "run")


def test_arrays_without_elements_are_kept(tmp_path):
    keys = jax.random.split(jax.random.key(0), 3)
    saved = {"x": jnp.arange(3.0), "none": jnp.zeros((4, 0, 3), jnp.int32), "keys": keys[:0]}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, saved, {}, whole=True)
    like = jax.tree.map(lambda x: jnp.zeros_like(x) if x.ndim == 1 and x.size else x, saved)
    restored, _ = checkpoints.restore(like, whole=True)
    checkpoints.close()
    np.testing.assert_array_equal(restored["x"], saved["x"])
    assert jax.tree.map(lambda x: (x.shape, x.dtype), restored) == jax.tree.map(
        lambda x: (x.shape, x.dtype), saved
    )


def test_a_checkpoint_lands_on_the_devices_of_the_state_that_it_replaces(tmp_path):
    algo, key = algorithm(), jax.random.key(0)
    states = [
        jax.jit(spread.spread(algo, size).init)(CONFIG, key) if size > 1 else algo.init(CONFIG, key)
        for size in (1, 2)
    ]
    for saved in states:
        directory = tmp_path / str(saved.num_updates.sharding.num_devices)
        checkpoints = Checkpoints(directory)
        checkpoints.save(1, saved, {}, whole=True)
        for like in states:
            restored, _ = checkpoints.restore(like, whole=True)
            chex.assert_trees_all_equal(restored, like)
            for x, y in zip(jax.tree.leaves(restored), jax.tree.leaves(like), strict=True):
                assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
        checkpoints.close()


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    algo = algorithm()
    state = algo.init(CONFIG, jax.random.key(0))
    checkpoints.save(1, state, {}, whole=True)

    def no_space(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints._manager, "save", no_space)
    with pytest.raises(OSError, match=r"No space left.*The one before it, 1, is intact"):
        checkpoints.save(2, state, {}, whole=True)
    restored, _ = checkpoints.restore(state, whole=True)
    assert same(learned(restored), learned(state))
    checkpoints.close()


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_checkpoints(tmp_path):
    algo = algorithm()

    def poisoned(config, state):
        state, metrics = algo.update(config, state)
        bad = state.num_updates > 4
        return state, metrics | {"loss": jnp.where(bad, jnp.nan, metrics["loss"])}

    with pytest.raises(FloatingPointError, match="loss is nan within update 5"):
        jaxrl.run(
            algo._replace(update=poisoned),
            CONFIG,
            total_steps=10 * STEPS_PER_UPDATE,
            run_dir=tmp_path / "run",
            **quiet(),
        )
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    assert checkpoints.latest() == 4
    checkpoints.close()


def test_a_loaded_policy_acts_on_one_or_many_observations(tmp_path):
    result = jaxrl.run(algorithm(), CONFIG, total_steps=64, run_dir=tmp_path / "run", **quiet())
    policy = jaxrl.load_policy(tmp_path / "run")
    obs = np.random.default_rng(0).normal(size=(50, 4))
    batch = policy(obs)
    assert batch.shape == (50,)
    assert [int(policy(one)) for one in obs[:5]] == batch[:5].tolist()
    _, expected = algorithm().act(
        CONFIG, result.state, (), jnp.asarray(obs, jnp.float32), jax.random.key(0), True
    )
    assert (batch == expected).all()
    assert set(policy(obs, jax.random.key(1)).tolist()) == {0, 1}
    with pytest.raises(ValueError, match=r"observations of shape \(4,\)"):
        policy(np.zeros(5))


def test_a_policy_keeps_to_the_bounds_of_its_actions():
    algo = jaxrl.ppo(jaxrl.make("Pendulum-v1", 2))
    config = jaxrl.PPOConfig(num_steps=2, num_minibatches=1, hidden_sizes=(4,))
    policy = jaxrl.LoadedPolicy(algo, config, jax.jit(algo.init)(config, jax.random.key(0)))
    actions = policy(jnp.zeros((500, 3)), jax.random.key(0))
    assert (jnp.abs(actions) <= 2).all()
    assert (jnp.abs(actions) == 2).any()


def test_a_missing_run_or_network_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="not a run directory"):
        jaxrl.load_policy(tmp_path)
    env = jaxrl.make("CartPole-v1", num_envs=4)
    network = jaxrl.networks.actor_critic(
        env.observation_space, env.action_space, jaxrl.PPOConfig(hidden_sizes=(8,))
    )
    jaxrl.run(jaxrl.ppo(env, network), CONFIG, total_steps=64, run_dir=tmp_path / "run", **quiet())
    with pytest.raises(ValueError, match="network of its own"):
        jaxrl.load_policy(tmp_path / "run")
    assert jaxrl.load_policy(tmp_path / "run", network)(np.zeros(4)).shape == ()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"total_steps": 0}, "total_steps must be >= 1"),
        ({"total_steps": 64, "log_every": 0}, "log_every must be"),
        ({"total_steps": 64, "chunk_updates": 0}, "chunk_updates must be"),
        ({"total_steps": 64, "log_every": 10**11}, "log_every must be from 1 to 1024"),
        ({"total_steps": 64, "seed": -1}, "seed must be an integer from 0"),
        ({"total_steps": 64, "seed": 1.5}, "seed must be an integer from 0 .*, got 1.5"),
        ({"total_steps": 64, "seed": 10**20}, "seed must be an integer from 0"),
        ({"total_steps": 64, "num_evaluations": -1}, "num_evaluations must be"),
        ({"total_steps": 64, "eval_episodes": 0, "num_evaluations": 1}, "eval_episodes must be"),
    ],
)
def test_bad_sizes_are_refused_before_any_work(tmp_path, bad, message):
    with pytest.raises(ValueError, match=message):
        jaxrl.run(algorithm(), CONFIG, run_dir=tmp_path / "run", **(quiet() | bad))
    assert not (tmp_path / "run").exists()


def test_a_cut_last_line_of_the_log_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 1}\n{"update": 2}\n{"upda')
    sink = JsonlSink(path, resume_from=1)
    sink.write({"update": 2.0})
    sink.close()
    assert read_jsonl(path) == [{"update": 1}, {"update": 2.0}]


def test_memory_does_not_grow_with_the_number_of_steps():
    algo = algorithm()
    state = algo.init(CONFIG, jax.random.key(0))
    lowered = [train_chunk.lower(algo, CONFIG, state, jnp.int32(n)).as_text() for n in (1, 1000)]
    assert lowered[0] == lowered[1]
    peaks = []
    for total_steps in (50_000, 400_000):
        jaxrl.run(algo, CONFIG, total_steps=total_steps, **quiet(chunk_updates=None))
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # kilobytes
    assert peaks[1] - peaks[0] < 30_000


def test_evaluation_counts_the_same_episodes_of_each_environment():
    algo = algorithm("probe/Episode-v0")
    state = algo.init(CONFIG, jax.random.key(0))
    env = jaxrl.make("probe/Episode-v0", num_envs=3, limit=7)
    scores = jaxrl.evaluate(algo, CONFIG, state, env, jax.random.key(0), 2)
    assert scores.episode_return.tolist() == [7.0] * 6
    assert scores.episode_length.tolist() == [7.0] * 6
    cut = jaxrl.evaluate(algo, CONFIG, state, env, jax.random.key(0), 2, False, 9)
    assert np.isnan(np.asarray(cut.episode_return)).tolist() == [False, True] * 3


@pytest.mark.parametrize("columns", [80, 130])
def test_the_progress_bar_fits_its_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    bar = ProgressBar(2_000_000, visible=True)
    bar.say("evaluating")
    bar.advance(1_999_360, 1658.0, -20.2, "25.9 trainings/s, simulators: wait 45%, idle 20%")
    bar.close()
    line = capsys.readouterr().err
    assert "…" not in line
    assert "evaluating" in line
    assert "1,999,360/2,000,000 steps 1,658 steps/s return -20.2" in line
    assert ("25.9 trainings/s, simulators: wait 45%, idle 20%" in line) == (columns == 130)


@pytest.mark.parametrize("name", ["lr[0.1]", "back\\slash"])
def test_a_directory_that_checkpoints_cannot_be_read_from_is_refused(tmp_path, name):
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=2))
    with pytest.raises(ValueError, match=r"checkpoints cannot be kept in .*, whose path has"):
        jaxrl.run(algo, CONFIG, total_steps=1, run_dir=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_options_that_no_file_can_hold_are_refused(tmp_path):
    def make(kind):
        return gymnasium.make("CartPole-v1")

    env = jaxrl.make(make, 2, kind=dict, vectorization_mode="sync")
    with pytest.raises(ValueError, match=r"the option kind=<class 'dict'> of .* cannot be kept"):
        jaxrl.run(jaxrl.ppo(env), CONFIG, total_steps=1, run_dir=tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    env = jaxrl.make("envpool/CartPole-v1", 2, max_episode_steps=np.int64(50))
    assert json.dumps(env.options) == '{"max_episode_steps": 50}'
