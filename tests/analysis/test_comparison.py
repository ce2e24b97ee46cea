"""The page that compares runs: its numbers, what it refuses, and what a browser shows of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from browser import look

import jaxrl
from jaxrl.analysis.atari57 import human_normalized
from jaxrl.analysis.comparison import curve, differing, groups, over_games, read_run, settings
from jaxrl.analysis.comparison_page import write_comparison
from jaxrl.analysis.video import write_video
from jaxrl.training import manifest as manifests

ROOT = Path(__file__).parents[2]
CARTPOLE, PONG, BREAKOUT = "gymnax/CartPole-v1", "envpool/Pong-v5", "envpool/Breakout-v5"


def leave_run(
    directory, seed=1, level=20.0, algorithm="ppo", env_id=CARTPOLE, num_rows=5, total_steps=1000,
    **config,
):  # fmt: skip
    """A directory as `jaxrl.run` leaves it, of a run that rises from 0 to `level`."""
    directory.mkdir(parents=True)
    manifest = {
        "algorithm": algorithm,
        "env": {"id": env_id, "num_envs": 4, "options": {}},
        "config": {"gamma": 0.99, "hidden_sizes": None} | config,
        "custom_network": False,
        "seed": seed,
        "total_steps": total_steps,
        "command": f"python train.py --seed {seed} --note '<b>&'",
        "versions": {"python": "3.12.1", "jax": "0.11.2"},
        "git_commit": "abc",
        "hardware": {"cpu": "Z80", "devices": ["cpu"]},
    }
    rows = [
        {"update": n, "steps": 200 * n + seed, "seconds": n / 2 + seed, "episode_count": 100.0,
         "episode_return": level * n / num_rows}
        for n in range(1, num_rows + 1)
    ]  # fmt: skip
    rows.append({"update": num_rows, "steps": rows[-1]["steps"], "eval_return": level + 1})
    manifests.write(directory, manifest)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "summary.json").write_text(json.dumps({"interrupted": False}))
    return directory


def read_all(folder):
    return groups([read_run(directory) for directory in sorted(folder.iterdir())])


def plot(*arguments, cwd):
    return subprocess.run(
        [sys.executable, str(ROOT / "experiments" / "plot.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"},
    )


# --- numbers -------------------------------------------------------------------------------------


def test_runs_that_differ_by_their_seed_are_together(tmp_path):
    leave_run(tmp_path / "a1", seed=1)
    leave_run(tmp_path / "a2", seed=2)
    leave_run(tmp_path / "b", seed=1, gamma=0.9)
    leave_run(tmp_path / "c", algorithm="dqn")
    leave_run(tmp_path / "d", env_id=PONG)
    found = read_all(tmp_path)
    assert [(x.method, x.env_id, [run.seed for run in x.runs]) for x in found] == [
        ("ppo gamma=0.99", CARTPOLE, [1, 2]),
        ("ppo gamma=0.9", CARTPOLE, [1]),
        ("dqn", CARTPOLE, [1]),
        ("ppo gamma=0.99", PONG, [1]),
    ]


def test_what_only_makes_simulators_faster_is_no_setting(tmp_path):
    manifest = manifests.read(leave_run(tmp_path / "a"))
    options = {"num_threads": 4, "num_pools": 2, "frame_skip": 2}
    found = settings(manifest | {"env": manifest["env"] | {"options": options}})
    assert {name: found.get(name) for name in options} == {
        "num_threads": None, "num_pools": None, "frame_skip": 2,
    }  # fmt: skip


def test_methods_that_differ_much_are_numbered(tmp_path):
    leave_run(tmp_path / "a", gamma=0.9, clip=0.1, epochs=1, torso="mlp")
    leave_run(tmp_path / "b", gamma=0.8, clip=0.2, epochs=2, torso="cnn")
    assert [group.method for group in read_all(tmp_path)] == ["ppo #1", "ppo #2"]


def test_what_differs_is_what_is_unequal_or_lacking():
    columns = [{"a": 1, "b": [1], "c": None}, {"a": 1, "b": [2]}]
    assert differing(columns) == ["b", "c"]
    assert differing(columns[:1]) == []


def test_curves_are_means_over_seeds_until_the_first_ends(tmp_path):
    leave_run(tmp_path / "a", seed=1, level=10.0)
    leave_run(tmp_path / "b", seed=2, level=30.0, num_rows=10)
    (group,) = read_all(tmp_path)
    np.testing.assert_array_equal(group.final_returns, [[10.0], [30.0]])
    steps, returns = curve(group, "steps")
    assert (steps[0], steps[-1]) == (202, 1001)
    # The second run has then been at 15 of 30 for all but one of 200 steps.
    assert returns.value[-1] == pytest.approx((10.0 + 15.0 - 3 / 200) / 2)
    assert returns.low[-1] == pytest.approx(10.0)
    seconds, _ = curve(group, "seconds")
    assert (seconds[0], seconds[-1]) == (2.5, 3.5)


def test_scores_over_games_are_human_normalized_and_of_whole_matrices(tmp_path):
    for algorithm, env_id, seeds in (
        ("ppo", PONG, (1, 2)), ("ppo", BREAKOUT, (1, 2)), ("a2c", PONG, (1, 2)),
        ("a2c", BREAKOUT, (1,)), ("dqn", PONG, (1,)),
    ):  # fmt: skip
        for seed in seeds:
            directory = tmp_path / f"{algorithm}-{env_id[8:]}-{seed}"
            leave_run(directory, seed, 10.0 * seed, algorithm, env_id)
    runs = [read_run(directory) for directory in sorted(tmp_path.iterdir(), reverse=True)]
    scores, left_out = over_games(groups(runs))
    assert [*scores] == ["ppo"]
    assert scores["ppo"].shape == (2, 2)
    assert scores["ppo"][0, 0] == human_normalized(PONG, 20.0)
    assert left_out == {
        "a2c": "1 to 2 seeds a game, not equally many",
        "dqn": f"no run on {BREAKOUT}",
    }


def test_a_run_of_jaxrl_is_read(tmp_path, quick_compilation):
    algo = jaxrl.ppo(jaxrl.make("CartPole-v1", num_envs=4))
    config = jaxrl.PPOConfig(num_steps=64, hidden_sizes=(8,))
    jaxrl.run(algo, config, seed=3, total_steps=1024, run_dir=tmp_path / "run", eval_episodes=2)
    run = read_run(tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert run.final_return == pytest.approx(summary["mean_return"])
    assert run.evaluation == summary["eval_return"]
    assert settings(run.manifest)["hidden_sizes"] == [8]
    text = write_comparison(groups([run]), tmp_path / "page.html").read_text()
    assert "finished" in text
    assert "unfinished" not in text


# --- the page ------------------------------------------------------------------------------------


def moving_square(size):
    frames = np.zeros((8, size, size, 3), np.uint8)
    for index, frame in enumerate(frames):
        frame[10:30, 2 * index : 2 * index + 20] = (255, 160, 0)
    return frames


def test_a_browser_shows_all_of_the_page(tmp_path):
    runs = tmp_path / "runs"
    for seed in (1, 2, 3):
        leave_run(runs / f"ppo-pong-{seed}", seed, 5.0 * seed, env_id=PONG)
        leave_run(runs / f"ppo-breakout-{seed}", seed, 50.0 * seed, env_id=BREAKOUT)
        leave_run(runs / f"slow-{seed}", seed, 1.0, env_id=PONG, gamma=0.999)
    write_video(moving_square(64), runs / "ppo-pong-1" / "video" / "seed1.mp4", 4)
    write_video(moving_square(800), runs / "ppo-pong-2" / "video" / "seed2.mp4", 4)
    write_video(moving_square(64), runs / "slow-1" / "video" / "seed1.gif", 4)
    finished = plot(*sorted(runs.iterdir()), "--out", "new/page.html", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert f"ppo gamma=0.99 on {PONG}: IQM 10.00 (5.000 to 15.00) of 3 seeds" in finished.stdout
    path = tmp_path / "new" / "page.html"
    text = path.read_text(encoding="utf-8")
    assert not [word for word in ("http://www.google", "<script", 'src="/') if word in text]

    for at in look(path, tmp_path):
        names = [image["name"] for image in at["images"]]
        assert len(names) == 2 + 2 + 1 + 1
        assert names[0].startswith(f"{BREAKOUT}: return, mean of last 100 episodes, against")
        assert names[4].startswith("performance profiles")
        assert [video["name"] for video in at["videos"]] == [
            f"ppo gamma=0.99 on {PONG}, ppo-pong-1: seed1.mp4",
            f"ppo gamma=0.99 on {PONG}, ppo-pong-2: seed2.mp4",
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


def test_runs_of_other_versions_have_columns_of_their_own(tmp_path):
    leave_run(tmp_path / "a", seed=1)
    leave_run(tmp_path / "b", seed=2)
    other = leave_run(tmp_path / "c", seed=3)
    manifest = manifests.read(other)
    manifests.write(other, manifest | {"versions": manifest["versions"] | {"jax": "0.12"}})
    text = write_comparison(read_all(tmp_path), tmp_path / "page.html").read_text()
    row = '<th scope="row"><mark>jax</mark></th><td>0.11.2</td><td>0.12</td>'
    assert row in text
    assert f"{tmp_path / 'a'} and 1 more" in text


def test_large_videos_are_linked_from_where_the_page_is(tmp_path):
    run_dir = leave_run(tmp_path / "runs" / "a b")
    (run_dir / "video").mkdir()
    (run_dir / "video" / "seed1.mp4").write_bytes(bytes(8 * 10**6))
    path = write_comparison(groups([read_run(run_dir)]), tmp_path / "pages" / "page.html")
    assert '<a href="../runs/a%20b/video/seed1.mp4">' in path.read_text()


# --- what is refused -----------------------------------------------------------------------------


def no_run(path):
    return [path / "nothing"], "nothing does not exist; give directories of runs"


def no_manifest(path):
    (path / "empty").mkdir()
    return [path / "empty"], "empty is not a run directory: it has no manifest.json"


def another_manifest(path):
    (path / "x").mkdir()
    (path / "x" / "manifest.json").write_text('{"algorithm": "ppo"}')
    return [path / "x"], "manifest.json lacks env, config, seed"


def a_sweep(path):
    (path / "s").mkdir()
    (path / "s" / "sweep.json").write_text("{}")
    return [path / "s"], "s holds a sweep, not a run; leave it out, its own page is"


def no_metrics(path):
    (leave_run(path / "x") / "metrics.jsonl").unlink()
    return [path / "x"], "x has no metrics.jsonl; train the run, or leave it out"


def empty_metrics(path):
    (leave_run(path / "x") / "metrics.jsonl").write_text("")
    return [path / "x"], "metrics.jsonl has no row in which an episode ended; train it for longer"


def twice(path):
    leave_run(path / "x")
    return [path / "x", path / "x"], "x have the same settings and seed 1; give one of them"


def nothing(path):
    return [], "there are no runs to compare; give directories of runs"


def a_folder_for_a_page(path):
    (path / "page").mkdir()
    return [leave_run(path / "x")], "page cannot be written (Is a directory", path / "page"


def a_page_in_a_file(path):
    (path / "file").touch()
    message = "page.html cannot be written (File exists); choose another place for the page"
    return [leave_run(path / "x")], message, path / "file" / "page.html"


CASES = [
    no_run, no_manifest, another_manifest, a_sweep, no_metrics, empty_metrics, twice, nothing,
    a_folder_for_a_page, a_page_in_a_file,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_compared_is_refused(case, tmp_path, experiment):
    script = experiment("plot")
    run_dirs, message, *out = case(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((ValueError, OSError)) as refusal:
        script.main(script.Args(tuple(run_dirs), *out))
    assert message in str(refusal.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_refusal_is_one_line(tmp_path):
    finished = plot("runs/x", cwd=tmp_path)
    assert finished.returncode == 1
    assert finished.stderr == (
        "error: runs/x does not exist; give directories of runs, such as runs/ppo-Pong-v5-seed1\n"
    )
