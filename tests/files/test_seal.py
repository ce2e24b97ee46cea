"""Seals: no byte of a sealed folder changes unnoticed."""

import json
import shutil

import jax.numpy as jnp
import pytest

from jaxrl.files import seal
from jaxrl.training.run_dir.checkpoint import Checkpoints

pytestmark = pytest.mark.smoke


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    """The folder of a checkpoint."""
    directory = tmp_path_factory.mktemp("sealed")
    checkpoints = Checkpoints(directory, {"run_id": "a"})
    state = {"x": jnp.arange(300.0), "y": jnp.ones((3, 4))}
    checkpoints.save(40, state, {"update": 40, "loss": 1e-05}, whole=True)
    checkpoints.close()
    return directory / "40"


@pytest.fixture
def folder(sealed, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(sealed, tmp_path / "40")


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_seal_says_what_the_folder_holds(sealed):
    record = seal.verify(sealed)
    assert (record["format"], record["update"]) == (1, 40)
    assert record["identity"] == {"run_id": "a"}
    names = {path.relative_to(sealed).as_posix() for path in files(sealed)}
    assert {*record["files"]} | {seal.NAME} == names
    assert record["files"]["progress/metadata"]["size"] == len('{"update": 40, "loss": 1e-05}')


@pytest.mark.slow
def test_every_flipped_bit_is_found_and_its_file_named(folder):
    flips = 0
    for path in files(folder):
        intact = path.read_bytes()
        for place in range(0, len(intact), 23):
            damaged = bytearray(intact)
            damaged[place] ^= 1 << (place // 23 + flips) % 8
            path.write_bytes(damaged)
            with pytest.raises(seal.DamagedError, match=path.relative_to(folder).as_posix()):
                seal.verify(folder)
            flips += 1
        path.write_bytes(intact)
    assert flips > 140
    seal.verify(folder)


@pytest.mark.parametrize("length", ["empty", "half", "longer", "zeros"])
def test_a_file_of_another_length_or_of_zeros_is_named(folder, length):
    for path in files(folder):
        intact = path.read_bytes()
        contents = {
            "empty": b"",
            "half": intact[: len(intact) // 2],
            "longer": intact + b"\0",
            "zeros": bytes(len(intact)),
        }
        path.write_bytes(contents[length])
        with pytest.raises(seal.DamagedError, match=f"{path.relative_to(folder).as_posix()} has"):
            seal.verify(folder)
        path.write_bytes(intact)


def test_a_missing_file_is_named(folder):
    for path in files(folder):
        moved = path.rename(folder.parent / "moved")
        kind = seal.UnsealedError if path.name == seal.NAME else seal.DamagedError
        name = path.relative_to(folder).as_posix()
        with pytest.raises(kind, match=f"its file {name} is missing"):
            seal.verify(folder)
        moved.rename(path)


def test_an_added_file_is_named(folder):
    for name in ("more", "state/more", "state/d/more"):
        (folder / name).touch()
        with pytest.raises(seal.DamagedError, match=f"its file {name} was added"):
            seal.verify(folder)
        (folder / name).unlink()
    (folder / "link").symlink_to(folder / "nowhere")
    with pytest.raises(seal.DamagedError, match="its file link was added"):
        seal.verify(folder)


def test_a_file_that_became_a_folder_is_damage(folder):
    path = folder / "progress" / "metadata"
    path.unlink()
    path.mkdir()
    with pytest.raises(seal.DamagedError, match="progress/metadata is missing"):
        seal.verify(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "1", '{"digest": 1}', "[" * 10_000])
def test_a_seal_that_is_something_else_is_damage(folder, text):
    (folder / seal.NAME).write_text(text)
    with pytest.raises(seal.DamagedError, match=r"its file seal\.json has changed"):
        seal.verify(folder)


def test_an_edited_seal_is_damage(folder):
    path = folder / seal.NAME
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record, indent=2))
    with pytest.raises(seal.DamagedError, match=r"its file seal\.json has changed"):
        seal.verify(folder)


def test_the_seal_of_a_newer_version_is_no_damage(folder, monkeypatch):
    monkeypatch.setattr(seal, "FORMAT", 2)
    seal.write(folder, {})
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"seal\.json has the format 2, .* use the version") as e:
        seal.verify(folder)
    assert not isinstance(e.value, seal.DamagedError)


def test_a_seal_is_written_whole_or_not_at_all(folder, monkeypatch):
    (folder / seal.NAME).unlink()

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(folder), "replace", fail)
        with pytest.raises(OSError, match="No space"):
            seal.write(folder, {})
    with pytest.raises(seal.UnsealedError):
        seal.verify(folder)
    seal.write(folder, {})
    seal.verify(folder)
