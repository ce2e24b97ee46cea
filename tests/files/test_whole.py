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
    assert events == [
        ("sync", tmp_path / ".a"), ("replace", tmp_path / "a"), ("sync", tmp_path)
    ]  # fmt: skip


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
