"""Run directories: none is written over, and one process at a time works in each."""

import errno
import fcntl

import pytest
from toy_algorithm import ToyConfig, toy

from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.directory import directory_lock, open_run_dir

ARGUMENTS = {
    "seed": 3, "total_steps": 64, "log_every": 1, "num_evaluations": 0, "eval_episodes": 1,
    "eval_greedy": False,
}  # fmt: skip


def manifest(config=None, **changes):
    return manifests.describe(toy(), config or ToyConfig(), ARGUMENTS | changes)


def begin(directory):
    """Open the directory of a new run, and leave a checkpoint in it."""
    with open_run_dir(directory, manifest(), False, 16):
        (directory / "checkpoints" / "4").mkdir(parents=True)


def refused(message, directory, manifest, resume, num_updates=16):
    """Expect that a directory cannot be opened."""
    with (
        pytest.raises(ValueError, match=message),
        open_run_dir(directory, manifest, resume, num_updates),
    ):
        pass


def test_a_second_run_in_the_same_directory_is_refused(tmp_path):
    begin(tmp_path)
    refused("already holds a run; resume it", tmp_path, manifest(), False)


def test_a_run_that_failed_before_its_first_row_begins_anew(tmp_path):
    for label in ("first", None):
        with open_run_dir(tmp_path, manifest() | {"label": label}, False, 16):
            (tmp_path / "metrics.jsonl").touch()
        assert manifests.read(tmp_path)["label"] == label
    (tmp_path / "metrics.jsonl").write_text("{}")
    refused("already holds a run; resume it", tmp_path, manifest(), False)


def test_a_run_is_not_resumed_with_other_settings(tmp_path):
    begin(tmp_path)
    changed = manifest(ToyConfig(gamma=0.5), seed=4)
    message = r"(?s)cannot resume .*\n  config\.gamma: 0\.9 -> 0\.5\n  seed: 3 -> 4"
    refused(message, tmp_path, changed, True)
    own_network = manifest() | {"custom_network": True}
    refused(r"\n  custom_network: False -> True", tmp_path, own_network, True)


def test_a_run_without_checkpoints_may_change_its_settings(tmp_path):
    for gamma in (0.9, 0.5):
        with open_run_dir(tmp_path, manifest(ToyConfig(gamma=gamma)), gamma == 0.5, 16):
            # What Orbax leaves of a checkpoint if the process is killed while it saves.
            unfinished = tmp_path / "checkpoints" / "4.orbax-checkpoint-tmp"
            unfinished.mkdir(parents=True, exist_ok=True)
    assert manifests.read(tmp_path)["config"]["gamma"] == 0.5


def test_a_run_whose_learning_rate_has_fallen_to_0_is_not_extended(tmp_path):
    begun = manifest()
    begun["config"] |= {"anneal_updates": 16.0}
    with open_run_dir(tmp_path, begun, False, 8):  # cut short
        (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    longer = begun | {"total_steps": 128}
    message = r"total_steps must stay: 128 are 32 updates, .* over anneal_updates = 16; start"
    refused(message, tmp_path, longer, True, 32)
    with open_run_dir(tmp_path, longer, True, 16):
        pass


def test_a_run_that_has_ended_is_not_begun_again(tmp_path):
    with open_run_dir(tmp_path, manifest(), False, 16):
        (tmp_path / "summary.json").write_text("{}")
    changed = manifest(ToyConfig(gamma=0.5))
    refused("results of a run that has ended, but no checkpoint", tmp_path, changed, True)
    assert manifests.read(tmp_path)["config"]["gamma"] == 0.9


def test_a_resumed_run_may_have_another_length_from_its_checkpoint_on(tmp_path):
    begin(tmp_path)
    message = "total_steps must be more: 9 are 3 updates, .* has done 4"
    refused(message, tmp_path, manifest(total_steps=9), True, num_updates=3)
    assert manifests.read(tmp_path)["total_steps"] == 64
    for total_steps in (80, 12):
        with open_run_dir(tmp_path, manifest(total_steps=total_steps), True, 4):
            assert manifests.read(tmp_path)["total_steps"] == total_steps


def test_a_file_in_place_of_a_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("file", "file/run"):
        refused(r"run_dir must be a directory.*: .*file is a file", tmp_path / name, manifest(), 0)


def test_a_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    refused("not empty and holds no run", tmp_path, manifest(), False)


@pytest.mark.parametrize("name", ["lr[0.1]", "back\\slash", "gs:", "a/logs:/b", "\udcff"])
def test_a_path_that_checkpoints_cannot_be_read_from_is_refused(tmp_path, name):
    message = r"checkpoints cannot be kept in .*, whose path has"
    refused(message, tmp_path / name, manifest(), False)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_is_refused(tmp_path):
    begin(tmp_path)
    with directory_lock(tmp_path):
        for resume in (True, False):  # a run that is not to be resumed is advised no resume
            refused(r"another process works in .*; wait until", tmp_path, manifest(), resume)
    assert "resumptions" not in manifests.read(tmp_path)


def test_a_run_that_left_no_checkpoint_begins_with_the_process_that_repeats_it(tmp_path):
    with open_run_dir(tmp_path, manifest(), False, 16):
        pass
    now = manifest() | {"command": "again", "git_commit": "new"}
    with open_run_dir(tmp_path, now, True, 16):
        begun = manifests.read(tmp_path)
    assert (begun["command"], begun["git_commit"]) == ("again", "new")
    assert "resumptions" not in begun
    (tmp_path / "checkpoints" / "3").mkdir(parents=True)
    with open_run_dir(tmp_path, manifest(), True, 16):
        resumed = manifests.read(tmp_path)
    assert resumed["command"] == "again"
    assert len(resumed["resumptions"]) == 1


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", flock)
    with directory_lock(tmp_path), directory_lock(tmp_path):
        pass
