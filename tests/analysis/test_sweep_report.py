"""What a sweep's page and pictures say, on hand-made sweeps, rich ones and empty ones."""

import base64
import html.parser
import math
import sys

import numpy as np
import pytest
from browser import look
from PIL import Image

from jaxrl.analysis.sweep_figures import plot
from jaxrl.analysis.sweep_report import write_report
from jaxrl.analysis.sweep_scores import best_so_far, importances, leaderboard, position, ticks
from jaxrl.analysis.video import write_video

PICTURES = ["phases", "best", "parallel", "importance", "lanes"]
SPACE = {
    "learning_rate": {"kind": "LogUniform", "low": 1e-5, "high": 1e-2},
    "num_steps": {"kind": "QLogUniform", "low": 2, "high": 100, "q": 1, "rungs": 10},
    "gamma": {"kind": "Choice", "values": [0.9, 0.99, 0.999]},
    "entropy_cost": {"kind": "Uniform", "low": 0.0, "high": 0.05},
    "num_epochs": {"kind": "Integer", "low": 1, "high": 8},
    "core": {"kind": "Choice", "values": [None, "lstm", True, [64, 64], "$x", "<b>"]},
}


def trial(number, scores, status="completed", **values):
    return {"trial": number, "values": values, "scores": scores, "status": status}


def span(lane, number, phase, begin, end):
    return {"lane": lane, "trial": number, "phase": phase, "begin": begin, "end": end}


def sweep_of(trials, spans=(), **changes):
    return {
        "algorithm": "a2c",
        "env": "envpool/Pong-v5",
        "seed": 1,
        "command": "python experiments/sweep.py",
        "scheduler": {
            "name": "HyperTrick",
            "num_trials": max(len(trials), 1),
            "num_phases": 10,
            "eviction_rate": 0.25,
        },
        "sampler": "random",
        "lanes": 4,
        "strategy": "vmap",
        "phase": {"length": 2500, "unit": "episodes"},
        "space": SPACE,
        "trials": trials,
        "spans": list(spans),
        "seconds": 60.0,
        "occupancy": 0.93,
    } | changes


def random_sweep(num_trials, lanes=8, seed=0):
    """Trials that learn the better the nearer their learning rate is to 1e-3."""
    rng = np.random.default_rng(seed)
    trials, spans, free = [], [], np.zeros(lanes)
    for number in range(num_trials):
        values = {
            "learning_rate": float(np.float32(10 ** rng.uniform(-5, -2))),
            "num_steps": int(rng.integers(2, 101)),
            "gamma": SPACE["gamma"]["values"][rng.integers(3)],
            "entropy_cost": float(rng.uniform(0, 0.05)),
            "num_epochs": int(rng.integers(1, 9)),
            "core": SPACE["core"]["values"][rng.integers(6)],
        }
        distance = abs(math.log10(values["learning_rate"]) + 3)
        phases = 10 if distance < 0.7 else int(rng.integers(1, 10))
        curve = 20 * (1 - np.exp(-np.arange(1, phases + 1) / 4)) * (1.5 - distance)
        scores = list((curve + rng.normal(size=phases)).tolist())
        status = "completed" if phases == 10 else "stopped"
        if rng.uniform() < 0.3:
            scores[0] = None
        if values["learning_rate"] > 5e-3:
            scores[-1] = "-inf"
        lane = int(np.argmin(free))
        for phase in range(phases):
            end = free[lane] + rng.uniform(200, 400)
            spans.append(span(lane, number, phase, float(free[lane]), float(end)))
            free[lane] = end
        trials.append(trial(number, scores, status, **values))
    busy = sum(s["end"] - s["begin"] for s in spans)
    seconds = float(free.max())
    occupancy = busy / (lanes * seconds)
    return sweep_of(trials, spans, lanes=lanes, seconds=seconds, occupancy=occupancy)


GOOD = {"learning_rate": 1e-3, "num_steps": 5, "gamma": 0.99, "entropy_cost": 0.01}
SWEEPS = {
    "rich": random_sweep(60),
    "hundreds": random_sweep(400, lanes=64),
    "no trials": sweep_of([], seconds=0.0, occupancy=None),
    "no scores": sweep_of([trial(n, [], "waiting", **GOOD) for n in range(3)]),
    "one trial": sweep_of([trial(0, [1.0], **GOOD)], [span(0, 0, 0, 0.0, 5.0)], lanes=1),
    "only null": sweep_of([trial(0, [None, None], "running", **GOOD)], [span(0, 0, 0, 0.0, 5.0)]),
    "only diverged": sweep_of([trial(0, ["-inf"], "stopped", **GOOD)], [span(0, 0, 0, 0.0, 5.0)]),
    "equal": sweep_of([trial(n, [2.0, 2.0], **GOOD) for n in range(8)]),
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


# --- numbers -------------------------------------------------------------------------------------


def test_the_leaderboard_ranks_by_best_finite_score_then_number():
    trials = [
        trial(0, [1.5, 3.0, None, "-inf"], "stopped", gamma=0.9),
        trial(1, [None]),
        trial(2, ["-inf"]),
        trial(3, []),
        trial(4, [7.0, 2.0, None]),
        trial(5, [3.0]),
        trial(6, [-8, None], "running"),
    ]
    rows = leaderboard(sweep_of(trials[::-1]))
    assert [row["trial"] for row in rows] == [4, 0, 5, 6]
    assert [row["best_score"] for row in rows] == [7.0, 3.0, 3.0, -8.0]
    assert [row["last_score"] for row in rows] == [2.0, -math.inf, 3.0, -8.0]
    assert [row["phases"] for row in rows] == [3, 4, 1, 2]
    assert rows[1]["status"] == "stopped"
    assert rows[1]["values"] == {"gamma": 0.9}


def test_the_best_score_so_far_follows_the_ends_of_phases():
    trials = [trial(0, [1.0, None, 4.0]), trial(1, ["-inf", 3.0]), trial(2, [2.0])]
    spans = [
        span(0, 0, 0, 0.0, 10.0),
        span(0, 0, 1, 10.0, 20.0),
        span(0, 0, 2, 20.0, 30.0),
        span(1, 1, 0, 0.0, 8.0),
        span(1, 1, 1, 8.0, 16.0),
        span(2, 2, 0, 0.0, 18.0),
        span(2, 2, 1, 18.0, 36.0),  # never reported
    ]
    ends, best = best_so_far(sweep_of(trials, spans[::-1]))
    assert ends.tolist() == [10.0, 16.0, 18.0, 30.0]
    assert best.tolist() == [1.0, 3.0, 3.0, 4.0]
    ends, best = best_so_far(sweep_of(trials))
    assert len(ends) == len(best) == 0


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("learning_rate", 1e-5, 0.0),
        ("learning_rate", 1e-4, 1 / 3),
        ("learning_rate", 1e-2, 1.0),
        ("learning_rate", float(np.float32(1e-5)), 0.0),
        ("num_steps", 2, 0.0),
        ("num_steps", math.sqrt(200), 0.5),
        ("entropy_cost", 0.0125, 0.25),
        ("num_epochs", 8, 1.0),
        ("gamma", 0.9, 0.0),
        ("gamma", 0.99, 0.5),
        ("gamma", 0.5, math.nan),
        ("core", None, 0.0),
        ("core", "lstm", 0.2),
        ("core", True, 0.4),
        ("core", [64, 64], 0.6),
        ("core", 1, math.nan),
        ("num_epochs", None, math.nan),
    ],
)
def test_positions_on_the_axes(name, value, expected):
    assert position(SPACE[name], value) == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_a_choice_of_one_value_is_in_the_middle():
    only = {"kind": "Choice", "values": [4]}
    assert position(only, 4.0) == 0.5
    assert ticks(only) == [(0.5, "4")]


def test_ticks_are_where_their_values_are():
    decades = [(pytest.approx(i / 3), label) for i, label in enumerate(["1e-05", "0.0001"])]
    assert ticks(SPACE["learning_rate"])[:2] == decades
    assert [label for _, label in ticks(SPACE["num_steps"])] == [
        "2", "5", "10", "20", "50", "100",
    ]  # fmt: skip
    assert ticks(SPACE["gamma"]) == [(0.0, "0.9"), (0.5, "0.99"), (1.0, "0.999")]
    for distribution in SPACE.values():
        places = [place for place, _ in ticks(distribution)]
        assert len(places) > 1
        assert min(np.diff(places)) > 0.05
        assert min(places) >= 0
        assert max(places) <= 1
    many = {"kind": "Choice", "values": list(range(100))}
    assert len(ticks(many)) <= 12


def test_what_decides_the_score_is_the_most_important():
    pytest.importorskip("optuna")
    shares = importances(random_sweep(200))
    assert set(shares) == set(SPACE)
    assert next(iter(shares)) == "learning_rate"
    assert sum(shares.values()) == pytest.approx(1)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)


def test_diverged_trials_count_as_the_worst():
    """All trials that have a score share their gamma, which is why they did not diverge."""
    pytest.importorskip("optuna")
    space = {name: SPACE[name] for name in ("gamma", "num_epochs")}
    trials = []
    for number in range(120):
        gamma = SPACE["gamma"]["values"][number % 3]
        scores = [float(number)] if gamma == 0.9 else ["-inf"]
        trials.append(trial(number, scores, gamma=gamma, num_epochs=number // 3 % 8 + 1))
    assert importances(sweep_of(trials, space=space))["gamma"] > 0.8


@pytest.mark.parametrize("name", ["no trials", "one trial", "only diverged", "equal", "no space"])
def test_importances_that_cannot_be_told_are_refused(name):
    pytest.importorskip("optuna")
    with pytest.raises(ValueError, match="trials"):
        importances(SWEEPS[name])


def test_without_optuna_a_panel_says_so(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"jaxrl\[tune\]"):
        importances(SWEEPS["rich"])
    paths = plot(SWEEPS["one trial"], tmp_path / "plots")
    assert paths == [tmp_path / "plots" / f"{picture}.png" for picture in PICTURES]


# --- pictures and page ---------------------------------------------------------------------------


def num_colors(path):
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"), np.uint32)
    return len(np.unique(pixels @ np.array([1, 256, 256**2], np.uint32)))


class Page(html.parser.HTMLParser):
    """Refuses tags that do not close, and keeps what it saw."""

    VOID = ("meta", "br", "img")

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
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


@pytest.mark.parametrize("name", SWEEPS)
def test_pictures_show_something_and_the_page_is_whole_by_itself(name, tmp_path):
    path = write_report(SWEEPS[name], tmp_path)
    assert path == tmp_path / "report.html"
    text = path.read_text(encoding="utf-8")
    assert not [word for word in ("http://", "https://", 'src="/', "<script") if word in text]
    page = Page(text)
    assert len(page.sources) == len(PICTURES)
    for source, name_of_picture in zip(page.sources, PICTURES, strict=True):
        picture = tmp_path / "plots" / f"{name_of_picture}.png"
        assert num_colors(picture) > 10, picture.name
        head, data = source.split(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(data) == picture.read_bytes()
    assert not page.links
    if not leaderboard(SWEEPS[name]):
        assert "No trial has a finite score." in page.words


def test_the_page_tells_what_was_run(tmp_path):
    command = "python sweep.py --note '<script>alert(1)</script>' & more"
    sweep = random_sweep(30) | {"command": command}
    text = write_report(sweep, tmp_path).read_text(encoding="utf-8")
    page = Page(text)
    assert "&lt;script&gt;alert(1)" in text
    assert "script" not in page.tags
    assert command in page.words
    for words in (
        "a2c",
        "envpool/Pong-v5",
        "HyperTrick(num_trials=30, num_phases=10, eviction_rate=0.25)",
        "learning_rate: LogUniform(low=1e-05, high=0.01)",
        "2500 episodes",
        f"{len(leaderboard(sweep)) - 20} more",
    ):
        assert words in page.words
    assert page.tags.count("details") == 1


def test_the_page_has_small_videos_in_it_and_links_to_large_ones(tmp_path):
    videos = tmp_path / "videos"
    videos.mkdir()
    (videos / "best.mp4").write_bytes(b"small")
    (videos / "first & last.gif").write_bytes(b"moving")
    (videos / "large one.mp4").write_bytes(bytes(8 * 10**6))
    (videos / "notes.txt").write_text("no video")
    page = Page(write_report(SWEEPS["one trial"], tmp_path).read_text(encoding="utf-8"))
    assert page.sources[len(PICTURES) :] == [
        f"data:video/mp4;base64,{base64.b64encode(b'small').decode()}",
        f"data:image/gif;base64,{base64.b64encode(b'moving').decode()}",
    ]
    assert page.links == ["videos/large%20one.mp4"]
    assert "first & last.gif" in page.words


def test_a_browser_shows_all_of_the_page(tmp_path):
    frames = np.random.default_rng(0).integers(0, 255, (6, 64, 48, 3), np.uint8)
    write_video(frames, tmp_path / "videos" / "trial-1.mp4", fps=3)
    write_video(frames, tmp_path / "videos" / "trial-2.gif", fps=3)
    sweep = SWEEPS["rich"]
    path = write_report(sweep, tmp_path)
    for at in look(path, tmp_path):
        assert [image["name"] for image in at["images"]] == [*PICTURES, "trial-2.gif"]
        assert [(video["name"], video["seconds"]) for video in at["videos"]] == [("trial-1.mp4", 2)]
        facts, first, others = at["tables"]
        assert ["seed", "1"] in facts["rows"]
        ranking = [str(row["trial"]) for row in leaderboard(sweep)]
        assert [row[1] for row in first["rows"][1:] + others["rows"][1:]] == ranking
