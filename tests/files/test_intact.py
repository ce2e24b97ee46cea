"""The newest intact checkpoint: damaged ones give way, those of other runs are refused."""

import pytest

from jaxrl.files import intact, seal
from jaxrl.files.intact import ForeignError, newest_intact

pytestmark = pytest.mark.smoke

RUN = {"run_id": "a", "seed": 1, "config": {"rate": 0.1}, "versions": {"jax": "1"}}


def save(directory, *updates, is_sealed=True, **changes):
    for update in updates:
        folder = directory / str(update)
        folder.mkdir()
        (folder / "data").write_text(f"{update}")
        if is_sealed:
            seal.write(folder, {"update": update, "identity": RUN | changes})


def test_the_newest_is_found_among_other_folders(tmp_path):
    save(tmp_path, 9, 20, 100)
    (tmp_path / "200.tmp").mkdir()
    (tmp_path / "300").touch()
    assert newest_intact(tmp_path, RUN)[:3] == (100, {}, "")
    assert intact.numbers(tmp_path) == [100, 20, 9]
    assert newest_intact(tmp_path / "none", RUN)[:3] == (None, {}, "")


def test_those_moved_aside_keep_apart(tmp_path):
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    for _ in range(2):
        save(directory, 3)
        last = intact.move_aside(directory / "3")
    (tmp_path / "damaged-checkpoints" / "3-1").rename(tmp_path / "elsewhere")
    save(directory, 3)
    moved = intact.move_aside(directory / "3")
    assert moved != last
    assert {path.name for path in (tmp_path / "damaged-checkpoints").iterdir()} == {"3-1", "3-2"}


def test_damaged_ones_give_way_to_the_one_before(tmp_path):
    save(tmp_path, 1, 2, 3)
    (tmp_path / "3" / "data").write_text("4")
    (tmp_path / "2" / seal.NAME).unlink()
    found = newest_intact(tmp_path, RUN)
    assert found.update == 1
    assert [*found.damaged] == [3, 2]
    assert found.damaged[3].endswith("/3 is damaged: its file data has changed since it was saved")
    assert "seal.json is missing; perhaps the process was killed" in found.damaged[2]


def test_without_an_intact_one_all_are_named(tmp_path):
    save(tmp_path, 1, 2)
    for update in (1, 2):
        (tmp_path / str(update) / "data").write_text("")
    with pytest.raises(ValueError, match=r"no checkpoint in .* intact: .*/2 is .*/1 is .* Copy"):
        newest_intact(tmp_path, RUN)


def test_a_run_that_was_killed_before_its_first_seal_begins_again(tmp_path):
    save(tmp_path, 1, is_sealed=False)
    found = newest_intact(tmp_path, RUN)
    assert found.update is None
    assert [*found.damaged] == [1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run_id": "b"}, "run_id: 'a' -> 'b'"),
        ({"seed": 2}, "seed: 1 -> 2"),
        ({"config": {"rate": 0.2}}, "config.rate: 0.1 -> 0.2"),
        ({"network": "own"}, "network: None -> 'own'"),
        ({"run_id": "b", "seed": 2}, "run_id: 'a' -> 'b'; seed: 1 -> 2"),
    ],
)
def test_one_of_another_run_is_refused_with_what_differs(tmp_path, changes, message):
    save(tmp_path, 1)
    save(tmp_path, 2, **changes)
    with pytest.raises(ForeignError, match=f"/2 belongs to another run; .*: {message}"):
        newest_intact(tmp_path, RUN)


def test_other_versions_are_shown_and_not_refused(tmp_path):
    save(tmp_path, 1, versions={"jax": "0"})
    assert newest_intact(tmp_path, RUN)[:3] == (1, {}, "versions.jax: '0' -> '1'")


def test_settings_have_their_current_names(tmp_path):
    save(tmp_path, 1, config={"speed": 0.1})

    def rename(saved):
        return saved | {"config": {"rate": saved["config"]["speed"]}}

    assert newest_intact(tmp_path, RUN, rename).update == 1


def test_a_renamed_checkpoint_is_damaged(tmp_path):
    save(tmp_path, 1, 2)
    (tmp_path / "2").rename(tmp_path / "3")
    found = newest_intact(tmp_path, RUN)
    assert found.update == 1
    assert "/3 is damaged: its files are those of checkpoint 2" in found.damaged[3]
