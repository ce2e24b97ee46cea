"""The page that compares runs: its tables, and what a browser shows of it."""

import json

import numpy as np
import pytest
from browser import look
from written_runs import BREAKOUT, PONG, read_groups, write_run

from jaxrl.analysis.comparison import group_runs, read_run
from jaxrl.analysis.comparison_page import summary_line, write_comparison
from jaxrl.analysis.figures import Line, color_and_dashes, plot_lines
from jaxrl.analysis.page import format_number
from jaxrl.analysis.video import write_caption, write_video
from jaxrl.ops.statistics import Estimate
from jaxrl.training.curve import plot_run
from jaxrl.training.run_dir import manifest as manifests


@pytest.mark.process
def test_a_browser_shows_all_of_the_page(tmp_path):
    runs = tmp_path / "runs"
    for seed in (1, 2, 3):
        write_run(runs / f"ppo-pong-{seed}", seed, 5.0 * seed, env_id=PONG)
        write_run(runs / f"ppo-breakout-{seed}", seed, 50.0 * seed, env_id=BREAKOUT)
        write_run(runs / f"slow-{seed}", seed, 1.0, env_id=PONG, gamma=0.999)
    frames = np.zeros((8, 800, 800, 3), np.uint8)
    write_video(frames[:, :64, :64], runs / "ppo-pong-1" / "video" / "seed1.mp4", 4)
    wide = write_video(frames, runs / "ppo-pong-2" / "video" / "seed2.mp4", 4)
    write_caption(wide, "greedy")
    write_video(frames[:, :64, :64], runs / "slow-1" / "video" / "seed1.gif", 4)
    path = write_comparison(read_groups(runs), tmp_path / "new" / "page.html")

    for at in look(path, tmp_path):
        names = [image["name"] for image in at["images"]]
        assert len(names) == 2 + 2 + 1 + 1
        assert names[0].startswith(f"{BREAKOUT}: return, mean of last 100 episodes, against")
        assert names[4].startswith("performance profiles")
        assert [video["name"] for video in at["videos"]] == [
            f"ppo gamma=0.99 on {PONG}, ppo-pong-1: seed1.mp4",
            f"ppo gamma=0.99 on {PONG}, ppo-pong-2: greedy",
        ]
        assert [video["seconds"] for video in at["videos"]] == [2, 2]
        tables = {table["name"]: table["rows"] for table in at["tables"]}
        head, *scores = tables["final scores"]
        assert "IQM, human-normalized" in head
        assert [row[:3] for row in scores] == [
            ["ppo gamma=0.99", BREAKOUT, "3"],
            ["ppo gamma=0.99", PONG, "3"],
            ["ppo gamma=0.999", PONG, "3"],
        ]
        assert scores[0][4].split() == ["100.0", "[50.00,", "150.0]"]
        assert [row[0] for row in tables["scores over all games"]] == ["method", "ppo gamma=0.99"]
        assert tables["settings that differ"][1] == ["gamma", "0.99", "0.999"]
        assert ["hidden_sizes", "None"] in tables["settings that are the same"]
        assert len(tables["runs"]) == 1 + 9
        assert tables["runs"][1][-1] == "python train.py --seed 1 --note '<b>&'"
        assert ["jax", "0.11.2"] in tables["versions that are the same"]


def test_markup_in_any_field_is_shown_as_text(tmp_path):
    """Markup reaches no tag, and `$` starts no formula, in whichever field a file has it."""
    evil = "<img src=x onerror=alert(1)>$x^{$"
    folder = tmp_path / evil.replace("/", "")
    for seed, level in ((1, 10.0), (2, 20.0)):
        write_run(folder / f"{evil}{seed}", seed, level, evil, evil, note=evil, **{evil: seed})
        path = folder / f"{evil}{seed}"
        manifest = manifests.read(path)
        manifest["env"]["options"] = {"option": evil, evil: [evil, {evil: evil}]}
        manifest |= {"git_commit": evil, "versions": {evil: evil, "jax": evil}}
        manifest["hardware"] = {"cpu": evil, evil: [evil]}
        manifest["command"] = f"{evil}{seed}"
        manifest["resumptions"] = [{"command": evil}]
        manifests.write(path, manifest)
        videos = path / "video"
        videos.mkdir()
        (videos / f"{evil}.gif").write_bytes(b"GIF")
        (videos / f"{evil}.json").write_text(json.dumps({"caption": evil}))
    groups = group_runs([read_run(directory) for directory in sorted(folder.iterdir())])
    page = write_comparison(groups, tmp_path / "page.html").read_text()
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page
    for directory in folder.iterdir():
        plot_run(directory, evil)


def test_tables_escape_commands_and_mark_versions_that_differ(tmp_path):
    write_run(tmp_path / "a", seed=1)
    write_run(tmp_path / "b", seed=2)
    other = write_run(tmp_path / "c", seed=3)
    (other / "summary.json").unlink()
    manifest = manifests.read(other)
    manifests.write(other, manifest | {"versions": manifest["versions"] | {"jax": "0.12"}})
    text = write_comparison(read_groups(tmp_path), tmp_path / "page.html").read_text()
    row = '<th scope="row"><mark>jax</mark></th><td>0.11.2</td><td>0.12</td>'
    assert row in text
    assert f"{tmp_path / 'a'} and 1 more" in text
    assert "&lt;b&gt;&amp;" in text
    assert "<b>" not in text
    assert text.count("<td>finished</td>") == 2
    assert text.count("<td>unfinished</td>") == 1


def test_large_videos_are_linked_relative_to_the_page(tmp_path):
    run_dir = write_run(tmp_path / "runs" / "a b")
    (run_dir / "video").mkdir()
    (run_dir / "video" / "seed1.mp4").write_bytes(bytes(8 * 10**6))
    path = write_comparison(group_runs([read_run(run_dir)]), tmp_path / "pages" / "page.html")
    assert '<a href="../runs/a%20b/video/seed1.mp4">' in path.read_text()


def test_summary_lines_have_the_score_and_its_interval(tmp_path):
    for seed in (1, 2, 3):
        write_run(tmp_path / f"{seed}", seed, 5.0 * seed, env_id=PONG)
    (group,) = read_groups(tmp_path)
    assert summary_line(group) == (
        f"ppo on {PONG}: return of the last 100 training episodes, "
        "IQM 10.00 (5.000 to 15.00) of 3 seeds"
    )
    (tmp_path / "2" / "summary.json").unlink()
    assert summary_line(*read_groups(tmp_path)).endswith("of 3 seeds, 1 unfinished")


def test_the_summary_line_of_a_single_seed_has_no_interval(tmp_path):
    write_run(tmp_path / "a", level=5.0)
    assert summary_line(*read_groups(tmp_path)).endswith("IQM 5.000 of 1 seed")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12,346"), (1234.5, "1,234"), (12.3456, "12.35"), (0.5, "0.500"), (0, "0.000"),
        (0.0123456, "0.0123"), (-0.00012, "-0.000120"), (1e-9, "1.00e-09"),
    ],
)  # fmt: skip
def test_small_numbers_keep_their_digits(value, text):
    assert format_number(value) == text


def test_no_two_of_many_lines_look_alike():
    looks = [color_and_dashes(place) for place in range(40)]
    assert len(set(looks)) == 40
    assert looks[0] == ("C0", "-")
    assert looks[10] == ("C0", "--")
    lines = [
        Line(str(place), *look, np.arange(2.0), Estimate(*np.ones((3, 2))))
        for place, look in enumerate((looks[0], looks[10]))
    ]
    picture = plot_lines(lines, "title", "x", "y").decode()
    assert "stroke-dasharray: 5.55,2.4" in picture  # of the second line alone


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("folder", "folder cannot be written (Is a directory"),
        ("file/page.html", "page.html cannot be written (File exists); choose another place"),
    ],
)
def test_pages_that_cannot_be_written_leave_nothing(tmp_path, page, message):
    groups = group_runs([read_run(write_run(tmp_path / "x"))])
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError) as refusal:  # noqa: PT011
        write_comparison(groups, tmp_path / page)
    assert message in str(refusal.value)
    assert sorted(tmp_path.rglob("*")) == before
