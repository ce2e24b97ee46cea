"""The page and the pictures of a sweep, for many kinds of sweeps; its videos; a browser's view."""

import html.parser
import re
import sys

import numpy as np
import pytest
from browser import look
from matplotlib.figure import Figure
from PIL import Image
from written_sweeps import SPACE, random_sweep, span, sweep_of, trial

from jaxrl.analysis import sweep_figures
from jaxrl.analysis.page import data_uri
from jaxrl.analysis.sweep_figures import best_so_far, plot
from jaxrl.analysis.sweep_report import write_report
from jaxrl.analysis.sweep_tables import phases_text
from jaxrl.analysis.video import GameNumbers, write_caption, write_video
from jaxrl.tuning.ranking import leaderboard

PICTURES = ["phases", "best", "parallel", "importance", "lanes"]
GOOD = {"learning_rate": 1e-3, "num_steps": 5, "gamma": 0.99, "entropy_cost": 0.01}
SPAN = span(0, 0, 0, 0.0, 5.0)
SWEEPS = {
    "many lanes": random_sweep(60, lanes=64),
    "no trials": sweep_of([], seconds=0.0, occupancy=None),
    "one trial": sweep_of([trial(0, [1.0], **GOOD)], [SPAN], lanes=1),
    "only null": sweep_of([trial(0, [None, None], "running", **GOOD)], [SPAN]),
    "only diverged": sweep_of([trial(0, ["-inf"], "stopped", **GOOD)], [SPAN]),
    "no spans": random_sweep(12) | {"spans": []},
    "no space": random_sweep(12) | {"space": {}},
    "scored beside not": sweep_of(
        [
            trial(0, [1.0, 3.0], **GOOD),
            trial(1, ["-inf"], "stopped", **GOOD),
            trial(2, [None], "stopped", **GOOD),
        ]
    ),
}


def test_the_best_score_so_far_follows_the_ends_of_phases():
    trials = [trial(0, [1.0, None, 4.0]), trial(1, ["-inf", 3.0]), trial(2, [2.0])]
    ends = {(0, 0): 10.0, (0, 1): 20.0, (0, 2): 30.0, (1, 0): 8.0, (1, 1): 16.0, (2, 0): 18.0}
    ends[2, 1] = 36.0  # without a score: the sweep was interrupted
    spans = [span(index, index, phase, 0.0, end) for (index, phase), end in ends.items()]
    ends, best = best_so_far(sweep_of(trials, spans[::-1]))
    assert ends.tolist() == [10.0, 16.0, 18.0, 30.0]
    assert best.tolist() == [1.0, 3.0, 3.0, 4.0]


def test_without_optuna_all_pictures_are_drawn(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    paths = plot(random_sweep(6), tmp_path / "plots")
    assert paths == [tmp_path / "plots" / f"{picture}.png" for picture in PICTURES]


def num_colors(path):
    """Return the number of different colours in a picture."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"), np.uint32)
    return len(np.unique(pixels @ np.array([1, 256, 256**2], np.uint32)))


class Page(html.parser.HTMLParser):
    """A parsed page; all its tags are closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.sources, self.links, self.words = [], [], [], [], ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name == "src"]
        self.links += [value for name, value in attrs if name == "href"]
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


@pytest.mark.parametrize("name", SWEEPS)
def test_pictures_show_something_and_are_all_in_the_page(name, tmp_path):
    path = write_report(SWEEPS[name], tmp_path)
    assert path == tmp_path / "report.html"
    text = path.read_text(encoding="utf-8")
    assert not [word for word in ("http://", "https://", 'src="/', "<script") if word in text]
    page = Page(text)
    assert len(page.sources) == len(PICTURES)
    for source, name_of_picture in zip(page.sources, PICTURES, strict=True):
        picture = tmp_path / "plots" / f"{name_of_picture}.png"
        assert num_colors(picture) > 10, picture.name
        assert source == data_uri(picture.read_bytes(), "image/png")
    assert not page.links
    if not leaderboard(SWEEPS[name]["trials"]):
        assert "No trial has a finite score." in page.words


@pytest.mark.usefixtures("no_pictures")
def test_markup_in_any_field_is_shown_as_text(tmp_path):
    evil = "<img src=x onerror=alert(1)>$x^{$"
    space = {evil: {"kind": "Choice", "values": [evil, 1]}, "gamma": SPACE["gamma"]}
    trials = [
        trial(n, [float(n)], evil, **{evil: [evil, 1][n % 2], "gamma": 0.9}) for n in range(6)
    ]
    texts = dict.fromkeys(("algorithm", "env", "seed", "command", "sampler", "strategy"), evil)
    sweep = sweep_of(
        trials,
        [span(0, 0, 0, 0.0, 1.0)],
        **texts,
        study=evil,
        space=space,
        scheduler={"name": evil, evil: evil},
        phase={"length": evil, "unit": evil},
    )
    page = write_report(sweep, tmp_path / evil).read_text()
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page


@pytest.mark.usefixtures("no_pictures")
def test_the_page_describes_the_sweep_and_escapes_its_command(tmp_path):
    command = "python sweep.py --note '<script>alert(1)</script>' & more"
    sweep = random_sweep(30) | {"command": command}
    text = write_report(sweep, tmp_path).read_text(encoding="utf-8")
    page = Page(text)
    assert "&lt;script&gt;alert(1)" in text
    assert "script" not in page.tags
    assert command in page.words
    for words in (
        "envpool/Pong-v5",
        "HyperTrick(num_trials=30, num_phases=10)",
        "learning_rate: LogUniform(low=1e-05, high=0.01)",
        "2500 episodes",
        f"{len(leaderboard(sweep['trials'])) - 20} more",
    ):
        assert words in page.words
    assert page.tags.count("details") == 1


def test_a_sweep_has_no_more_lanes_than_trials(tmp_path):
    rule = {"name": "RandomSearch", "num_trials": 3, "num_phases": 1}
    sweep = sweep_of([trial(0, [1.0], **GOOD)], [SPAN], lanes=16) | {"scheduler": rule}
    assert "3, vmap" in Page(write_report(sweep, tmp_path).read_text()).words
    figure = Figure()
    sweep_figures.PICTURES["lanes"].draw(figure, sweep)
    assert figure.axes[0].get_ylim() == (2.5, -0.5)


@pytest.mark.usefixtures("no_pictures")
def test_the_page_shows_the_finals_and_what_was_spent(tmp_path):
    rule = {"name": "HyperTrick", "num_trials": 4, "num_phases": 5, "eviction_rate": 0.25}
    finals = [
        {"trial": 2, "values": GOOD, "scores": [3.0, 5.0], "score": 4.0, "search": 2.0},
        {"trial": 0, "values": GOOD, "scores": [9.0, "-inf"], "score": "-inf", "search": 5.0},
    ]
    trials = [trial(0, [1.0, 9.0], **GOOD), trial(2, [2.0], "stopped", **GOOD)]
    sweep = sweep_of(trials) | {"scheduler": rule, "finals": finals, "max_steps": 4000}
    page = write_report(sweep, tmp_path).read_text()
    assert "<h2>Finals</h2>" in page
    assert "trial 2, score 4.00 (-8.71 to 16.71) in the finals, 2 in the search (last two)" in page
    assert "9, no score" in page
    assert (
        "3 of 20 (0.15); 12 (0.61) planned if scores were exchangeable; capped at 4,000 steps; 20 "
        "more in finals"
    ) in page


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"name": "SuccessiveHalving", "num_trials": 9, "num_phases": 9}, "81 (0.01); 21 (0.26)"),
        ({"name": "HyperBand", "num_trials": 17, "num_phases": 9}, "153 (0.01); 69 (0.45)"),
        ({"name": "RandomSearch", "num_trials": 4, "num_phases": 2}, "8 (0.12); 8 (1.00)"),
        ({"name": "HyperTrick", "num_trials": 4, "num_phases": 2, "eviction_rate": 7}, "8 (0.12)"),
        ({"name": "Mine", "num_trials": 4, "num_phases": 2}, "8 (0.12)"),
    ],
)  # fmt: skip
def test_the_phases_that_a_rule_plans_are_told(rule, text):
    found = phases_text(sweep_of([trial(0, [1.0])], scheduler=rule))
    assert found.removesuffix(" planned") == f"1 of {text}"
    assert found.endswith("planned") == (";" in text)


def test_the_phases_of_one_worker_are_not_told_as_those_of_all():
    rule = {"name": "RandomSearch", "num_trials": 4, "num_phases": 2}
    spans = [span(0, 0, 0, 0.0, 1.0), span(0, 1, 0, 1.0, 2.0)]  # trial 1 went to another worker
    found = phases_text(sweep_of([trial(0, [1.0])], spans, scheduler=rule, elsewhere=3))
    assert found == "2 by this worker, of 8 of all workers; 8 (1.00) planned"


@pytest.mark.parametrize("names", [["mean", "<b>$x"], ["mean", "<b>$x", "speed"]])
def test_the_page_shows_the_front_of_several_objectives(tmp_path, names):
    numbers = [[3.0, 1.0, 0.0], [1.0, 3.0, 0.0], [1.0, 1.0, 9.0], [9.0, "-inf", 0.0]]
    trials = [
        trial(n, [0.0, own[0]], **GOOD) | {"objectives": [[0.0, x] for x in own[: len(names)]]}
        for n, own in enumerate(numbers)
    ]
    (final,) = finals = [{"trial": 0, "values": GOOD, "scores": [3.0], "score": 3.0, "search": 1.5}]
    final["objectives"] = [3.0, 7.25]
    sweep = sweep_of(trials, [SPAN], objective=names, finals=finals)
    page = Page(text := write_report(sweep, tmp_path).read_text())
    part = text.split("<h2>Pareto front</h2>")[1].split("<h2>")[0]
    found = re.findall('<th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td>', part)
    expected = [("0", "1.5", "0.5"), ("1", "0.5", "1.5"), ("2", "0.5", "0.5")]
    assert found == expected[: len(names)]
    assert "7.25" in page.words
    assert "<td>3.00</td>" in text  # one run has no interval
    assert f"{', '.join(names)}; the first one compares trials" in page.words
    assert len(page.sources) == len(PICTURES) + 1
    assert num_colors(tmp_path / "plots" / "front.png") > 10


def test_the_page_shows_the_schedule_of_the_winner(tmp_path):
    """Trial 0 wins as a copy of trial 1, with another learning rate and inactive epochs."""
    values = GOOD | {"num_epochs": 4, "core": [64, 64]}
    later = {name: x for name, x in values.items() if name != "num_epochs"} | {"gamma": 0.9}
    own, other = trial(0, [1.0, 9.0], **GOOD), trial(1, [3.0, 4.0], **values)
    own["changes"] = [{"parent": 1, "values": later}]
    other["changes"] = [{"parent": 1, "values": values}]
    page = Page(text := write_report(sweep_of([own, other], [SPAN]), tmp_path).read_text())
    part = text.split("<h2>Schedule of the winner</h2>")[1].split("<h2>")[0]
    assert [row.count("0.99") for row in part.split("<tr>")[2:]] == [1, 0]
    assert len(page.sources) == len(PICTURES) + 1
    assert num_colors(tmp_path / "plots" / "schedule.png") > 10


def test_small_videos_are_in_the_page_and_large_ones_are_linked(tmp_path):
    videos = tmp_path / "videos"
    videos.mkdir()
    (videos / "best.mp4").write_bytes(b"small")
    (videos / "first & last.gif").write_bytes(b"moving")
    (videos / "large one.mp4").write_bytes(bytes(8 * 10**6))
    write_caption(videos / "large one.mp4", "trial 1", GameNumbers(4, 12.5, 1.5, 1234.0, 0.0101))
    page = Page(write_report(SWEEPS["one trial"], tmp_path).read_text(encoding="utf-8"))
    assert page.sources[len(PICTURES) :] == [
        "data:video/mp4;base64,c21hbGw=",
        "data:image/gif;base64,bW92aW5n",
    ]
    assert page.links == ["videos/large%20one.mp4"]
    assert "first & last.gif" in page.words
    numbers = "points a game: 12.5 ± 1.5 length of a game: 1,234 steps points a step: 0.0101"
    assert f"trial 1 {numbers} (4 games)" in " ".join(page.words.split())


@pytest.mark.process
def test_a_browser_shows_all_of_the_page(tmp_path):
    frames = np.random.default_rng(0).integers(0, 255, (6, 64, 48, 3), np.uint8)
    for number, gamma in ((1, 0.99), (2, 0.9)):
        video = write_video(frames, tmp_path / "videos" / f"trial-{number}.mp4", fps=3)
        write_caption(video, f"gamma {gamma}, trial {number}")
    write_video(frames, tmp_path / "videos" / "trial-3.gif", fps=3)
    sweep = random_sweep(60)
    path = write_report(sweep, tmp_path)
    for at in look(path, tmp_path):
        assert [image["name"] for image in at["images"]] == [*PICTURES, "trial-3.gif"]
        assert [(video["name"], video["seconds"]) for video in at["videos"]] == [
            ("gamma 0.9, trial 2", 2), ("gamma 0.99, trial 1", 2),
        ]  # fmt: skip
        facts, first, others = at["tables"]
        assert ["seed", "1"] in facts["rows"]
        ranking = [str(row["trial"]) for row in leaderboard(sweep["trials"])]
        assert [row[0] for row in first["rows"][1:] + others["rows"][1:]] == ranking
