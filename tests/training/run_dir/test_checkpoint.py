"""Checkpoints: a state comes back as it was, on any devices, or an error says why not."""

import json
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sweep_runs
from sweep_runs import toy_algorithm
from toy_algorithm import ToyConfig, toy

import jaxrl
from jaxrl.distributed import spread
from jaxrl.files import seal
from jaxrl.training.loggers import read_jsonl
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.checkpoint import Checkpoints
from jaxrl.types import is_key

pytestmark = pytest.mark.smoke

RUN = {"run_id": "a", "seed": 1, "versions": {"jax": "1"}}


@pytest.fixture
def checkpoints(tmp_path):
    opened = Checkpoints(tmp_path / "checkpoints", RUN)
    yield opened
    opened.close()


def test_keys_and_arrays_without_elements_are_restored(checkpoints):
    keys = jax.random.split(jax.random.key(0), 3)
    saved = {"x": jnp.arange(3.0), "none": jnp.zeros((4, 0, 3), jnp.int32), "no_keys": keys[:0]}
    checkpoints.save(1, saved | {"keys": keys}, {"steps": 7}, whole=True)
    like = jax.eval_shape(lambda: saved | {"keys": keys})
    restored, progress = checkpoints.restore(like, whole=True)
    assert progress == checkpoints.progress() == {"steps": 7}
    assert (restored.pop("keys") == keys).all()
    assert is_key(restored["no_keys"])
    assert restored["no_keys"].shape == (0,)
    np.testing.assert_array_equal(restored["x"], saved["x"])
    assert restored["none"].shape == (4, 0, 3)
    assert restored["none"].dtype == jnp.int32


def test_a_state_is_restored_onto_the_devices_of_the_state_that_it_replaces(tmp_path):
    algo, key = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4)), jax.random.key(0)
    config = jaxrl.PPOConfig(num_steps=4, num_minibatches=1, hidden_sizes=(8,))
    inits = [algo.init, spread.spread(algo, 2).init]
    states = [jax.jit(init)(config, key) for init in inits]
    for number, saved in enumerate(states):
        checkpoints = Checkpoints(tmp_path / str(number), RUN)
        checkpoints.save(1, saved, {}, whole=True)
        for like in states:
            restored, _ = checkpoints.restore(like, whole=True)
            chex.assert_trees_all_equal(restored, like)
            for x, y in zip(jax.tree.leaves(restored), jax.tree.leaves(like), strict=True):
                assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
        checkpoints.close()


def test_a_full_disk_keeps_the_checkpoint_before(checkpoints, monkeypatch):
    state = {"x": jnp.arange(3.0)}

    def no_space(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints._manager, "save", no_space)
        with pytest.raises(OSError, match=r"Those before it are intact; .* resume"):
            checkpoints.save(1, state, {}, whole=True)
    checkpoints.save(1, state, {}, whole=True)
    monkeypatch.setattr(checkpoints._manager, "save", no_space)
    with pytest.raises(OSError, match=r"checkpoint 2 .*No space left.*before it are intact"):
        checkpoints.save(2, state, {}, whole=True)
    np.testing.assert_array_equal(checkpoints.restore(state, whole=True)[0]["x"], state["x"])


def test_a_full_disk_while_the_seal_is_written_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    checkpoints, state = Checkpoints(tmp_path, RUN), {"x": jnp.arange(3.0)}
    checkpoints.save(1, state, {}, whole=True)
    assert checkpoints.latest() == 1

    def no_space(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(seal, "write", no_space)
        checkpoints.save(2, state, {}, whole=True)
        with pytest.raises(OSError, match=r"checkpoint 2 .* No space left.*before it are intact"):
            checkpoints.close()
    with pytest.warns(UserWarning, match=r"2 is damaged: its file seal\.json is missing"):
        again = Checkpoints(tmp_path, RUN)
    assert again.latest() == 1
    again.save(2, state, {}, whole=True)
    assert again.latest() == 2
    again.close()


@pytest.mark.parametrize("keep", [1, 2])
def test_the_newest_are_kept_and_older_ones_deleted_once_it_is_sealed(tmp_path, monkeypatch, keep):
    checkpoints, state = Checkpoints(tmp_path, RUN, keep), {"x": jnp.arange(3.0)}
    there, write = [], seal.write

    def look_and_write(folder, entries):
        there.append(sorted(path.name for path in tmp_path.iterdir()))
        write(folder, entries)

    monkeypatch.setattr(seal, "write", look_and_write)
    for update in (1, 2, 3):
        checkpoints.save(update, state, {}, whole=True)
    checkpoints.close()
    assert there[2] == [str(n) for n in range(3 - keep, 4)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"][-keep:]


@pytest.mark.parametrize("repair", [True, False])
def test_what_a_killed_process_had_begun_is_deleted_by_the_next_writer(tmp_path, repair):
    state = {"x": jnp.arange(3.0)}
    checkpoints = Checkpoints(tmp_path, RUN)
    checkpoints.save(1, state, {}, whole=True)
    checkpoints.close()
    begun = tmp_path / "2.orbax-checkpoint-tmp"
    shutil.copytree(tmp_path / "1", begun)
    again = Checkpoints(tmp_path, RUN, repair=repair)
    assert again.latest() == 1
    again.save(3, state, {}, whole=True)
    again.close()
    assert begun.exists() == (not repair)


def test_a_checkpoint_that_was_damaged_before_it_was_sealed_is_named(tmp_path):
    checkpoints, state = Checkpoints(tmp_path, RUN), {"x": jnp.arange(100.0)}
    checkpoints.save(1, state, {}, whole=True)
    checkpoints.close()
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.stat().st_size > 200:
            path.write_bytes(b"damaged")
    seal.write(tmp_path / "1", {"update": 1, "identity": RUN})
    checkpoints = Checkpoints(tmp_path, RUN)
    with pytest.raises(ValueError, match=r"/1 is damaged or of another version"):
        checkpoints.restore(state, whole=True)
    checkpoints.close()


@pytest.mark.parametrize("content", ["[]", '{"item_handlers": 3}', "[" * 10_000])
def test_damage_to_an_older_checkpoint_that_orbax_reads_is_named(tmp_path, content):
    checkpoints, state = Checkpoints(tmp_path, RUN), {"x": jnp.arange(3.0)}
    for update in (1, 2):
        checkpoints.save(update, state, {}, whole=True)
    checkpoints.close()
    (tmp_path / "1" / "_CHECKPOINT_METADATA").write_text(content)
    message = rf"{tmp_path} is damaged: 1: its file _CHECKPOINT_METADATA has changed.*Delete"
    with pytest.raises(ValueError, match=message):
        Checkpoints(tmp_path, RUN)


def test_a_checkpoint_of_another_network_is_refused(checkpoints):
    checkpoints.save(1, {"x": {"y": jnp.arange(3.0)}}, {}, whole=True)
    for other, difference in (
        ({"x": {"y": jnp.zeros(4)}}, r"x\.y is float32 \[3\] there and float32 \[4\] here"),
        ({"x": {"y": jnp.zeros(3, int)}}, r"x\.y is float32 \[3\] there and int32 \[3\] here"),
        ({"y": jnp.zeros(3)}, r"y is missing there and float32 \[3\] here"),
        ({"x": {}}, r"x\.y is float32 \[3\] there and missing here"),
    ):
        with pytest.raises(ValueError, match=f"/1 is of another algorithm.*: {difference}"):
            checkpoints.restore(other, whole=True)


def test_a_directory_without_checkpoints_is_named(checkpoints):
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        checkpoints.progress()


# --- checkpoints of runs -------------------------------------------------------------------------


def run(run_dir, num_updates, **changes):
    arguments = sweep_runs.RUN | {"resume": True} | changes
    return jaxrl.run(toy_algorithm(), total_steps=num_updates * 4, run_dir=run_dir, **arguments)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a run with the checkpoints 4 and 6."""
    directory = tmp_path_factory.mktemp("runs") / "run"
    run(directory, 6)
    return directory


@pytest.fixture
def directory(finished, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(finished, tmp_path / "run")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def largest(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != seal.NAME]
    return max(files, key=lambda path: path.stat().st_size)


def load(directory):
    return jaxrl.load_policy(directory, make_algorithm=lambda env, network: toy(env))


def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(directory):
    flip(largest(directory / "checkpoints" / "6"))
    with pytest.warns(UserWarning, match=r"checkpoints/6 is damaged: its file state/.* 4 is used"):
        resumed = run(directory, 10)
    expected = run(None, 10)
    chex.assert_trees_all_equal(resumed.state, expected.state)
    rows = (directory / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["update"] for row in rows] == [*range(1, 11)]
    assert (directory / "damaged-checkpoints" / "6-1").is_dir()
    assert sorted(path.name for path in (directory / "checkpoints").iterdir()) == ["10", "8"]


def test_a_resumed_run_tells_which_rows_are_not_as_its_checkpoint_recorded_them(directory):
    path = directory / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: .* recorded.*metrics\.damaged-1"):
        run(directory, 10)
    assert [row["update"] for row in read_jsonl(path)] == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    run(directory, 12)  # and nothing is reported


def test_a_run_with_the_rows_of_another_is_not_resumed(directory, tmp_path):
    run(tmp_path / "other", 6, seed=4)
    shutil.copy(tmp_path / "other" / "metrics.jsonl", directory)
    with pytest.raises(ValueError, match=r"metrics\.jsonl: .* another run's"):
        run(directory, 10)


def test_load_policy_says_that_it_loads_the_checkpoint_before_a_damaged_one(directory):
    flip(largest(directory / "checkpoints" / "6"))
    for _ in range(2):  # a reader moves nothing
        with pytest.warns(UserWarning, match=r"checkpoints/6 is damaged: .* 4 is used"):
            assert int(load(directory).state.num_updates) == 4
    flip(largest(directory / "checkpoints" / "4"))
    with pytest.raises(ValueError, match=r"no checkpoint in .* is intact: .*/6 is .*/4 is"):
        load(directory)
    with pytest.raises(ValueError, match=r"no checkpoint in .* is intact"):
        run(directory, 10)
    assert not (directory / "damaged-checkpoints").exists()


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"seed": 4}, "seed: 3 -> 4"),
        ({"config": ToyConfig(learning_rate=1e-2)}, "config.learning_rate: 0.001 -> 0.01"),
        ({}, "run_id: '.*' -> '.*'"),
    ],
    ids=["seed", "learning rate", "twin"],
)
def test_checkpoints_of_other_runs_are_refused(directory, tmp_path, changes, difference):
    run(tmp_path / "other", 8, **changes)
    shutil.copytree(tmp_path / "other" / "checkpoints" / "8", directory / "checkpoints" / "8")
    for use in (load, lambda directory: run(directory, 10)):
        with pytest.raises(ValueError, match=rf"/8 belongs to another run.*{difference}.*delete"):
            use(directory)
    shutil.rmtree(directory / "checkpoints" / "8")
    assert int(load(directory).state.num_updates) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda saved: [], r"it must be an object, got \[\]"),
        (lambda saved: saved | {"update": 8}, "update must be 6, the number of the checkpoint"),
        (lambda saved: saved | {"steps": "24"}, "steps must be an integer >= 0, got '24'"),
        (lambda saved: saved | {"recent": [[1.0]]}, "recent must be a list, each .* a pair"),
        (lambda saved: saved | {"row": {"loss": 1.0}}, "row must be an object of lists"),
        (lambda saved: {k: v for k, v in saved.items() if k != "seconds"}, "it lacks seconds"),
    ],
)
def test_a_progress_that_the_run_could_not_have_saved_is_named(directory, change, message):
    path = directory / "checkpoints" / "6" / "progress" / "metadata"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    identity = manifests.identity(manifests.read(directory))
    seal.write(directory / "checkpoints" / "6", {"update": 6, "identity": identity})
    with pytest.raises(ValueError, match=rf"6/progress/metadata is damaged: {message}"):
        run(directory, 10)


@pytest.mark.parametrize("saves", [1, 3], ids=["first", "third"])
def test_a_kill_between_a_checkpoint_and_its_seal_loses_that_checkpoint_only(
    tmp_path, monkeypatch, saves
):
    class KilledError(BaseException):
        pass

    write, calls = seal.write, []

    def die(folder, entries):
        calls.append(folder)
        if len(calls) == saves:
            raise KilledError
        write(folder, entries)

    with monkeypatch.context() as patch:
        patch.setattr(seal, "write", die)
        with pytest.raises(KilledError):
            run(tmp_path, 10)
    number = 2 * saves
    with pytest.warns(UserWarning, match=f"/{number} is damaged: its file seal.json is missing"):
        resumed = run(tmp_path, 10)
    chex.assert_trees_all_equal(resumed.state, run(None, 10).state)
    assert (tmp_path / "damaged-checkpoints" / f"{number}-1").is_dir()


def test_other_versions_are_no_hindrance(directory, monkeypatch):
    monkeypatch.setattr(manifests, "versions", lambda: {"jax": "99"})
    identity = manifests.identity(manifests.read(directory))
    checkpoints = Checkpoints(directory / "checkpoints", identity)
    assert f"versions.jax: '{jax.__version__}' -> '99'" in checkpoints.other_versions
    checkpoints.close()
    assert int(run(directory, 8).state.num_updates) == 8
