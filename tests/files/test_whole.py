"""Files that are whole or absent, also if the power fails."""

import errno
import os
from pathlib import Path

import pytest

from jaxrl.files import seal, whole

pytestmark = pytest.mark.smoke


@pytest.fixture
def events(monkeypatch):
    """What was written to the disk, and which files were renamed, in order."""
    listed = []
    fsync, replace = os.fsync, Path.replace

    def note_sync(descriptor):
        listed.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    def note_replace(path, target):
        listed.append(("replace", Path(target)))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    return listed


def test_a_file_is_on_the_disk_before_it_gets_its_name(events, tmp_path):
    whole.write_whole(tmp_path / "a", "text")
    assert (tmp_path / "a").read_text() == "text"
    (_, new), *others = events
    assert (new.parent, new.name[:3]) == (tmp_path, ".a.")
    assert others == [("replace", tmp_path / "a"), ("sync", tmp_path)]


def test_a_file_stays_as_it_was_if_the_disk_is_full(tmp_path, monkeypatch):
    def replace(path, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a").write_text("old")
    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(OSError, match="No space left"):
        whole.write_whole(tmp_path / "a", "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_two_processes_may_write_a_file_at_once(tmp_path, monkeypatch):
    texts, replace = iter(["second"]), Path.replace

    def replace_after_another(path, target):
        for text in texts:
            whole.write_whole(target, text)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replace_after_another)
    whole.write_whole(tmp_path / "a", "first")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["first"]


def test_what_a_killed_process_left_is_told_from_other_files(tmp_path):
    for name in ("a", ".a.0", ".a", ".ab.0", "a.0"):
        (tmp_path / name).touch()
    assert whole.left_behind(tmp_path / "a") == {tmp_path / ".a.0"}


def test_a_folder_is_on_the_disk_before_its_seal(events, tmp_path):
    folder = tmp_path / "4"
    (folder / "state" / "d").mkdir(parents=True)
    for path in (folder / "state" / "d" / "x", folder / "y"):
        path.write_text("data")
    seal.write(folder, {"update": 4})
    before = {path for kind, path in events[: events.index(("replace", folder / seal.NAME))]}
    assert {*folder.rglob("*"), folder, tmp_path} - before == {folder / seal.NAME}


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_file_systems_that_cannot_sync_are_left_alone(monkeypatch, tmp_path, code):
    def fail(descriptor):
        raise OSError(code, "no")

    monkeypatch.setattr(os, "fsync", fail)
    whole.sync(tmp_path)
    code = errno.ENOSPC
    with pytest.raises(OSError, match="no"):
        whole.sync(tmp_path)
